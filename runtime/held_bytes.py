"""Bytes that the requests of one process have in memory: bodies as they come, and what is read to answer them.

Reading a body takes up to ten times its bytes for a moment: Python keeps four bytes for each character of a text that
has one emoji, and parsing has such a text twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

from runtime.errors import UnavailableError

HOLD: Final = "bytes_under_way"
"""Where a request's state has its `HeldBytes`."""
SMALL_BYTES: Final = 256 * 1024
"""Bytes up to which a request is an ordinary one."""
KEPT_FREE: Final = 8 * 1024 * 1024
"""Bytes that only ordinary requests may take: large ones never keep them waiting."""
RESERVED_EACH: Final = KEPT_FREE // 4
"""Bytes of them for the ordinary requests of one tenant."""
SHARE: Final = 3
"""Times as many bytes as are left that the other requests of one tenant may have: it never takes the last quarter."""
MAX_BODIES: Final = 128
"""Bodies of one tenant, or of one address before it is known who sends them, that may be under way at a time."""

Owner = Hashable
"""A tenant's id, or an address."""


class BusyError(UnavailableError):
    """As much is under way as may be."""

    def __init__(self) -> None:
        super().__init__("As many bytes are under way here as may be at a time: try again in a moment.")


class BytesUnderWay:
    """How much of `most` bytes the requests of this process hold. Nobody waits for it: what is too much is refused.

    One that nobody shares the process with may have more.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self.of_owner: Counter[Owner] = Counter()
        self.small_of_owner: Counter[Owner] = Counter()
        self.bodies: Counter[Owner] = Counter()


class HeldBytes:
    """What one request holds, until it has been answered; nothing at first."""

    __slots__ = ("_has_body", "_of", "_owner", "size")

    def __init__(self, of: BytesUnderWay, owner: Owner = None) -> None:
        self._of = of
        self._owner = owner
        self._has_body = False
        self.size = 0

    def belong_to(self, owner: Owner) -> None:
        """Count what this request holds for another owner."""
        size, has_body = self.size, self._has_body
        self.give_back()
        self._owner = owner
        self._hold(size)
        if has_body:
            self.begin_body()

    def take(self, size: int) -> None:
        """Take so many bytes; raise BusyError if there are not as many left, or too few for others."""
        of, held = self._of, self.size + size
        if of.taken > self.size:
            left, others = of.most - of.taken - size, of.of_owner[self._owner] - self.size
            ordinary = of.small_of_owner[self._owner]
            is_in_reserve = held <= SMALL_BYTES and left + KEPT_FREE >= 0 and ordinary + size <= RESERVED_EACH
            if (left < 0 or others > SHARE * left) and not is_in_reserve:
                raise BusyError
        self._hold(held)

    def begin_body(self) -> None:
        """Count a body that has not come whole; raise BusyError where its owner has too many of them."""
        if self._has_body:
            return
        if self._of.bodies[self._owner] >= MAX_BODIES:
            raise BusyError
        self._of.bodies[self._owner] += 1
        self._has_body = True

    def end_body(self) -> None:
        """Count it no more."""
        if self._has_body:
            self._has_body = False
            _add(self._of.bodies, self._owner, -1)

    def give_back(self) -> None:
        """Give back all of it."""
        self.end_body()
        self._hold(0)

    def _hold(self, size: int) -> None:
        of, before = self._of, self.size
        of.taken += size - before
        _add(of.of_owner, self._owner, size - before)
        _add(of.small_of_owner, self._owner, _if_small(size) - _if_small(before))
        self.size = size


def _if_small(size: int) -> int:
    return size if size <= SMALL_BYTES else 0


def _add(counter: Counter[Owner], owner: Owner, number: int) -> None:
    counter[owner] += number
    if not counter[owner]:
        del counter[owner]
