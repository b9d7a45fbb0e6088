"""The table of what is left to tell of erasures."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

from store.tables import TIME, metadata

erasures = Table(
    "erasures",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), nullable=False),
    Column("asked_for", Text, nullable=False),
    Column("key_id", Uuid),
    Column("request_id", Uuid),
    Column("message_count", Integer, nullable=False),
    Column("snapshot_count", Integer, nullable=False),
    Column("context_block_count", Integer, nullable=False),
    Column("pin_count", Integer, nullable=False),
    Column("run_count", Integer, nullable=False),
    Column("step_count", Integer, nullable=False),
    Column("batch_count", Integer, nullable=False),
    Column("delivery_count", Integer, nullable=False),
    Column("idempotency_key_count", Integer, nullable=False),
    Column("proof", LargeBinary, nullable=False),
    Column("erased_at", TIME, nullable=False),
    UniqueConstraint("conversation_id"),
    UniqueConstraint("tenant_id", "number"),
    CheckConstraint("asked_for in ('conversation', 'user')", name="asked_for"),
    Index(None, "tenant_id", "id"),
)
