"""Pages of lists: the part that is asked for, and the part that is returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from actions.types.core import Page

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")
T = TypeVar("T")


class Window(NamedTuple, Generic[C]):
    """The part of a list that is asked for; one row more than `limit` is read, to know whether there is more."""

    limit: int
    after: C | None
    before: C | None

    @property
    def query(self) -> dict[str, Any]:
        """What a query of the store is asked for."""
        return {"limit": self.limit + 1, "after": self.after, "before": self.before}


def page_of(items: list[T], span: Window[Any], identify: Callable[[T], str | int]) -> Page[T]:
    """Return a page of the rows that were read for a window."""
    has_more = len(items) > span.limit
    if has_more:
        # Towards newer rows, the one too many is the newest.
        items = items[1:] if span.before is not None else items[: span.limit]
    return Page(
        data=items,
        has_more=has_more,
        first_id=identify(items[0]) if items else None,
        last_id=identify(items[-1]) if items else None,
    )
