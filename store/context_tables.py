"""The tables of what surrounds history in the context: pins, and what the last assembly was made of."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text, Uuid

from store.tables import NOW, TIME, metadata

assemblies = Table(
    "assemblies",
    metadata,
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("call", Text, nullable=False),
    Column("snapshot_version", Integer, nullable=False),
    Column("system_tokens", Integer, nullable=False),
    Column("prior_context_tokens", Integer, nullable=False),
    Column("turn_context_tokens", Integer, nullable=False),
    Column("history_tokens", Integer, nullable=False),
    Column("user_message_tokens", Integer, nullable=False),
    Column("reserved_output_tokens", Integer, nullable=False),
    Column("total_token_budget", Integer, nullable=False),
    Column("exchanges_total", Integer, nullable=False),
    Column("exchanges_kept", Integer, nullable=False),
    Column("rounds_dropped", Boolean, nullable=False),
    Column("responses_truncated", Integer, nullable=False),
    Column("blocks_shortened", Integer, nullable=False),
    Column("warnings", Integer, nullable=False),
    Column("assembled_at", TIME, nullable=False),
    CheckConstraint("call in ('payload', 'context')", name="call"),
)

pins = Table(
    "pins",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("request_id", Uuid),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("removed_at", TIME),
    Index(None, "conversation_id"),
)
