"""Conversations: created, listed, and what a check has to know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Connection, Double, Select, case, cast, func, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from compaction.media.limits import NO_MEDIA, MediaLoad
from compaction.payload.assembly import fixed_tokens
from compaction.steps.ladder import Load
from runtime import ids
from store.tables import conversations, messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Column, ColumnElement

    from compaction.steps.holds import GrowthHold
    from store.tables import AnyRow

_c = conversations.c
STORED_TOKENS: Final = _c.context_tokens + _c.fixed_tokens
"""Tokens of a conversation's context by the estimate alone, which only what is stored changes: the measure of holds."""
ESTIMATED_TOKENS: Final = func.ceil(STORED_TOKENS * _c.token_ratio) + _c.unstored_tokens
INPUT_TOKENS: Final = case(
    ((_c.measured_version == _c.head_version) & _c.measured_tokens.is_not(None), _c.measured_tokens),
    else_=ESTIMATED_TOKENS,
)
"""Tokens of a conversation's next call: as measured, where that was with the head, else as estimated."""
_SUMMARY: Final = (
    _c.id,
    _c.external_id,
    _c.user_ref,
    _c.model,
    _c.shape,
    _c.policy,
    _c.metadata.label("metadata"),
    _c.created_at,
    _c.next_seq,
    _c.head_version,
    _c.pending_version,
    INPUT_TOKENS.label("context_tokens"),
    _c.context_messages,
    _c.check_due_at,
)


class CheckState(NamedTuple):
    """What a check knows of a conversation; see the database function due_states."""

    conversation_id: UUID
    tenant_id: UUID
    tenant_policy: str
    """JSON text, as `policy` is: few differ, so that whoever parses them can remember what he parsed."""
    policy: str
    model: str | None
    revision: int
    estimated: int
    measured: int | None
    context_bytes: int
    has_old_results: bool
    tool_results_hold: int
    summary_hold: int
    trim_hold: int
    pending_version: int | None
    has_active_run: bool
    counted_cap: int | None
    """Characters of a tool result that the context was counted with; None before there was any."""
    stored: int
    is_counted: bool
    media: Sequence[int] | None
    """The context's MediaLoad; None if no media came since a run looked at them."""
    requested_output: int | None
    """Tokens of output that the newest request asks for at most."""

    @property
    def load(self) -> Load:
        """Return what the ladder decides from."""
        return Load(
            estimated=self.estimated,
            measured=self.measured,
            stored=self.stored,
            is_counted=self.is_counted,
            bytes=self.context_bytes,
            has_old_results=self.has_old_results,
            tool_results_hold=self.tool_results_hold,
            summary_hold=self.summary_hold,
            trim_hold=self.trim_hold,
            media=NO_MEDIA if self.media is None else MediaLoad(*self.media),
        )


_CHECK_STATES: Final = text(
    "select {} from due_states(:ids, :lock)".format(  # noqa: S608 - names of columns
        ", ".join(f"{name}::text" if name.endswith("policy") else name for name in CheckState._fields)
    )
)


def create(connection: Connection, tenant_id: UUID, values: Mapping[str, Any]) -> tuple[AnyRow, bool]:
    """Make a conversation; return it and True, or the one that has its external_id already and False."""
    fixed = fixed_tokens(values.get("system"), values.get("tools"))
    statement = upsert(conversations).values(id=ids.new_id(), tenant_id=tenant_id, fixed_tokens=fixed, **values)
    if values.get("external_id") is not None:
        statement = statement.on_conflict_do_nothing(
            index_elements=[_c.tenant_id, _c.external_id], index_where=_c.external_id.is_not(None)
        )
    new_id = connection.execute(statement.returning(_c.id)).scalar_one_or_none()
    chosen = _c.id == new_id if new_id else _c.external_id == values["external_id"]
    row = connection.execute(_one(tenant_id).where(chosen)).one()
    return row, new_id is not None


def get(connection: Connection, tenant_id: UUID, conversation_id: UUID, *, lock: bool = False) -> AnyRow | None:
    """Return one conversation with its system prompt and tools; with `lock` nobody else changes it meanwhile."""
    query = _one(tenant_id).where(_c.id == conversation_id)
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def lock(connection: Connection, conversation_id: UUID) -> None:
    """Lock a conversation's row: before those of its runs and blocks, as everywhere."""
    connection.execute(select(conversations.c.id).where(conversations.c.id == conversation_id).with_for_update())


def page(
    connection: Connection,
    tenant_id: UUID,
    *,
    limit: int,
    after: UUID | None = None,
    before: UUID | None = None,
    user_ref: str | None = None,
    external_id: str | None = None,
) -> Sequence[AnyRow]:
    """Return up to `limit` conversations, newest first; `after` continues to older ones, `before` to newer."""
    query = select(*_SUMMARY).where(_c.tenant_id == tenant_id)
    if user_ref is not None:
        query = query.where(_c.user_ref == user_ref)
    if after is not None:
        query = query.where(_c.id < after)
    if before is not None:
        query = query.where(_c.id > before)
    if external_id is not None:
        # One at most. Asked for an order too, Postgres, which keeps no statistics of names, walks all conversations.
        return connection.execute(query.where(_c.external_id == external_id)).all()
    if before is not None:
        return list(reversed(connection.execute(query.order_by(_c.id).limit(limit)).all()))
    return connection.execute(query.order_by(_c.id.desc()).limit(limit)).all()


def change(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    values: Mapping[str, Any],
    *,
    result_cap: int | None = None,
    view_changes: bool = False,
) -> AnyRow | None:
    """Change what a conversation was made with; a new policy lifts the holds that the old one set.

    Another model can read nothing of what the one before it thought.

    `result_cap` are the characters of a tool result that the view shows from now on: the context is counted anew by
    it. `view_changes` tells that the view is another one for other reasons; that is counted by the next snapshot.
    """
    statement = (
        update(conversations)
        .where(_c.tenant_id == tenant_id, _c.id == conversation_id)
        .values(**values, revision=func.next_revision(_c.revision))
    )
    if "policy" in values:
        statement = statement.values(
            tool_results_hold=0,
            summary_hold=0,
            trim_hold=0,
            results_cut_through=-1,
            held_by_restore=False,
            check_due_at=func.coalesce(_c.check_due_at, func.now()),
        )
    if not {"policy", "model"}.isdisjoint(values):
        # The limits on media may be others.
        statement = statement.values(media_checked_through=-1)
    if "model" in values:
        switched = _c.model.is_not(None) & _c.model.is_distinct_from(values["model"])
        statement = statement.values(
            other_model_through=case((switched, _c.next_seq - 1), else_=_c.other_model_through),
            strip_thinking_through=case((switched, _c.next_seq - 1), else_=_c.strip_thinking_through),
            loop_has_thinking=_c.loop_has_thinking & ~switched,
        )
    if view_changes:
        statement = statement.values(
            measured_tokens=None,
            measured_input_tokens=None,
            measured_version=None,
            head_moved_at=_c.next_seq,
            strip_thinking_through=_c.next_seq - 1,
        )
    count = connection.execute(statement).rowcount
    if count and result_cap is not None:
        recount(connection, conversation_id, result_cap)
    changed = get(connection, tenant_id, conversation_id)
    if changed is not None and not {"system", "tools"}.isdisjoint(values):
        fixed = fixed_tokens(changed.system, changed.tools) + changed.carried_tokens
        # What is stored from now on may be what was learned before.
        unstored = _c.unstored_tokens - func.greatest(0, func.round((fixed - _c.fixed_tokens) * _c.token_ratio))
        connection.execute(
            update(conversations)
            .where(_c.id == conversation_id)
            .values(fixed_tokens=fixed, unstored_tokens=func.greatest(0, unstored))
        )
        return get(connection, tenant_id, conversation_id)
    return changed


def recount(connection: Connection, conversation_id: UUID, result_cap: int) -> None:
    """Count the context anew as a view shows it that has `result_cap` characters of a tool result at most."""
    connection.execute(
        text("select recount_results(:conversation, :cap)"), {"conversation": conversation_id, "cap": result_cap}
    )


def check_states(connection: Connection, conversation_ids: Sequence[UUID], *, lock: bool = False) -> list[CheckState]:
    """Return the state of those of the conversations that have a check due, whatever their tenant.

    With `lock` nothing is appended to them before the transaction ends.
    """
    rows = connection.execute(_CHECK_STATES, {"ids": list(conversation_ids), "lock": lock})
    return [CheckState._make(row) for row in rows.all()]


def clear_checks(connection: Connection, states: Sequence[CheckState]) -> set[UUID]:
    """Take the check's mark off unless something was appended since; return the ids that it came off.

    The commit does not wait for the disk: a mark that a crash brings back is one more check.
    """
    # Rows are locked in the order of their ids, whoever asks: two workers with the same ones do not wait in a circle.
    ordered = sorted(states, key=lambda state: state.conversation_id)
    rows = connection.execute(
        text("select * from clear_checks(:ids, cast(:revisions as bigint[]))"),
        {
            "ids": [state.conversation_id for state in ordered],
            "revisions": [state.revision for state in ordered],
        },
    )
    return set(rows.scalars())


class OverdueCheck(NamedTuple):
    """A check whose wake-up got lost, or is late; `nth` is its place among its tenant's, from 1."""

    conversation_id: UUID
    tenant_id: UUID
    due_at: datetime
    nth: int


def overdue_checks(connection: Connection, seconds: float, limit: int) -> list[OverdueCheck]:
    """Return checks that have been due for longer than `seconds`; tenants take turns, each with its oldest first."""
    rows = connection.execute(
        text("select * from overdue_checks_by_turns(:seconds, :limit)"), {"seconds": seconds, "limit": limit}
    )
    return [OverdueCheck(*row) for row in rows]


def mark_due(connection: Connection, conversation_id: UUID) -> None:
    """Ask for another check; the new revision keeps one that is under way from taking the mark off."""
    connection.execute(
        update(conversations)
        .where(_c.id == conversation_id)
        .values(check_due_at=func.coalesce(_c.check_due_at, func.now()), revision=func.next_revision(_c.revision))
    )


def restored_hold(connection: Connection, conversation_id: UUID) -> dict[str, Any]:
    """Return the columns that hold a restored conversation, empty where none does: a moved head ends the hold."""
    columns = (_c.held_by_restore, _c.restored_over_budget, _c.tool_results_hold, _c.summary_hold, _c.trim_hold)
    held = connection.execute(select(*columns).where(_c.id == conversation_id, _c.held_by_restore)).one_or_none()
    return {} if held is None else dict(zip((column.name for column in columns), held, strict=True))


def _hold_after(hold: GrowthHold, newer: ColumnElement[Any], hold_before: Column[int]) -> ColumnElement[Any]:
    """Return the hold on a conversation, `newer` of whose stored tokens have not been tried yet.

    One that is not set anew is no further away than it would be then: what is held may have become much less.
    """
    held = func.greatest(0, INPUT_TOKENS - func.ceil(newer * _c.token_ratio))
    grown: ColumnElement[Any] = func.greatest(1, STORED_TOKENS - newer)
    if hold.growth:
        growth = func.greatest(hold.growth, func.floor(held * literal(hold.share, Double)))
        grown = grown + func.floor(growth / cast(_c.token_ratio, Double))
    if hold.most is not None:
        # In the measure of what is stored, as if it went on to be counted as it is now.
        least = func.least(grown, STORED_TOKENS * hold.most / func.greatest(1, cast(INPUT_TOKENS, Double)) - 1)
        grown = case((hold.most > INPUT_TOKENS, func.greatest(1, func.floor(least))), else_=grown)
    return case((held > hold.above, grown), else_=func.least(hold_before, grown))


def hold(
    connection: Connection,
    conversation_id: UUID,
    *,
    tool_results: GrowthHold | None,
    summary: GrowthHold | None,
    trim: int | None = None,
    results_through: int | None = None,
    media_through: int | None = None,
    seen: int | None = None,
) -> None:
    """Keep steps from being tried again for now; None leaves a hold as it is.

    The counters that checks decide from are the measure. Messages with a seq over `seen` have not been tried yet, so
    they count as growth. `trim` is in bytes; `results_through` is the newest tool-result message that was checked,
    `media_through` the newest message whose media were.
    """
    newer: ColumnElement[Any] = literal(0)
    if seen is not None:
        newer = (
            select(func.coalesce(func.sum(messages.c.view_tokens), 0))
            .where(
                messages.c.conversation_id == conversation_id, messages.c.seq > seen, messages.c.superseded_at.is_(None)
            )
            .scalar_subquery()
        )
    changed: dict[Any, Any] = {
        column: _hold_after(step, newer, column)
        for column, step in ((_c.tool_results_hold, tool_results), (_c.summary_hold, summary))
        if step is not None
    }
    if trim is not None:
        changed[_c.trim_hold] = _c.context_bytes + trim
    if results_through is not None:
        changed[_c.results_cut_through] = results_through
    if media_through is not None:
        changed[_c.media_checked_through] = media_through
    if changed:
        connection.execute(update(conversations).where(_c.id == conversation_id).values(changed))


def _one(tenant_id: UUID) -> Select[Any]:
    return select(
        *_SUMMARY,
        _c.system,
        _c.tools,
        _c.last_request,
        _c.fixed_tokens,
        _c.unstored_tokens,
        _c.carried_tokens,
        _c.turn_context_tokens,
        _c.in_loop,
        _c.loop_has_thinking,
        _c.requested_output,
    ).where(_c.tenant_id == tenant_id)
