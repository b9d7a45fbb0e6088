"""The samples of docs/transcripts.md, read by the readers that `palimpsest replay` has."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from cli.transcripts.readers import Transcript, TranscriptError, read_transcripts
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PAGE: Final = (ROOT / "docs/transcripts.md").read_text()
REFUSED: Final = PAGE.partition("\n## What is refused\n")[2]
ROWS: Final = re.findall(r"^\| (nothing|`[^`]+`) \| ``?(.+?) ?``? \|$", REFUSED, re.MULTILINE)


def sample(heading: str, tmp_path: Path) -> list[Transcript]:
    """Return what the readers make of the sample under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"^```(?:text|json)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    file = tmp_path / "sample"
    file.write_text(text)
    return read_transcripts(file)


def turns(transcript: Transcript) -> list[Sequence[str]]:
    return [[message.role for message in turn.messages] for turn in transcript.turns]


def contents(transcript: Transcript) -> list[Any]:
    return [json.loads(bytes(message.content)) for message in transcript.messages]


def usages(transcript: Transcript) -> list[Any]:
    return [json.loads(bytes(turn.usage)) if turn.usage else None for turn in transcript.turns]


def test_conversations_in_anthropics_format(tmp_path: Path) -> None:
    first, second = sample("The Messages API's shape", tmp_path)
    assert [first.id, second.id] == ["trip-1", "trip-2"]
    assert first.system is not None
    assert json.loads(bytes(first.system)) == "Be brief."
    assert [turns(first), turns(second)] == [[["user", "assistant"]] * 2, [["user"]]]
    assert usages(first) == [None, {"input_tokens": 131, "output_tokens": 14}]


def test_a_claude_code_session(tmp_path: Path) -> None:
    (found,) = sample("Claude Code sessions", tmp_path)
    assert (found.id, turns(found)) == ("s-7", [["user", "assistant"]] * 2)
    assert [block["type"] for block in contents(found)[1]] == ["text", "tool_use"]
    assert usages(found) == [{"input_tokens": 900, "output_tokens": 42}, None]


def test_conversations_of_other_shapes(tmp_path: Path) -> None:
    chat, responses = sample("Chat Completions and Responses", tmp_path)
    assert (chat.shape, responses.shape) == ("chat", "responses")
    assert [len(list(each.messages)) for each in (chat, responses)] == [6, 4]
    assert turns(chat) == [["user", "user", "assistant"], ["user", "user", "assistant"]]
    assert turns(responses) == [["user", "assistant"]] * 2
    assert [block["input"]["city"] for block in contents(chat)[2]] == ["Oslo", "Bergen"]
    assert contents(chat)[3][0]["tool_use_id"] == "c1"


def test_there_are_rows_about_what_is_refused() -> None:
    assert len(ROWS) > 7


@pytest.mark.parametrize(("text", "told"), ROWS)
def test_what_is_refused(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "sample"
    file.write_text("" if text == "nothing" else text.strip("`"))
    with pytest.raises(TranscriptError, match=re.escape(told)):
        read_transcripts(file)
