"""How much is about to be read into memory, said beforehand to whoever bounds it for a request or a run."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from store.tables import AnyRow

MOST_READ_BYTES: Final = 16 * 1024 * 1024
"""Bytes of stored messages that one context or one compaction reads of what no snapshot covers, the newest first: half
of what the Messages API takes in a request, and over twenty times the default of `max_context_bytes`."""
PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the texts that one page or portion has; a row that alone has more is one by itself."""
UNASKED_BYTES: Final = 1024 * 1024
"""Bytes that are read in one question with their sizes, without asking beforehand whether there is room for them."""

_BOUND: Final[ContextVar[Callable[[int], None] | None]] = ContextVar("bytes_held", default=None)


@contextmanager
def bounded_by(take: Callable[[int], None]) -> Iterator[None]:
    """Have `take` called in the block with every number of bytes before they are read; it raises what is too much."""
    token = _BOUND.set(take)
    try:
        yield
    finally:
        _BOUND.reset(token)


def announce(size: int) -> None:
    """Say that so many bytes will be read; without effect where nothing bounds them."""
    if (take := _BOUND.get()) is not None:
        take(size)


def page_of_sizes(rows: Sequence[AnyRow], limit: int) -> Sequence[AnyRow]:
    """Return those of the first `limit` rows (key, size) that make a page, and announce their bytes."""
    total = 0
    for count, (_, size) in enumerate(rows[:limit]):
        if count and total + size > PAGE_BYTES:
            rows = rows[:count]
            break
        total += size
    announce(total)
    return rows[:limit]
