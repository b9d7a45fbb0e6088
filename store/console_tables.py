"""The tables of the console: who is signed in, and what operators did."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)

from store.tables import NOW, TIME, metadata

console_sessions = Table(
    "console_sessions",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("key_id", Uuid, ForeignKey("api_keys.id"), nullable=False),
    Column("is_ticket", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("expires_at", TIME, nullable=False),
    Column("ended_at", TIME),
    Index(None, "expires_at"),
)

operator_actions = Table(
    "operator_actions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("key_id", Uuid, nullable=False),
    Column("action", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("conversation_id", Uuid),
    Column("run_id", Uuid),
    Column("version", Integer),
    Column("request_id", Uuid, nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("subject_key_id", Uuid),
    Column("subject_id", Uuid),
    CheckConstraint(
        "action in ('sign_in', 'sign_out', 'compact', 'restore', 'retry', 'demo',"
        " 'key_create', 'key_rotate', 'key_revoke', 'erase', 'export', 'webhook_create', 'webhook_remove',"
        " 'delivery_retry')",
        name="action",
    ),
    Index(None, "tenant_id", "id"),
)
