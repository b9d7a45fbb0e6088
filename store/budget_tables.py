"""The tables of what tenants spend on models, and of the summaries that wait for another day's budget."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Date, ForeignKey, Index, Integer, Numeric, Table, Uuid, text

from store.tables import NOW, TIME, ZERO, metadata

_WAITS = text("done_at is null")

model_usage = Table(
    "model_usage",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("model_calls", BigInteger, nullable=False, server_default=ZERO),
    Column("input_tokens", BigInteger, nullable=False, server_default=ZERO),
    Column("output_tokens", BigInteger, nullable=False, server_default=ZERO),
    Column("cost_usd", Numeric(16, 6), nullable=False, server_default=ZERO),
)

waiting_summaries = Table(
    "waiting_summaries",
    metadata,
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("block_id", Uuid, ForeignKey("context_blocks.id", ondelete="CASCADE")),
    Column("base_version", Integer),
    Column("not_before", TIME, nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("done_at", TIME),
    Index(
        "uq_waiting_summaries_conversation_id",
        "conversation_id",
        unique=True,
        postgresql_where=text("block_id is null and done_at is null"),
    ),
    Index("uq_waiting_summaries_block_id", "block_id", unique=True, postgresql_where=_WAITS),
    Index("ix_waiting_summaries_block_id", "block_id", postgresql_where=text("block_id is not null")),
    Index("ix_waiting_summaries_tenant_id", "tenant_id", postgresql_where=_WAITS),
    Index("ix_waiting_summaries_not_before", "not_before", postgresql_where=_WAITS),
)
