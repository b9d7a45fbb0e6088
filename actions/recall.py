"""Recalling: reading in short transactions, searching on a thread that serves no requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import UNSET
from sqlalchemy.exc import SQLAlchemyError

from actions.auth.scopes import has_scope
from actions.errors import InvalidError
from actions.recall_records import Returned, note
from actions.types.recall import RecalledPart, RecalledPassage, RecallOut
from compaction.coverage import find_span
from compaction.recall import references, times
from compaction.recall.framing import frame_passages
from compaction.recall.passages import (
    NEIGHBOURS,
    pack_passages,
    quote_context_block,
    quote_messages,
    read_range,
    segments_of,
)
from compaction.recall.patterns import BadPatternError, PatternSearch
from compaction.recall.ranking import Hit, rank
from compaction.recall.segments import WORTH_MESSAGES, decode_segment, segments_worth_storing
from compaction.recall.words import NEUTRAL, term_places
from runtime.errors import RequestError
from store.recall import originals
from store.recall import segments as stored
from store.recall.material import read_material
from store.recall.requests import Question

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from actions.services import Services
    from actions.types.recall import RecallIn, UserRecallIn
    from compaction.recall.passages import Excerpt, PackedPassages, Passage, QuotedMessage, StoredText
    from compaction.recall.ranking import Ranking
    from compaction.recall.segments import Segment
    from store.recall.material import SearchMaterial
    from store.recall.originals import SearchedConversation
    from store.recall.requests import Kind, Origin

SEARCH_SECONDS: Final = 2.0
"""Seconds after which a pattern is tried on no further message."""
LEAST_HITS: Final = 40
TOKENS_PER_HIT: Final = 25
"""Tokens of a short message: hits that are read, so that there is enough to fill an answer with."""
_BEFORE: Final = 2
"""Messages read before a hit: those that come with it, and the one with the call that a result answers."""
_LAST: Final = 2**31 - 1


class Recalled(NamedTuple):
    """What was found, and where."""

    place: SearchedConversation
    packed: PackedPassages
    searched: int


async def recall(caller: Caller, conversation_id: UUID, wanted: RecallIn, origin: Origin = "api") -> RecallOut | None:
    """Return what was asked for, None where there is no such conversation; raise the problem of what was asked."""
    recalled = await look_up(caller, conversation_id, wanted, origin)
    return None if recalled is None else _answer(recalled, wanted)


async def look_up(
    caller: Caller, conversation_id: UUID, wanted: RecallIn, origin: Origin = "api", *, for_model: bool = False
) -> Recalled | None:
    """Return what `recall` answers, as it was found, and write down that it was.

    `for_model` masks credentials whatever the caller's key may read.
    """
    asked = _checked(wanted, origin)
    services = caller.services
    by = {"query": _by_query, "ref": by_ref, "pattern": _by_pattern}[asked.kind]
    try:
        async with services.search_slots.acquire(caller.tenant_id):
            recalled = await by(caller, conversation_id, wanted, for_model=for_model)
    except RequestError:
        services.metrics.recalled(asked.kind, "refused")
        raise
    if recalled is None:
        return None
    await note(caller, asked, [_returned(conversation_id, recalled)])
    return recalled


def masks_secrets(caller: Caller, place: SearchedConversation, *, for_model: bool = False) -> bool:
    """Tell whether what is recalled of a conversation has its credentials masked for this caller."""
    if has_scope(caller.principal, "secrets:read") and not for_model:
        return False
    return caller.principal.policy_for(place.policy, place.model).secrets == "mask"


def kind_of(wanted: RecallIn | UserRecallIn) -> Kind:
    """Return by what is asked; raise the problem where it is not exactly one way, or blank."""
    kinds: tuple[Kind, ...] = ("query", "ref", "pattern")
    given = [name for name in kinds if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise InvalidError("Exactly one of query, ref and pattern is needed.", f"/{given[1] if given else 'query'}")
    if not getattr(wanted, given[0]).strip():
        raise InvalidError("It is blank.", f"/{given[0]}")
    return given[0]


def _checked(wanted: RecallIn, origin: Origin) -> Question:
    """Return what is asked; raise the problem that it has, regardless of the conversation."""
    kind = kind_of(wanted)
    if wanted.offset and (wanted.ref is None or reference_of(wanted.ref).is_range):
        raise InvalidError("An offset goes with the ref of one message or block.", "/offset")
    for name in ("from_seq", "through_seq"):
        if wanted.ref is not None and getattr(wanted, name) is not None:
            raise InvalidError("A ref says by itself which messages it means.", f"/{name}")
    if wanted.from_seq is not None and wanted.through_seq is not None and wanted.from_seq > wanted.through_seq:
        raise InvalidError("It is before from_seq.", "/through_seq")
    return Question(kind, getattr(wanted, kind), origin)


def _returned(conversation_id: UUID, recalled: Recalled) -> Returned:
    """Return what is written down of an answer."""
    place, packed, searched = recalled
    seqs = [seq for passage in packed.passages for seq in passage.seqs]
    return Returned(
        conversation_id,
        [passage.ref for passage in packed.passages],
        seqs,
        [seq for seq in seqs if not in_context(place, seq)],
        searched,
        packed.tokens,
    )


def reference_of(text: str) -> references.Reference:
    """Return the place in a conversation that is asked for; raise the problem that it is none."""
    try:
        return references.parse(text)
    except references.BadReferenceError as error:
        raise InvalidError(str(error), "/ref") from None


async def by_ref(
    caller: Caller, conversation_id: UUID, wanted: RecallIn, *, for_model: bool = False
) -> Recalled | None:
    """Return the place that is asked for, None where there is no such conversation."""
    reference = reference_of(wanted.ref or "")

    def query(connection: Connection, tenant_id: UUID) -> tuple[SearchedConversation, Sequence[Any], int] | None:
        place = originals.read_conversation(connection, tenant_id, conversation_id)
        if place is None:
            return None
        rows, last = _rows(connection, tenant_id, conversation_id, reference), reference.first
        if reference.is_range:
            last = originals.last_seq(connection, tenant_id, conversation_id, reference.first, reference.last)
        return place, rows, last

    if (rows_at_place := await caller.run(query)) is None:
        return None
    place, rows, last = rows_at_place
    masked = masks_secrets(caller, place, for_model=for_model)
    if reference.is_context:
        named = [quote_context_block(row, masked=masked) for row in rows]
    else:
        every = await asyncio.to_thread(quote_messages, rows, masked=masked)
        named = [original for seq, original in every.items() if reference.first <= seq <= reference.last]
    texts = [
        part.text
        for original in named
        for part in original.parts
        if reference.block is None or part.block == reference.block
    ]
    if not texts:
        raise InvalidError("There is nothing of this reference to be recalled.", "/ref")
    if wanted.offset and wanted.offset >= (characters := sum(map(len, texts))):
        raise InvalidError(f"The text has {characters:,} characters.", "/offset")
    packed = read_range(named, block=reference.block, offset=wanted.offset, max_tokens=wanted.max_tokens)
    return Recalled(place, packed._replace(more=packed.more or rows[-1].seq < last), len(named))


def _rows(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, reference: references.Reference
) -> Sequence[Any]:
    """Return what a reference names, and of messages the one before them for its calls.

    One message comes with the one after it as well, whose words may be the nearest to its images.
    """
    if reference.is_context:
        position = reference.block or 0
        row = originals.read_context_block(connection, tenant_id, conversation_id, reference.first, position)
        return () if row is None else (row,)
    seqs = [
        *range(reference.first, reference.last + 2 - reference.is_range),
        *range(max(0, reference.first - 1), reference.first),
    ]
    return originals.read_chosen(connection, tenant_id, conversation_id, seqs)


async def _by_pattern(
    caller: Caller, conversation_id: UUID, wanted: RecallIn, *, for_model: bool = False
) -> Recalled | None:
    search = pattern_search(wanted)
    newest = await caller.run(_newest, conversation_id, wanted)
    if newest is None:
        return None
    masked = masks_secrets(caller, newest[0], for_model=for_model)
    return await asyncio.to_thread(_match, *newest, search, wanted, masked=masked)


def pattern_search(wanted: RecallIn | UserRecallIn) -> PatternSearch:
    """Return the search by a pattern, whose time begins now; raise the problem of what is no pattern."""
    until = monotonic() + SEARCH_SECONDS
    try:
        return PatternSearch(wanted.pattern or "", lambda: monotonic() > until)
    except BadPatternError as error:
        raise InvalidError(str(error), "/pattern") from None


def _match(
    place: SearchedConversation, rows: Sequence[StoredText], search: PatternSearch, wanted: RecallIn, *, masked: bool
) -> Recalled:
    # A pattern finds nothing in what its caller may not read.
    every = quote_messages(rows, masked=masked)
    hits, searched = [], 0
    for seq, original in reversed(every.items()):
        if search.is_cut:
            break
        searched += 1
        if any(search.find_places(part.text) for part in original.parts):
            hits.append(Hit(seq, 1.0))
    packed = pack_passages(
        hits, every, max_tokens=wanted.max_tokens, limit=wanted.limit, focus=lambda _, text: search.find_places(text)
    )
    return Recalled(place, packed._replace(more=packed.more or search.is_cut), searched)


async def _by_query(
    caller: Caller, conversation_id: UUID, wanted: RecallIn, *, for_model: bool = False
) -> Recalled | None:
    services, tenant_id = caller.services, caller.tenant_id
    read = await caller.run(_material, conversation_id, wanted)
    if read is None:
        return None
    ranking, languages, new = await asyncio.to_thread(_rank, read.search, wanted, read.in_time)
    if new:
        await _keep(services, tenant_id, conversation_id, read.search.through, new)
    hits = ranking.hits[: hits_for(wanted.max_tokens)]
    # What stands before a message belongs to it, such as the call of a result; what comes after the last is another's.
    _, last = _span(wanted)
    near = dict.fromkeys(seq for hit in hits for seq in _near(hit.seq) if seq <= last)
    texts = await services.run(tenant_id, originals.read_chosen, tenant_id, conversation_id, list(near))
    masked = masks_secrets(caller, read.search.place, for_model=for_model)
    packed = await asyncio.to_thread(_pack, hits, quote_messages(texts, masked=masked), ranking, languages, wanted)
    more = packed.more or len(hits) < len(ranking.hits)
    return Recalled(read.search.place, packed._replace(more=more), ranking.searched)


def hits_for(max_tokens: int) -> int:
    """Return how many hits are read, so that an answer of so many tokens can be filled."""
    return max(LEAST_HITS, max_tokens // TOKENS_PER_HIT)


async def _keep(
    services: Services, tenant_id: UUID, conversation_id: UUID, through: int, new: Sequence[Segment]
) -> None:
    """Store what the search had to make, for the next one; a database that takes no writes has none of it."""
    with suppress(SQLAlchemyError, TimeoutError, OSError):
        await services.run(tenant_id, stored.insert_segments, tenant_id, conversation_id, through, new)


class _Material(NamedTuple):
    """What a search by words reads, and the messages of the times that its query names."""

    search: SearchMaterial
    in_time: list[tuple[int, int]]


def _material(connection: Connection, tenant_id: UUID, conversation_id: UUID, wanted: RecallIn) -> _Material | None:
    search = read_material(connection, tenant_id, conversation_id, *_span(wanted))
    if search is None:
        return None
    ranges = times.time_ranges(wanted.query or "", search.place.now)
    return _Material(search, originals.spans_of(connection, tenant_id, conversation_id, ranges))


def _span(wanted: RecallIn) -> tuple[int, int]:
    return wanted.from_seq or 0, _LAST if wanted.through_seq is None else wanted.through_seq


def _near(seq: int) -> range:
    return range(max(0, seq - _BEFORE), seq + NEIGHBOURS + 1)


def _newest(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, wanted: RecallIn
) -> tuple[SearchedConversation, Sequence[StoredText]] | None:
    place = originals.read_conversation(connection, tenant_id, conversation_id)
    if place is None:
        return None
    first, last = _span(wanted)
    return place, originals.read_newest(connection, tenant_id, conversation_id, first, last)


class _Ranked(NamedTuple):
    """What words found, the languages that it was found in, and what of that is worth storing."""

    ranking: Ranking
    languages: dict[int, str]
    closed: Sequence[Segment]


def _rank(search: SearchMaterial, wanted: RecallIn, in_time: Sequence[tuple[int, int]]) -> _Ranked:
    new = segments_of(quote_messages(search.rows), search.through)
    every = [*map(decode_segment, search.terms), *new]
    languages = {seq: segment.language for segment in every for seq in segment.seqs}
    first, last = _span(wanted)
    ranking = rank(every, wanted.query or "", without=search.superseded, first=first, last=last, in_time=in_time)
    return _Ranked(ranking, languages, segments_worth_storing(new, WORTH_MESSAGES) if search.is_whole else ())


def _pack(
    hits: Sequence[Hit],
    every: Mapping[int, QuotedMessage],
    ranking: Ranking,
    languages: dict[int, str],
    wanted: RecallIn,
) -> PackedPassages:
    def focus(seq: int, text: str) -> Sequence[tuple[int, float]]:
        language = languages.get(seq, NEUTRAL)
        return term_places(text, language, ranking.weights.get(language, {}))

    return pack_passages(hits, every, max_tokens=wanted.max_tokens, limit=wanted.limit, focus=focus)


def _answer(recalled: Recalled, wanted: RecallIn) -> RecallOut:
    place, packed, searched = recalled
    passages = [
        RecalledPassage(
            ref=passage.ref,
            first_seq=passage.first_seq,
            last_seq=passage.last_seq,
            score=passage.score,
            in_context=is_shown(place, passage),
            parts=[part_of(excerpt) for excerpt in passage.excerpts],
        )
        for passage in packed.passages
    ]
    text = frame_passages(packed) if wanted.framed else UNSET
    return RecallOut(passages, packed.tokens, searched, packed.more, text)


def part_of(excerpt: Excerpt) -> RecalledPart:
    """Return a part as clients see it."""
    return RecalledPart(
        ref=excerpt.ref,
        seq=excerpt.original.seq,
        role=excerpt.original.role,
        kind=excerpt.part.kind,
        tool=excerpt.part.tool,
        created_at=excerpt.original.created_at,
        text=excerpt.text,
        offset=excerpt.offset,
        characters=excerpt.characters,
        name=excerpt.original.name or UNSET,
    )


def is_shown(place: SearchedConversation, passage: Passage) -> bool:
    """Tell whether the context shows a passage as it came; a context block stands beside what it is made of."""
    return bool(passage.seqs) and all(in_context(place, seq) for seq in passage.seqs)


def in_context(place: SearchedConversation, seq: int) -> bool:
    """Tell whether the context shows a message as it came."""
    if seq > place.covers_through:
        return True
    span = find_span(place.coverage, seq)
    return span is not None and span.fate == "kept"
