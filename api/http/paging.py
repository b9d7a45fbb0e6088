"""Query parameters of pages, as the Anthropic API has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from litestar.params import QueryParameter

from actions.paging import Window
from runtime.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")

Limit = Annotated[int, QueryParameter(ge=1, le=100, description="Rows of one page.")]
MessageLimit = Annotated[int, QueryParameter(ge=1, le=1_000, description="Messages of one page.")]
AfterId = Annotated[str | None, QueryParameter(description="Cursor: rows behind this one, older ones.")]
BeforeId = Annotated[str | None, QueryParameter(description="Cursor: rows ahead of this one, newer ones.")]


def window(limit: int, after_id: str | None, before_id: str | None, parse: Callable[[str], C | None]) -> Window[C]:
    """Return the window that the query parameters ask for."""
    if after_id is not None and before_id is not None:
        raise RequestError("bad_cursor", "after_id and before_id exclude each other.", pointer="before_id")
    cursors = {"after_id": after_id, "before_id": before_id}
    parsed: dict[str, C | None] = {}
    for name, text in cursors.items():
        parsed[name] = None if text is None else parse(text)
        if text is not None and parsed[name] is None:
            raise RequestError("bad_cursor", f"{name} is not an id of this list.", pointer=name)
    return Window(limit, parsed["after_id"], parsed["before_id"])
