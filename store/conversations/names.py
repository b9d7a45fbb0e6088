"""Who wrote a message, from its role, its text, and the name that Chat Completions stores beside its content."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ARRAY, Integer, Uuid, bindparam, literal_column, text

from compaction.text.names import name_in, speaker_of, stated_name
from compaction.view import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.steps.snapshot import Original
    from compaction.view import ViewMessage
    from store.tables import AnyRow

SENT_WITH_NAME: Final = """
    case when m.shape = 'chat' and pg_column_size(m.sent) <= case m.role when 'user' then 8192 else 512 end
        and m.sent::text like '%name%' then m.sent::text end
"""
"""An expression for `name_in`: null of messages `m` that have no name, or are too large to be looked through for one.

Calls have names, too, and may be large: sizes are in bytes, as they are stored.
"""
_BEGINNING_CHARS: Final = 400
"""Characters of a content's JSON that tell who speaks: the name before the text, or the type of the first block."""
SPEAKER: Final[tuple[Any, ...]] = (
    literal_column("messages.role").label("role"),
    literal_column("messages.is_request").label("is_request"),
    literal_column(f"left(messages.content::text, {_BEGINNING_CHARS})").label("beginning"),
    literal_column(re.sub(r"\bm\.", "messages.", SENT_WITH_NAME)).label("sent_with_name"),
)
"""Columns of the table of messages that `speaker_in` reads."""
_TEXT: Final = re.compile(r"(?:\A|\"text\"\s*:\s*)\"((?:[^\"\\]|\\.)*)")
_NAMES: Final = text(f"""
    select m.seq, {SENT_WITH_NAME} as sent
    from messages as m where m.conversation_id = :conversation and m.seq = any(:seqs)
""").bindparams(bindparam("conversation", type_=Uuid), bindparam("seqs", type_=ARRAY(Integer)))  # noqa: S608 - constants


def names_of(
    connection: Connection, conversation_id: UUID, shown: Sequence[ViewMessage], tail: Sequence[Original]
) -> dict[int, str]:
    """Return who wrote the users' messages of a view, by seq, where they say so."""
    every = [(message.seq, message.role) for message in shown] + [(row.seq, row.role) for row in tail]
    seqs = [seq for seq, role in every if role == "user" and seq != WRITTEN]
    rows = connection.execute(_NAMES, {"conversation": conversation_id, "seqs": seqs}).all()
    return {row.seq: name for row in rows if (name := name_in(row.sent))}


def speaker_in(row: AnyRow) -> str:
    """Return who wrote a message, from its columns `SPEAKER`, as frames show it: `user (anna)`, `tool`."""
    name = name_in(row.sent_with_name)
    if row.role != "user":
        return speaker_of(row.role, name)
    if not row.is_request:
        return "system" if '"instruction"' in row.beginning[:64] else "tool"
    return speaker_of("user", name or _stated_name(row.beginning))


def _stated_name(beginning: str) -> str:
    match = _TEXT.search(beginning)
    if match is None:
        return ""
    with suppress(ValueError):
        return stated_name(json.loads(f'"{match[1]}"')).name
    return ""
