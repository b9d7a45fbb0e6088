"""The tables of webhooks and what is sent to them."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from store.tables import NOW, TIME, ZERO, metadata

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("url", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("removed_at", TIME),
    Index(None, "tenant_id"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("webhook_id", Uuid, ForeignKey("webhooks.id"), nullable=False),
    Column("run_id", Uuid, ForeignKey("runs.id"), nullable=False),
    Column("run_finished_at", TIME, nullable=False),
    Column("event", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'pending'::text")),
    Column("attempts", Integer, nullable=False, server_default=ZERO),
    Column("status", Integer),
    Column("error", Text),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("next_attempt_at", TIME, nullable=False, server_default=NOW),
    Column("finished_at", TIME),
    UniqueConstraint("webhook_id", "run_id", "run_finished_at"),
    CheckConstraint("state in ('pending', 'delivered', 'dead')", name="state"),
    Index("ix_webhook_deliveries_tenant_id_id", "tenant_id", "id"),
    Index("ix_webhook_deliveries_due", "next_attempt_at", postgresql_where=text("state = 'pending'")),
)
