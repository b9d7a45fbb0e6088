"""The table of message batches."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Numeric,
    Table,
    Text,
    Uuid,
    text,
)

from store.tables import NOW, TIME, ZERO, metadata

OPEN: Final = ("wanted", "sending", "submitted", "canceling", "ended")
"""The states of a batch that something is still to be done about; a conversation has one such batch at most."""
CLOSED: Final = ("committed", "discarded", "superseded", "failed")
"""The states that are final."""

_IS_OPEN: Final = text(f"state in ({', '.join(map(repr, OPEN))})")

model_batches = Table(
    "model_batches",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    Column("state", Text, nullable=False, server_default=text("'wanted'::text")),
    Column("request_id", Uuid),
    Column("base_version", Integer),
    Column("first_seq", Integer),
    Column("last_seq", Integer),
    Column("zone_messages", Integer),
    Column("part_ends", ARRAY(Integer)),
    Column("fingerprint", Text),
    Column("canary", Text),
    Column("model", Text),
    Column("prompt_version", Text),
    Column("answer_tokens", Integer),
    Column("provider_batch_id", Text),
    Column("answers", ARRAY(Text)),
    Column("model_calls", Integer, nullable=False, server_default=ZERO),
    Column("model_input_tokens", Integer),
    Column("model_output_tokens", Integer),
    Column("cost_usd", Numeric(14, 6)),
    Column("attempts", Integer, nullable=False, server_default=ZERO),
    Column("failures", Integer, nullable=False, server_default=ZERO),
    Column("next_attempt_at", TIME, nullable=False, server_default=NOW),
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="SET NULL")),
    Column("reason", Text),
    Column("error", Text),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("sent_at", TIME),
    Column("expires_at", TIME),
    Column("finished_at", TIME),
    Column("reserved_tokens", BigInteger, nullable=False, server_default=ZERO),
    Column("reserved_cost_usd", Numeric(14, 6), nullable=False, server_default=ZERO),
    CheckConstraint(f"state in ({', '.join(map(repr, (*OPEN, *CLOSED)))})", name="state"),
    Index("uq_model_batches_open", "conversation_id", unique=True, postgresql_where=_IS_OPEN),
    Index("ix_model_batches_conversation_id_id", "conversation_id", "id"),
    Index("ix_model_batches_due", "next_attempt_at", postgresql_where=_IS_OPEN),
    Index("ix_model_batches_provider_batch_id", "provider_batch_id"),
    Index("ix_model_batches_run_id", "run_id"),
)
