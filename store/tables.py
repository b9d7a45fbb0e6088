"""The tables, as SQLAlchemy sees them.

The scripts in migrations/sql create them; a test holds the two together. What each is for: docs/architecture.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import (
    ARRAY,
    TIMESTAMP,
    BigInteger,
    BindParameter,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Computed,
    Date,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Label,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Row,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    case,
    cast,
    func,
    text,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB, REAL
from sqlalchemy.types import UserDefinedType

from compaction.steps.runs import ACTIVE, RunKind, RunState, RunTrigger, StepState
from runtime.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
"""A row whose columns its query names."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

NOW = text("now()")
ZERO = text("0")
_NONE = text("'-1'::integer")
_FALSE = text("false")
_EMPTY_OBJECT = text("'{}'::jsonb")
TIME = TIMESTAMP(timezone=True)


class JSONText(UserDefinedType[str]):
    """Column type `json` whose value stays the text it came as, in both directions."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        """Return the type's name in SQL."""
        return "JSON"

    # Cast on both ways: the two drivers would decode and encode the value, each in its own manner.
    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Read text."""
        return cast(column, Text)

    def bind_expression(self, bindvalue: BindParameter[Any]) -> ColumnElement[Any]:
        """Write text."""
        return cast(type_coerce(bindvalue, Text), JSON)


def _one_of(column: str, values: Iterable[StrEnum]) -> str:
    return f"{column} in ({', '.join(repr(value.value) for value in values)})"


def _active(column: str) -> str:
    return _one_of(column, ACTIVE)


tenants = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("policy", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("rate_limit_key", Text),
    Column("rate_limit_tenant", Text),
    Column("daily_model_tokens", BigInteger),
    Column("daily_model_cost_usd", Numeric(14, 6)),
    Column("limits_changed_at", TIME),
    UniqueConstraint("name"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("expires_at", TIME),
    Column("revoked_at", TIME),
    Column("last_used_at", TIME),
    Column("replaced_by", Uuid),
    Index(None, "tenant_id"),
)

conversations = Table(
    "conversations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), nullable=False),
    Column("external_id", Text),
    Column("user_ref", Text),
    Column("model", Text),
    Column("system", JSON(none_as_null=True)),
    Column("tools", JSON(none_as_null=True)),
    Column("policy", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    Column("metadata", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("next_seq", Integer, nullable=False, server_default=ZERO),
    Column("turn_count", Integer, nullable=False, server_default=ZERO),
    Column("revision", BigInteger, nullable=False, server_default=ZERO),
    Column("edits", Integer, nullable=False, server_default=ZERO),
    Column("head_version", Integer, nullable=False, server_default=ZERO),
    Column("last_version", Integer, nullable=False, server_default=ZERO),
    Column("pending_version", Integer),
    Column("covers_through", Integer, nullable=False, server_default=_NONE),
    Column("head_moved_at", Integer, nullable=False, server_default=_NONE),
    Column("context_tokens", Integer, nullable=False, server_default=ZERO),
    Column("context_messages", Integer, nullable=False, server_default=ZERO),
    Column("context_bytes", BigInteger, nullable=False, server_default=ZERO),
    Column("context_exchanges", Integer, nullable=False, server_default=ZERO),
    Column("left_out", Text),
    Column("last_request", Integer, nullable=False, server_default=_NONE),
    Column("fixed_tokens", Integer, nullable=False, server_default=ZERO),
    Column("token_ratio", REAL, nullable=False, server_default=text("1")),
    Column("ratio_samples", ARRAY(REAL), nullable=False, server_default=text("'{1,1}'::real[]")),
    Column("measured_tokens", Integer),
    Column("measured_input_tokens", Integer),
    Column("measured_version", Integer),
    Column("open_calls", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]")),
    Column("in_loop", Boolean, nullable=False, server_default=_FALSE),
    Column("loop_has_thinking", Boolean, nullable=False, server_default=_FALSE),
    Column("broken_through", Integer, nullable=False, server_default=_NONE),
    Column("strip_thinking_through", Integer, nullable=False, server_default=_NONE),
    Column("check_due_at", TIME),
    Column("check_request_id", Uuid),
    Column("newest_result", Integer, nullable=False, server_default=_NONE),
    Column("results_cut_through", Integer, nullable=False, server_default=_NONE),
    Column("tool_results_hold", Integer, nullable=False, server_default=ZERO),
    Column("summary_hold", Integer, nullable=False, server_default=ZERO),
    Column("trim_hold", Integer, nullable=False, server_default=ZERO),
    Column("overflows", Integer, nullable=False, server_default=ZERO),
    Column(
        "result_cap",
        Integer,
        Computed("((policy ->> 'max_tool_result_chars'::text))::integer", persisted=True),
    ),
    Column("carried_tokens", Integer, nullable=False, server_default=ZERO),
    Column("turn_context_tokens", Integer, nullable=False, server_default=ZERO),
    Column("held_by_restore", Boolean, nullable=False, server_default=_FALSE),
    Column("counted_cap", Integer),
    Column("erased_at", TIME),
    Column("unstored_tokens", Integer, nullable=False, server_default=ZERO),
    Column("last_count", ARRAY(Integer)),
    Column("measured_seq", Integer, nullable=False, server_default=ZERO),
    Column("restored_over_budget", Boolean, nullable=False, server_default=_FALSE),
    Column("shape", Text),
    Column("mixed_shapes", Boolean, nullable=False, server_default=_FALSE),
    Column("other_model_through", Integer, nullable=False, server_default=_NONE),
    Column("rules", JSONB),
    Column("newest_media", Integer, nullable=False, server_default=_NONE),
    Column("media_checked_through", Integer, nullable=False, server_default=_NONE),
    Column("requested_output", Integer),
    CheckConstraint("shape in ('chat', 'responses')", name="shape"),
    Index(
        "uq_conversations_external_id",
        "tenant_id",
        "external_id",
        unique=True,
        postgresql_where=text("external_id is not null"),
    ),
    Index("ix_conversations_tenant_id_id", "tenant_id", "id"),
    Index(
        "ix_conversations_user_ref",
        "tenant_id",
        "user_ref",
        "id",
        postgresql_where=text("user_ref is not null"),
    ),
    Index("ix_conversations_check_due_at", "check_due_at", postgresql_where=text("check_due_at is not null")),
    Index(
        "ix_conversations_own_retention",
        "tenant_id",
        "id",
        postgresql_where=text("policy ? 'message_retention_days'"),
    ),
)

messages = Table(
    "messages",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid),
    Column("seq", Integer),
    Column("role", Text, nullable=False),
    Column("content", JSONText, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("view_tokens", Integer, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("result_chars", ARRAY(Integer)),
    Column("is_request", Boolean, nullable=False),
    Column("has_thinking", Boolean, nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("superseded_at", TIME),
    Column("shape", Text),
    Column("sent", JSONText),
    Column("said_at", TIME),
    Column("is_undated", Boolean),
    Column("request_id", Uuid),
    PrimaryKeyConstraint("conversation_id", "seq"),
    CheckConstraint("role in ('user', 'assistant')", name="role"),
    CheckConstraint("coalesce(shape in ('chat', 'responses'), sent is null)", name="shape"),
    Index(None, "request_id", postgresql_using="brin", postgresql_with={"autosummarize": "on"}),
)
message_media = Table(
    "message_media",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid),
    Column("seq", Integer),
    Column("images", Integer, nullable=False),
    Column("image_side", Integer, nullable=False),
    Column("documents", Integer, nullable=False),
    Column("document_pages", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    PrimaryKeyConstraint("conversation_id", "seq"),
    ForeignKeyConstraint(["conversation_id"], ["conversations.id"]),
)
"""The load of each message in force that has images or files; see MediaLoad."""
SAID_AT: Final = "case when m.is_undated then null else coalesce(m.said_at, m.created_at) end"
"""When a message was said, in SQL of messages as m; null where that is unknown. `created_at` is when it was stored."""


def said_at() -> Label[Any]:
    """Return when a message was said, null where that is unknown, under the name `created_at` that clients know."""
    known = messages.c.is_undated.is_not(True)
    return case((known, func.coalesce(messages.c.said_at, messages.c.created_at))).label("created_at")


gateway_conversations = Table(
    "gateway_conversations",
    metadata,
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("circle", LargeBinary, nullable=False),
    Column("branch_of", Uuid),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Index("ix_gateway_conversations_circle", "tenant_id", "circle", "conversation_id"),
)

gateway_prefixes = Table(
    "gateway_prefixes",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id")),
    Column("seq", Integer),
    Column("key", LargeBinary, nullable=False),
    Column("outcome", Text),
    Column("saved_tokens", Integer),
    Column("head_version", Integer),
    Column("retried", Boolean),
    Column("aborted", Boolean),
    Column("answered_at", TIME),
    PrimaryKeyConstraint("conversation_id", "seq"),
    CheckConstraint("outcome in ('compacted', 'unchanged', 'failed_open')", name="outcome"),
    Index("ix_gateway_prefixes_key", "tenant_id", "key", "conversation_id"),
)

gateway_recalls = Table(
    "gateway_recalls",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id")),
    Column("seq", Integer),
    Column("through_seq", Integer, nullable=False),
    Column("resent", Integer),
    Column("shown", JSONText, nullable=False),
    Column("results", JSONText, nullable=False),
    Column("response_id", Text),
    Column("last_response_id", Text),
    PrimaryKeyConstraint("conversation_id", "seq"),
    Index("ix_gateway_recalls_response", "tenant_id", "response_id", postgresql_where=text("response_id is not null")),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid),
    Column("key", Text),
    Column("body_hash", LargeBinary, nullable=False),
    Column("first_seq", Integer, nullable=False),
    Column("last_seq", Integer, nullable=False),
    Column("context_tokens", Integer, nullable=False),
    Column("queued", Boolean, nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    PrimaryKeyConstraint("conversation_id", "key"),
    Index("ix_idempotency_keys_created_at", "created_at"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), nullable=False),
    Column("trigger", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("reason", Text),
    Column("error", Text),
    Column("policy", JSONB, nullable=False),
    Column("request_id", Uuid),
    Column("attempts", Integer, nullable=False, server_default=ZERO),
    Column("lease_token", Uuid),
    Column("lease_expires_at", TIME),
    Column("worker", Text),
    Column("parent_version", Integer),
    Column("snapshot_version", Integer),
    Column("tokens_before", Integer),
    Column("tokens_after", Integer),
    Column("messages_before", Integer),
    Column("messages_after", Integer),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("queued_at", TIME, nullable=False, server_default=NOW),
    Column("started_at", TIME),
    Column("finished_at", TIME),
    Column("strategy", Text),
    Column("instructions", Text),
    Column("base_version", Integer),
    Column("target_tokens", Integer),
    Column("block_id", Uuid, ForeignKey("context_blocks.id")),
    Column("reserved_tokens", BigInteger, nullable=False, server_default=ZERO),
    Column("reserved_cost_usd", Numeric(14, 6), nullable=False, server_default=ZERO),
    Column("not_before", TIME),
    Column("kind", Text),
    Column("process_id", Uuid),
    CheckConstraint(_one_of("state", RunState), name="state"),
    CheckConstraint(_one_of("queue", Queue), name="queue"),
    CheckConstraint(_one_of("kind", RunKind), name="kind"),
    CheckConstraint(_one_of("trigger", RunTrigger), name="trigger"),
    Index(
        "uq_runs_active",
        "conversation_id",
        unique=True,
        postgresql_where=text(f"{_active('state')} and block_id is null"),
    ),
    Index("uq_runs_active_block", "block_id", unique=True, postgresql_where=text(_active("state"))),
    Index("ix_runs_conversation_id_id", "conversation_id", "id"),
    Index("ix_runs_block_id", "block_id", postgresql_where=text("block_id is not null")),
    Index("ix_runs_tenant_id_id", "tenant_id", "id"),
    Index("ix_runs_dead", "tenant_id", "id", postgresql_where=text("state = 'dead'")),
    Index("ix_runs_failed", "tenant_id", "id", postgresql_where=text("state in ('degraded', 'failed')")),
    Index("ix_runs_active", "state", "queued_at", postgresql_where=text(_active("state"))),
)

run_steps = Table(
    "run_steps",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("run_id", Uuid, ForeignKey("runs.id")),
    Column("step_no", Integer),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("detail", Text),
    Column("error", Text),
    Column("attempt", Integer, nullable=False),
    Column("snapshot_version", Integer),
    Column("tokens_before", Integer, nullable=False),
    Column("tokens_after", Integer, nullable=False),
    Column("messages_before", Integer, nullable=False),
    Column("messages_after", Integer, nullable=False),
    Column("results_cut", Integer),
    Column("summarizer", Text),
    Column("model", Text),
    Column("prompt_version", Text),
    Column("model_calls", Integer, nullable=False, server_default=ZERO),
    Column("model_input_tokens", Integer),
    Column("model_output_tokens", Integer),
    Column("cost_usd", Numeric(14, 6)),
    Column("duration_ms", Integer, nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("shared_tokens", Integer),
    PrimaryKeyConstraint("run_id", "step_no"),
    CheckConstraint(_one_of("state", StepState), name="state"),
)


def _snapshot_columns(messages: Column[str]) -> list[Column[Any]]:
    return [
        Column("tenant_id", Uuid, nullable=False),
        Column("conversation_id", Uuid, primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("parent_version", Integer, nullable=False),
        Column("run_id", Uuid),
        Column("step", Text, nullable=False),
        Column("covers_through", Integer, nullable=False),
        messages,
        Column("seqs", ARRAY(Integer), nullable=False),
        Column("coverage", JSONB, nullable=False),
        Column("summary", Text),
        Column("summarizer", Text),
        Column("tokens", Integer, nullable=False),
        Column("message_count", Integer, nullable=False),
        Column("bytes", Integer, nullable=False),
        Column("exchanges", Integer, nullable=False),
        Column("prefix_hash", LargeBinary, nullable=False),
        Column("created_at", TIME, nullable=False, server_default=NOW),
        Column("pins", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
        # On the table it comes after the columns that only the table has.
        *(
            []
            if messages.nullable
            else [Column("claims", JSONB(none_as_null=True)), Column("media", ARRAY(BigInteger))]
        ),
    ]


snapshot_parts = Table(
    "snapshot_parts",
    metadata,
    *_snapshot_columns(Column("messages", JSONText)),
    Column("part", Text),
    Column("follows", ARRAY(Integer), nullable=False, server_default=text("'{}'::integer[]")),
    Column("claims", JSONB(none_as_null=True)),
    Column("media", ARRAY(BigInteger)),
    ForeignKeyConstraint(["conversation_id"], ["conversations.id"]),
    ForeignKeyConstraint(["run_id"], ["runs.id"]),
    Index("ix_snapshots_run_id", "run_id"),
)
"""What is stored of snapshots; only the database itself reads and writes it. See migrations/sql/views.sql."""

snapshots = Table("snapshots", MetaData(), *_snapshot_columns(Column("messages", JSONText, nullable=False)))
"""The view that has every snapshot's messages as a whole, and takes them so."""

context_blocks = Table(
    "context_blocks",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("source", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("outline", Text, nullable=False),
    Column("summary", Text),
    Column("summarized_at", TIME),
    Column("tokens", Integer, nullable=False),
    Column("outline_tokens", Integer, nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    Column("carried_until", Integer),
    Column("superseded_at", TIME),
    UniqueConstraint("conversation_id", "seq", "position"),
    Index(None, "conversation_id", "digest"),
    Index(
        "ix_context_blocks_carried",
        "conversation_id",
        postgresql_where=text("carried_until is null and superseded_at is null"),
    ),
)


recall_segments = Table(
    "recall_segments",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), primary_key=True),
    Column("first_seq", Integer, primary_key=True),
    Column("last_seq", Integer, nullable=False),
    Column("terms", LargeBinary, nullable=False),
    CheckConstraint("last_seq >= first_seq", name="span"),
)


waiting_snapshots = Table(
    "waiting_snapshots",
    metadata,
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("version", Integer),
    Column("head_version", Integer, nullable=False),
    Column("edits", Integer, nullable=False),
    Column("pins", ARRAY(Uuid), nullable=False),
    Column("lifetime", Integer, nullable=False),
    Column("cold_at", TIME, nullable=False),
    Index(None, "cold_at"),
)

turn_usages = Table(
    "turn_usages",
    metadata,
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id")),
    Column("seq", Integer),
    Column("snapshot_version", Integer, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer),
    Column("written_tokens", Integer),
    Column("output_tokens", Integer, nullable=False),
    Column("is_edit", Boolean, nullable=False),
    Column("answered_at", TIME, nullable=False),
    Column("reckoned_at", TIME),
    Column("prefix_tokens", Integer),
    Column("expected_tokens", Integer),
    Column("saved_tokens", Integer),
    Column("cost_usd", Numeric(14, 6)),
    Column("saved_usd", Numeric(14, 6)),
    Column("saved_uncached_usd", Numeric(14, 6)),
    PrimaryKeyConstraint("conversation_id", "seq"),
    Index("ix_turn_usages_reckoned_at", "answered_at", postgresql_where=text("reckoned_at is null")),
    Index(None, "tenant_id", "answered_at"),
)

recall_requests = Table(
    "recall_requests",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("tenant_id", Uuid, nullable=False),
    Column("conversation_id", Uuid, ForeignKey("conversations.id"), nullable=False),
    Column("key_id", Uuid, nullable=False),
    Column("request_id", Uuid, nullable=False),
    Column("origin", Text, nullable=False),
    Column("of_user", Boolean, nullable=False),
    Column("kind", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("refs", ARRAY(Text), nullable=False),
    Column("seqs", ARRAY(Integer), nullable=False),
    Column("left_by", ARRAY(Text), nullable=False),
    Column("left_in", ARRAY(Uuid), nullable=False),
    Column("searched", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("created_at", TIME, nullable=False, server_default=NOW),
    CheckConstraint("origin in ('api', 'console')", name="origin"),
    CheckConstraint("kind in ('query', 'ref', 'pattern')", name="kind"),
    CheckConstraint(
        "cardinality(seqs) = cardinality(left_by) and cardinality(seqs) = cardinality(left_in)", name="parallel"
    ),
    Index(None, "conversation_id", "id"),
    Index(None, "tenant_id", "id"),
    Index("ix_recall_requests_of_user", "request_id", postgresql_where=text("of_user")),
)


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
    Column("source", Text, nullable=False, server_default="pinned"),
    Column("speaker", Text, nullable=False, server_default=""),
    Index(None, "conversation_id"),
    CheckConstraint("source in ('pinned', 'detected', 'withdrawal')", name="source"),
)

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
    Column("delivery_count", Integer, nullable=False),
    Column("idempotency_key_count", Integer, nullable=False),
    Column("proof", LargeBinary, nullable=False),
    Column("erased_at", TIME, nullable=False),
    UniqueConstraint("conversation_id"),
    UniqueConstraint("tenant_id", "number"),
    CheckConstraint("asked_for in ('conversation', 'user', 'retention')", name="asked_for"),
    Index(None, "tenant_id", "id"),
)

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
    Index("ix_webhook_deliveries_run_id", "run_id"),
    Index("ix_webhook_deliveries_due", "next_attempt_at", postgresql_where=text("state = 'pending'")),
    Index("ix_webhook_deliveries_dead", "tenant_id", "id", postgresql_where=text("state = 'dead'")),
)

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

processes = Table(
    "processes",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("queues", ARRAY(Text), nullable=False),
    Column("version", Text, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("summarizer", Text),
    Column("model", Text),
    Column("busy", Integer, nullable=False, server_default=text("0")),
    Column("oldest_task_at", TIME),
    Column("started_at", TIME, nullable=False, server_default=NOW),
    Column("seen_at", TIME, nullable=False, server_default=NOW),
    CheckConstraint("kind in ('worker', 'beat', 'api', 'gateway')", name="kind"),
)
