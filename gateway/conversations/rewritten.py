"""Search for the conversation of a rewritten history among those of its session, by what its rows mean."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec, TypeVar

from gateway.conversations.alignment import StoredMeaning, align
from gateway.conversations.meaning import RowMeaning, meaning_of, meaning_of_row
from runtime.threads import run_aside
from store.gateway import histories as stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from compaction.shapes.inner import Shape
    from gateway.conversations.alignment import Alignment
    from store.gateway.histories import Beginning, Candidate, StoredRow
    from store.hot_path import Pool

P = ParamSpec("P")
T = TypeVar("T")

SECONDS: Final = 0.03
"""Seconds that a request gives to reading a conversation that no request of this process has read lately."""
MOST_COMPARED: Final = 3
"""Conversations of a session that a request is aligned with, at most."""
REMEMBERED_ROWS: Final = 40_000
"""Rows whose meaning a process remembers, of stored conversations and again of requests, at about 600 bytes each."""
_PORTION: Final = 200
"""Messages that are read at a time."""
_NEAR_END: Final = 8
"""Rows at the end of a request among which the newest stored message is looked for."""
_LEAST_ROWS_BEFORE_EDIT: Final = 4
_MOST_NEW_ROWS: Final = 3
"""Rows that a request has behind an edit where fewer are stored before it: others may begin with the same words."""
_THREAD_ROWS: Final = 32
"""Rows whose meanings are worked out on a thread that serves no requests; fewer take less than a millisecond."""


class AlignmentScope(NamedTuple):
    """Where the conversation of a rewritten history is looked for."""

    circle: bytes
    """That of its session or user, or the id of the conversation that is named."""
    has_session: bool
    """Whether a session or a conversation is named, not a user alone: a user has many conversations."""
    meanings: RememberedMeanings


class RewrittenHistory(NamedTuple):
    """A stored conversation that a rewritten history goes on from."""

    beginning: Beginning
    alignment: Alignment
    rows: tuple[RowMeaning, ...]
    """Those of the request."""


class UnreadConversation(NamedTuple):
    """A conversation that it takes longer to compare than a request waits."""

    conversation_id: UUID


class _KnownRows(NamedTuple):
    edits: int
    rows: tuple[StoredMeaning, ...]


class RememberedMeanings:
    """Meanings of rows that were read lately, stored ones and those of requests."""

    def __init__(self, most: int = REMEMBERED_ROWS) -> None:
        self._most = most
        self._stored: OrderedDict[UUID, _KnownRows] = OrderedDict()
        self._count = 0
        self._sent: OrderedDict[tuple[Shape, int, int], RowMeaning] = OrderedDict()

    def of_rows(self, shape: Shape, rows: Sequence[bytes]) -> tuple[RowMeaning, ...]:
        """Return the meanings of a request's rows."""
        return tuple(self._of_row(shape, row) for row in rows)

    def _of_row(self, shape: Shape, row: bytes) -> RowMeaning:
        key = (shape, hash(row), len(row))
        known = self._sent.get(key)
        if known is None:
            known = self._sent[key] = meaning_of_row(shape, row)
            if len(self._sent) > self._most:
                self._sent.popitem(last=False)
        return known

    async def of_stored(
        self, pool: Pool, tenant_id: UUID, candidate: Candidate, *, seconds: float | None
    ) -> Sequence[StoredMeaning] | None:
        """Return the meanings of a conversation's messages in force; None if that takes longer than `seconds`.

        Rows that were read by then are remembered, so that the next request goes on from there.
        """
        began = time.monotonic()
        known = self._stored.get(candidate.conversation_id)
        rows = known.rows if known is not None and known.edits == candidate.edits else ()
        while not rows or rows[-1].seq < candidate.newest.seq:
            if seconds is not None and time.monotonic() - began > seconds:
                return None
            after = rows[-1].seq if rows else -1
            portion = await stored.rows_after(pool, tenant_id, candidate.conversation_id, after, most=_PORTION)
            if not portion:
                break
            rows = (*rows, *await _run_in_thread_if_many(len(portion), _meanings_of, portion))
            self._remember(candidate, rows)
        return rows

    def _remember(self, candidate: Candidate, rows: tuple[StoredMeaning, ...]) -> None:
        before = self._stored.pop(candidate.conversation_id, None)
        self._stored[candidate.conversation_id] = _KnownRows(candidate.edits, rows)
        self._count += len(rows) - (len(before.rows) if before is not None else 0)
        while self._count > self._most and len(self._stored) > 1:
            self._count -= len(self._stored.popitem(last=False)[1].rows)


def _meanings_of(portion: Sequence[StoredRow]) -> list[StoredMeaning]:
    return [StoredMeaning(row.seq, meaning_of(row.role, row.content)) for row in portion]


async def _run_in_thread_if_many(rows: int, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `compute` on so many rows; in a thread if they are more than _THREAD_ROWS."""
    if rows <= _THREAD_ROWS:
        return compute(*args, **kwargs)
    return await asyncio.to_thread(compute, *args, **kwargs)


async def find_rewritten(
    pool: Pool,
    tenant_id: UUID,
    shape: Shape,
    rows: Sequence[bytes],
    scope: AlignmentScope,
    *,
    known: UUID | None,
    named: UUID | None,
    external_id: str | None,
    least: int,
    can_wait: bool,
    meanings: tuple[RowMeaning, ...] = (),
) -> RewrittenHistory | UnreadConversation | None:
    """Return the stored conversation that a request goes on from with more than `least` rows, None for none.

    `known` is the one that its first rows are found in by their keys, `meanings` are those of its rows, if known.
    """
    if not meanings:
        meanings = await run_aside(sum(map(len, rows)), scope.meanings.of_rows, shape, rows)
    candidates = await stored.candidates(pool, tenant_id, scope.circle, named, external_id)
    for candidate in _choose_candidates(candidates, meanings, known, has_session=scope.has_session):
        seconds = None if can_wait else SECONDS
        others = await scope.meanings.of_stored(pool, tenant_id, candidate, seconds=seconds)
        if others is None:
            return UnreadConversation(candidate.conversation_id)
        alignment = await _run_in_thread_if_many(max(len(others), len(meanings)), align, others, meanings)
        if alignment is None or not _is_continuation(alignment, len(meanings), least, has_session=scope.has_session):
            continue
        place, last_seq = len(alignment.seqs), alignment.last_seq
        next_seq = max(candidate.next_seq, others[-1].seq + 1)
        beginning = await stored.beginning_through(
            pool, tenant_id, candidate.conversation_id, last_seq, place=place, next_seq=next_seq
        )
        return RewrittenHistory(beginning, alignment, meanings) if beginning is not None else None
    return None


def _choose_candidates(
    candidates: Sequence[Candidate], meanings: Sequence[RowMeaning], known: UUID | None, *, has_session: bool
) -> list[Candidate]:
    """Return the conversations to compare with, first those whose newest message is near the request's end."""
    near = meanings[-_NEAR_END:]
    has_end = {
        candidate.conversation_id
        for candidate in candidates
        if any(row.is_same_as(meaning_of(candidate.newest.role, candidate.newest.content)) for row in near)
    }
    every = [each for each in candidates if has_session or each.conversation_id in has_end]
    every.sort(key=lambda each: (each.conversation_id not in has_end, each.conversation_id != known))
    return every[:MOST_COMPARED]


def _is_continuation(alignment: Alignment, rows: int, least: int, *, has_session: bool) -> bool:
    """Return whether a request of so many rows goes on from the conversation that it is aligned with."""
    count = len(alignment.seqs)
    if count <= least or not alignment.has_answer:
        return False
    if alignment.replaced_from is None:
        return True
    # An edit. Without a session the user may have begun another conversation with the same words.
    return has_session and (count >= _LEAST_ROWS_BEFORE_EDIT or rows - count <= _MOST_NEW_ROWS)
