"""Whose history it is: the stored conversation that a request goes on from, and what of it is new."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.pins.pinned import IN_LEDGER, Pin
from compaction.shapes.inner import ShapeError
from gateway.conversations.histories import replace_nul
from gateway.conversations.meaning import SAYS_NOTHING, UNREADABLE, decode_row, exact_digest
from gateway.conversations.put_back import can_begin_with_results, live_before, resent_before, with_results
from gateway.conversations.rewritten import UnreadConversation, find_rewritten
from runtime import ids
from store.gateway import histories as stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from compaction.shapes.inner import Shape
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.meaning import RowMeaning
    from gateway.conversations.rewritten import AlignmentScope, RewrittenHistory
    from store.gateway.histories import AnsweredRecall, Beginning, Head, StoredRow
    from store.hot_path import Pool

_LEAST_ROWS: Final = 2
"""Rows of a history that is looked for by what it means."""
_MOST_REDATED: Final = 3
NEWEST: Final = 16
"""Beginnings that are looked up first, of a long history: a request goes on from one of them."""
_value: Final = msgspec.json.Decoder().decode


class RedatedRow(NamedTuple):
    """A row that its client has written anew with another date or time in it."""

    place: int
    seq: int
    content: Any
    """As it is stored."""


class RecognizedPlace(NamedTuple):
    """Where a request stands in what is stored."""

    conversation_id: UUID
    is_new: bool
    matched: int = 0
    """Rows of the request that are stored."""
    keyed: int = 0
    """Those of them that were recognized by their keys; the others are answers that say what was stored."""
    equal: tuple[tuple[int, int], ...] = ()
    """The seq that each of these answers ends with, and the rows of the request through it."""
    last_seq: int = -1
    """Of the last row that is stored."""
    next_seq: int = 0
    replace_from: int | None = None
    """The first stored message that the request does not have; None where it has all of them."""
    removed: tuple[int, ...] = ()
    strip_thinking_through: int = -1
    broken_through: int = -1
    head: Head | None = None
    """The snapshot that stands for a beginning of what is matched; None for none."""
    branch_of: UUID | None = None
    recalls: tuple[AnsweredRecall, ...] = ()
    """Answers among what is matched within which recall was answered."""
    policy: str = "{}"
    """The conversation's own, as JSON text."""
    model: str | None = None
    """The one that the conversation was last sent to."""
    rules: tuple[Pin, ...] = ()
    """Rules in force of what is matched; known where there is a head."""
    shown_rules: tuple[Pin, ...] = ()
    """The same as frames show them, with their credentials masked."""
    is_empty: bool = False
    """Whether the conversation that is named is there, without a message yet: what is new begins it."""
    is_pending: bool = False
    """Whether it takes longer than a request waits to tell what it goes on from: that is known afterwards."""
    is_branch: bool = False
    """Whether an edit has put something else in the place of what it goes on from."""
    is_cut: bool = False
    """Whether more messages may be stored behind those that were compared."""
    seqs: tuple[int, ...] = ()
    """Of a history that its client has rewritten the seq of each stored row, -1 for notes of the client's own."""
    meanings: tuple[RowMeaning, ...] = ()
    """Of such a history the meanings of all rows."""
    lacking_through: int = -1
    """The newest stored message that the client has left out."""
    cleared_through: int = -1
    """The newest one that the client has cleared, in whole or in part."""
    stored_ids: Mapping[str, str] = MappingProxyType({})
    """Of calls that the client has named anew, by its own id the one that is stored."""
    redated: tuple[RedatedRow, ...] = ()
    """Rows that a head covers and that the client has written with another time in them."""

    @property
    def results(self) -> list[dict[str, Any]]:
        """What the first new row begins with, and the client does not have."""
        last = self.recalls[-1] if self.recalls else None
        return last.results if last is not None and last.through_seq == self.last_seq else []

    def rows_before(self, seq: int) -> int:
        """Return how many rows of the request stand for the messages before `seq`."""
        if not self.seqs:
            return live_before(seq, self.removed)
        return next((place for place, each in enumerate(self.seqs) if each >= seq), len(self.seqs))

    @property
    def is_edit(self) -> bool:
        """Whether it takes the place of something that was stored."""
        return self.replace_from is not None


def new_place(branch_of: UUID | None = None) -> RecognizedPlace:
    """Return the place of a conversation that is to be made."""
    return RecognizedPlace(ids.new_id(), is_new=True, branch_of=branch_of)


def pending_place(conversation_id: UUID, rows: int) -> RecognizedPlace:
    """Return the place of a request of which `rows` rows at least will be stored when it is known."""
    return RecognizedPlace(conversation_id, is_new=False, matched=rows, keyed=rows, is_pending=True)


def may_go_on(history: ResentHistory, *, in_session: bool) -> bool:
    """Return whether a history can be recognized at all.

    Of one without an answer nobody can say whose it is, unless its session says so: others begin with the same words.
    """
    return in_session or any(b'"assistant"' in row or b'"function_call"' in row for row in history.rows)


async def recognize(
    pool: Pool,
    tenant_id: UUID,
    history: ResentHistory,
    keys: Sequence[bytes],
    *,
    only: UUID | None = None,
    external_id: str | None = None,
    can_wait: bool = False,
    scope: AlignmentScope | None = None,
    meanings: tuple[RowMeaning, ...] = (),
) -> RecognizedPlace:
    """Return where a request stands in what its tenant has stored; a new place where nothing is recognized.

    `only` or `external_id` is the conversation that the request names. Where it is the API's and has more messages than
    a request waits for, the place is pending unless it `can_wait`. In a `scope`, a history that its client has
    rewritten is recognized too; `meanings` are those of its rows where these are no longer there.
    """
    place = await _recognize_by_keys(
        pool, tenant_id, history, keys, only=only, external_id=external_id, can_wait=can_wait
    )
    rows = history.rows
    is_unknown = place.is_new or place.is_edit or place.is_cut
    if (
        scope is None
        or not is_unknown
        or place.is_branch
        or place.is_pending
        or place.recalls
        or len(rows) < _LEAST_ROWS
    ):
        return place
    if not meanings and not all(rows):
        return place
    found = await find_rewritten(
        pool,
        tenant_id,
        history.shape,
        rows,
        scope,
        known=place.branch_of if place.is_new else place.conversation_id,
        named=only,
        external_id=external_id,
        least=0 if place.is_new else place.matched - place.is_cut,
        can_wait=can_wait,
        meanings=meanings,
    )
    if isinstance(found, UnreadConversation):
        return pending_place(found.conversation_id, 0)
    return await _place_of(pool, tenant_id, found) if found is not None else place


async def _recognize_by_keys(
    pool: Pool,
    tenant_id: UUID,
    history: ResentHistory,
    keys: Sequence[bytes],
    *,
    only: UUID | None,
    external_id: str | None,
    can_wait: bool,
) -> RecognizedPlace:
    beginning = await _find_known(pool, tenant_id, history, keys, only)
    if beginning is None and (only is not None or external_id is not None):
        # One that has more than the request is not what the request goes on from.
        most = len(history.rows) + 1
        rows = most if can_wait else min(most, stored.MOST_NAMED_ROWS)
        beginning = await _find_named(pool, tenant_id, only, external_id, rows)
        if beginning is not None and len(beginning.after) >= stored.MOST_NAMED_ROWS < most and not can_wait:
            return pending_place(beginning.conversation_id, 0)
        if beginning is not None and not await asyncio.to_thread(_is_whole, beginning, history):
            return new_place(branch_of=beginning.conversation_id)
    if beginning is None:
        return new_place(branch_of=only)
    if beginning.is_superseded:
        # An edit took its place, and now it goes on: it is a conversation beside that one.
        return new_place(branch_of=beginning.conversation_id)._replace(is_branch=True)
    if not _is_placed(beginning):
        absent = await stored.absent(pool, tenant_id, beginning.conversation_id, beginning.next_seq)
        beginning = beginning._replace(removed=absent)
    place = _compare_histories(beginning, history)
    if place is None:
        return new_place(branch_of=beginning.conversation_id)
    return await _with_head(pool, tenant_id, beginning.head, place)


async def _with_head(pool: Pool, tenant_id: UUID, head: Head | None, place: RecognizedPlace) -> RecognizedPlace:
    """Return a place with the snapshot that may stand for a beginning of what is matched."""
    if head is not None and head.covers_through > place.last_seq:
        head = await stored.head_below(pool, tenant_id, place.conversation_id, place.last_seq + 1)
        whole = await stored.recalls_beside(pool, tenant_id, place.conversation_id, head) if place.recalls else ()
        texts = {each.seq: each.messages for each in whole}
        recalls = tuple(each._replace(messages=texts[each.seq]) for each in place.recalls if each.seq in texts)
        place = place._replace(strip_thinking_through=place.last_seq, recalls=recalls)
    return place._replace(head=head)


async def _place_of(pool: Pool, tenant_id: UUID, found: RewrittenHistory) -> RecognizedPlace:
    """Return the place of a history that its client has rewritten."""
    beginning, alignment = found.beginning, found.alignment
    count = len(alignment.seqs)
    known = set(alignment.seqs)
    place = RecognizedPlace(
        beginning.conversation_id,
        is_new=False,
        matched=count,
        keyed=count,
        last_seq=alignment.last_seq,
        next_seq=beginning.next_seq,
        replace_from=alignment.replaced_from,
        removed=tuple(seq for seq in range(alignment.last_seq + 1) if seq not in known),
        strip_thinking_through=beginning.strip_thinking_through,
        broken_through=beginning.broken_through,
        policy=beginning.policy,
        model=beginning.model,
        rules=_rules_through(beginning, alignment.last_seq),
        seqs=alignment.seqs,
        meanings=found.rows,
        lacking_through=alignment.lacking_through,
        cleared_through=alignment.cleared_through,
        stored_ids=alignment.stored_ids,
    )
    place = await _with_head(pool, tenant_id, beginning.head, place)
    covered = place.head.covers_through if place.head is not None else -1
    redated = [(at, alignment.seqs[at]) for at in alignment.redated if alignment.seqs[at] <= covered]
    originals = []
    for at, seq in redated[:_MOST_REDATED]:
        (row,) = await stored.rows_after(pool, tenant_id, place.conversation_id, seq - 1, most=1)
        originals.append(RedatedRow(at, seq, row.content))
    return place._replace(redated=tuple(originals))


async def _find_known(
    pool: Pool, tenant_id: UUID, history: ResentHistory, keys: Sequence[bytes], only: UUID | None
) -> Beginning | None:
    """Return the longest beginning that is stored, of the conversation that is named if it has any.

    Where an edit there took its place, it is that of the one beside it which went on from it.
    """
    own = await _find_longest(pool, tenant_id, keys, only)
    if only is None or (own is not None and not own.is_superseded):
        return own
    known = await _find_longest(pool, tenant_id, keys, None)
    if own is not None:
        return own if known is None or known.is_superseded else known
    return known and (await _find_fork(pool, tenant_id, history, only, known) or known)


async def _find_fork(
    pool: Pool, tenant_id: UUID, history: ResentHistory, named: UUID, known: Beginning
) -> Beginning | None:
    """Return the conversation that is named where it was forked from the one that a request is `known` by.

    That is, where no gateway has stored in it, and the request has the whole of it.
    """
    if await stored.is_branch(pool, tenant_id, known.conversation_id, named):
        return None
    fork = await _find_named(pool, tenant_id, named, None, min(len(history.rows) + 1, stored.MOST_NAMED_ROWS))
    if fork is None or not fork.next_seq or len(fork.after) >= stored.MOST_NAMED_ROWS:
        return None
    return fork if await asyncio.to_thread(_is_whole, fork, history) else None


async def _find_named(
    pool: Pool, tenant_id: UUID, conversation_id: UUID | None, external_id: str | None, rows: int
) -> Beginning | None:
    """Return a conversation that no gateway has stored in: so many of its messages, and what a client has not."""
    named = await stored.named(pool, tenant_id, conversation_id, external_id, rows=rows)
    hidden = sum(each.through_seq - each.seq + 1 for each in named.recalls) if named is not None else 0
    if hidden:
        named = await stored.named(pool, tenant_id, conversation_id, external_id, rows=rows + hidden)
    return named


def _is_whole(beginning: Beginning, history: ResentHistory) -> bool:
    """Return whether a request has the whole of what is stored in the conversation that it names."""
    place = _compare_histories(beginning, history)
    return place is not None and not place.is_edit


async def _find_longest(pool: Pool, tenant_id: UUID, keys: Sequence[bytes], only: UUID | None) -> Beginning | None:
    """Return the longest beginning that is stored; nearly always it is one of the newest."""
    older = max(0, len(keys) - NEWEST)
    beginning = await stored.find(pool, tenant_id, keys[older:], only=only)
    if beginning is not None:
        return beginning._replace(place=beginning.place + older)
    return await stored.find(pool, tenant_id, keys[:older], only=only) if older else None


def _is_placed(beginning: Beginning) -> bool:
    """Return whether the rows of a beginning are the messages that it is known to have."""
    return beginning.place == resent_before(beginning.seq + 1, beginning.removed, beginning.recalls)


def _compare_histories(beginning: Beginning, history: ResentHistory) -> RecognizedPlace | None:
    """Return the place of a request once its rows were compared with what is stored; None if that cannot be done."""
    if not _is_placed(beginning):
        # Somebody else has appended to it: which row is which message is not known any more.
        return None
    matched, last_seq, replaced = beginning.place, beginning.seq, None
    equal: list[tuple[int, int]] = []
    recalls = [each for each in beginning.recalls if each.through_seq <= beginning.seq]
    results = recalls[-1].results if recalls and recalls[-1].through_seq == beginning.seq else []
    for answer in _answers(beginning):
        count = answer.taken_from(history.shape, history.rows[matched:], results)
        if count is None or not answer.is_followed_by(history.shape, history.rows[matched + count :], count):
            replaced = answer.seq
            break
        matched += count
        last_seq = answer.through_seq
        if count:
            equal.append((last_seq, matched))
        results = []
        if answer.recall is not None:
            recalls.append(answer.recall._replace(resent=count))
            results = answer.recall.results
    if results and not any(can_begin_with_results(history.shape, row) for row in history.rows[matched : matched + 1]):
        # There is nothing that results could stand in: it goes on as the client has it.
        return None
    return RecognizedPlace(
        beginning.conversation_id,
        is_new=not beginning.next_seq,
        is_empty=not beginning.next_seq,
        matched=matched,
        keyed=beginning.place,
        equal=tuple(equal),
        last_seq=last_seq,
        next_seq=beginning.next_seq,
        replace_from=replaced,
        removed=tuple(beginning.removed),
        strip_thinking_through=beginning.strip_thinking_through,
        broken_through=beginning.broken_through,
        recalls=tuple(recalls),
        policy=beginning.policy,
        model=beginning.model,
        rules=_rules_through(beginning, last_seq),
        is_cut=replaced is None and len(beginning.after) == stored.MOST_ROWS and last_seq + 1 < beginning.next_seq,
    )


def _rules_through(beginning: Beginning, last_seq: int) -> tuple[Pin, ...]:
    """Return the rules in force of the messages through `last_seq`."""
    return tuple(
        Pin(entry, seq, text, IN_LEDGER[source])
        for entry, seq, text, source in beginning.rules
        if source in IN_LEDGER and seq <= last_seq
    )


class _Answer(NamedTuple):
    """What stands after the beginning: one message, or those within which recall was answered."""

    seq: int
    through_seq: int
    message: StoredRow
    recall: AnsweredRecall | None = None

    def is_followed_by(self, shape: Shape, rows: Sequence[bytes], count: int) -> bool:
        """Return whether these rows can come after it, `count` of which say it.

        Results that the client lacks begin the next message; after what says nothing the client asks something else, or
        it has another answer in its place.
        """
        if self.recall is None or (count and not self.recall.results):
            return True
        return any(_is_users(shape, row) for row in rows[:1])

    def taken_from(self, shape: Shape, rows: Sequence[bytes], results: Sequence[dict[str, Any]]) -> int | None:
        """Return how many of the next rows say it, None where they say something else."""
        if self.recall is None:
            if not rows or (results and not can_begin_with_results(shape, rows[0])):
                return None
            row = with_results(shape, rows[0], results)[-1]
            return 1 if says_the_same(shape, row, self.message.role, self.message.content) else None
        count = 0
        for visible in (decode_row(shape, row) for row in self.recall.shown):
            if _is_nothing(visible.content):
                continue
            while count < len(rows) and says_the_same(shape, rows[count], visible.role, ""):
                # Reasoning and the like, which clients send again or not.
                count += 1
            if count == len(rows) or not says_the_same(shape, rows[count], visible.role, visible.content):
                return None
            count += 1
        while count < len(rows) and says_the_same(shape, rows[count], "assistant", ""):
            # The same behind all that it says, or with nothing said at all.
            count += 1
        return count


def _answers(beginning: Beginning) -> Iterator[_Answer]:
    recalls = {each.seq: each for each in beginning.recalls}
    through = beginning.seq
    for row in beginning.after:
        if row.seq <= through:
            continue
        recall = recalls.get(row.seq)
        through = recall.through_seq if recall is not None else row.seq
        yield _Answer(row.seq, through, row, recall)


def says_the_same(shape: Shape, row: bytes, role: str, content: Any) -> bool:
    """Return whether a row of a request says what a stored message does.

    What clients leave out of an answer when they send it again, or write otherwise, makes no difference.
    """
    try:
        sent = decode_row(shape, _value(replace_nul(row)))
    except (ShapeError, *UNREADABLE):
        return False
    return exact_digest(*sent) == exact_digest(role, content)


def _is_users(shape: Shape, row: bytes) -> bool:
    try:
        return decode_row(shape, _value(row)).role == "user"
    except (ShapeError, *UNREADABLE):
        return False


def says_nothing(shape: Shape, row: Any) -> bool:
    """Return whether a row is reasoning and nothing else."""
    try:
        return _is_nothing(decode_row(shape, row).content)
    except ShapeError:
        return False


def _is_nothing(content: Any) -> bool:
    return exact_digest("assistant", content) == SAYS_NOTHING
