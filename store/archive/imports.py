"""A conversation that comes back from an export: its rows written under new ids, its counters counted anew."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, exists, func, insert, select, text, update

from compaction.media.limits import NO_MEDIA, media_load
from compaction.steps.runs import ACTIVE, RunReason, RunState, RunTrigger
from runtime import ids
from store.archive.import_rows import TABLES
from store.conversations import context_blocks, conversations
from store.conversations.snapshots import move_head
from store.runs.requested import record
from store.tables import conversations as conversations_table
from store.tables import erasures, message_media, model_usage, runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from compaction.policy import Policy

    Row = Mapping[str, Any]

_c, _u = conversations_table.c, model_usage.c
_STATE: Final = (
    "head_moved_at",
    "strip_thinking_through",
    "results_cut_through",
    "tool_results_hold",
    "summary_hold",
    "trim_hold",
    "held_by_restore",
    "restored_over_budget",
    "measured_tokens",
    "measured_input_tokens",
    "measured_version",
    "pending_version",
    "last_version",
    "revision",
)
"""What a conversation knows that its rows do not tell, and that moving its head would make it forget."""
_GIVEN_ANEW: Final = (
    "id",
    "external_id",
    "head_version",
    "covers_through",
    "check_due_at",
    "check_request_id",
    "erased_at",
)
"""What is not taken over from the exported conversation's row as it is."""


class ErasedError(Exception):
    """The conversation was erased here, and does not come back."""


class Names(NamedTuple):
    """The new ids of what is imported, by the old ones. Each is of the old one's time, and sorts as it did."""

    tenant: UUID
    conversation: UUID
    runs: Mapping[UUID, UUID]
    blocks: Mapping[UUID, UUID]
    pins: Mapping[UUID, UUID]

    @classmethod
    def of(cls, tenant: UUID, *, runs: Iterable[UUID], blocks: Iterable[UUID], pins: Iterable[UUID]) -> Names:
        """Return new ids for a conversation, and for what it has."""
        return cls(tenant, ids.new_id(), ids.renewed(runs), ids.renewed(blocks), ids.renewed(pins))

    def row(self, kind: str, row: Row) -> dict[str, Any]:
        """Return a row under its new ids; a reference to what is not in the export stays as it is."""
        changed: dict[str, Any] = {**row, "tenant_id": self.tenant}
        if "conversation_id" in row:
            changed["conversation_id"] = self.conversation
        own = {"run": self.runs, "context_block": self.blocks, "pin": self.pins}.get(kind)
        if own is not None:
            changed["id"] = own[row["id"]]
        if row.get("run_id") is not None:
            changed["run_id"] = self.runs[row["run_id"]]
        if kind == "snapshot":
            by_run = {str(old): str(new) for old, new in self.runs.items()}
            by_pin = {str(old): str(new) for old, new in self.pins.items()}
            changed["coverage"] = [[*span[:3], by_run.get(span[3], span[3])] for span in row["coverage"]]
            changed["pins"] = [[by_pin.get(pin[0], pin[0]), *pin[1:]] for pin in row.get("pins", ())]
        return changed


def begin(
    connection: Connection,
    names: Names,
    conversation: Row,
    run_rows: Sequence[Row],
    *,
    external_id: str | None,
) -> bool:
    """Write a conversation and its runs, so that other rows can name them; False if another has its external_id.

    A run that was under way is over: its worker knows nothing of the import. Raises ErasedError.
    """
    tombstone = (erasures.c.tenant_id == names.tenant, erasures.c.conversation_id == conversation["id"])
    if connection.scalar(select(exists().where(*tombstone))):
        raise ErasedError
    if external_id is not None and conversations.page(connection, names.tenant, limit=1, external_id=external_id):
        return False
    taken = {name: value for name, value in conversation.items() if name not in _GIVEN_ANEW}
    connection.execute(
        insert(conversations_table).values(
            **taken
            | {"id": names.conversation, "tenant_id": names.tenant, "external_id": external_id, "pending_version": None}
        )
    )
    for row in run_rows:
        # Its context block is yet to come: see `finish`.
        changed = names.row("run", row) | {"reserved_tokens": 0, "reserved_cost_usd": 0, "block_id": None}
        if row["state"] in ACTIVE:
            changed |= {"state": RunState.SKIPPED, "reason": RunReason.HEAD_MOVED, "finished_at": func.now()}
        connection.execute(insert(runs).values(changed))
    return True


def add(connection: Connection, names: Names, kind: str, rows: Sequence[Row]) -> None:
    """Write rows of a kind."""
    # Rows of one statement have the same columns.
    by_columns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        changed = names.row(kind, row)
        by_columns.setdefault(tuple(changed), []).append(changed)
    for group in by_columns.values():
        connection.execute(insert(TABLES[kind]), group)
    if kind == "message" and (loads := _media_of(rows)):
        own = {"tenant_id": names.tenant, "conversation_id": names.conversation}
        connection.execute(insert(message_media), [own | load for load in loads])


def _media_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows of message_media that belong to rows of messages; those that were replaced have none."""
    loads = []
    for row in rows:
        if row.get("superseded_at") is None and row["content"].lstrip().startswith("["):
            load = media_load([msgspec.json.decode(row["content"])])
            if load is not NO_MEDIA:
                loads.append({"seq": row["seq"], **load._asdict()})
    return loads


def finish(
    connection: Connection,
    names: Names,
    conversation: Row,
    run_rows: Sequence[Row],
    steps: Sequence[Row],
    *,
    policy: Policy,
) -> UUID:
    """Move the head to where it was, count anew what can be counted, and make a check due; return the import's run."""
    for row in run_rows:
        if row.get("block_id") is not None:
            block = {"block_id": names.blocks[row["block_id"]]}
            connection.execute(update(runs).where(runs.c.id == names.runs[row["id"]]).values(block))
    head = conversation.get("head_version", 0)
    move_head(connection, names.conversation, head)
    connection.execute(text("select recount_end(:conversation)"), {"conversation": names.conversation})
    context_blocks.recount(connection, names.conversation)
    state = {name: conversation[name] for name in _STATE if name in conversation}
    # The policy may be another one here.
    state["check_due_at"] = func.now()
    newest = select(func.coalesce(func.max(message_media.c.seq), -1)).where(
        message_media.c.conversation_id == names.conversation
    )
    state["newest_media"] = newest.scalar_subquery()
    connection.execute(update(conversations_table).where(_c.id == names.conversation).values(state))
    run_id = record(
        connection,
        names.tenant,
        names.conversation,
        trigger=RunTrigger.IMPORT,
        policy=policy,
        request_id=None,
        parent_version=head,
        snapshot_version=head or None,
        reason="imported",
    )
    # Last, because the day's usage of the tenant stays locked from here to the end.
    add(connection, names, "run_step", steps)
    _uncount(connection, names.tenant, steps)
    return run_id


def _uncount(connection: Connection, tenant_id: UUID, steps: Sequence[Row]) -> None:
    """Take what imported steps cost off today's usage: it was spent on another day, and perhaps by another tenant."""
    counts: Counter[str] = Counter()
    cost = Decimal(0)
    for step in steps:
        counts["calls"] += step.get("model_calls") or 0
        counts["read"] += step.get("model_input_tokens") or 0
        counts["written"] += step.get("model_output_tokens") or 0
        cost += step.get("cost_usd") or 0
    if any(counts.values()) or cost:
        connection.execute(
            update(model_usage)
            .where(_u.tenant_id == tenant_id, _u.day == func.date(func.timezone("utc", func.now())))
            .values(
                model_calls=_u.model_calls - counts["calls"],
                input_tokens=_u.input_tokens - counts["read"],
                output_tokens=_u.output_tokens - counts["written"],
                cost_usd=_u.cost_usd - cost,
            )
        )
