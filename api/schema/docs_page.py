"""The page about the API for people: Swagger UI from this package, so it needs no other server and no inline script."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Final

from litestar import MediaType, Request, Response, Router, get
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.params import PathParameter

from actions.errors import NotFoundError
from runtime.http.problem_types import PROBLEM_TYPES

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_FOLDER: Final[Traversable] = files("api") / "static"
_FILES: Final = {
    "docs.js": (_FOLDER / "docs.js", "text/javascript"),
    "swagger-ui-bundle.js": (_FOLDER / "swagger-ui" / "swagger-ui-bundle.js", "text/javascript"),
    "swagger-ui.css": (_FOLDER / "swagger-ui" / "swagger-ui.css", "text/css"),
}
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/assets/swagger-ui.css">
<script src="/docs/assets/swagger-ui-bundle.js" defer></script>
<script src="/docs/assets/docs.js" defer></script>
</head>
<body>
<main id="calls"></main>
<noscript><p>This page needs JavaScript; <a href="/openapi.json">the OpenAPI document</a> says the same.</p></noscript>
</body>
</html>
"""


_PROBLEMS: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Problems that the API answers with</title>
<link rel="icon" href="data:,">
</head>
<body>
<main>
<h1>Problems that the API answers with</h1>
<p>An error is a problem document (RFC 9457); its <code>type</code> leads here, its <code>detail</code> and
<code>pointer</code> say what it was about. <a href="/docs">The calls</a></p>
{entries}</main>
</body>
</html>
"""


class DocsPage(OpenAPIRenderPlugin):
    """Swagger UI at the root of the documentation's path, and the files that it consists of."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002
        """Return the page; it reads the document by itself."""
        return _PAGE.format(title=escape(openapi_schema["info"]["title"])).encode()

    def receive_router(self, router: Router) -> None:
        """Serve the page's files beside it."""
        router.register(docs_asset)
        router.register(problems_page)


@get("/assets/{name:str}", include_in_schema=False, sync_to_thread=False)
def docs_asset(name: Annotated[str, PathParameter(description="A file's name.")]) -> Response[bytes]:
    """Answer with one file of the page."""
    if name not in _FILES:
        raise NotFoundError
    return Response(_read(name), media_type=_FILES[name][1], headers={"cache-control": "public, max-age=3600"})


@get("/problems", include_in_schema=False, sync_to_thread=False, media_type=MediaType.HTML)
def problems_page() -> str:
    """Answer with what each type of problem means: its URI, as an answer names it, leads to its place here."""
    return _problems()


def _in_html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


@cache
def _problems() -> str:
    entries = "".join(
        f'<section id="{escape(code.replace("_", "-"))}"><h2><code>{escape(code)}</code>, {kind.status}</h2>'
        f"<p>{_in_html(kind.remedy)}</p><p>For example: {escape(kind.detail)}</p></section>\n"
        for code, kind in PROBLEM_TYPES.items()
    )
    return _PROBLEMS.format(entries=entries)


@cache
def _read(name: str) -> bytes:
    return _FILES[name][0].read_bytes()
