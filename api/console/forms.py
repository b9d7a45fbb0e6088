"""What browsers send from the console's forms."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl

from litestar.datastructures import MultiDict
from litestar.params import QueryParameter

from actions.errors import InvalidError
from store.console.filters import Narrowed

if TYPE_CHECKING:
    from litestar import Request
    from litestar.types import ASGIApp, Receive, Scope, Send

FORM_BYTES: Final = 64 * 1024
"""Bytes of a form; the largest, with instructions to a summarizer, has a quarter of that."""
_URL_ENCODED: Final = "application/x-www-form-urlencoded"
"""How browsers write forms that do not ask for anything else; none of the console's does."""


def without_blanks(app: ASGIApp) -> ASGIApp:
    """Return an application that sees no query parameter without a value.

    Browsers send the empty fields of a form too, and an empty filter is none.
    """

    async def filled(scope: Scope, receive: Receive, send: Send) -> None:
        pairs = scope["query_string"].split(b"&")
        scope["query_string"] = b"&".join(pair for pair in pairs if pair.partition(b"=")[2])
        await app(scope, receive, send)

    return filled


Day = Annotated[date | None, QueryParameter()]
User = Annotated[str | None, QueryParameter(max_length=512, pattern=r"^[^\x00]*$")]
Client = Annotated[str | None, QueryParameter(max_length=200, pattern=r"^[^\x00]*$")]
Cost = Annotated[str | None, QueryParameter(pattern=r"^[0-9]{1,7}(\.[0-9]{1,6})?$")]
_FIRST_YEAR, _LAST_YEAR = 2000, 2999
"""Days that ids can be of, with some to spare."""


def narrowed(
    since: date | None, until: date | None, user: str | None, cost: str | None, client: str | None = None
) -> Narrowed:
    """Return what a list is narrowed to; raise the problem of a day that nothing can be of."""
    for name, day in (("since", since), ("until", until)):
        if day is not None and not _FIRST_YEAR <= day.year <= _LAST_YEAR:
            raise InvalidError("Expected a day of these centuries.", name)
    return Narrowed(since, until, user or None, None if cost is None else Decimal(cost), client or None)


async def form_of(request: Request[Any, Any, Any]) -> MultiDict[str]:
    """Return a form's fields, none of a body that is written in another way.

    It is parsed here: the framework keeps the last thousand forms that it has parsed, from anybody, for good, and reads
    one in several parts in whichever encoding they name.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _URL_ENCODED:
        return MultiDict()
    return MultiDict(parse_qsl((await request.body()).decode("latin-1"), keep_blank_values=True))


async def read_form(request: Request[Any, Any, Any]) -> MultiDict[str]:
    """Return a form's fields; raise the problem of one that Postgres could not keep."""
    form = await form_of(request)
    for name, value in form.items():
        if "\0" in value:
            raise InvalidError("Text must not contain the NUL character.", name)
    return form
