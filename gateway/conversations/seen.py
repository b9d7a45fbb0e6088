"""Rows that were read before: of a history that is resent, only what is new is read.

A client sends again the bytes that it has sent, and some more behind them. JSON is read from the left: where the bytes
of a list are the same up to the end of a row, so are its rows. Python's hash says whether they are, whose salt is the
process's own.
"""

from __future__ import annotations

import re
import secrets
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain as joined
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, overload

import msgspec

from gateway.conversations.histories import LISTS, ResentHistory, RowDigests, chain_digests, is_passed_on
from gateway.conversations.meaning import UNREADABLE
from gateway.recalls.thoughts import has_thoughts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compaction.shapes.inner import Shape

REMEMBERED_ROWS: Final = 200_000
"""Rows of all the histories that a process remembers, at some hundred bytes each."""
_LEAST_BITS: Final = 12
"""Histories of 4 KiB and more are remembered; a shorter one is read in microseconds."""
_ALIKE: Final = 4
"""Histories that are remembered of those with the same first half: branches, and whatever began with the same words."""
_NEAR: Final = 4
"""Rows at the end that differ where a client moves its marks for the prompt cache: it is still the same history."""
_BETWEEN: Final = b" \t\r\n,"
_NAME: Final = secrets.token_hex(16)
"""What the list is called while the rest of a body is read: none of its fields has a name that nobody else knows."""
_OPENINGS: Final[Mapping[Shape, re.Pattern[bytes]]] = {
    shape: re.compile(rb'"%b"\s*:\s*\[\s*' % name.encode()) for shape, name in LISTS.items()
}
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_rows: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _SeenHistory(NamedTuple):
    """Rows of a list, by bytes from its first one on."""

    starts: array[int]
    ends: array[int]
    hashes: array[int]
    """Of the bytes from one's end to the next one's."""
    lead: int
    """System prompts before the first row of the history."""
    links: list[bytes]
    """What stands for each of its beginnings."""

    def row(self, body: bytes, start: int, place: int) -> bytes:
        """Return a row of a list that begins at `start`."""
        return body[start + self.starts[place] : start + self.ends[place]]

    def same_in(self, body: bytes, start: int, sure: int) -> int:
        """Return how many rows are the same in a list that begins at `start`; its first `sure` bytes are."""
        count = bisect_right(self.ends, sure)
        at = self.ends[count - 1] if count else 0
        for end, remembered in zip(self.ends[count:], self.hashes[count:], strict=True):
            if hash(body[start + at : start + end]) != remembered:
                break
            count += 1
            at = end
        return count


class ResentRows(Sequence[bytes]):
    """Rows of a body: those that are known where they stand in it, and the new ones behind them."""

    def __init__(self, body: bytes, start: int, seen: _SeenHistory, kept: int, new: list[bytes]) -> None:
        self._body = body
        self._start = start
        self._seen = seen
        self._known = kept - seen.lead
        self._new = new

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self._row(each) for each in range(*place.indices(len(self)))]
        return self._row(range(len(self))[place])

    def __len__(self) -> int:
        return self._known + len(self._new)

    def _row(self, place: int) -> bytes:
        if place >= self._known:
            return self._new[place - self._known]
        return self._seen.row(self._body, self._start, place + self._seen.lead)


class SeenHistories:
    """Histories that were read lately, by the bytes of their first half."""

    def __init__(self, most: int = REMEMBERED_ROWS) -> None:
        self._most = most
        self._digests = RowDigests()
        self._by_half: OrderedDict[tuple[int, int], tuple[_SeenHistory, ...]] = OrderedDict()
        self._rows = 0
        self._lock = Lock()

    def links(self, shape: Shape, rows: Sequence[bytes]) -> list[bytes]:
        """Return what stands for each beginning of a history, the shortest first."""
        return chain_digests(rows, self._digests, shape)

    def find_malformed(self, shape: Shape, rows: Sequence[bytes]) -> tuple[int, ...]:
        """Return the places of rows, of which the links are known, that the API of their shape refuses."""
        return self._digests.find_malformed(rows, shape)

    def count_opaque(self, shape: Shape, rows: Sequence[bytes]) -> int:
        """Return how many rows, of which the links are known, cannot be read or can be read in two ways."""
        return self._digests.count_opaque(rows, shape)

    def find_history(self, shape: Shape, body: bytes) -> tuple[ResentHistory, list[bytes]] | None:
        """Return the history in a body, and what stands for its beginnings; None where all of it has to be read."""
        opening = _OPENINGS[shape].search(body)
        if opening is None:
            return None
        start = opening.end()
        seen, same = self._longest(body, start)
        # The last one that is the same is read again: so its end is its end, and a comma after it goes on.
        kept = same - 1
        if seen is None or kept <= seen.lead:
            return None
        rest = b'%b"%b":[%b' % (body[: opening.start()], _NAME.encode(), body[start + seen.starts[kept] :])
        try:
            fields = _fields(rest)
            # Not there where the list was another one's, or none.
            listed = fields.get(_NAME)
            if listed is None or LISTS[shape] in fields or is_passed_on(shape, fields, rest) or has_thoughts(rest):
                return None
            new = [bytes(row) for row in _rows(listed)]
            links = chain_digests(new, self._digests, shape, after=seen.links[: kept - seen.lead])
        except UNREADABLE:
            return None
        named = {LISTS[shape] if name == _NAME else name: value for name, value in fields.items()}
        lead = [seen.row(body, start, place) for place in range(seen.lead)]
        self._remember(body, start, _extend_history(seen, kept, body, start, new, links), instead_of=seen)
        return ResentHistory(shape, named, lead, ResentRows(body, start, seen, kept, new)), links

    def remember(self, body: bytes, history: ResentHistory, links: list[bytes]) -> None:
        """Remember a history that was read."""
        opening = _OPENINGS[history.shape].search(body)
        if opening is None or (len(body) - opening.end()) >> _LEAST_BITS == 0:
            return
        nothing = _SeenHistory(array("Q"), array("Q"), array("q"), len(history.lead), [])
        every = list(joined(history.lead, history.rows))
        self._remember(
            body, opening.end(), _extend_history(nothing, 0, body, opening.end(), every, links), instead_of=None
        )

    def _longest(self, body: bytes, start: int) -> tuple[_SeenHistory | None, int]:
        for bits in range((len(body) - start).bit_length() - 1, _LEAST_BITS - 1, -1):
            alike = self._by_half.get(_half(body, start, bits))
            if alike:
                return max(((seen, seen.same_in(body, start, 1 << bits)) for seen in alike), key=lambda each: each[1])
        return None, 0

    def _remember(
        self, body: bytes, start: int, grown: _SeenHistory | None, *, instead_of: _SeenHistory | None
    ) -> None:
        if grown is None or not grown.ends[-1] >> _LEAST_BITS:
            return
        half = _half(body, start, grown.ends[-1].bit_length() - 1)
        is_near = instead_of is not None and len(grown.ends) + _NEAR >= len(instead_of.ends)
        with self._lock:
            before = self._by_half.pop(half, ())
            alike = (*(each for each in before if not (is_near and each is instead_of)), grown)[-_ALIKE:]
            self._by_half[half] = alike
            self._rows += _size(alike) - _size(before)
            while self._rows > self._most and len(self._by_half) > 1:
                self._rows -= _size(self._by_half.popitem(last=False)[1])


def _half(body: bytes, start: int, bits: int) -> tuple[int, int]:
    return bits, hash(body[start : start + (1 << bits)])


def _size(alike: Sequence[_SeenHistory]) -> int:
    return sum(len(seen.ends) for seen in alike)


def _extend_history(
    seen: _SeenHistory, kept: int, body: bytes, start: int, new: Sequence[bytes], links: list[bytes]
) -> _SeenHistory | None:
    """Return the first `kept` rows of a list with those behind them; None where these do not stand there."""
    starts, ends, hashes = seen.starts[:kept], seen.ends[:kept], seen.hashes[:kept]
    end = ends[-1] if kept else 0
    for row in new:
        before = at = start + end
        while body[at] in _BETWEEN:
            at += 1
        if not body.startswith(row, at):
            return None
        end = at + len(row) - start
        starts.append(at - start)
        ends.append(end)
        hashes.append(hash(body[before : start + end]))
    return _SeenHistory(starts, ends, hashes, seen.lead, links) if ends else None
