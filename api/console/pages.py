"""HTML: templates become answers that no page of another site can reach into."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Response

from api.console import formats
from api.console.assets import asset_url
from api.http.problems import answer_to

if TYPE_CHECKING:
    from litestar import Request

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: with that, browsers send `Origin: null` along with forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""What every page is sent with: nothing inline is run, nothing is loaded from elsewhere, nobody frames or keeps it."""

_HTML: Final = "text/html"

_templates: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_templates.filters |= formats.FILTERS
_templates.globals["asset"] = asset_url


def is_fragment(request: Request[Any, Any, Any]) -> bool:
    """Tell whether a part of a page is asked for, to be put into one that is shown."""
    return "hx-request" in request.headers


def page(request: Request[Any, Any, Any], template: str, *, status: int = 200, **model: Any) -> Response[bytes]:
    """Return a template with its model as an answer."""
    user = request.scope.get("user")
    text = _templates.get_template(template).render(
        **model,
        signed_in=user is not None,
        may_act=user is not None and "admin" in user.scopes,
        key_id=user.key_id if user is not None else None,
        path=request.url.path,
        now=datetime.now(UTC),
        request_id=request.scope["state"]["request_id"],
    )
    return Response(text.encode(), status_code=status, media_type=_HTML, headers=dict(HEADERS))


def error_page(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return as a page what any other route would answer as a problem document."""
    answer = answer_to(request, error)
    problem = msgspec.json.decode(answer.content)
    response = page(request, "error.html", status=problem["status"], problem=problem)
    response.headers.update({name: value for name, value in answer.headers.items() if name == "retry-after"})
    return response


def redirect(path: str) -> Response[bytes]:
    """Return the answer that leads on to a page of the console after something was done."""
    return Response(b"", status_code=303, media_type=_HTML, headers={**HEADERS, "location": path})
