"""Headers that tell browsers and caches what not to do with an answer; every answer has them, whoever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

RawHeaders: TypeAlias = "tuple[tuple[bytes, bytes], ...]"

PAGE_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of HTML: files of this server alone, nothing inline, in nobody's frame."""
DATA_POLICY: Final = b"default-src 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of everything else: should a browser show it as a page, it loads and runs nothing."""

_ALWAYS: Final[RawHeaders] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NOT_STORED: Final = (b"cache-control", b"no-store")


class SecurityHeaders:
    """What is added to an answer's headers; a route that states `cache-control` itself keeps its own.

    `hsts_seconds` is how long browsers shall use HTTPS alone; 0 = they are not told.
    """

    def __init__(self, hsts_seconds: int = 0) -> None:
        hsts = ((b"strict-transport-security", b"max-age=%d" % hsts_seconds),) if hsts_seconds else ()
        self._of = {
            (page, cached): (
                *_ALWAYS,
                (b"content-security-policy", PAGE_POLICY if page else DATA_POLICY),
                *(() if cached else (_NOT_STORED,)),
                *hsts,
            )
            for page in (False, True)
            for cached in (False, True)
        }

    def of(self, headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
        """Return what an answer with these headers needs besides; names are in lower case."""
        page = cached = own = False
        given = tuple(headers)
        for name, value in given:
            if name == b"cache-control":
                cached = True
            elif name == b"content-type":
                page = value.startswith(b"text/html")
            elif name == b"content-security-policy":
                own = True
        headers_of_kind = self._of[page, cached]
        if not own:
            return headers_of_kind
        # A route with a policy of its own states the rest as it needs it; a second header of a name would add to it.
        stated = {name for name, _ in given}
        return tuple(header for header in headers_of_kind if header[0] not in stated)
