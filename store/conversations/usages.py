"""What providers counted for the calls that turns came from, and what is reckoned from that.

Rows are written in batches off the request path; what is lost of them loses no turn. Times are the database's.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, Numeric, bindparam, cast, func, literal, literal_column, select, text, update
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.dialects.postgresql import insert as upsert

from store.operations.housekeeping import expire_rows
from store.operations.statistics import FIRST_DAY
from store.tables import conversations, turn_usages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from store.tables import AnyRow

_u, _c = turn_usages.c, conversations.c


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider counted for one call; tokens."""

    tenant_id: UUID
    conversation_id: UUID
    seq: int
    """Of a message of the turn: the first for one call, one after another for several."""
    snapshot_version: int | None
    """That the call was made with; None for the head."""
    input_tokens: int
    cached_tokens: int | None
    written_tokens: int | None
    output_tokens: int
    is_edit: bool
    """Whether the turn took the place of others: then the calls before say little of its prefix."""
    answered_at: datetime


_NAMES: Final = UsageRecord.__struct_fields__
_encode: Final = msgspec.json.Encoder().encode


def remember(connection: Connection, records: Sequence[UsageRecord]) -> None:
    """Keep usages of one tenant's turns, in one statement; one that is known already stays."""
    given = (
        func.json_populate_recordset(
            literal_column("null::turn_usages"), cast(literal(_encode(records).decode()), JSON)
        )
        .table_valued(*(_u[name] for name in _NAMES))
        .alias("given")
    )
    columns: dict[str, Any] = {name: given.c[name] for name in _NAMES}
    columns["answered_at"] = func.least(given.c.answered_at, func.clock_timestamp())
    columns["snapshot_version"] = func.coalesce(given.c.snapshot_version, _c.head_version)
    rows = (
        select(*columns.values())
        .join(conversations, _c.id == given.c.conversation_id)
        .where(_c.erased_at.is_(None))
        .order_by(given.c.conversation_id, given.c.seq)
    )
    connection.execute(upsert(turn_usages).from_select(list(_NAMES), rows).on_conflict_do_nothing())


def tenants_to_reckon(connection: Connection, limit: int) -> list[UUID]:
    """Return the tenants of the oldest `limit` usages that are not reckoned yet."""
    return list(connection.execute(text("select * from usages_to_reckon(:limit)"), {"limit": limit}).scalars())


class ToReckon(NamedTuple):
    """A usage that is to be reckoned, with what is known of its conversation and of the call before it."""

    conversation_id: UUID
    seq: int
    snapshot_version: int
    input_tokens: int
    cached_tokens: int | None
    written_tokens: int | None
    is_edit: bool
    answered_at: datetime
    model: str | None
    tenant_policy: str
    policy: str
    token_ratio: float
    fixed_tokens: int
    """Of system prompt and tools, which every call begins with."""
    shared_tokens: int | None
    """That contexts before and after the head's moves since the call before begin with; None where nobody measured."""
    hidden_tokens: int
    """That messages have which the snapshot stands for, less its own."""
    before_seq: int | None
    before_version: int | None
    before_input: int | None
    before_saved: int | None
    before_at: datetime | None


def to_reckon(connection: Connection, tenant_id: UUID, limit: int) -> list[ToReckon]:
    """Return a tenant's usages that are not reckoned yet, each conversation's in order, and lock them.

    Those that another sweeper is at are passed over: it counts what they come to.
    """
    rows = connection.execute(_TO_RECKON, {"tenant": tenant_id, "limit": limit})
    return [ToReckon(*row) for row in rows]


class Reckoned(NamedTuple):
    """What is reckoned of a call; USD of its input, None where nobody knows the model's price."""

    prefix_tokens: int | None
    expected_tokens: int | None
    saved_tokens: int
    cost_usd: float | None
    saved_usd: float | None
    saved_uncached_usd: float | None


def reckon(connection: Connection, reckoned: Mapping[tuple[UUID, int], Reckoned]) -> None:
    """Write down what was reckoned, by conversation and seq."""
    if not reckoned:
        return
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in Reckoned._fields}
    for name in ("cost_usd", "saved_usd", "saved_uncached_usd"):
        values[name] = cast(values[name], Numeric(14, 6))
    statement = (
        update(turn_usages)
        .where(_u.conversation_id == bindparam("of"), _u.seq == bindparam("at"))
        .values(**values, reckoned_at=func.now())
    )
    connection.execute(
        statement,
        [
            {"of": conversation, "at": seq} | {f"new_{name}": value for name, value in each._asdict().items()}
            for (conversation, seq), each in sorted(reckoned.items())
        ],
    )


def expire(connection: Connection, seconds: float, limit: int) -> int:
    """Remove usages older than `seconds`; return how many."""
    return expire_rows(connection, "turn_usages", seconds, limit)


class SavedDay(NamedTuple):
    """What calls of a day (UTC) took in, and what compaction saved of that, with the cache as it was and without.

    USD are those of the calls whose price is known; None where that is no call.
    """

    day: date
    calls: int
    unpriced_calls: int
    """Calls whose model is not named or has no known price."""
    input_tokens: int
    expected_tokens: int
    """That a cache should have had, of calls whose usage says what it had."""
    missed_tokens: int
    """Those of them that it did not have."""
    cached_tokens: int
    saved_tokens: int
    cost_usd: Decimal | None
    saved_usd: Decimal | None
    saved_uncached_usd: Decimal | None

    def plus(self, other: SavedDay) -> SavedDay:
        """Return the sum of two days, or of a day of two tenants."""
        return SavedDay(
            day=self.day,
            calls=self.calls + other.calls,
            unpriced_calls=self.unpriced_calls + other.unpriced_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            expected_tokens=self.expected_tokens + other.expected_tokens,
            missed_tokens=self.missed_tokens + other.missed_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            saved_tokens=self.saved_tokens + other.saved_tokens,
            cost_usd=known_sum([self.cost_usd, other.cost_usd]),
            saved_usd=known_sum([self.saved_usd, other.saved_usd]),
            saved_uncached_usd=known_sum([self.saved_uncached_usd, other.saved_uncached_usd]),
        )


class UnpricedModel(NamedTuple):
    """A model without a known price, None where the conversation names none, and its calls."""

    model: str | None
    calls: int


def known_sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of the amounts that are known; None if none is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None


def saved_daily(connection: Connection, tenant_id: UUID, days: int) -> list[SavedDay]:
    """Return the days of the last `days` with calls whose usage is known, the newest first."""
    return [SavedDay(*row) for row in connection.execute(_DAILY, {"tenant": tenant_id, "days": days})]


def unpriced_models(connection: Connection, tenant_id: UUID, days: int) -> list[UnpricedModel]:
    """Return the models of the last `days` days whose calls have no known price, those with most calls first."""
    return [UnpricedModel(*row) for row in connection.execute(_UNPRICED, {"tenant": tenant_id, "days": days})]


def saved_most(connection: Connection, tenant_id: UUID, days: int, limit: int) -> Sequence[AnyRow]:
    """Return the conversations of which compaction saved most money."""
    return connection.execute(_MOST, {"tenant": tenant_id, "days": days, "limit": limit}).all()


MOST_TOKENS: Final = 2**31 - 1
"""That their columns have room for."""
_TO_RECKON: Final = text(f"""
    with due as materialized (
        select u.* from turn_usages as u where u.tenant_id = :tenant and u.reckoned_at is null
        order by u.conversation_id, u.seq limit :limit for no key update skip locked)
    select u.conversation_id, u.seq, u.snapshot_version, u.input_tokens, u.cached_tokens, u.written_tokens, u.is_edit,
           u.answered_at, c.model, t.policy::text, c.policy::text, c.token_ratio,
           c.fixed_tokens::bigint + c.unstored_tokens,
           moved.shared_tokens, coalesce(hidden.tokens, 0),
           b.seq, b.snapshot_version, b.input_tokens, b.saved_tokens, b.answered_at
    from due as u
        join conversations as c on c.id = u.conversation_id
        join tenants as t on t.id = u.tenant_id
        left join lateral (select p.seq, p.snapshot_version, p.input_tokens, p.saved_tokens, p.answered_at
                           from turn_usages as p where p.conversation_id = u.conversation_id and p.seq < u.seq
                           order by p.seq desc limit 1) as b on true
        left join lateral (
            select case when count(s.shared_tokens) = count(*) then min(s.shared_tokens) end as shared_tokens
            from runs as r join run_steps as s on s.run_id = r.id
            where r.conversation_id = u.conversation_id and s.state = 'committed'
                and s.snapshot_version > b.snapshot_version and s.snapshot_version <= u.snapshot_version
                and b.snapshot_version < u.snapshot_version
            ) as moved on true
        left join lateral (
            select least({MOST_TOKENS}, greatest(0, coalesce(sum(m.tokens), 0) - s.tokens))::integer as tokens
            from snapshots as s left join messages as m
                on m.conversation_id = s.conversation_id and m.seq <= s.covers_through and m.superseded_at is null
            where s.conversation_id = u.conversation_id and s.version = u.snapshot_version
                and (b.snapshot_version is distinct from u.snapshot_version or b.saved_tokens is null or u.is_edit)
            group by s.tokens) as hidden on true
    order by u.conversation_id, u.seq
""")  # noqa: S608 - constants
"""What is looked up of each is so only of those that are reckoned now: most of what has come may be for later."""
_IS_UNPRICED: Final = "u.reckoned_at is not null and u.cost_usd is null"
_SUMS: Final = f"""
    count(*) as calls, count(*) filter (where {_IS_UNPRICED}) as unpriced_calls,
    sum(u.input_tokens)::bigint as input_tokens,
    coalesce(sum(u.expected_tokens) filter (where u.cached_tokens is not null), 0)::bigint as expected_tokens,
    coalesce(sum(greatest(0, u.expected_tokens - u.cached_tokens)), 0)::bigint as missed_tokens,
    coalesce(sum(u.cached_tokens), 0)::bigint as cached_tokens,
    coalesce(sum(u.saved_tokens), 0)::bigint as saved_tokens, sum(u.cost_usd) as cost_usd,
    sum(u.saved_usd) as saved_usd, sum(u.saved_uncached_usd) as saved_uncached_usd
"""
_UNPRICED: Final = text(f"""
    select c.model, count(*) as calls from turn_usages as u join conversations as c on c.id = u.conversation_id
    where u.tenant_id = :tenant and u.answered_at >= {FIRST_DAY} and {_IS_UNPRICED}
    group by 1 order by 2 desc, 1 nulls first limit 10
""")  # noqa: S608 - constants
_DAILY: Final = text(f"""
    select (u.answered_at at time zone 'utc')::date as day, {_SUMS}
    from turn_usages as u where u.tenant_id = :tenant and u.answered_at >= {FIRST_DAY} group by 1 order by 1 desc
""")  # noqa: S608 - constants
_MOST: Final = text(f"""
    select c.id, c.external_id, c.model, saved.* from (
        select u.conversation_id, {_SUMS} from turn_usages as u
        where u.tenant_id = :tenant and u.answered_at >= {FIRST_DAY} group by u.conversation_id
        having sum(u.saved_usd) > 0 order by sum(u.saved_usd) desc, u.conversation_id limit :limit) as saved
        join conversations as c on c.id = saved.conversation_id
    order by saved.saved_usd desc, c.id
""")  # noqa: S608 - constants
