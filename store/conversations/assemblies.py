"""What the last assembly of each conversation was made of, and the restores that end when the guard has to drop."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, case, cast, func, literal, literal_column, select, tuple_, update
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql import insert as upsert

from store.tables import assemblies, conversations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import ColumnElement

    from store.tables import AnyRow

Call = Literal["payload", "context"]
"""Which answer an assembly was: POST …/context (payload), or GET …/context."""


class AssemblyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One assembly: tokens by layer and in all, and what had to give way. No content."""

    conversation_id: UUID
    tenant_id: UUID
    call: Call
    snapshot_version: int
    system_tokens: int
    """System prompt and tools, and what the client is known to send besides them."""
    prior_context_tokens: int = 0
    turn_context_tokens: int = 0
    history_tokens: int
    user_message_tokens: int = 0
    reserved_output_tokens: int
    total_token_budget: int
    exchanges_total: int
    exchanges_kept: int
    rounds_dropped: bool
    """Whether older tool rounds of the last exchange were left out."""
    responses_truncated: int
    blocks_shortened: int = 0
    warnings: int
    """How many warnings the answer had."""
    assembled_at: datetime

    @property
    def layers(self) -> dict[str, int]:
        """Tokens of each layer by its name."""
        return {
            "system": self.system_tokens,
            "prior_context": self.prior_context_tokens,
            "turn_context": self.turn_context_tokens,
            "history": self.history_tokens,
            "user_message": self.user_message_tokens,
        }

    @property
    def total(self) -> int:
        """Tokens of the whole input, without the reserved output."""
        return sum(self.layers.values())

    @property
    def over(self) -> int:
        """Tokens over the budget, 0 within it."""
        return max(0, self.total + self.reserved_output_tokens - self.total_token_budget)

    @property
    def exchanges_dropped(self) -> int:
        """Exchanges of the history that were left out."""
        return max(0, self.exchanges_total - self.exchanges_kept)

    @property
    def history_dropped(self) -> bool:
        """Whether anything of the history was left out or cut."""
        return bool(self.exchanges_dropped or self.rounds_dropped or self.responses_truncated)


_a, _c = assemblies.c, conversations.c
_NAMES: Final = AssemblyRecord.__struct_fields__
_encode: Final = msgspec.json.Encoder().encode


def remember(connection: Connection, records: Sequence[AssemblyRecord]) -> None:
    """Keep assemblies of one tenant's conversations, each its conversation's newest, in one statement.

    A newer one stored by another process stays. Times come from the processes; none may lie ahead of the database's,
    for it would stay for good. Rows are written in one order, so that two writers cannot wait for each other.
    """
    given = (
        func.json_populate_recordset(literal_column("null::assemblies"), cast(literal(_encode(records).decode()), JSON))
        .table_valued(*(_a[name] for name in _NAMES))
        .alias("given")
    )
    columns: dict[str, ColumnElement[Any]] = {name: given.c[name] for name in _NAMES}
    columns["assembled_at"] = func.least(given.c.assembled_at, func.clock_timestamp())
    rows = (
        select(*columns.values())
        .join(conversations, _c.id == given.c.conversation_id)
        .order_by(given.c.conversation_id)
    )
    statement = upsert(assemblies).from_select(list(_NAMES), rows)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[_a.conversation_id],
            set_={name: statement.excluded[name] for name in _NAMES if name not in {"conversation_id", "tenant_id"}},
            where=statement.excluded.assembled_at >= _a.assembled_at,
        )
    )


class Dropped(NamedTuple):
    """The snapshot version that the guard had to drop something of, for which request."""

    version: int
    request_id: UUID


def lift_holds(connection: Connection, dropped: Mapping[UUID, Dropped]) -> list[UUID]:
    """End the hold of restored conversations of which the guard dropped something; return those that were held.

    A later restore holds anew; and what did not fit when it was restored is held until it has grown, or the restore
    would be dropped at the first check. The next check then decides by what the conversation weighs.
    """
    versions = [(conversation_id, each.version) for conversation_id, each in dropped.items()]
    asking = case({conversation_id: each.request_id for conversation_id, each in dropped.items()}, value=_c.id)
    held = (
        select(_c.id)
        .where(tuple_(_c.id, _c.head_version).in_(versions), _c.held_by_restore, ~_c.restored_over_budget)
        .order_by(_c.id)
        .with_for_update(key_share=True)
    )
    ended = connection.execute(
        update(conversations)
        .where(_c.id.in_(held))
        .values(
            tool_results_hold=0,
            summary_hold=0,
            trim_hold=0,
            held_by_restore=False,
            check_due_at=func.coalesce(_c.check_due_at, func.now()),
            check_request_id=case((_c.check_due_at.is_(None), asking), else_=_c.check_request_id),
            revision=func.next_revision(_c.revision),
        )
        .returning(_c.id)
    )
    return list(ended.scalars())


def last(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> AssemblyRecord | None:
    """Return the last assembly of a conversation, None if none is known."""
    row: AnyRow | None = connection.execute(
        select(*(_a[name] for name in _NAMES)).where(_a.tenant_id == tenant_id, _a.conversation_id == conversation_id)
    ).one_or_none()
    values: Any = None if row is None else dict(zip(_NAMES, row, strict=True))
    return None if values is None else AssemblyRecord(**values)
