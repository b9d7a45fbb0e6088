"""Files for `palimpsest replay`: read as turns that can be sent, or refused with file, line and field."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from cli.transcripts.readers import TranscriptError, read_transcripts
from tests.fuzz.structure import changed_bytes, changed_documents, json_lines
from tests.fuzz.turns import as_json
from tests.support.shapes.generated import chat_conversations, response_conversations
from tests.support.strategies import any_conversations

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

    from tests.support.blocks import Message

_TOOL = {"name": "look", "description": "d", "input_schema": {"type": "object"}}


def _events(conversation: list[Message]) -> list[Any]:
    """Return a conversation as a session of Claude Code."""
    return [
        {
            "type": message["role"],
            "uuid": f"u{place}",
            "parentUuid": f"u{place - 1}" if place else None,
            "sessionId": "s1",
            "isSidechain": False,
            "message": {"role": message["role"], "content": message["content"], "id": f"msg_{place}"},
        }
        for place, message in enumerate(conversation)
    ]


@st.composite
def transcript_files(draw: DrawFn) -> bytes:
    """Draw files of each format that is read, some of them changed."""
    conversation: list[Message] = draw(any_conversations(max_chars=80, max_exchanges=3, max_rounds=2))
    whole = {"messages": conversation, "system": "Be brief.", "tools": [_TOOL], "id": "one"}
    chat, items = draw(chat_conversations()), draw(response_conversations())
    others = [[{"messages": chat, "tools": [_TOOL]}], chat, [{"items": items}], [items]]
    lines: list[Any] = draw(
        st.sampled_from(
            [[whole], [whole, whole], [conversation], conversation, _events(conversation), *others],
        )
    )
    changed = draw(changed_documents(st.just(lines)))
    as_one = draw(st.booleans()) and len(changed) == 1
    text = json.dumps(changed[0], indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace") if as_one else b""
    return draw(changed_bytes(st.just(text or json_lines(changed))))


def reads_or_says_where(text: bytes) -> None:
    """Assert that a file is read into turns of JSON, or refused in a way that leads to the place."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(text)
        file.flush()
        path = Path(file.name)
        refused: TranscriptError | None
        try:
            transcripts = read_transcripts(path)
        except TranscriptError as error:
            transcripts, refused = [], error
        else:
            refused = None
    if refused is not None:
        assert refused.path == path
        assert 1 <= refused.line <= text.count(b"\n") + 1, refused
        assert refused.field
    for transcript in transcripts:
        for raw in (transcript.system, transcript.tools):
            assert raw is None or json.loads(bytes(raw)) is not None
        for turn in transcript.turns:
            assert turn.messages
            for message in turn.messages:
                assert message.role in {"user", "assistant"}
                as_json(json.loads(bytes(message.content)))
                assert (message.original is None) == (transcript.shape == "messages")
