"""Older tool results over the budget: what is cut, what is left alone, and that once is enough."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import compaction.shorten.tool_results
from compaction.shorten.tool_results import cut_tool_results, diagnostic
from compaction.view import MARKER, View, ViewMessage
from tests.support.blocks import image_block, text_block
from tests.support.strategies import any_conversations

LONG = "0123456789" * 100
RETENTIONS = st.sampled_from([500, 0, 1, 35, 120])


def result(content: Any, identifier: str = "a") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identifier, "content": content}


def view_of(*contents: Any) -> View:
    """One round for each content, its results given."""
    messages: list[ViewMessage] = [ViewMessage("user", "go", 0)]
    for content in contents:
        calls = [{"type": "tool_use", "id": "a", "name": "fetch", "input": {}}]
        messages.append(ViewMessage("assistant", calls, len(messages)))
        messages.append(ViewMessage("user", content, len(messages)))
    return tuple(messages)


def conversation_view(conversation: list[dict[str, Any]]) -> View:
    return tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(conversation))


@pytest.mark.requirement("T6", "T10")
def test_an_older_result_keeps_its_first_characters_and_gets_the_marker() -> None:
    view = view_of([result(LONG)], [result(LONG)])
    cut = cut_tool_results(view, 500)
    assert cut.view[2].content == [result(LONG[:500] + "[truncated for context management]")]
    assert (cut.results, cut.indices) == (1, (2,))


@pytest.mark.requirement("T4", "T10")
def test_the_most_recent_tool_result_message_stays_whole() -> None:
    newest = [result(LONG, "a"), result(LONG, "b"), text_block("what do you think?")]
    view = (*view_of([result(LONG)], newest), ViewMessage("assistant", "so", 5), ViewMessage("user", "and?", 6))
    cut = cut_tool_results(view, 10)
    assert all(cut.view[index] is view[index] for index in (0, 1, 3, 4, 5, 6))
    assert cut.indices == (2,)


@pytest.mark.requirement("T4")
def test_results_of_one_answer_that_were_posted_one_by_one_stay_whole_together() -> None:
    calls: list[Any] = [{"type": "tool_use", "id": name, "name": "look", "input": {}} for name in ("a", "b", "c")]
    posted: list[tuple[str, Any]] = [("user", [result(LONG, name)]) for name in ("b", "c", "a")]
    posted.insert(1, ("user", "Is it done?"))
    turns: list[tuple[str, Any]] = [("user", "Go."), ("assistant", calls), *posted]
    view = tuple(ViewMessage(role, content, seq) for seq, (role, content) in enumerate(turns))
    assert cut_tool_results(view, 500).results == 0
    later = (*view, ViewMessage("assistant", "Done.", 6), *view_of([result("new", "d")])[1:])
    assert cut_tool_results(later, 500).indices == (2, 4, 5)


@pytest.mark.requirement("T4")
def test_a_single_tool_result_message_is_never_cut() -> None:
    view = view_of([result(LONG)])
    cut = cut_tool_results(view, 0)
    assert cut == (view, 0, ())
    assert cut_tool_results((), 0) == ((), 0, ())


@pytest.mark.requirement("T5")
@pytest.mark.parametrize(
    "content",
    ["x" * 500, "", "x" * 900 + MARKER, None, 17, {"rows": [1] * 900}, [], [image_block()], [text_block("x" * 500)]],
)
def test_what_is_short_marked_or_not_text_is_left_alone(content: Any) -> None:
    view = view_of([result(content)], [result("new")])
    cut = cut_tool_results(view, 500)
    assert cut.results == 0
    assert all(new is old for new, old in zip(cut.view, view, strict=True))


@pytest.mark.requirement("T5", "T6")
def test_what_the_marker_makes_shorter_is_cut() -> None:
    longest = 500 + len(MARKER)
    assert cut_tool_results(view_of([result("x" * longest)], [result("new")]), 500).results == 0
    cut = cut_tool_results(view_of([result("x" * (longest + 1))], [result("new")]), 500)
    assert cut.view[2].content == [result("x" * 500 + MARKER)]


@pytest.mark.requirement("T6")
def test_text_blocks_are_cut_as_one_text_and_pictures_stay() -> None:
    content = [text_block("x" * 300), image_block(), text_block("y" * 300), image_block(), text_block("z")]
    cut = cut_tool_results(view_of([result(content)], [result("new")]), 500)
    expected = [text_block("x" * 300), image_block(), text_block("y" * 200 + MARKER), image_block()]
    assert cut.view[2].content == [result(expected)]


@pytest.mark.requirement("T3")
def test_a_message_with_other_blocks_keeps_them() -> None:
    content = [result(LONG, "a"), result("short", "b"), result(LONG, "c"), text_block(LONG)]
    cut = cut_tool_results(view_of(content, [result("new")]), 500)
    short = LONG[:500] + MARKER
    assert cut.view[2].content == [result(short, "a"), result("short", "b"), result(short, "c"), text_block(LONG)]
    assert (cut.results, cut.indices) == (2, (2,))


@pytest.mark.requirement("T3")
def test_only_results_in_the_users_messages_are_looked_at() -> None:
    view = (
        ViewMessage("user", [text_block(LONG)], 0),
        ViewMessage("assistant", [result(LONG)], 1),
        ViewMessage("user", LONG, 2),
        *(ViewMessage("user", [result("new")], seq) for seq in (3, 4)),
    )
    assert cut_tool_results(view, 10).results == 0


def test_what_the_cap_has_shortened_is_cut_by_the_text_that_is_left() -> None:
    capped = "x" * 600 + "\n[9,400 more characters of this result are stored but not shown]"
    view = view_of([result(capped)], [result("new")])
    assert cut_tool_results(view, 500).view[2].content == [result("x" * 500 + MARKER)]
    assert cut_tool_results(view, 600).results == 0


@pytest.mark.requirement("T7")
@given(any_conversations(), RETENTIONS)
def test_a_second_run_changes_nothing(conversation: list[dict[str, Any]], retention: int) -> None:
    once = cut_tool_results(conversation_view(conversation), retention)
    again = cut_tool_results(once.view, retention)
    assert (again.results, again.indices) == (0, ())
    assert all(new is old for new, old in zip(again.view, once.view, strict=True))


@pytest.mark.requirement("T3", "T4", "T5", "T6")
@given(any_conversations(), RETENTIONS)
def test_each_result_is_cut_by_the_rule_and_nothing_else_changes(
    conversation: list[dict[str, Any]], retention: int
) -> None:
    view = conversation_view(conversation)
    cut = cut_tool_results(view, retention)
    holders = [
        index
        for index, message in enumerate(conversation)
        if message["role"] == "user"
        and isinstance(message["content"], list)
        and any(block["type"] == "tool_result" for block in message["content"])
    ]
    newest = holders[-1] if holders else 0
    while newest and conversation[newest - 1]["role"] == "user":
        newest -= 1
    changed = 0
    for index, (before, after) in enumerate(zip(view, cut.view, strict=True)):
        if index not in holders or index >= newest:
            assert after is before
            continue
        for old, new in zip(before.content, after.content, strict=True):
            assert isinstance(old, dict)
            content = old.get("content")
            if old["type"] == "tool_result" and isinstance(content, str):
                is_left = content.endswith(MARKER) or len(content) <= retention + len(MARKER)
                assert new == (old if is_left else old | {"content": content[:retention] + MARKER})
            changed += new != old
    assert changed == cut.results


@pytest.mark.requirement("T8")
def test_the_diagnostic_has_thousands_separators() -> None:
    line = diagnostic(1_234, 56_789, 40_000)
    assert all(figure in line for figure in ("1,234", "56,789", "40,000"))


@pytest.mark.requirement("T9")
def test_the_step_needs_nothing_but_the_domain() -> None:
    tree = ast.parse(Path(compaction.shorten.tool_results.__file__).read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {module.split(".")[0] for module in modules} <= {"compaction"} | sys.stdlib_module_names


@pytest.mark.parametrize(
    "given",
    [
        '<recalled refs="m3-m5 m12">\nQuoted from earlier.\n[m3.0, user] The garage opens with 4711-B.\n</recalled>',
        '{"passages":[{"ref":"m3-m5","parts":[{"ref":"m3.0"}]},{"ref":"m12"}],"tokens":300,"searched":9,"more":false}',
    ],
)
def test_what_was_recalled_is_cut_to_a_line_that_names_it(given: str) -> None:
    calls = [{"type": "tool_use", "id": "a", "name": "recall", "input": {"query": "garage"}}]
    first = (ViewMessage("user", "go", 0), ViewMessage("assistant", calls, 1), ViewMessage("user", [result(given)], 2))
    view = (*first, *view_of([result("short", "a")])[1:])
    cut = cut_tool_results(view, 500)
    assert cut.view[2].content == [result(f"[recalled before: m3-m5, m12] {MARKER}")]
    assert cut_tool_results(cut.view, 500).view == cut.view
    # The newest result is what the model is about to read.
    assert cut_tool_results(first, 500).view == first
    # Ids may repeat, and another tool's result is no recall.
    other = (*view[:2], ViewMessage("user", [result("seven o'clock")], 2), *view[3:])
    assert cut_tool_results(other, 500).view == other


def test_a_page_with_the_text_of_a_recall_frame_is_cut_like_any_other_result() -> None:
    page = '<recalled refs="m3">' + "x" * 5_000
    calls = [{"type": "tool_use", "id": "a", "name": "fetch", "input": {"url": "https://example.com"}}]
    first = (ViewMessage("user", "go", 0), ViewMessage("assistant", calls, 1), ViewMessage("user", [result(page)], 2))
    cut = cut_tool_results((*first, *view_of([result("short", "a")])[1:]), 500)
    assert cut.view[2].content == [result(f"{page[:500]}{MARKER}")]


def test_a_result_is_one_of_recall_if_the_answer_before_it_called_recall() -> None:
    given = '{"passages":[{"ref":"m3-m5","parts":[{"ref":"m3.0"}]}],"tokens":300,"searched":9,"more":false}'

    def called(identifier: str, name: str) -> ViewMessage:
        return ViewMessage("assistant", [{"type": "tool_use", "id": identifier, "name": name, "input": {"query": "x"}}])

    def answered(identifier: str) -> ViewMessage:
        return ViewMessage("user", [{"type": "tool_result", "tool_use_id": identifier, "content": given}])

    in_pieces = (called("a", "recall"), called("b", "search"), called("c", "recall_more"), *map(answered, "abc"))
    # Another tool's call may have the id of an earlier one of recall.
    again = (called("a", "search"), answered("a"), called("b", "recall"), answered("b"))
    view = (ViewMessage("user", "go"), *in_pieces, *again, called("d", "recall"), answered("d"))
    assert cut_tool_results(view, 500).indices == (4, 6, 10)
