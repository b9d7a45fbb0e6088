"""Headers: what of a request goes on to the provider, and what of an answer to the client."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compaction.shapes.inner import Shape
    from gateway.doors import Headers

OURS: Final = b"x-palimpsest-"
CONVERSATION: Final = b"x-palimpsest-conversation"
KEY: Final = b"x-palimpsest-key"
BYPASS: Final = b"x-palimpsest-bypass"
OUTCOME: Final = b"x-palimpsest-outcome"
SAVED: Final = b"x-palimpsest-saved-tokens"
RULES: Final = b"x-palimpsest-rules"
REPAIRED: Final = b"x-palimpsest-repaired"
OPAQUE: Final = b"x-palimpsest-opaque"
REQUEST: Final = b"x-palimpsest-request"
CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
"""Where clients of the providers have their key."""
CODING: Final = b"content-encoding"
CODED: Final = frozenset({CODING, b"content-length"})
"""What is no longer so of an answer that was changed here."""
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110, 7.6.1: they are about one connection."""
_PALIMPSEST_KEY: Final = re.compile(rb"key_[0-9a-f]{32}\.")
"""Begins every Palimpsest key (`store.tenants.api_keys`)."""
_WRITTEN_ANEW: Final = frozenset({b"host", b"content-length", b"expect", b"accept-encoding"})
_READ_HERE: Final = (b"gzip", b"deflate", b"identity")
"""Encodings of an answer that its reader understands: what was said in others could not be stored."""


def is_bypassed(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a request is to be passed on and nothing else."""
    return headers.get(BYPASS, b"").strip().lower() in {b"true", b"1"}


def outgoing(headers: Headers, *, shape: Shape, provider_key: str | None, size: int | None) -> Headers:
    """Return the headers for the provider: without those about the connection, the gateway's own and Palimpsest keys.

    `provider_key` takes the place of the client's credentials, if it is given; `size` are the bytes of the body.
    """
    dropped = _HOP_BY_HOP | _WRITTEN_ANEW | _named(headers, b"connection")
    if provider_key is not None:
        dropped |= CREDENTIALS
    presented = next((value for name, value in headers if name == KEY), b"")
    sent = [
        (name, value)
        for name, value in headers
        if name not in dropped and not name.startswith(OURS) and not has_palimpsest_key(value, presented)
    ]
    sent.append((b"accept-encoding", _encodings(headers)))
    if provider_key:
        secret = provider_key.encode()
        sent.append((b"x-api-key", secret) if shape == "messages" else (b"authorization", b"Bearer " + secret))
    if size is not None:
        sent.append((b"content-length", b"%d" % size))
    return sent


def has_palimpsest_key(value: bytes, presented: bytes = b"") -> bool:
    """Return whether a header's value contains a Palimpsest key, or the key or token that the request `presented`."""
    return _PALIMPSEST_KEY.search(value) is not None or (presented != b"" and presented in value)


def incoming(headers: Headers) -> Headers:
    """Return what of the provider's headers goes on to the client."""
    dropped = _HOP_BY_HOP | _named(headers, b"connection")
    return [(name, value) for name, value in headers if name not in dropped and not name.startswith(OURS)]


def said(
    conversation: str | None, outcome: str, saved_tokens: int, rules: str = "", *, repaired: int = 0, opaque: int = 0
) -> Headers:
    """Return what the gateway says of a request; `rules` is the hash over those in it, "" where it is not known.

    `repaired` is how many malformed rows of the client's went on repaired, `opaque` how many could not be read.
    """
    own = [(OUTCOME, outcome.encode()), (SAVED, b"%d" % saved_tokens)]
    if rules:
        own.append((RULES, rules.encode()))
    if repaired:
        own.append((REPAIRED, b"%d" % repaired))
    if opaque:
        own.append((OPAQUE, b"%d" % opaque))
    return [(CONVERSATION, conversation.encode()), *own] if conversation else own


def _named(headers: Headers, name: bytes) -> frozenset[bytes]:
    """Return the headers that a connection header names as being about the connection too."""
    values = [value for each, value in headers if each == name]
    return frozenset(part.strip().lower() for value in values for part in value.split(b","))


def _encodings(headers: Headers) -> bytes:
    values: Mapping[bytes, bytes] = dict(headers)
    wanted = values.get(b"accept-encoding", b"identity").lower().split(b",")
    readable = [part.strip() for part in wanted if part.split(b";")[0].strip() in _READ_HERE]
    return b", ".join(readable) or b"identity"
