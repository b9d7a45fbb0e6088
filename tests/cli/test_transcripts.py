"""Readers of recorded conversations: three formats, told by content, with errors that name line and field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cli.transcripts.readers import Transcript, TranscriptError, read_transcripts
from tests.support.places import TRANSCRIPTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def write(tmp_path: Path, text: str, name: str = "input.txt") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def jsonl(tmp_path: Path, *values: Any) -> Path:
    return write(tmp_path, "".join(json.dumps(value) + "\n" for value in values))


def contents(transcript: Transcript) -> list[Any]:
    return [json.loads(bytes(message.content)) for message in transcript.messages]


def roles(transcript: Transcript) -> list[str]:
    return [message.role for message in transcript.messages]


def shape(transcript: Transcript) -> list[list[str]]:
    return [[message.role for message in turn.messages] for turn in transcript.turns]


ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": "Find flights"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "find", "input": {"to": "OSL"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "two"}]},
    {"role": "assistant", "content": "Two flights.", "usage": {"input_tokens": 31, "output_tokens": 4}},
    {"role": "user", "content": "Thanks"},
]


class TestAnthropic:
    @pytest.mark.parametrize(
        "text",
        [
            json.dumps({"id": "c1", "system": "Be brief.", "messages": ANTHROPIC}),
            json.dumps({"id": "c1", "system": "Be brief.", "messages": ANTHROPIC}, indent=2),
            json.dumps([{"id": "c1", "system": "Be brief.", "messages": ANTHROPIC}], indent=1),
        ],
        ids=["line", "object", "array of conversations"],
    )
    def test_conversation_with_system_and_usage(self, tmp_path: Path, text: str) -> None:
        (found,) = read_transcripts(write(tmp_path, text))
        assert found.system is not None
        assert json.loads(bytes(found.system)) == "Be brief."
        assert contents(found) == [message["content"] for message in ANTHROPIC]
        assert shape(found) == [["user", "assistant"], ["user", "assistant"], ["user"]]
        usages = [turn.usage and json.loads(bytes(turn.usage)) for turn in found.turns]
        assert usages == [None, {"input_tokens": 31, "output_tokens": 4}, None]

    @pytest.mark.parametrize(
        "text",
        [json.dumps(ANTHROPIC), json.dumps(ANTHROPIC, indent=2), "\n".join(map(json.dumps, ANTHROPIC))],
        ids=["array", "indented array", "one message a line"],
    )
    def test_bare_messages_are_one_conversation_named_after_the_file(self, tmp_path: Path, text: str) -> None:
        (found,) = read_transcripts(write(tmp_path, text, "chat.bin"))
        assert found.id == "chat"
        assert found.system is None
        assert roles(found) == [message["role"] for message in ANTHROPIC]

    def test_every_line_is_a_conversation(self, tmp_path: Path) -> None:
        transcripts = read_transcripts(jsonl(tmp_path, {"id": "a", "messages": ANTHROPIC}, {"messages": ANTHROPIC[:2]}))
        assert [(each.id, len(roles(each))) for each in transcripts] == [("a", 5), ("input-001", 2)]

    def test_content_keeps_its_bytes(self, tmp_path: Path) -> None:
        raw = '[ {"type":"text",  "text":"caf\\u00e9 é \\/ 1e2", "n": 1.0,\t"n": 10000000000000000000001} ]'
        text = '{"messages": [\n{"role": "user", "content": ' + raw + "},\n"
        text += '{"content": "\\ud83d\\ude00", "role": "assistant"}]}'
        (found,) = read_transcripts(write(tmp_path, text))
        assert [bytes(message.content).decode() for message in found.messages] == [raw, '"\\ud83d\\ude00"']

    def test_unknown_blocks_pass_through(self, tmp_path: Path) -> None:
        block = {"type": "file", "path": "a.py", "content": "x = 1"}
        (found,) = read_transcripts(jsonl(tmp_path, {"messages": [{"role": "user", "content": [block]}]}))
        assert contents(found) == [[block]]

    def test_other_programs_fields_are_ignored(self, tmp_path: Path) -> None:
        message = {"id": "m1", "ts": 5, "role": "user", "content": "hi", "usage": None}
        (found,) = read_transcripts(jsonl(tmp_path, {"sessionId": "s9", "system_prompt": "S", "messages": [message]}))
        assert (found.id, found.system and bytes(found.system)) == ("s9", b'"S"')
        assert found.turns[0].usage is None

    def test_tools_and_byte_order_mark(self, tmp_path: Path) -> None:
        tools = [{"name": "find", "input_schema": {"type": "object"}}]
        text = "\ufeff" + json.dumps({"tools": tools, "messages": ANTHROPIC})
        (found,) = read_transcripts(write(tmp_path, text))
        assert found.tools is not None
        assert json.loads(bytes(found.tools)) == tools


def event(kind: str, content: Any, **fields: Any) -> dict[str, Any]:
    inner = {key: fields.pop(key) for key in ("id", "usage") if key in fields}
    return {"type": kind, "sessionId": "s1", "message": {"role": kind, "content": content, **inner}, **fields}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {}}


def result(name: str) -> dict[str, str]:
    return {"type": "tool_result", "tool_use_id": name, "content": "done"}


class TestClaudeCode:
    def test_lines_of_one_message_are_joined(self, tmp_path: Path) -> None:
        path = jsonl(
            tmp_path,
            {"type": "summary", "summary": "Earlier", "leafUuid": "x"},
            {"type": "file-history-snapshot", "messageId": "m"},
            event("user", "fix it", uuid="u1", parentUuid=None),
            event("assistant", [text("Looking.")], id="m1", usage={"input_tokens": 9, "output_tokens": 1}),
            event("assistant", [call("a")], id="m1", usage={"input_tokens": 9, "output_tokens": 30}),
            event("user", [result("a")], toolUseResult={"stdout": "done"}),
            event("assistant", [text("Fixed.")], id="m2"),
        )
        (found,) = read_transcripts(path)
        assert found.id == "s1"
        assert contents(found) == ["fix it", [text("Looking."), call("a")], [result("a")], [text("Fixed.")]]
        first = found.turns[0].usage
        assert first is not None
        assert json.loads(bytes(first))["output_tokens"] == 30

    def test_parallel_calls_written_with_results_between_them(self, tmp_path: Path) -> None:
        path = jsonl(
            tmp_path,
            event("user", "both"),
            event("assistant", [call("a")], id="m1"),
            event("user", [result("a")]),
            event("assistant", [call("b")], id="m1"),
            event("user", [result("b")]),
            event("assistant", [text("Both done.")], id="m2"),
        )
        (found,) = read_transcripts(path)
        assert contents(found)[1:3] == [[call("a"), call("b")], [result("a"), result("b")]]
        assert shape(found) == [["user", "assistant"], ["user", "assistant"]]

    def test_what_was_not_said_to_the_model_is_left_out(self, tmp_path: Path) -> None:
        path = jsonl(
            tmp_path,
            event("user", "caveat", isMeta=True),
            event("user", "go", uuid="u1"),
            event("assistant", [text("inner")], id="s", isSidechain=True),
            event("user", "This session is being continued", isCompactSummary=True),
            event("assistant", [text("API error")], id="e", isApiErrorMessage=True),
            {"type": "system", "content": "compacted", "subtype": "compact_boundary"},
            event("user", "go", uuid="u1"),
            event("assistant", [text("gone")], id="m1"),
        )
        (found,) = read_transcripts(path)
        assert contents(found) == ["go", [text("gone")]]

    def test_an_edited_prompt_replaces_what_followed_the_first(self, tmp_path: Path) -> None:
        path = jsonl(
            tmp_path,
            event("user", "one", uuid="u1", parentUuid=None),
            event("assistant", [text("A1")], id="m1", uuid="a1", parentUuid="u1"),
            event("user", "two", uuid="u2", parentUuid="a1"),
            event("assistant", [text("A2")], id="m2", uuid="a2", parentUuid="u2"),
            event("user", "two again", uuid="u3", parentUuid="a1"),
            event("assistant", [text("A3")], id="m3", uuid="a3", parentUuid="u3"),
        )
        (found,) = read_transcripts(path)
        assert contents(found) == ["one", [text("A1")], "two again", [text("A3")]]

    def test_a_single_line_keeps_its_bytes(self, tmp_path: Path) -> None:
        raw = '[{"type": "text","text":"a\\/b"}]'
        (found,) = read_transcripts(
            write(tmp_path, '{"type": "user", "message": {"role": "user", "content": ' + raw + "}}")
        )
        assert [bytes(message.content).decode() for message in found.messages] == [raw]


OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [text("What is this?"), {"type": "image_url", "image_url": {"url": "https://x/y.png"}}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "list", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    {"role": "tool", "tool_call_id": "c2", "content": [text("one")]},
    {"role": "assistant", "content": "A cat."},
]
INNER = [
    [{"type": "instruction", "text": "Be brief.", "by": "system"}],
    [text("What is this?"), {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}],
    [
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "c2", "name": "list", "input": {}},
    ],
    [{"type": "tool_result", "tool_use_id": "c1", "content": "a cat"}],
    [{"type": "tool_result", "tool_use_id": "c2", "content": [text("one")]}],
    "A cat.",
]
ITEMS: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is this?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A cat.", "annotations": []}]},
]


class TestOtherShapes:
    @pytest.mark.parametrize(
        ("messages", "expected", "turns"),
        [
            (OPENAI, "chat", [["user", "user", "assistant"], ["user", "user", "assistant"]]),
            (ITEMS, "responses", [["user", "user", "assistant", "assistant"], ["user", "assistant"]]),
        ],
        ids=["chat", "responses"],
    )
    @pytest.mark.parametrize("form", ["object", "array", "one message a line"])
    def test_messages_stay_as_they_are(
        self, tmp_path: Path, messages: list[Any], expected: str, turns: list[list[str]], form: str
    ) -> None:
        if form == "object":
            document = json.dumps({"items" if expected == "responses" else "messages": messages})
        else:
            document = json.dumps(messages, indent=2) if form == "array" else "\n".join(map(json.dumps, messages))
        (found,) = read_transcripts(write(tmp_path, document))
        assert found.shape == expected
        assert [bytes(each.original or b"").decode() in document for each in found.messages] == [True] * 6
        assert [json.loads(bytes(each.original or b"")) for each in found.messages] == messages
        assert shape(found) == turns

    def test_what_they_are_to_every_step(self, tmp_path: Path) -> None:
        (found,) = read_transcripts(jsonl(tmp_path, {"messages": OPENAI}))
        assert contents(found) == INNER

    def test_system_and_tools_are_those_of_the_file(self, tmp_path: Path) -> None:
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
        (found,) = read_transcripts(jsonl(tmp_path, {"items": ITEMS, "instructions": "Be kind.", "tools": [tool]}))
        assert found.tools is not None
        assert found.system is not None
        assert (json.loads(bytes(found.tools)), json.loads(bytes(found.system))) == ([tool], "Be kind.")

    def test_an_answer_of_the_messages_api_is_no_item(self, tmp_path: Path) -> None:
        answer = {"id": "msg_1", "type": "message", "role": "assistant", "content": [text("Hi.")], "usage": None}
        (found,) = read_transcripts(jsonl(tmp_path, {"messages": [{"role": "user", "content": "Hi"}, answer]}))
        assert (found.shape, contents(found)) == ("messages", ["Hi", [text("Hi.")]])


GOOD = json.dumps({"messages": [{"role": "user", "content": "hi"}]})


class TestErrors:
    @pytest.mark.parametrize(
        ("document", "line", "field", "detail"),
        [
            ("", 1, "$", "empty"),
            ("\n\n", 1, "$", "empty"),
            ("not json", 1, "$", "malformed"),
            (f"{GOOD}\n\n{{oops\n", 3, "$", "malformed"),
            ('{\n "messages": [\n  {"role" "user"}\n ]\n}', 3, "$", "malformed"),
            ('{"messages": [', 1, "$", "truncated"),
            ("5", 1, "$", "object"),
            ('{"text": "hi"}', 1, "$", "expected"),
            ('{"messages": []}', 1, "$.messages", "no messages"),
            ('{"messages": {}}', 1, "$.messages", "array"),
            ('{"messages": [{"role": "user", "content": "a"}],\n"tools": [null]}', 2, "$.tools[0]", "object"),
            (f'{GOOD}\n{{"messages": [{{"role": "user"}}]}}', 2, "$.messages[0]", "content"),
            (
                '{"messages": [\n{"role": "user", "content": "a"},\n{"role": "bot", "content": "b"}]}',
                3,
                "$.messages[1].role",
                "bot",
            ),
            ('[{"role": "user", "content": [{"text": "a"}]}]', 1, "$[0].content[0]", "type"),
            ('[{"role": "user", "content": 5}]', 1, "$[0].content", "int"),
            ('{"role": "user", "content": "a"}\n{"role": "user"}', 2, "$", "content"),
            ('{"type": "user"}', 1, "$.message", "no message"),
            ('{"type": "summary"}\n{"type": "system"}', 1, "$.type", "no user or assistant"),
            (
                '{"type": "summary"}\n{"type": "user", "message": {"role": "user", "content": [{}]}}',
                2,
                "$.message.content[0]",
                "type",
            ),
            ('[{"role": "user", "content": "a",\n"n": 1e999}]', 1, "$[0][...]", "out of range"),
            ('[{"role": "tool", "content": "x"}]', 1, "$[0].tool_call_id", "a string"),
            (
                '[{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": 5}}]}]',
                1,
                "$[0].tool_calls[0].function.arguments",
                "a string of JSON",
            ),
            ('{"items": [\n{"type": "item_reference", "id": "msg_1"}]}', 2, "$.items[0].type", "send the item itself"),
            ('{"messages": 5, "items": []}', 1, "$.messages", "array"),
        ],
    )
    def test_line_and_field_are_named(self, tmp_path: Path, document: str, line: int, field: str, detail: str) -> None:
        path = write(tmp_path, document)
        with pytest.raises(TranscriptError) as caught:
            read_transcripts(path)
        assert (caught.value.line, caught.value.field) == (line, field)
        assert detail in caught.value.detail
        assert str(caught.value).startswith(f"{path}:{line}: {field}: ")

    @pytest.mark.parametrize("indent", [None, 1])
    def test_lone_surrogates_are_read_as_replacement_characters(self, tmp_path: Path, indent: int | None) -> None:
        rows = [{"role": "user", "content": "cut \ud83d"}, {"role": "assistant", "content": "whole \U0001f600"}]
        (found,) = read_transcripts(write(tmp_path, json.dumps({"messages": rows}, indent=indent)))
        assert contents(found) == ["cut \ufffd", "whole \U0001f600"]

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "latin"
        path.write_bytes(b'{"a":\n"\xe9"}')
        with pytest.raises(TranscriptError, match=r":2: \$: the file is not UTF-8"):
            read_transcripts(path)


def recorded(*names: str) -> Iterable[Path]:
    for name in names:
        path = TRANSCRIPTS / name
        if not path.exists():
            pytest.skip(f"no real transcripts at {TRANSCRIPTS}; set PALIMPSEST_TRANSCRIPTS")
        yield path


class TestRealTranscripts:
    def test_every_content_is_the_files_own_text(self) -> None:
        for path in recorded("airline.jsonl", "airline-long.jsonl", "swe-agent.jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines()
            transcripts = read_transcripts(path)
            assert len(transcripts) == len(lines)
            for transcript, line in zip(transcripts, lines, strict=True):
                expected = json.loads(line)
                assert transcript.id == expected["id"]
                assert contents(transcript) == [message["content"] for message in expected["messages"]]
                at = 0
                for message in transcript.messages:
                    at = line.index(bytes(message.content).decode(), at)

    def test_a_session_with_unknown_blocks(self) -> None:
        for path in recorded("cline-session.json"):
            (found,) = read_transcripts(path)
            kinds = {block["type"] for content in contents(found) for block in content}
            assert "file" in kinds
            assert found.system is not None
            whole = path.read_bytes()
            assert all(bytes(message.content) in whole for message in found.messages)
