"""Histories that clients resend: whose they are, and by what they are recognized the next time. One round trip each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.hot_path import Pool

MOST_ROWS: Final = 64
"""Messages after a recognized beginning that are read to be compared; an answer has a few."""
MOST_NAMED_ROWS: Final = 1_000
"""Messages of a conversation that is named, and that no gateway has stored in, which a request waits for."""
NEWEST_CANDIDATES: Final = 24
OLDEST_CANDIDATES: Final = 8
"""Conversations of a session that are looked at; requests for titles and the like have one each."""
_FIND: Final = """
    select f.*, case when f.version is not null then
        (select c.rules::text from conversations as c where c.id = f.conversation_id) end as rules
    from gateway_find($1, $2, $3, $4, $5) as f
"""
_HEAD_BELOW: Final = "select * from gateway_head($1, $2, null, $3) where version is not null"
_BEGIN: Final = "select gateway_begin($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) as id"
_NOTE: Final = "select gateway_note($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
_RESPONSE: Final = "select * from gateway_response($1, $2)"
_IS_NOTED: Final = """
    select exists (select from gateway_prefixes as p
                   where own.tenant is not null and p.tenant_id = $1 and p.key = any ($2)) as is_noted
    from (select set_config('app.tenant_id', $1::uuid::text, true) as tenant offset 0) as own
"""
_ABSENT: Final = """
    select (select array_agg(n.seq) from generate_series(0, $3::integer - 1) as n (seq)
            where own.tenant is not null and not exists (
                select from messages as m
                where m.conversation_id = $2 and m.seq = n.seq and m.superseded_at is null)) as seqs
    from (select set_config('app.tenant_id', $1::uuid::text, true) as tenant offset 0) as own
"""
_IS_BRANCH: Final = """
    select exists (select from gateway_conversations as g
                   where own.tenant is not null and g.conversation_id = $2 and g.branch_of = $3) as is_branch
    from (select set_config('app.tenant_id', $1::uuid::text, true) as tenant offset 0) as own
"""
_CANDIDATES: Final = """
    select '[' || string_agg('["' || c.id || '",' || c.next_seq || ',' || c.edits || ',' || m.seq
                             || ',"' || m.role || '",' || m.content::text || ']', ',' order by c.next_seq desc)
           || ']' as candidates
    from (select set_config('app.tenant_id', $1::uuid::text, true) as tenant offset 0) as own
        cross join lateral (
            (select g.conversation_id from gateway_conversations as g
             where own.tenant is not null and g.tenant_id = $1 and g.circle = $2
             order by g.conversation_id desc limit $5)
            union
            (select g.conversation_id from gateway_conversations as g
             where own.tenant is not null and g.tenant_id = $1 and g.circle = $2 order by g.conversation_id limit $6)
            union
            select r.id from conversations as r
            where own.tenant is not null and r.tenant_id = $1 and (r.id = $3 or r.external_id = $4)
        ) as near
        join conversations as c on c.id = near.conversation_id
        cross join lateral (
            select o.seq, o.role, o.content from messages as o
            where o.conversation_id = c.id and o.superseded_at is null order by o.seq desc limit 1) as m
    where not exists (select from gateway_recalls as r where r.conversation_id = c.id)
"""
_ROWS_AFTER: Final = """
    select '[' || string_agg('[' || m.seq || ',"' || m.role || '",' || m.content || ']', ',' order by m.seq)
           || ']' as rows
    from (select set_config('app.tenant_id', $1::uuid::text, true) as tenant offset 0) as own
        cross join lateral (
            select o.seq, o.role, o.content::text as content from messages as o
            where own.tenant is not null and o.conversation_id = $2 and o.seq > $3 and o.superseded_at is null
            order by o.seq limit $4) as m
"""
_HEAD_OF: Final = """
    select c.strip_thinking_through, c.broken_through, c.policy::text as policy, c.model, c.rules::text as rules, h.*
    from (select set_config('app.tenant_id', $1::uuid::text, true) as tenant offset 0) as own
        join conversations as c on own.tenant is not null and c.id = $2
        left join lateral gateway_head($1, c.id, c.head_version) as h on c.head_version > 0
"""
_RECALLS: Final = "select gateway_recalls_of($1, $2, $3, $4) as recalls"
_rows: Final = msgspec.json.Decoder(list[tuple[int, str, Any]]).decode
_candidates: Final = msgspec.json.Decoder(list[tuple[UUID, int, int, int, str, Any]]).decode


class AnsweredRecall(NamedTuple):
    """Messages within which calls of recall were answered; the client has other rows in their place."""

    seq: int
    through_seq: int
    resent: int | None
    """How many rows the client sends again in their place; None while it has not."""
    shown: list[Any]
    """What the client was shown, in the request's shape."""
    results: list[dict[str, Any]]
    """Blocks that the message after them begins with, and that the client does not have."""
    messages: list[msgspec.Raw] = []  # noqa: RUF012 - of a tuple, never changed
    """As the model is sent them; `null` where the head stands for one."""


class ResponseIds(NamedTuple):
    """Ids of an answer of the Responses API within which recall was answered."""

    shown: str
    """The one that the client has."""
    last: str
    """The one by which the provider has the whole of it."""


class GoneOnFrom(NamedTuple):
    """What a client's id of an answer stands for."""

    response_id: str
    results: list[dict[str, Any]]
    """Of calls of recall beside the client's own."""


class Head(NamedTuple):
    """A snapshot as it is shown."""

    version: int
    covers_through: int
    messages: str
    """JSON text."""
    seqs: Sequence[int]
    tokens: int
    covered_tokens: int
    """Of the messages that it covers."""


_ledger: Final = msgspec.json.Decoder(list[tuple[str, int, str, str]]).decode
_answered: Final = msgspec.json.Decoder(list[AnsweredRecall]).decode


class StoredRow(NamedTuple):
    """A stored message in the inner form."""

    seq: int
    role: str
    content: Any


class Beginning(NamedTuple):
    """The longest beginning of a history that is stored."""

    place: int
    """Messages of the history that it has."""
    conversation_id: UUID
    seq: int
    """Of its last message."""
    is_superseded: bool
    """An edit has put something else in its place: what comes after it is not known."""
    next_seq: int
    after: Sequence[StoredRow]
    """What comes after it, MOST_ROWS messages at most."""
    removed: Sequence[int]
    """Seqs that edits have superseded; see `absent`."""
    strip_thinking_through: int
    broken_through: int
    head: Head | None
    recalls: Sequence[AnsweredRecall] = ()
    """Within the whole of what is stored, in its order."""
    policy: str = "{}"
    """The conversation's own, as JSON text."""
    model: str | None = None
    rules: Sequence[tuple[str, int, str, str]] = ()
    """Its ledger where there is a head: id, seq, text and source of each entry."""


class Candidate(NamedTuple):
    """A conversation that a request of its session may go on from."""

    conversation_id: UUID
    next_seq: int
    edits: int
    newest: StoredRow


class Begun(NamedTuple):
    """What a new conversation is to be."""

    conversation_id: UUID
    named: UUID | None
    external_id: str | None
    user_ref: str | None
    model: str | None
    metadata: dict[str, Any]
    circle: bytes
    in_session: bool
    branch_of: UUID | None


class Noted(NamedTuple):
    """What became of a request."""

    outcome: str
    saved_tokens: int
    head_version: int
    retried: bool
    aborted: bool


async def find(pool: Pool, tenant_id: UUID, keys: Sequence[bytes], *, only: UUID | None = None) -> Beginning | None:
    """Return the longest of the beginnings that `keys` stand for, the shortest first; of `only`, if it is given."""
    return _beginning(await pool.fetchrow(_FIND, tenant_id, keys, only, MOST_ROWS, None))


async def named(
    pool: Pool, tenant_id: UUID, conversation_id: UUID | None, external_id: str | None, *, rows: int
) -> Beginning | None:
    """Return a conversation from its first message on, `rows` at most; None where a gateway has stored in it.

    What is `removed` of it is known as far as its rows go, in a fork too.
    """
    beginning = _beginning(await pool.fetchrow(_FIND, tenant_id, [], conversation_id, rows, external_id))
    if beginning is None or not beginning.after:
        return beginning
    there = {row.seq for row in beginning.after}
    gaps = (seq for seq in range(beginning.after[-1].seq) if seq not in there)
    return beginning._replace(removed=sorted({*beginning.removed, *gaps}))


def _beginning(row: Any) -> Beginning | None:
    if row is None or row["place"] is None:
        return None
    head = _head(row) if row["version"] else None
    return Beginning(
        row["place"],
        row["conversation_id"],
        row["seq"],
        row["is_superseded"],
        row["next_seq"] or 0,
        [StoredRow(*each) for each in _rows(row["after"] or "[]")],
        row["removed"] or (),
        -1 if row["strip_thinking_through"] is None else row["strip_thinking_through"],
        -1 if row["broken_through"] is None else row["broken_through"],
        head,
        _recalls(row["recalls"]),
        row["policy"] or "{}",
        row["model"],
        _ledger(row["rules"] or "[]"),
    )


async def head_below(pool: Pool, tenant_id: UUID, conversation_id: UUID, seq: int) -> Head | None:
    """Return the newest snapshot on the way to the head that has nothing of message `seq` and what follows it."""
    row = await pool.fetchrow(_HEAD_BELOW, tenant_id, conversation_id, seq)
    return _head(row) if row is not None else None


async def candidates(
    pool: Pool, tenant_id: UUID, circle: bytes, named: UUID | None, external_id: str | None
) -> list[Candidate]:
    """Return the conversations of a circle, the longest first: the newest, the oldest, and the one that is named.

    Those within which recall was answered are left out: their clients have other rows than are stored.
    """
    row = await pool.fetchrow(_CANDIDATES, tenant_id, circle, named, external_id, NEWEST_CANDIDATES, OLDEST_CANDIDATES)
    every = _candidates(row["candidates"] or "[]") if row is not None else []
    return [Candidate(each[0], each[1], each[2], StoredRow(*each[3:])) for each in every]


async def rows_after(pool: Pool, tenant_id: UUID, conversation_id: UUID, seq: int, *, most: int) -> list[StoredRow]:
    """Return the messages in force after `seq`, `most` at most."""
    row = await pool.fetchrow(_ROWS_AFTER, tenant_id, conversation_id, seq, most)
    return [StoredRow(*each) for each in _rows(row["rows"] or "[]")] if row is not None else []


async def beginning_through(
    pool: Pool, tenant_id: UUID, conversation_id: UUID, seq: int, *, place: int, next_seq: int
) -> Beginning | None:
    """Return a conversation with its head, of which a request has `place` rows up to message `seq`."""
    row = await pool.fetchrow(_HEAD_OF, tenant_id, conversation_id)
    if row is None:
        return None
    return Beginning(
        place,
        conversation_id,
        seq,
        is_superseded=False,
        next_seq=next_seq,
        after=(),
        removed=(),
        strip_thinking_through=row["strip_thinking_through"],
        broken_through=row["broken_through"],
        head=_head(row) if row["version"] else None,
        policy=row["policy"] or "{}",
        model=row["model"],
        rules=_ledger(row["rules"] or "[]") if row["version"] else (),
    )


async def absent(pool: Pool, tenant_id: UUID, conversation_id: UUID, next_seq: int) -> Sequence[int]:
    """Return the seqs of a conversation that no message in force has: in a fork what edits superseded is not at all."""
    row = await pool.fetchrow(_ABSENT, tenant_id, conversation_id, next_seq)
    return row["seqs"] or ()


async def is_noted(pool: Pool, tenant_id: UUID, keys: Sequence[bytes]) -> bool:
    """Return whether a message is recognized by one of these keys."""
    row = await pool.fetchrow(_IS_NOTED, tenant_id, keys)
    return bool(row["is_noted"])


async def is_branch(pool: Pool, tenant_id: UUID, conversation_id: UUID, parent: UUID) -> bool:
    """Tell whether a conversation is one beside another, which it went on from."""
    row = await pool.fetchrow(_IS_BRANCH, tenant_id, conversation_id, parent)
    return bool(row["is_branch"])


async def recalls_beside(
    pool: Pool, tenant_id: UUID, conversation_id: UUID, head: Head | None
) -> Sequence[AnsweredRecall]:
    """Return the answers of a conversation within which recall was answered, without what a head covers of them."""
    covered, seqs = (head.covers_through, head.seqs) if head is not None else (-1, [])
    row = await pool.fetchrow(_RECALLS, tenant_id, conversation_id, covered, seqs)
    return _recalls(row["recalls"]) if row is not None else ()


def _recalls(text: str | None) -> Sequence[AnsweredRecall]:
    return _answered(text) if text else ()


def _head(row: Any) -> Head:
    return Head(
        row["version"],
        row["covers_through"],
        row["head"],
        row["head_seqs"],
        row["head_tokens"],
        int(row["covered_tokens"]),
    )


async def begin(pool: Pool, tenant_id: UUID, begun: Begun) -> UUID:
    """Make a conversation, or take the empty one that is named; return its id. Twice is once."""
    try:
        return await _begin(pool, tenant_id, begun)
    except asyncpg.UniqueViolationError:
        # Its id is nobody else's: it was made when this was tried before.
        return begun.conversation_id


async def _begin(pool: Pool, tenant_id: UUID, begun: Begun) -> UUID:
    row = await pool.write(
        _BEGIN,
        tenant_id,
        begun.conversation_id,
        begun.named,
        begun.external_id,
        begun.user_ref,
        begun.model,
        msgspec.json.encode(begun.metadata).decode(),
        begun.circle,
        begun.in_session,
        begun.branch_of,
    )
    conversation_id: UUID = row["id"]
    return conversation_id


async def note(
    pool: Pool,
    tenant_id: UUID,
    conversation_id: UUID,
    seqs: Sequence[int],
    keys: Sequence[bytes],
    *,
    last_seq: int,
    noted: Noted,
    recalls: Sequence[AnsweredRecall] = (),
    response_ids: ResponseIds | None = None,
) -> None:
    """Write down by which keys messages are recognized, and what became of the request that ended with `last_seq`.

    `response_ids` are those of the last of these recalls.
    """
    every: list[Sequence[Any]] = [each[:-1] for each in recalls]
    if every and response_ids is not None:
        every[-1] = (*every[-1], *response_ids)
    within = msgspec.json.encode(every).decode()
    await pool.write(_NOTE, tenant_id, conversation_id, seqs, keys, last_seq, *noted, within)


async def gone_on_from(pool: Pool, tenant_id: UUID, response_id: str) -> GoneOnFrom | None:
    """Return what an id that a client has of an answer stands for, None where it is the provider's own."""
    row = await pool.fetchrow(_RESPONSE, tenant_id, response_id)
    if row is None or row["last_response_id"] is None:
        return None
    return GoneOnFrom(row["last_response_id"], msgspec.json.decode(row["results"]))


async def name(pool: Pool, tenant_id: UUID, conversation_id: UUID, seqs: Sequence[int], keys: Sequence[bytes]) -> None:
    """Write down keys by which messages are found, or will be: no request has ended with them."""
    await pool.write(_NOTE, tenant_id, conversation_id, seqs, keys, None, None, None, None, None, None, None)
