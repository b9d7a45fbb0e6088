"""The doors: which paths there are, what shape goes through each, and how its provider words an error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.shapes.inner import Shape

Headers = list[tuple[bytes, bytes]]
_encode: Final = msgspec.json.Encoder().encode
_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OPENAI_TYPES: Final = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    403: "invalid_request_error",
    404: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class Door(NamedTuple):
    """A path, and what goes through it."""

    shape: Shape
    end: str
    """What stands after the provider's base URL with its version, as clients of it have it."""
    name: str
    """In metrics and logs."""
    is_conversation: bool = True
    """Whether a history goes through it that is answered."""
    is_list: bool = False
    """Whether it lists or makes known what all who share a provider's key have stored there."""


class DoorError(Exception):
    """What the gateway itself answers with an error, in the words of the door's provider."""

    def __init__(self, status: int, detail: str, *, code: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.retry_after = retry_after


MESSAGES: Final = Door("messages", "/messages", "messages")
COUNT_TOKENS: Final = Door("messages", "/messages/count_tokens", "count_tokens", is_conversation=False)
CHAT: Final = Door("chat", "/chat/completions", "chat")
RESPONSES: Final = Door("responses", "/responses", "responses")
_POSTED: Final[Mapping[str, Door]] = {f"/v1{door.end}": door for door in (MESSAGES, COUNT_TOKENS, CHAT, RESPONSES)}
RELAYED: Final = "relayed"
"""Name of the doors whose requests are relayed unread."""
CALLED: Final = (*(door.name for door in _POSTED.values()), "models", RELAYED)
"""Names of the doors behind which a provider is called."""
_MODELS: Final = re.compile(r"/v1/models(?:/(?!\.+(?:/|\Z))[\w.:@-]+)*\Z")
"""The list and single models, whose names have slashes: no way to anything else that a provider's key opens."""
_ID: Final = r"(?!\.+(?:/|\Z))[\w.:@-]+"
_OTHERS: Final[Sequence[tuple[Shape | None, str, str]]] = (
    ("responses", "POST", r"/responses/(?:compact|input_tokens)"),
    ("responses", "GET DELETE", rf"/responses/{_ID}"),
    ("responses", "POST", rf"/responses/{_ID}/cancel"),
    ("responses", "GET", rf"/responses/{_ID}/input_items"),
    ("responses", "POST", r"/conversations"),
    ("responses", "GET POST DELETE", rf"/conversations/{_ID}"),
    ("responses", "GET POST", rf"/conversations/{_ID}/items"),
    ("responses", "GET DELETE", rf"/conversations/{_ID}/items/{_ID}"),
    ("chat", "GET POST DELETE", rf"/chat/completions/{_ID}"),
    ("chat", "GET", rf"/chat/completions/{_ID}/messages"),
    ("chat", "POST", r"/(?:completions|embeddings|moderations|rerank)"),
    ("chat", "POST", r"/images/(?:generations|edits|variations)"),
    ("chat", "POST", r"/audio/(?:speech|transcriptions|translations)"),
    ("chat", "POST", r"/realtime/(?:client_secrets|sessions|transcription_sessions)"),
    ("chat", "POST", rf"/uploads(?:/{_ID}/(?:parts|complete|cancel))?"),
    ("chat", "POST", r"/(?:batches|vector_stores)"),
    ("chat", "GET", rf"/batches/{_ID}"),
    ("chat", "POST", rf"/batches/{_ID}/cancel"),
    ("chat", "GET POST DELETE", rf"/vector_stores/{_ID}(?:/{_ID}){{0,3}}"),
    ("messages", "POST", r"/(?:complete|messages/batches)"),
    ("messages", "GET DELETE", rf"/messages/batches/{_ID}"),
    ("messages", "GET", rf"/messages/batches/{_ID}/results"),
    ("messages", "POST", rf"/messages/batches/{_ID}/cancel"),
    (None, "POST", r"/files"),
    (None, "GET DELETE", rf"/files/{_ID}"),
    (None, "GET", rf"/files/{_ID}/content"),
)
"""Other paths of the providers that clients ask for: the shape whose provider it is, None for that of the headers."""
_LISTS: Final[Sequence[tuple[Shape | None, str, str]]] = (
    ("messages", "GET", r"/messages/batches"),
    ("chat", "GET", r"/(?:batches|chat/completions|vector_stores)"),
    (None, "GET", r"/files"),
)
_RELAYED: Final = [
    (shape, method, re.compile(rf"/v1{path}\Z"), is_list)
    for is_list, every in ((False, _OTHERS), (True, _LISTS))
    for shape, methods, path in every
    for method in methods.split()
]
GUARDRAIL: Final = Door("chat", "/beta/litellm_basic_guardrail_api", "litellm", is_conversation=False)
_ANSWERED: Final[Mapping[str, Door]] = {door.end: door for door in (GUARDRAIL,)}
"""What the gateway answers by itself; the whole path stands where others have its end."""


def door_of(method: str, path: str, headers: Mapping[bytes, bytes]) -> Door | None:
    """Return the door of a request, None for none; models are those of the provider whose headers the client sends."""
    if method == "POST" and (door := _POSTED.get(path) or _ANSWERED.get(path)) is not None:
        return door
    if method in {"GET", "HEAD"} and _MODELS.match(path):
        return Door(_shape_of(headers), path.removeprefix("/v1"), "models", is_conversation=False)
    return _relayed(method, path, headers)


def _relayed(method: str, path: str, headers: Mapping[bytes, bytes]) -> Door | None:
    """Return the door of another path of a provider's, None for one that is not known."""
    for shape, known, pattern, is_list in _RELAYED:
        if known == method and pattern.match(path):
            end = path.removeprefix("/v1")
            return Door(shape or _shape_of(headers), end, RELAYED, is_conversation=False, is_list=is_list)
    return None


def _shape_of(headers: Mapping[bytes, bytes]) -> Shape:
    """Return the shape of the provider whose headers a client sends."""
    return "messages" if b"anthropic-version" in headers or b"x-api-key" in headers else "chat"


def no_door(method: str, path: str) -> str:
    """Return what is said of a path that leads nowhere; with the one that was meant, where the base URL is wrong."""
    said = f"There is no {method} {path} here."
    meant = [each for each, door in _POSTED.items() if path == door.end or path.endswith(each)]
    return f"{said} With the right base URL the client asks for {meant[0]}." if meant else said


def error_body(shape: Shape, status: int, detail: str, code: str | None = None) -> bytes:
    """Return an error as the provider of a shape words it."""
    if shape == "messages":
        kind = _ANTHROPIC_TYPES.get(status, "api_error")
        return _encode({"type": "error", "error": {"type": kind, "message": detail}})
    kind = _OPENAI_TYPES.get(status, "server_error")
    return _encode({"error": {"message": detail, "type": kind, "param": None, "code": code}})


def error_headers(body: bytes, retry_after: int | None) -> Headers:
    """Return the headers of an error of the gateway's own."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return [*headers, (b"retry-after", b"%d" % retry_after)] if retry_after is not None else headers


def first(headers: Mapping[bytes, bytes], names: Sequence[bytes]) -> str | None:
    """Return the value of the first of these headers that a request has."""
    return next((value.decode("latin-1") for name in names if (value := headers.get(name))), None)
