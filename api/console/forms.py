"""What browsers send from the console's forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from api.problems import invalid

if TYPE_CHECKING:
    from litestar import Request
    from litestar.datastructures import FormMultiDict
    from litestar.types import ASGIApp, Receive, Scope, Send

FORM_BYTES: Final = 64 * 1024
"""Bytes of a form; the largest, with instructions to a summarizer, has a quarter of that."""


def without_blanks(app: ASGIApp) -> ASGIApp:
    """Return an application that sees no query parameter without a value.

    Browsers send the empty fields of a form too, and an empty filter is none.
    """

    async def filled(scope: Scope, receive: Receive, send: Send) -> None:
        pairs = scope["query_string"].split(b"&")
        scope["query_string"] = b"&".join(pair for pair in pairs if pair.partition(b"=")[2])
        await app(scope, receive, send)

    return filled


async def read_form(request: Request[Any, Any, Any]) -> FormMultiDict:
    """Return a form's fields; raise the problem of one that Postgres could not keep."""
    form = await request.form()
    for name, value in form.multi_items():
        if "\0" in str(value):
            raise invalid("Text must not contain the NUL character.", name)
    return form
