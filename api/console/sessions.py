"""Who is asking in a browser: a cookie becomes a principal, and forms come from our own pages alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, quote, urlsplit

from api.auth.guards import count_request
from runtime.errors import RequestError
from runtime.held_bytes import HOLD
from store.console import sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler

    from actions.auth.principals import Principal
    from actions.services import Services

COOKIE: Final = "palimpsest_console"
HOME: Final = "/console"
SIGN_IN: Final = "/console/sign-in"
READ: Final = "audit:read"
"""Scope that a key needs to sign in and to see."""
ACT: Final = "admin"
"""Scope that a key needs to change anything."""
_KEPT: Final = "/?#[]@!$&'()*+,;=:%"
"""What of a path is not encoded: the delimiters of RFC 3986, and what is encoded already."""


class SignInNeededError(Exception):
    """Nobody is signed in; `path` is the page that was asked for."""

    def __init__(self, path: str) -> None:
        super().__init__("sign in first")
        self.path = path

    @property
    def sign_in_path(self) -> str:
        """The page to sign in on, which leads back."""
        return f"{SIGN_IN}?next={quote(self.path, safe='')}"


def may(scope: str) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]:
    """Return a guard that lets in sessions whose key has `scope`, and puts the principal into the request."""

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if _method(connection) == "POST":
            refuse_other_sites(connection.headers)
        principal = await principal_of(connection)
        if principal is None:
            raise SignInNeededError(_path_to_return_to(connection))
        await count_request(connection, principal)
        if not {scope, ACT} & principal.scopes:
            raise RequestError("forbidden", f"The key that you signed in with has not the scope {scope}.")
        connection.scope["user"] = principal
        connection.scope["state"][HOLD].belong_to(principal.tenant_id)

    return guard


async def principal_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Principal | None:
    """Return who is signed in. Nothing is remembered: a revoked key's sessions end at once."""
    token = token_of(connection)
    if not token:
        return None
    services: Services = connection.app.state.services
    session = await services.run_without_tenant(lambda database: sessions.find(database, token))
    return None if session is None else services.authenticator.principal(*session)


def token_of(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """Return the session's token that a browser sends, "" where it sends none.

    It is looked for here: the framework keeps the last thousand headers of cookies that it has parsed, for good.
    """
    cookies = (cookie.partition("=") for cookie in connection.headers.get("cookie", "").split(";"))
    return next((token.strip() for name, _, token in cookies if name.strip() == COOKIE), "")


async def from_our_pages(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Guard a form that needs no session."""
    refuse_other_sites(connection.headers)


def refuse_other_sites(headers: Mapping[str, str]) -> None:
    """Raise the problem of a form that another site's page sent.

    Browsers tell where a request comes from: `Sec-Fetch-Site` on HTTPS and on localhost, `Origin` everywhere.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    ours = site == "same-origin" if site else origin is not None and _split(origin).netloc == headers.get("host")
    if not ours:
        raise RequestError("cross_site", "This form was not sent from a page of this console.")


def session_cookie(token: str, *, secure: bool) -> str:
    """Return the header that gives a session's token to the browser; an empty one takes it back.

    `secure` keeps it from ever being sent in the clear.
    """
    lasts = int(sessions.SESSION.total_seconds()) if token else 0
    cookie = f"{COOKIE}={token}; Path={HOME}; Max-Age={lasts}; HttpOnly; SameSite=Strict"
    return f"{cookie}; Secure" if secure else cookie


def is_secure(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    """Tell whether the browser speaks HTTPS, to us or to the proxy in front of us."""
    return connection.url.scheme == "https" or connection.headers.get("origin", "").startswith("https://")


def own_path(path: str) -> str:
    """Return a path of the console to lead on to, as a header can have it; anything else is the console's home."""
    parts = _split(path)
    is_own = not parts.scheme and not parts.netloc and (parts.path == HOME or parts.path.startswith(f"{HOME}/"))
    return quote(path, safe=_KEPT) if is_own and path.isprintable() and "\\" not in path else HOME


def _split(url: str) -> SplitResult:
    """Return the parts of a URL that a browser sent, none of one that cannot be read."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _method(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    return str(connection.scope.get("method"))


def _path_to_return_to(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """Return the path of the page that somebody is on: the one asked for, unless that was but a part or an action."""
    current = connection.headers.get("hx-current-url") or (
        connection.headers.get("referer", HOME) if _method(connection) == "POST" else None
    )
    url = _split(current if current is not None else str(connection.url))
    return own_path(url.path + (f"?{url.query}" if url.query else ""))
