"""The view: cutting and capping results, and leaving thinking out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.policy import Policy
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.tokens import json_text
from compaction.view import (
    MARKER,
    WRITTEN,
    View,
    ViewMessage,
    cap_results,
    map_blocks,
    result_tail,
    strip_thinking,
    truncate_result,
    view_tokens,
)
from tests.support.blocks import image_block, text_block
from tests.support.strategies import any_conversations

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
PARTS = st.lists(st.text(max_size=12).map(text_block) | st.just(image_block()), max_size=5)


def result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "a", "content": content}


def texts(block: dict[str, Any]) -> str:
    content = block["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def pictures(block: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in block["content"] if isinstance(part, dict) and part["type"] == "image"]


def view_of(conversation: list[dict[str, Any]]) -> View:
    return tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(conversation))


@pytest.mark.parametrize("length", [0, 9, 10])
def test_a_text_up_to_the_limit_is_left_alone(length: int) -> None:
    assert truncate_result(result("x" * length), 10, str) is None


def test_a_longer_text_keeps_its_first_characters_and_gets_the_note() -> None:
    block = result("0123456789abcd") | {"is_error": True, "cache_control": {"type": "ephemeral"}}
    assert truncate_result(block, 10, lambda hidden: f"<{hidden}>") == block | {"content": "0123456789<4>"}
    assert block["content"] == "0123456789abcd"


@given(st.text(max_size=60) | PARTS, st.integers(0, 20), st.sampled_from([MARKER, "", "\n[9 more]"]))
def test_a_cut_that_would_make_a_result_no_shorter_leaves_it_alone(content: Any, limit: int, note: str) -> None:
    cut = truncate_result(result(content), limit, lambda _: note)
    whole = texts(result(content))
    assert (cut is None) == (len(whole) <= limit + len(note))
    if cut is not None:
        assert len(texts(cut)) < len(whole)


def test_text_blocks_are_one_text_and_pictures_stay_between_them() -> None:
    content = [text_block("0123"), image_block(), text_block("456789abc"), image_block(), text_block("gone")]
    cut = truncate_result(result(content), 6, lambda hidden: f"<{hidden}>")
    assert cut is not None
    assert cut["content"] == [text_block("0123"), image_block(), text_block("45<11>"), image_block()]


@pytest.mark.parametrize("content", [None, 3, {"rows": 9}, [], [image_block()] * 3])
def test_a_result_without_text_is_left_alone(content: Any) -> None:
    assert truncate_result(result(content), 0, str) is None


def test_the_note_of_an_earlier_truncation_does_not_count() -> None:
    assert truncate_result(result("0123456789" + MARKER), 10, str) is None
    assert truncate_result(result("0123456789a" + MARKER), 10, lambda _: "!") == result("0123456789!")
    assert truncate_result(result("0123456789a" + MARKER), 10, lambda _: MARKER) == result("0123456789" + MARKER)


@given(st.text(max_size=30) | PARTS, st.integers(0, 20))
def test_what_is_kept_is_the_beginning(content: Any, limit: int) -> None:
    block = result(content)
    cut = truncate_result(block, limit, lambda hidden: f"<{hidden}>")
    whole = texts(block)
    if cut is None:
        assert len(whole) <= limit + len(f"<{len(whole) - limit}>")
    else:
        assert texts(cut) == f"{whole[:limit]}<{len(whole) - limit}>"
        assert isinstance(content, str) or pictures(cut) == pictures(block)


@pytest.mark.requirement("S15")
def test_the_view_shows_40_000_characters_of_a_result_and_the_original_stays() -> None:
    page = "x" * 40_000 + "beyond" * 20
    rows = [
        Original(0, "user", '"read"'),
        Original(1, "assistant", json_text([{"type": "tool_use", "id": "a", "name": "fetch", "input": {}}])),
        Original(2, "user", json_text([result(page)])),
    ]
    block = build(Snapshot(), rows, Policy()).view[2].content[0]
    assert isinstance(block, dict)
    assert block["content"] == "x" * 40_000 + "\n[120 more characters of this result are stored but not shown]"
    assert page in rows[2].content
    whole = build(Snapshot(), rows, Policy(max_tool_result_chars=40_120)).view[2].content[0]
    assert whole == result(page)
    # Ten characters over the cap: the note alone would be longer.
    rows[2] = Original(2, "user", json_text([result("x" * 40_010)]))
    assert build(Snapshot(), rows, Policy()).view[2].content[0] == result("x" * 40_010)


@pytest.mark.requirement("S15")
def test_the_cap_is_for_each_result_and_for_results_alone() -> None:
    content = [result("x" * 99), result("y" * 10), text_block("z" * 99)]
    view = (
        ViewMessage("user", "w" * 99, 0),
        ViewMessage("assistant", [text_block("v" * 99)], 1),
        ViewMessage("user", content, 2),
    )
    capped = cap_results(view, 10)
    assert capped[:2] == view[:2]
    assert capped[2].content[1:] == content[1:]
    assert str(capped[2].content[0]["content"]).startswith("x" * 10 + "\n[89 more")  # type: ignore[index]


@given(any_conversations(max_exchanges=3), st.sampled_from([1, 35, 500, 40_000]))
def test_capping_again_changes_nothing(conversation: list[dict[str, Any]], cap: int) -> None:
    view = view_of(conversation)
    once = cap_results(view, cap)
    again = cap_results(once, cap)
    assert len(once) == len(again) == len(view)
    assert all(new is old for new, old in zip(again, once, strict=True))


def test_a_lower_cap_applies_to_what_was_capped_before() -> None:
    once = cap_results([ViewMessage("user", [result("0123456789" * 10)])], 8)
    twice = cap_results(once, 4)
    assert str(twice[0].content[0]["content"]).startswith("0123\n[")  # type: ignore[index]


def test_a_note_that_a_client_sends_back_does_not_lift_the_cap() -> None:
    sent = "x" * 100 + "\n[1 more characters of this result are stored but not shown]"
    capped = cap_results([ViewMessage("user", [result(sent)]), ViewMessage("user", [result("x" * 100 + MARKER)])], 10)
    assert all(str(message.content[0]["content"]).startswith("x" * 10 + "\n[") for message in capped)  # type: ignore[index]


THINKING_VIEW = (
    ViewMessage("user", "a", 0),
    ViewMessage("assistant", [THOUGHT, text_block("b")], 1),
    ViewMessage("user", "c", 2),
    ViewMessage("assistant", [{"type": "redacted_thinking", "data": "x"}], 3),
    ViewMessage("user", "d", 4),
    ViewMessage("assistant", [THOUGHT, text_block("e")], 5),
)


def test_thinking_is_left_out_up_to_a_seq_and_empty_messages_with_it() -> None:
    stripped = strip_thinking(THINKING_VIEW, 4)
    assert [message.seq for message in stripped] == [0, 1, 2, 4, 5]
    assert stripped[1].content == [text_block("b")]
    assert stripped[4] is THINKING_VIEW[5]
    assert strip_thinking(THINKING_VIEW, -1) == THINKING_VIEW


def test_thinking_before_the_change_stays() -> None:
    stripped = strip_thinking(THINKING_VIEW, 5, from_index=2)
    assert stripped[:2] == THINKING_VIEW[:2]
    assert [message.seq for message in stripped] == [0, 1, 2, 4, 5]
    assert stripped[4].content == [text_block("e")]


def test_mapping_without_a_change_keeps_the_object() -> None:
    message = ViewMessage("user", [text_block("a"), result("b")], 3)
    assert map_blocks(message, lambda block: block) is message
    assert map_blocks(ViewMessage("user", "a"), lambda _: {}) == ViewMessage("user", "a")
    assert map_blocks(message, dict) == message


def test_the_tail_of_a_result_is_its_last_text() -> None:
    assert result_tail(result("0123456789"), 4) == "6789"
    assert result_tail(result([text_block("ab"), text_block("cd"), image_block()]), 4) == "cd"
    assert result_tail(result([image_block()])) == result_tail(result(None)) == ""


def test_a_message_knows_its_weight_and_that_it_was_written() -> None:
    assert ViewMessage("assistant", "x" * 8).seq == WRITTEN
    assert ViewMessage("assistant", "x" * 8).tokens == 2
    assert view_tokens(THINKING_VIEW) == sum(message.tokens for message in THINKING_VIEW)
    assert ViewMessage("user", "a", 7).as_message() == {"role": "user", "content": "a"}
