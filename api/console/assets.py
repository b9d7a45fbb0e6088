"""Styles and scripts of the console, read once from the package."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from litestar import Request, Response, get
from litestar.params import PathParameter

from actions.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MEDIA_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_DIGEST_CHARS: Final = 12
_Name = Annotated[str, PathParameter()]


class Asset(NamedTuple):
    """A file; `digest` changes with what is in it."""

    content: bytes
    media_type: str
    digest: str


def _load() -> Mapping[str, Asset]:
    assets: dict[str, Asset] = {}
    for path in (Path(__file__).parent / "static").iterdir():
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARS]
        assets[path.name] = Asset(content, _MEDIA_TYPES[path.suffix], digest)
    return assets


_assets: Final = _load()


def asset_url(name: _Name) -> str:
    """Return a URL that may be kept for good: it changes with the file."""
    return f"/console/static/{name}?v={_assets[name].digest}"


@get("/static/{name:str}", include_in_schema=False)
async def get_asset(request: Request[Any, Any, Any], name: _Name) -> Response[bytes]:
    """Answer with a style or a script."""
    asset = _assets.get(name)
    if asset is None:
        raise NotFoundError
    kept = "public, max-age=31536000, immutable" if request.query_params.get("v") == asset.digest else "no-cache"
    headers = {
        "cache-control": kept,
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'",
    }
    return Response(asset.content, media_type=asset.media_type, headers=headers)
