"""Recalling across a user's conversations: the ranking of one over all of them, within bounds of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from sqlalchemy.exc import SQLAlchemyError

from actions.errors import InvalidError
from actions.recall import (
    SEARCH_SECONDS,
    by_ref,
    hits_for,
    in_context,
    is_shown,
    kind_of,
    masks_secrets,
    part_of,
    pattern_search,
    reference_of,
)
from actions.recall_records import Returned, note
from actions.types.recall import RecallIn, UserPassage, UserRecallOut
from compaction.recall import numbers, references, times
from compaction.recall.framing import frame_user_passages
from compaction.recall.passages import NEIGHBOURS, pack_passages, quote_messages, segments_of
from compaction.recall.ranking import Hit, Ranking, rank
from compaction.recall.segments import decode_segment, segments_worth_storing
from compaction.recall.words import NEUTRAL, term_places
from runtime import ids
from runtime.errors import RequestError
from store.recall import of_user
from store.recall import segments as stored
from store.recall.requests import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from actions.types.recall import UserRecallIn
    from compaction.recall.passages import PackedPassages, Passage, QuotedMessage, StoredText
    from compaction.recall.patterns import PatternSearch
    from compaction.recall.segments import Segment
    from store.recall.of_user import Stretch, Stretches, UserMaterial
    from store.recall.originals import SearchedConversation

WORTH_STORING: Final = 16
"""Messages from which on a segment is stored: a user has many short conversations, and each is searched every time."""
_BEFORE: Final = 2


class _RecalledOfUser(NamedTuple):
    """Passages with their conversations, the best first."""

    passages: list[tuple[UUID, Passage]]
    places: Mapping[UUID, SearchedConversation]
    tokens: int
    searched: Sequence[UUID]
    messages: int
    more: bool


async def recall_of_user(caller: Caller, user_ref: str, wanted: UserRecallIn) -> UserRecallOut:
    """Return what was asked for; nothing of a user without conversations. Raise the problem of what was asked."""
    kind = kind_of(wanted)
    if wanted.offset and wanted.ref is None:
        raise InvalidError("An offset goes with the ref of one message or block.", "/offset")
    by: Callable[..., Any] = {"query": _by_query, "ref": _by_place, "pattern": _by_pattern}[kind]
    try:
        async with caller.services.search_slots.acquire(caller.tenant_id):
            recalled: _RecalledOfUser = await by(caller, user_ref, wanted)
    except RequestError:
        caller.services.metrics.recalled(kind, "refused")
        raise
    await note(caller, Question(kind, getattr(wanted, kind), "api", of_user=True), _returned(recalled))
    return _answer(recalled, wanted)


async def _by_place(caller: Caller, user_ref: str, wanted: UserRecallIn) -> _RecalledOfUser:
    try:
        named, place = references.split_conversation(wanted.ref or "")
    except references.BadReferenceError as error:
        raise InvalidError(str(error), "/ref") from None
    if wanted.offset and reference_of(place).is_range:
        raise InvalidError("An offset goes with the ref of one message or block.", "/offset")
    reference_of(place)
    identifier = ids.parse("conv", named)
    recalled = None
    if identifier is not None and await caller.run(_owns, user_ref, identifier):
        asked = RecallIn(ref=place, offset=wanted.offset, max_tokens=wanted.max_tokens)
        recalled = await by_ref(caller, identifier, asked)
    if identifier is None or recalled is None:
        raise InvalidError("There is nothing of this reference to be recalled.", "/ref")
    passages = [(identifier, passage) for passage in recalled.packed.passages]
    return _RecalledOfUser(
        passages,
        {identifier: recalled.place},
        recalled.packed.tokens,
        [identifier],
        recalled.searched,
        recalled.packed.more,
    )


def _owns(connection: Connection, tenant_id: UUID, user_ref: str, conversation_id: UUID) -> bool:
    return of_user.is_owner(connection, tenant_id, user_ref, conversation_id)


async def _by_pattern(caller: Caller, user_ref: str, wanted: UserRecallIn) -> _RecalledOfUser:
    search = pattern_search(wanted)

    def query(
        connection: Connection, tenant_id: UUID
    ) -> tuple[Stretches, UserMaterial, Mapping[UUID, SearchedConversation]]:
        stretches = of_user.find_stretches(connection, tenant_id, user_ref, prepared=False)
        every = [each.conversation_id for each in stretches.items]
        return (
            stretches,
            of_user.read_material(connection, tenant_id, stretches.items),
            of_user.read_contexts(connection, tenant_id, every),
        )

    stretches, read, contexts = await caller.run(query)
    masked = _masked(caller, contexts)
    return await asyncio.to_thread(_match, stretches, read, contexts, search, wanted, masked)


def _match(
    stretches: Stretches,
    read: UserMaterial,
    contexts: Mapping[UUID, SearchedConversation],
    search: PatternSearch,
    wanted: UserRecallIn,
    masked: Collection[UUID],
) -> _RecalledOfUser:
    every: dict[int, QuotedMessage] = {}
    hits = []
    own = [each.conversation_id for each in stretches.items]
    for at in reversed(range(len(own))):
        messages = _numbered(at, read.rows.get(own[at], ()), masked=own[at] in masked)
        for number, original in reversed(messages.items()):
            if search.is_cut:
                break
            every[number] = original
            if any(search.find_places(part.text) for part in original.parts):
                hits.append(Hit(number, 1.0))
    packed = pack_passages(
        hits, every, max_tokens=wanted.max_tokens, limit=wanted.limit, focus=lambda _, text: search.find_places(text)
    )
    more = packed.more or search.is_cut or stretches.is_cut
    return _RecalledOfUser(_parted(packed, own), contexts, packed.tokens, own, len(every), more)


class _Material(NamedTuple):
    """What a search by words reads."""

    stretches: Stretches
    read: UserMaterial
    in_time: list[tuple[UUID, int, int]]


async def _by_query(caller: Caller, user_ref: str, wanted: UserRecallIn) -> _RecalledOfUser:
    def query(connection: Connection, tenant_id: UUID) -> _Material:
        stretches = of_user.find_stretches(connection, tenant_id, user_ref, prepared=True)
        read = of_user.read_material(connection, tenant_id, stretches.items)
        ranges = times.time_ranges(wanted.query or "", of_user.database_now(connection))
        return _Material(stretches, read, of_user.spans_of(connection, tenant_id, stretches.items, ranges))

    material = await caller.run(query)
    own = [each.conversation_id for each in material.stretches.items]
    ranked = await asyncio.to_thread(_rank, material, wanted)
    for stretch, new in ranked.new:
        with suppress(SQLAlchemyError, TimeoutError, OSError):
            await caller.run(stored.insert_segments, stretch.conversation_id, stretch.through, new)
    hits = ranked.ranking.hits[: hits_for(wanted.max_tokens)]
    near = dict.fromkeys(each for hit in hits for each in numbers.neighbour_numbers(hit.seq, _BEFORE, NEIGHBOURS))
    places_wanted = [(own[numbers.conversation_of(each)], numbers.seq_of(each)) for each in near]

    def texts(
        connection: Connection, tenant_id: UUID
    ) -> tuple[dict[UUID, list[StoredText]], Mapping[UUID, SearchedConversation]]:
        rows = of_user.read_chosen(connection, tenant_id, places_wanted)
        return rows, of_user.read_contexts(connection, tenant_id, list(rows))

    rows, contexts = await caller.run(texts)
    packed = await asyncio.to_thread(_pack, hits, rows, own, ranked, wanted, _masked(caller, contexts))
    more = packed.more or material.stretches.is_cut or ranked.is_cut or len(hits) < len(ranked.ranking.hits)
    return _RecalledOfUser(_parted(packed, own), contexts, packed.tokens, own, ranked.ranking.searched, more)


class _Ranked(NamedTuple):
    """What words found, the languages that it was found in, and what of that is worth storing."""

    ranking: Ranking
    languages: dict[int, str]
    new: list[tuple[Stretch, Sequence[Segment]]]
    is_cut: bool
    """There was no time for all of what is not prepared."""


def _rank(material: _Material, wanted: UserRecallIn) -> _Ranked:
    until = monotonic() + SEARCH_SECONDS
    every: list[Segment] = []
    kept: list[tuple[Stretch, Sequence[Segment]]] = []
    is_cut = False
    own = material.stretches.items
    for at in reversed(range(len(own))):
        stretch = own[at]
        rows = material.read.rows.get(stretch.conversation_id, ())
        in_time = monotonic() <= until or not every
        new = segments_of(quote_messages(rows), stretch.through) if in_time else []
        is_cut = is_cut or not in_time
        if stretch.is_whole and (whole := segments_worth_storing(new, WORTH_STORING)):
            kept.append((stretch, whole))
        segments = [*map(decode_segment, material.read.terms.get(stretch.conversation_id, ())), *new]
        every[:0] = [
            msgspec.structs.replace(segment, seqs=[numbers.message_number(at, seq) for seq in segment.seqs])
            for segment in segments
        ]
    places_of = {stretch.conversation_id: at for at, stretch in enumerate(own)}
    ranking = rank(
        every,
        wanted.query or "",
        without=[
            numbers.message_number(places_of[conversation], seq)
            for conversation, seqs in material.read.superseded.items()
            for seq in seqs
        ],
        in_time=[
            (
                numbers.message_number(places_of[conversation], first),
                numbers.message_number(places_of[conversation], last),
            )
            for conversation, first, last in material.in_time
        ],
    )
    languages = {seq: segment.language for segment in every for seq in segment.seqs}
    return _Ranked(ranking, languages, kept, is_cut)


def _pack(
    hits: Sequence[Hit],
    rows: Mapping[UUID, Sequence[StoredText]],
    own: Sequence[UUID],
    ranked: _Ranked,
    wanted: UserRecallIn,
    masked: Collection[UUID],
) -> PackedPassages:
    every: dict[int, QuotedMessage] = {}
    for at, conversation in enumerate(own):
        every |= _numbered(at, rows.get(conversation, ()), masked=conversation in masked)

    def focus(number: int, text: str) -> Sequence[tuple[int, float]]:
        language = ranked.languages.get(number, NEUTRAL)
        return term_places(text, language, ranked.ranking.weights.get(language, {}))

    return pack_passages(hits, every, max_tokens=wanted.max_tokens, limit=wanted.limit, focus=focus)


def _masked(caller: Caller, contexts: Mapping[UUID, SearchedConversation]) -> set[UUID]:
    """Return the conversations whose credentials are masked for this caller."""
    return {conversation for conversation, place in contexts.items() if masks_secrets(caller, place)}


def _numbered(at: int, rows: Sequence[StoredText], *, masked: bool) -> dict[int, QuotedMessage]:
    every = quote_messages(rows, masked=masked).items()
    return {(number := numbers.message_number(at, seq)): original._replace(seq=number) for seq, original in every}


def _parted(packed: PackedPassages, own: Sequence[UUID]) -> list[tuple[UUID, Passage]]:
    """Return passages with their conversations, and places in these."""
    placed = []
    for passage in packed.passages:
        excerpts = [
            excerpt._replace(original=excerpt.original._replace(seq=numbers.seq_of(excerpt.original.seq)))
            for excerpt in passage.excerpts
        ]
        first, last = numbers.seq_of(passage.first_seq), numbers.seq_of(passage.last_seq)
        placed.append(
            (
                own[numbers.conversation_of(passage.first_seq)],
                passage._replace(first_seq=first, last_seq=last, excerpts=excerpts),
            )
        )
    return placed


def _returned(recalled: _RecalledOfUser) -> list[Returned]:
    """Return what is written down of an answer, by conversation: of none, that the newest one had nothing."""
    by_conversation: dict[UUID, list[Passage]] = {}
    for conversation, passage in recalled.passages:
        by_conversation.setdefault(conversation, []).append(passage)
    if not by_conversation and recalled.searched:
        by_conversation[recalled.searched[-1]] = []
    returned = []
    for conversation, passages in by_conversation.items():
        seqs = [seq for passage in passages for seq in passage.seqs]
        place = recalled.places.get(conversation)
        returned.append(
            Returned(
                conversation,
                [passage.ref for passage in passages],
                seqs,
                [seq for seq in seqs if place is None or not in_context(place, seq)],
                recalled.messages,
                recalled.tokens,
            )
        )
    return returned


def _answer(recalled: _RecalledOfUser, wanted: UserRecallIn) -> UserRecallOut:
    named = [(ids.external("conv", conversation), passage) for conversation, passage in recalled.passages]
    text = frame_user_passages(named, more=recalled.more) if wanted.framed else UNSET
    return UserRecallOut(
        passages=[
            _passage(recalled.places.get(conversation), conversation, each) for conversation, each in recalled.passages
        ],
        tokens=recalled.tokens,
        searched=recalled.messages,
        conversations=len(recalled.searched),
        more=recalled.more,
        framed=text,
    )


def _passage(place: SearchedConversation | None, conversation: UUID, passage: Passage) -> UserPassage:
    identifier = ids.external("conv", conversation)
    parts = [part_of(excerpt) for excerpt in passage.excerpts]
    return UserPassage(
        ref=references.user_reference(identifier, passage.ref),
        first_seq=passage.first_seq,
        last_seq=passage.last_seq,
        score=passage.score,
        in_context=place is not None and is_shown(place, passage),
        parts=[msgspec.structs.replace(part, ref=references.user_reference(identifier, part.ref)) for part in parts],
        conversation_id=identifier,
    )
