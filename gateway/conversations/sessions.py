"""Which session and which client a request is from, as far as its headers and fields say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gateway.conversations.meaning import UNREADABLE
from gateway.doors import first

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_NAME_CHARS: Final = 200
"""Of a session or a user; longer ones are none."""
_MOST_EXTERNAL_ID_CHARS: Final = 512
"""Of what a request calls its conversation, as the API has it."""
_HEADERS: Final = (
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
    b"thread-id",
    b"x-session-id",
    b"x-session-affinity",
    b"x-litellm-session-id",
    b"x-litellm-trace-id",
    b"helicone-session-id",
    b"x-openwebui-chat-id",
)
"""What clients call a session, measured; LiteLLM passes the client's own on under its names."""
_CLIENTS: Final = (
    ("claude-cli", "claude-code"),
    ("claude-code", "claude-code"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("ai-sdk", "vercel-ai"),
    ("litellm", "litellm"),
    ("strands", "strands"),
    ("pydantic-ai", "pydantic-ai"),
    ("langchain", "langchain"),
    ("agents/", "openai-agents"),
    ("anthropic/", "anthropic-sdk"),
    ("openai/", "openai-sdk"),
)
"""What stands in a client's user-agent, and what it is called here."""
_BY_HEADER: Final = (
    (b"x-claude-code-session-id", "claude-code"),
    (b"x-litellm-session-id", "litellm"),
    (b"x-litellm-trace-id", "litellm"),
    (b"x-openwebui-chat-id", "open-webui"),
)
"""Session headers that one client alone has, for user-agents that do not say."""
_PRODUCT: Final = re.compile(r"[a-z][a-z0-9._-]{0,39}(?=/|\Z)")
"""What any other user-agent begins with (RFC 9110, 10.1.5); its version changes."""
_json: Final = msgspec.json.Decoder().decode


class Session(NamedTuple):
    """Who a request is from. A session's name alone does not tell which conversation it is."""

    name: str | None
    user: str | None
    client: str | None
    """What it is called here, else the product that its user-agent begins with."""


def session_of(headers: Mapping[bytes, bytes], fields: Mapping[str, msgspec.Raw]) -> Session:
    """Return who a request is from; `fields` are those of its body."""
    metadata = _value(fields.get("metadata"))
    named = metadata if isinstance(metadata, dict) else {}
    user = next(
        (_name(value) for value in (_value(fields.get("safety_identifier")), _value(fields.get("user"))) if value),
        _name(named.get("user_id")),
    )
    name = _name(first(headers, _HEADERS))
    inside = _inside(named.get("user_id"))
    if inside:
        name, user = name or _name(inside.get("session_id")), _name(inside.get("account_uuid"))
    name = name or _name(named.get("session_id")) or _name(_value(fields.get("litellm_session_id")))
    return Session(name, user, _client(headers))


def conversation_name(value: bytes) -> str | None:
    """Return what a request's header calls its conversation; None where it has no name, or none that there can be."""
    try:
        name = value.decode().strip()
    except UnicodeDecodeError:
        # Browsers have no other letters in headers.
        name = value.decode("latin-1").strip()
    return name if 0 < len(name) <= _MOST_EXTERNAL_ID_CHARS and "\x00" not in name else None


def _inside(user_id: Any) -> dict[str, Any]:
    """Return what Claude Code has in the place of a user's id: JSON text with the session's."""
    if not isinstance(user_id, str) or not user_id.startswith("{"):
        return {}
    try:
        value = _json(user_id)
    except UNREADABLE:
        return {}
    return value if isinstance(value, dict) else {}


def _client(headers: Mapping[bytes, bytes]) -> str | None:
    agent = headers.get(b"user-agent", b"").decode("latin-1").lower()
    known = next((name for part, name in _CLIENTS if part in agent), None)
    known = known or next((name for header, name in _BY_HEADER if header in headers), None)
    product = _PRODUCT.match(agent)
    return known or (product[0] if product else None)


def _value(raw: msgspec.Raw | None) -> Any:
    if raw is None or len(bytes(raw)) > 10 * MOST_NAME_CHARS:
        return None
    try:
        return _json(raw)
    except UNREADABLE:
        # A number that is none here, for one: the provider may read it.
        return None


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MOST_NAME_CHARS and "\x00" not in value else None
