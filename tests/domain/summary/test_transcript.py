"""What the summarizer reads: messages as text with marks, content that is not text by name, and the rules."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.messages import blocks
from compaction.policy import Policy
from compaction.private_fields import LEFT_OUT, without_fields, without_private
from compaction.summary.attachments import CITATIONS
from compaction.summary.frames import cut_lines, fit_text, quote_lines
from compaction.summary.transcript import (
    CALL_INPUT_CHARS,
    PROMPT_VERSION,
    SECTIONS,
    SYSTEM_PROMPT,
    canary,
    entries,
    preview,
    system_prompt,
    transcript_hash,
)
from compaction.tokens import text_weight
from compaction.view import ACKNOWLEDGEMENT, View, ViewMessage
from tests.support.blocks import document_block, image_block, text_block, unknown_block
from tests.support.encoded import Heard, messages
from tests.support.strategies import any_conversations, texts

IMAGE_BASE64 = image_block()["source"]["data"]


def call(identifier: str = "a", query: str = "jobs") -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": "search", "input": {"query": query}}


def result(identifier: str = "a", content: Any = "found", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identifier, "content": content} | fields


def rendered(view: View, limit: int | None = None) -> str:
    """Return a view as a summarizer reads it, at most `limit` characters of it."""
    text = "\n".join(entry.text for entry in entries(view, Policy()) if entry.text)
    return text if limit is None else cut_lines(text, limit)


def view_of(*given_messages: tuple[str, Any]) -> View:
    return tuple(ViewMessage(role, content, seq) for seq, (role, content) in enumerate(given_messages))


def heard(*blocks: dict[str, Any], role: str = "user", fields: tuple[str, ...] = (), **policy: Any) -> Heard:
    """Read one message made of `blocks`."""
    written = entries(view_of((role, list(blocks))), Policy(**policy), strip_fields=fields)
    (message,) = messages(written[0].text)
    return message


# Tool results


@pytest.mark.requirement("S6")
def test_a_long_result_is_shown_by_its_first_500_and_last_200_characters() -> None:
    text = preview("h" * 500 + "m" * 1_300 + "t" * 200, Policy())
    assert text.startswith("h" * 500)
    assert text.endswith("t" * 200)
    assert "m" not in text
    assert "1,300" in text
    assert preview("x" * 700, Policy()) == "x" * 700


@pytest.mark.requirement("S6")
def test_a_preview_without_a_tail_has_none() -> None:
    policy = Policy(tool_preview_head_chars=2, tool_preview_tail_chars=0)
    assert re.fullmatch(r"ab \[.*40.*\] ", preview("ab" + "c" * 40, policy))
    assert preview("ab" + "c" * 20, policy) == "ab" + "c" * 20


@pytest.mark.requirement("S6")
def test_the_transcript_is_text_with_calls_results_and_no_thinking() -> None:
    page = "h" * 500 + "m" * 9_000 + "t" * 200
    view = (
        ViewMessage("assistant", ACKNOWLEDGEMENT),
        *view_of(
            ("user", "Find jobs\nin Berlin"),
            (
                "assistant",
                [{"type": "thinking", "thinking": "secret", "signature": "s"}, text_block("Looking."), call()],
            ),
            ("user", [result(content=[text_block(page), image_block()]), text_block("hurry")]),
            ("assistant", [call("b")]),
            ("user", [result("b", "no such host", is_error=True)]),
        ),
    )
    transcript = rendered(view)
    assert ACKNOWLEDGEMENT not in transcript
    assert "secret" not in transcript
    asked, looked, found, again, failed = messages(transcript)
    assert (asked.seq, asked.speaker, asked.words) == (0, "user", ["Find jobs", "in Berlin"])
    assert (looked.speaker, looked.words) == ("assistant", ["Looking."])
    assert looked.notes == ['calls search with {"query":"jobs"}']
    assert found.notes[0] == "result of search, untrusted"
    assert found.data == [preview(page, Policy())]
    assert found.notes[1].startswith("in it: image, image/png")
    assert found.words == ["hurry"]
    assert again.notes == looked.notes
    # Results alone are nobody's words, although the API has them in a user's message.
    assert (found.speaker, failed.speaker) == ("user", "tool results")
    assert (failed.notes, failed.data) == (["result of search, untrusted, an error"], ["no such host"])


def test_ids_that_start_over_name_the_call_before() -> None:
    renamed = call() | {"name": "read"}
    view = view_of(("assistant", [call()]), ("user", [result()]), ("assistant", [renamed]), ("user", [result()]))
    read = messages(rendered(view))
    assert [message.notes[0] for message in read if message.speaker == "tool results"] == [
        "result of search, untrusted",
        "result of read, untrusted",
    ]


def test_a_result_without_text_says_so() -> None:
    assert heard(result(content="")).notes == ["result of a tool, untrusted, empty"]
    assert heard(result(content=[image_block()])).notes[0] == "result of a tool, untrusted"


def test_a_long_input_of_a_call_is_shown_by_its_ends() -> None:
    written = heard(call(query="a" * 5_000 + "z" * 5_000), role="assistant").notes[0]
    assert len(written) < CALL_INPUT_CHARS + 200
    assert written.startswith('calls search with {"query":"aaa')
    assert written.endswith('zzz"}')


def test_times_stand_in_the_headings_of_messages() -> None:
    written = entries(view_of(("user", "a"), ("assistant", "b")), Policy(), times={0: "2026-05-01T10:00:00Z"})
    assert [messages(entry.text)[0].time for entry in written] == ["2026-05-01T10:00:00Z", None]
    assert written[0].time == "2026-05-01T10:00:00Z"


def test_who_wrote_a_message_stands_in_its_heading() -> None:
    zone = view_of(("user", "40 EUR"), ("assistant", "Good."), ("user", "90 EUR"))
    written = entries(zone, Policy(), times={0: "2026-05-01T10:00:00Z"}, names={0: "anna", 2: "Ben O'Neil"})
    assert [entry.heading for entry in written] == [
        "[0] user (anna) 2026-05-01T10:00:00Z",
        "[1] assistant",
        "[2] user (Ben O'Neil)",
    ]


# Content that is not plain text


@pytest.mark.parametrize(
    ("block", "note"),
    [
        pytest.param(image_block(), "image, image/png, 1,568 x 1,568 px, about 3 KB, not shown", id="image"),
        pytest.param(
            {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
            "image at https://a.example/b.png, not shown",
            id="image by URL",
        ),
        pytest.param(
            {"type": "image", "source": {"type": "url", "url": f"data:image/png;base64,{IMAGE_BASE64}"}},
            "image, not shown",
            id="image in a data URL",
        ),
        pytest.param(
            {"type": "image", "source": {"type": "file", "file_id": "file_011"}},
            "image file_011, not shown",
            id="image file",
        ),
        pytest.param({"type": "image"}, "image, not shown", id="image without a source"),
        pytest.param(
            {
                "type": "document",
                "title": "Lease",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "A" * 2_000_000},
            },
            'document "Lease", application/pdf, about 2 MB, not shown',
            id="PDF",
        ),
        pytest.param(
            {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}},
            "document at https://a.example/b.pdf, not shown",
            id="document by URL",
        ),
        pytest.param(
            {"type": "document", "title": "Q1", "source": {"type": "file", "file_id": "file_7"}},
            'document "Q1" file_7, not shown',
            id="document file",
        ),
        pytest.param({"type": "container_upload", "file_id": "file_9"}, "file in the container file_9", id="upload"),
        pytest.param({"type": "tool_reference", "tool_name": "get_rate"}, "tool get_rate", id="tool reference"),
        pytest.param(unknown_block(), "hologram, about 70 bytes, not shown", id="unknown"),
        pytest.param(
            {"type": "hologram", "title": "A\nB", "url": "https://a.example", "data": IMAGE_BASE64},
            'hologram "A B" at https://a.example, about 4 KB, not shown',
            id="unknown with a name",
        ),
        pytest.param({"type": 7}, "block, about 10 bytes, not shown", id="a type that is none"),
    ],
)
def test_what_is_not_text_is_one_line(block: dict[str, Any], note: str) -> None:
    message = heard(block)
    assert (message.notes, message.words, message.data) == ([note], [], [])


def test_a_text_document_is_named_and_excerpted() -> None:
    message = heard(document_block() | {"context": "for the board"}, tool_preview_head_chars=40)
    assert message.notes == ['document "report.txt", text/plain, 3,000 characters, untrusted']
    assert message.data[0] == "for the board"
    assert message.data[1].startswith("Annual report.")
    assert "characters ...]" in message.data[1]


def test_a_document_of_blocks_is_excerpted_too() -> None:
    source = {"type": "content", "content": [text_block("chapter one"), image_block(), text_block("chapter two")]}
    message = heard({"type": "document", "source": source})
    assert message.notes == ["document, 23 characters, untrusted"]
    assert message.data == ["chapter one", "chapter two"]


def test_a_search_result_is_named_and_excerpted() -> None:
    block = {"type": "search_result", "source": "https://a.example", "title": "A", "content": [text_block("why")]}
    message = heard(block)
    assert (message.notes, message.data) == (['search result "A" at https://a.example, untrusted'], ["why"])
    inside = heard(result(content=[text_block("one hit"), block]))
    assert inside.notes[1] == 'in it: search result "A" at https://a.example, untrusted'
    assert inside.data == ["one hit", "why"]


def test_thinking_is_left_out() -> None:
    thought = {"type": "thinking", "thinking": "secret", "signature": "sig"}
    message = heard(thought, {"type": "redacted_thinking", "data": "opaque"}, text_block("Hi."), role="assistant")
    assert (message.words, message.notes) == (["Hi."], [])


def test_the_summary_of_the_api_is_shown_whole() -> None:
    message = heard({"type": "compaction", "content": "word " * 400, "encrypted_content": "x" * 50}, role="assistant")
    assert message.notes == ["earlier summary made by the API"]
    assert message.data == ["word " * 400]


def test_citations_are_named_once_each() -> None:
    page = {"type": "web_search_result_location", "url": "https://a.example", "title": "A", "cited_text": "Hi."}
    leaf = {"type": "page_location", "document_title": "Lease", "start_page_number": 4, "cited_text": "x"}
    message = heard(text_block("Hi.") | {"citations": [page, page, leaf]}, role="assistant")
    assert message.notes == ['cites "A" at https://a.example', 'cites "Lease", page 4']
    many = [page | {"title": f"T{number}"} for number in range(CITATIONS + 5)]
    assert heard(text_block("Hi.") | {"citations": many}, role="assistant").notes[-1] == "cites 5 more"
    assert heard(text_block("Hi.") | {"citations": None}, role="assistant").notes == []


def server(kind: str, content: Any, *, name: str = "web_search") -> Heard:
    asked = {"type": "server_tool_use", "id": "s", "name": name, "input": {"query": "q"}}
    return heard(asked, {"type": kind, "tool_use_id": "s", "content": content}, role="assistant")


def test_results_of_server_tools_show_what_they_say() -> None:
    hit = {
        "type": "web_search_result",
        "url": "https://a.example",
        "title": "A",
        "page_age": "May 1",
        "encrypted_content": "x" * 99,
    }
    searched = server("web_search_tool_result", [hit])
    assert searched.notes == ['calls web_search (run by the API) with {"query":"q"}', "result of web_search, untrusted"]
    assert searched.data == ["A https://a.example May 1"]

    failed = server("web_search_tool_result", {"type": "web_search_tool_result_error", "error_code": "max_uses"})
    assert failed.data == ["error_code=max_uses"]

    text = {"type": "text", "media_type": "text/plain", "data": "the page"}
    page = {
        "type": "web_fetch_result",
        "url": "https://a.example",
        "content": {"type": "document", "title": "P", "source": text},
    }
    fetched = server("web_fetch_tool_result", page, name="web_fetch")
    assert fetched.data == [
        "https://a.example",
        '(document "P", text/plain, 8 characters, untrusted)',
        "the page",
    ]

    ran = {
        "type": "bash_code_execution_result",
        "stdout": "line 1\nline 2",
        "stderr": "",
        "return_code": 0,
        "content": [{"type": "bash_code_execution_output", "file_id": "file_5"}],
    }
    assert server("bash_code_execution_tool_result", ran, name="bash_code_execution").data == [
        "return_code=0",
        "line 1",
        "line 2",
        "file_id=file_5",
    ]


def test_results_of_mcp_tools_are_text() -> None:
    asked = {"type": "mcp_tool_use", "id": "m", "name": "find", "server_name": "crm", "input": {}}
    answered = {"type": "mcp_tool_result", "tool_use_id": "m", "content": [text_block("Ann")], "is_error": False}
    message = heard(asked, answered, role="assistant")
    assert message.notes == ["calls find (MCP server crm) with {}", "result of find, untrusted"]
    assert message.data == ["Ann"]


@given(any_conversations(max_chars=3_000))
def test_any_conversation_reads_as_headings_and_marked_lines(conversation: list[dict[str, Any]]) -> None:
    view = tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(conversation))
    read = messages(rendered(view))
    assert [message.seq for message in read] == list(range(len(view)))
    everything = "\n".join(itertools.chain.from_iterable([*m.words, *m.notes, *m.data] for m in read))
    assert IMAGE_BASE64[:200] not in everything
    assert "opaque" not in everything


# Fields for the application alone

SECRET = "tok_live_51Hx"


@pytest.mark.requirement("O9")
@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"ok": True, "details": {"token": SECRET}}),
        json.dumps({"ok": True, "page": {"rows": [{"details": SECRET}]}}),
        json.dumps([{"ok": True}, {"details": SECRET}]),
        json.dumps({"ok": True, "raw": json.dumps({"details": SECRET})}),
        json.dumps({"ok": True, "raw": [json.dumps([{"details": SECRET}])]}),
        '\ufeff {"ok": true,\n "details" : "' + SECRET + '"}\n',
        '{"ok": true, "de\\u0074ails": "' + SECRET + '"}',
        '{"ok": true, "x": {"details": "' + SECRET + '"}, "x": 1}',
        '{"ok": true, "details": 1, "details": "' + SECRET + '"}',
        '{"ok": true, "x": NaN, "details": "' + SECRET + '"}',
        '{"ok": true}\n{"details": "' + SECRET + '"}\n',
        '{"ok": true, "details": {"token": "' + SECRET + '", "more": "and then it was cut',
        '{"ok": true, "de\\u0074ails": {"token": "' + SECRET + '", "more": "and then it was cut',
        '{"ok": true, "say \\"hi\\" ": 1, "details":"' + SECRET,
        '{"ok": true, "raw": "{\\"details\\": \\"' + SECRET + '\\",',
        '{"ok": true, "x": ' + "[" * 50_000 + '"details": "' + SECRET,
        '{"ok": true, "x": ' + '{"a":' * 50_000 + '{"details":"' + SECRET + '"}' + "}" * 50_001,
    ],
)
def test_fields_that_are_not_for_a_model_never_reach_it(text: str) -> None:
    policy = Policy(tool_preview_head_chars=1_000_000)
    for content in (text, [text_block(text)]):
        entry_text = entries(view_of(("user", [result(content=content)])), policy, strip_fields=("details",))[0].text
        assert SECRET not in entry_text
        assert "ok" in entry_text or LEFT_OUT in entry_text
        for block in (result(content=content), {"type": "mcp_tool_result", "tool_use_id": "m", "content": content}):
            (bare,) = blocks(without_private([block], ("details", "content", "type")))
            assert SECRET not in str(bare)
            assert bare["content"]
            assert bare["type"] == block["type"]
    said = [text_block(text), {"type": "tool_use", "id": "a", "name": "set", "input": {"details": "given"}}]
    assert without_private(said, ("details",)) == said
    kept = entries(view_of(("user", [result(content=text)])), policy)[0].text
    assert SECRET in kept


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1,  "b" : "details"}',
        '{"detail": 1}',
        "details: none of JSON",
        'see {"details": 1} for more',
        '{"a": "x\\u00e9"}',
        '{"cut": "off',
        "",
    ],
)
def test_a_text_without_such_fields_stays_byte_for_byte(text: str) -> None:
    assert without_fields(text, ("details",)) == text


def test_fields_beside_the_content_of_a_result_are_never_read() -> None:
    assert SECRET not in str(heard(result(details={"token": SECRET}, structuredContent=SECRET)))
    nested = {"type": "web_fetch_result", "url": "u", "content": {"text": "hello", "details": {"text": SECRET}}}
    asked = {"type": "server_tool_use", "id": "a", "name": "web_fetch", "input": {}}
    answered = {"type": "web_fetch_tool_result", "tool_use_id": "a", "content": nested}
    assert SECRET not in str(heard(asked, answered, role="assistant", fields=("details",)))


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["details", "a", "b"]), inner, max_size=3)
        | inner.map(json.dumps)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["details", "a"]), JSON, max_size=3))
def test_no_key_of_the_name_is_left_at_any_depth(value: dict[str, Any]) -> None:
    def keys(found: Any) -> set[str]:
        if isinstance(found, dict):
            return set(found) | {key for inner in found.values() for key in keys(inner)}
        if isinstance(found, list):
            return {key for inner in found for key in keys(inner)}
        if isinstance(found, str) and found.startswith(("{", "[")):
            try:
                return keys(json.loads(found))
            except ValueError:
                return set()
        return set()

    stripped = without_fields(json.dumps(value), ("details",))
    assert "details" not in keys(json.loads(stripped))
    assert without_fields(stripped, ("details",)) == stripped
    assert keys(json.loads(stripped)) >= ({"a"} & set(value))


# Cutting


@pytest.mark.requirement("S7")
@pytest.mark.parametrize("limit", [200, 1_000, 100_000])
def test_the_transcript_is_cut_in_the_middle_to_its_limit(limit: int) -> None:
    view = view_of(("user", "first " + "x" * 80_000), ("assistant", "y" * 80_000 + " last"))
    transcript = rendered(view, limit)
    assert limit - 170 <= len(transcript) <= limit
    asked, *answered = messages(transcript)
    assert asked.words[0].startswith("first xxx")
    assert answered[-1].speaker == "assistant"
    assert answered[-1].words[-1].endswith("yyy last")
    assert "characters left out of the middle" in transcript


@given(any_conversations(max_chars=700), st.integers(200, 3_000))
def test_what_is_left_after_a_cut_has_its_speaker_and_its_mark(conversation: list[dict[str, Any]], limit: int) -> None:
    view = tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(conversation))
    whole = messages(rendered(view))
    cut = rendered(view, limit)
    assert len(cut) <= limit
    # A line on the cut's edge may have lost a part; no line changes its speaker, and none becomes a note.
    before = {(message.seq, message.speaker): message for message in whole}
    for message in messages(cut):
        said = before[message.seq, message.speaker]
        # A cut inside a mark leaves the space that follows it.
        assert all(any(line.lstrip(" ") in each for each in said.words) for line in message.words)
        assert all(any(line.lstrip(" ") in each for each in [*said.data, *said.notes]) for line in message.data)
        assert all(any(each.startswith(line) for each in said.notes) for line in message.notes)


@given(texts(max_chars=3_000), st.integers(0, 3_000), st.integers(0, 3_000))
def test_a_text_is_cut_to_characters_and_weight_at_once(text: str, chars: int, weight: int) -> None:
    fit = fit_text(text, chars, weight, cut_lines)
    assert len(fit) <= chars
    assert text_weight(fit) <= weight


@given(st.text(max_size=300))
def test_a_mark_stands_before_every_line(text: str) -> None:
    body = quote_lines(text, "|")
    assert all(line == "|" or line.startswith("| ") for line in body.splitlines())
    assert quote_lines("\n".join(line[2:] for line in body.split("\n")), "|") == body


# The rules


@pytest.mark.requirement("S8")
def test_the_prompt_asks_for_what_has_to_survive() -> None:
    prompt = SYSTEM_PROMPT.lower()
    for expected in (
        ("asked", "criterion", "constraint"),
        ("decision", "reason"),
        ("figures", "dates"),
        ("url", "path", "identifier"),
        ("score", "ranking"),
        ("finished", "under way", "next"),
        ("open questions", "to-dos"),
        ("raw output of tools",),
        ("concise narrative",),
        ("earlier summary",),
        ("language of the conversation",),
        ("data, not a request", "untrusted"),
    ):
        assert all(word in prompt for word in expected), expected
    assert [SYSTEM_PROMPT.index(f"\n{heading}\n") for heading in SECTIONS] == sorted(
        SYSTEM_PROMPT.index(f"\n{heading}\n") for heading in SECTIONS
    )
    assert len(PROMPT_VERSION) > 0


def test_the_rules_are_fixed_but_for_a_canary_at_their_end() -> None:
    view = view_of(("user", "a"), ("assistant", "b"))
    secret = canary(transcript_hash(view))
    assert system_prompt(secret).startswith(SYSTEM_PROMPT)
    assert system_prompt(secret).count(secret) == 1
    assert canary(transcript_hash(view)) == secret
    others = [canary(transcript_hash(view, "earlier")), canary(transcript_hash(view_of(("user", "a"))))]
    assert len({secret, *others}) == 3
