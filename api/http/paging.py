"""Pages: cursors in and out, as the Anthropic API has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar

from litestar.params import QueryParameter

from api.http.problems import ProblemError
from api.schema.types import Page

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")
T = TypeVar("T")

Limit = Annotated[int, QueryParameter(ge=1, le=100, description="Rows of one page.")]
MessageLimit = Annotated[int, QueryParameter(ge=1, le=1_000, description="Messages of one page.")]
AfterId = Annotated[str | None, QueryParameter(description="Cursor: rows behind this one, older ones.")]
BeforeId = Annotated[str | None, QueryParameter(description="Cursor: rows ahead of this one, newer ones.")]


class Window(NamedTuple, Generic[C]):
    """The part of a list that is asked for; one row more than `limit` is read, to know whether there is more."""

    limit: int
    after: C | None
    before: C | None

    @property
    def query(self) -> dict[str, Any]:
        """What a query of the store is asked for."""
        return {"limit": self.limit + 1, "after": self.after, "before": self.before}


def window(limit: int, after_id: str | None, before_id: str | None, parse: Callable[[str], C | None]) -> Window[C]:
    """Return the window that the query parameters ask for."""
    if after_id is not None and before_id is not None:
        raise ProblemError(400, "bad_cursor", "after_id and before_id exclude each other.", pointer="before_id")
    cursors = {"after_id": after_id, "before_id": before_id}
    parsed: dict[str, C | None] = {}
    for name, text in cursors.items():
        parsed[name] = None if text is None else parse(text)
        if text is not None and parsed[name] is None:
            raise ProblemError(400, "bad_cursor", f"{name} is not an id of this list.", pointer=name)
    return Window(limit, parsed["after_id"], parsed["before_id"])


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
