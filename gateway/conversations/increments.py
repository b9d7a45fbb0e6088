"""Requests that go on from an answer by its id: the provider has their history, and all of the answer under another id.

An answer within which recall was answered is several of the provider's. A client has the id of the first, which the
provider knows without what came of it: it goes on from the last, with the results of calls beside the client's own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.conversations.histories import LISTS
from gateway.conversations.meaning import UNREADABLE
from store.gateway import histories as stored

if TYPE_CHECKING:
    from uuid import UUID

    from store.gateway.histories import GoneOnFrom
    from store.hot_path import Pool

PREVIOUS: Final = "previous_response_id"
_MARK: Final = PREVIOUS.encode()
MOST_ID_CHARS: Final = 200
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def response_key(response_id: str) -> bytes:
    """Return what stands for an answer while that is being stored."""
    return hashlib.sha256(b"response " + response_id.encode()).digest()


def previous_in(body: bytes) -> str | None:
    """Return the id that a request goes on from, None for none."""
    if _MARK not in body:
        return None
    try:
        named: Any = _value(_fields(body).get(PREVIOUS, b"null"))
    except UNREADABLE:
        return None
    return named if isinstance(named, str) and 0 < len(named) <= MOST_ID_CHARS and "\0" not in named else None


async def as_the_provider_has_it(pool: Pool, tenant_id: UUID, body: bytes, response_id: str) -> bytes:
    """Return a request as the provider can answer it: as it came, unless its id is that of an answer with recall."""
    known = await stored.gone_on_from(pool, tenant_id, response_id)
    return body if known is None else _gone_on(body, known)


def _gone_on(body: bytes, known: GoneOnFrom) -> bytes:
    fields = _fields(body)
    fields[PREVIOUS] = msgspec.Raw(_encode(known.response_id))
    name = LISTS["responses"]
    asked = bytes(fields.get(name, b"[]")).strip()
    if known.results and asked[:1] in {b"[", b'"'}:
        rows = b'[{"role":"user","content":' + asked + b"}]" if asked.startswith(b'"') else asked
        rest = rows[1:].lstrip()
        fields[name] = msgspec.Raw(
            b"[" + _encode(known.results)[1:-1] + (b"" if rest.startswith(b"]") else b",") + rest
        )
    parts = [_encode(key) + b":" + bytes(value) for key, value in fields.items()]
    return b"{" + b",".join(parts) + b"}"
