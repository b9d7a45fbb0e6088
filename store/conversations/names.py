"""Who wrote a message of Chat Completions, from what is stored beside its content."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from compaction.text.names import plain_name

SENT_WITH_NAME: Final = """
    case when m.shape = 'chat' and pg_column_size(m.sent) <= case m.role when 'user' then 8192 else 512 end
        and m.sent::text like '%name%' then m.sent::text end
"""
"""An expression for `name_in`: null of messages `m` that have no name, or are too large to be looked through for one.

Calls have names, too, and may be large: sizes are in bytes, as they are stored.
"""


class _Named(msgspec.Struct):
    role: str
    name: str | None = None


def name_in(sent: str | None) -> str:
    """Return the name of who wrote a message; "" where it does not say."""
    if sent is None:
        return ""
    with suppress(msgspec.MsgspecError):
        # What is stored around a text is an array of two: see `as_sent` in the schema.
        whole = "null".join(msgspec.json.decode(sent, type=tuple[str, str])) if sent.startswith("[") else sent
        message = msgspec.json.decode(whole, type=_Named)
        return plain_name(message.name or "") if message.role in {"user", "assistant"} else ""
    return ""
