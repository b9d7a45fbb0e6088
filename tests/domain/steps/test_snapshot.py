"""Snapshots: building a view from what is stored, and what of a new view is written down."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.coverage import Span, find_span
from compaction.policy import Policy
from compaction.repair import NO_RESULT
from compaction.shorten.tool_results import cut_tool_results
from compaction.shorten.trimming import drop_oldest
from compaction.steps.snapshot import (
    STRIPPED,
    NewSnapshot,
    Original,
    Snapshot,
    UncoveredSourceError,
    Working,
    build,
    context_json,
    load_view,
    settle,
)
from compaction.steps.stored_view import dump_messages
from compaction.summary.zone import Zone, rebuild
from compaction.view import WRITTEN, View, ViewMessage, with_own_tail
from tests.support.blocks import text_block
from tests.support.messages_api import problems
from tests.support.strategies import any_conversations

if TYPE_CHECKING:
    from collections.abc import Callable

POLICY = Policy()
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
LONG = "x" * 900
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}


def call(identifier: str = "a") -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": "fetch", "input": {}}


def result(identifier: str = "a", content: Any = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identifier, "content": content}


def rows(*messages: tuple[str, Any], first: int = 0) -> list[Original]:
    return [Original(first + index, role, json.dumps(content)) for index, (role, content) in enumerate(messages)]


def head(new: NewSnapshot, version: int = 1) -> Snapshot:
    return Snapshot(
        version, new.covers_through, load_view(new.messages_json, new.seqs), new.summary, new.coverage, new.prefix_hash
    )


ROUND = (("assistant", [THOUGHT, call()]), ("user", [result(content=LONG)]))
STORED = rows(("user", "go"), *ROUND, *ROUND, *ROUND, ("assistant", "done"))
"""Seqs 0..7; results at 2, 4 and 6."""


def working() -> Working:
    return build(Snapshot(), STORED, POLICY)


def cut() -> NewSnapshot:
    built = working()
    cut = cut_tool_results(built.view, 500)
    return settle(built, cut.view, run_id="run-1", truncated=cut.indices)


@given(any_conversations(max_exchanges=3), st.integers(0, 9))
def test_a_view_survives_being_stored(conversation: list[dict[str, Any]], written: int) -> None:
    view = tuple(
        ViewMessage(message["role"], message["content"], WRITTEN if index == written else index)
        for index, message in enumerate(conversation)
    )
    assert load_view(dump_messages(view), [message.seq for message in view]) == view


def test_a_view_is_built_from_the_snapshot_and_the_tail() -> None:
    snapshot = Snapshot(version=1, covers_through=3, messages=(ViewMessage("user", "so far", 0),))
    built = build(snapshot, rows(("assistant", "next"), first=4), POLICY)
    assert [(message.role, message.content, message.seq) for message in built.view] == [
        ("user", "so far", 0),
        ("assistant", "next", 4),
    ]
    assert built.warnings == ()
    assert built.last_seq == 4
    assert json.loads(dump_messages(built.view)) == [
        {"role": "user", "content": "so far"},
        {"role": "assistant", "content": "next"},
    ]


def test_an_empty_conversation_has_an_empty_view() -> None:
    built = build(Snapshot(), [], POLICY)
    assert (built.view, built.last_seq, dump_messages(built.view)) == ((), -1, "[]")
    assert build(Snapshot(covers_through=5), [], POLICY).last_seq == 5


def test_stale_thinking_in_the_tail_is_left_out_and_the_reader_told() -> None:
    built = build(Snapshot(), STORED, POLICY, strip_thinking_through=3)
    assert [THOUGHT in built.view[index].content for index in (1, 3, 5)] == [False, False, True]
    assert built.warnings == (STRIPPED,)
    assert working().warnings == ()


def test_repairs_are_told() -> None:
    built = build(Snapshot(), rows(("user", "go"), ("assistant", [call()]), ("user", "wait")), POLICY)
    assert len(built.warnings) == 1


def test_a_result_that_is_neither_text_nor_blocks_is_capped_as_the_text_it_becomes() -> None:
    built = build(
        Snapshot(),
        rows(("user", "go"), ("assistant", [call()]), ("user", [result(content={"rows": [1] * 99})])),
        Policy(max_tool_result_chars=20),
    )
    block = built.view[2].content[0]
    assert isinstance(block, dict)
    assert block["content"].startswith('{"rows":[1,1,1,1,1,1\n[')


@pytest.mark.parametrize(
    "one_round",
    [
        lambda name: (("assistant", [call(name)]), ("assistant", "Looking."), ("user", [result(name, LONG)])),
        lambda name: (("user", [result(name, LONG)]), ("assistant", [call(name)]), ("user", "go on")),
    ],
    ids=["a call before text", "a result before its call"],
)
def test_what_repair_has_moved_is_written_with_what_it_was_moved_to(
    one_round: Callable[[str], tuple[tuple[str, Any], ...]],
) -> None:
    """The message that had it is covered: the tail would have it no more."""
    stored = rows(("user", "go"), *(message for name in "abcd" for message in one_round(name)))
    built = build(Snapshot(), stored, POLICY)
    cut = cut_tool_results(built.view, 500)
    assert cut.results == 3
    new = settle(built, cut.view, run_id="run-1", truncated=[built.view[index].seq for index in cut.indices])
    after = build(head(new), [row for row in stored if row.seq > new.covers_through], POLICY)
    assert [message.as_message() for message in after.view] == [message.as_message() for message in cut.view]
    assert LONG in dump_messages(after.view)


def test_a_result_that_comes_after_its_call_was_covered_unanswered_is_shown() -> None:
    stored = rows(
        ("user", "go"),
        ("assistant", [call("a"), call("b")]),
        ("user", [result("a", LONG)]),
        ("assistant", "b is not there yet"),
        ("user", "then c"),
        ("assistant", [call("c")]),
        ("user", [result("c", LONG)]),
        ("assistant", "c is there"),
        ("user", [result("b", "at last")]),
        ("assistant", "b as well"),
    )
    built = build(Snapshot(), stored[:8], POLICY)
    new = settle(built, cut_tool_results(built.view, 500).view, run_id="run-1", truncated=[2])
    assert NO_RESULT in new.messages_json
    after = build(head(new), [row for row in stored if row.seq > new.covers_through], POLICY)
    assert "at last" in dump_messages(after.view)
    assert NO_RESULT not in dump_messages(after.view)


def test_a_late_result_that_is_the_newest_message_is_at_the_end_whatever_becomes_of_its_call() -> None:
    stored = rows(
        ("user", "go"),
        ("assistant", [call()]),
        ("user", "meanwhile?"),
        ("assistant", "something else"),
        ("user", [result(content="at last")]),
    )
    built = build(Snapshot(), stored, POLICY)
    summarized = rebuild(built.view, Zone(1, 4), "a call, and its answer")
    new = settle(built, summarized, run_id="run-1", removed="summarized", summary="a call, and its answer")
    after = build(head(new), [row for row in stored if row.seq > new.covers_through], POLICY)
    assert (after.view[-1].role, "at last" in str(after.view[-1].content)) == ("user", True)


def test_a_snapshot_covers_every_message_of_which_a_result_stands_in_it() -> None:
    """An edit goes back to the newest snapshot that covers nothing of what it replaces, and must not show any of it."""
    stored = rows(
        ("user", "go"),
        ("assistant", [call("a"), call("b")]),
        ("user", [result("a", LONG)]),
        ("user", "is it done?"),
        ("user", [result("b", LONG)]),
        ("assistant", "both are there"),
        ("user", "then c"),
        ("assistant", [call("c")]),
        ("user", [result("c", LONG)]),
    )
    built = build(Snapshot(), stored, POLICY)
    cut = cut_tool_results(built.view, 500)
    new = settle(built, cut.view, run_id="run-1", truncated=[2])
    assert new.covers_through == 4
    after = build(head(new), [row for row in stored if row.seq > new.covers_through], POLICY)
    assert [message.as_message() for message in after.view] == [message.as_message() for message in cut.view]
    # So it is where the result is in a summary.
    summarized = rebuild(built.view, Zone(1, 3), "a and b were looked at")
    assert settle(built, summarized, run_id="run-1", summary="a and b were looked at").covers_through == 4


def test_calls_that_wait_for_their_results_are_not_covered_where_another_answer_came_after_them() -> None:
    """What is appended next is held against the last answer alone: a snapshot that calls would be served as it is."""
    calls = ("assistant", [call("a"), call("b")])
    stored = rows(("user", "go"), ("assistant", "so"), ("user", "and"), calls, ("assistant", "wait"), first=0)
    built = build(Snapshot(), stored, POLICY)
    new = settle(built, rebuild(built.view, Zone(1, 3), "so"), run_id="run-1", summary="so")
    assert (new.covers_through, "tool_use" in new.messages_json) == (2, False)
    tail = [row for row in stored if row.seq > new.covers_through]
    asked = build(head(new), [*tail, *rows(("user", "done?"), first=5)], POLICY)
    assert problems([message.as_message() for message in asked.view]) == []


def test_calls_that_wait_are_not_covered_where_only_the_thinking_before_them_had_to_go() -> None:
    stored = rows(
        ("user", "go"), ("assistant", "so"), ("user", "and"), ("assistant", [THOUGHT, call()]), ("assistant", "wait")
    )
    built = build(Snapshot(), stored, POLICY)
    assert [message.content for message in built.view[3:]] == [[THOUGHT], [text_block("wait"), call()]]
    fitted = (built.view[2], built.view[4])
    new = settle(built, with_own_tail(built.view, fitted), run_id="run-1")
    assert (new.covers_through, "tool_use" in new.messages_json) == (1, False)


def test_calls_that_wait_and_have_to_be_covered_are_answered_with_errors() -> None:
    stored = rows(("user", "go"), ("assistant", [call()]), ("assistant", LONG))
    built = build(Snapshot(), stored, POLICY)
    shorter = (built.view[0], built.view[1].with_content([text_block("short"), call()]))
    new = settle(built, shorter, run_id="run-1")
    assert new.covers_through == 2
    for newest in (("user", "done?"), ("user", [result(content="at last")])):
        view = build(head(new), rows(newest, first=3), POLICY).view
        assert problems([message.as_message() for message in view]) == []
        assert (NO_RESULT in dump_messages(view)) == (newest[1] == "done?")
    # A search that the answer has begun is not on its way any more.
    stored = rows(("user", "go"), ("assistant", [call()]), ("assistant", [text_block(LONG), SEARCH]))
    built = build(Snapshot(), stored, POLICY)
    shorter = (built.view[0], built.view[1].with_content([text_block("short"), SEARCH, call()]))
    view = build(head(settle(built, shorter, run_id="run-1")), (), POLICY).view
    assert problems([message.as_message() for message in view]) == []
    # Calls of the newest message itself are known to be open.
    stored = rows(("user", LONG), ("assistant", [text_block(LONG), call()]))
    built = build(Snapshot(), stored, POLICY)
    shorter = (built.view[0], built.view[1].with_content([text_block("short"), call()]))
    assert NO_RESULT not in settle(built, shorter, run_id="run-1").messages_json


def test_the_tail_is_none_that_leaves_calls_open_which_repair_had_put_before_it() -> None:
    """The message after the answer was held against that answer as it was stored, which calls nothing."""
    stored = rows(("user", LONG), ("assistant", [call()]), ("assistant", "short"), ("user", "done?"))
    built = build(Snapshot(), stored, POLICY, broken_through=2)
    assert [message.seq for message in built.view] == [0, 2, 3]
    cut = (built.view[0].with_content("short"), *built.view[1:])
    # The head alone: what was cut is at its end.
    new = settle(built, cut, run_id="run-1")
    view = build(head(new), tuple(row for row in stored if row.seq > new.covers_through), POLICY, broken_through=2).view
    assert problems([message.as_message() for message in view]) == []
    # The call, and the answer that is left with it.
    new = settle(built, (cut[0], built.view[1].with_content([text_block("s"), call()]), cut[2]), run_id="run-1")
    assert new.covers_through == 3
    assert NO_RESULT in new.messages_json


def test_an_answer_that_was_thought_alone_is_the_newest_still_where_that_is_left_out() -> None:
    """The result before it has come late, and has its place: no text stands for it, before a compaction or after."""
    late = ("user", [result(content="late")])
    stored = rows(("user", LONG), ("assistant", [call()]), ("user", "?"), ("assistant", "!"), late)
    thought = rows(("assistant", [{"type": "thinking", "thinking": "…", "signature": "s"}]), first=5)
    for stripped_through in (-1, 5):
        built = build(Snapshot(), (*stored, *thought), POLICY, strip_thinking_through=stripped_through)
        assert [message.seq for message in built.view] == [0, 1, 2, 3]
    assert build(Snapshot(), stored, POLICY).view[-1].seq == 4


def test_only_what_changed_and_what_stands_before_it_is_written() -> None:
    new = cut()
    assert (new.covers_through, new.seqs) == (4, (0, 1, 2, 3, 4))
    assert new.coverage == (
        Span(0, 1, "kept"),
        Span(2, 2, "truncated", "run-1"),
        Span(3, 3, "kept"),
        Span(4, 4, "truncated", "run-1"),
    )
    assert new.summary is None
    assert new.tokens == sum(message.tokens for message in load_view(new.messages_json, new.seqs))


def test_thinking_before_the_first_change_stays_and_after_it_goes() -> None:
    messages = json.loads(cut().messages_json)
    assert messages[1]["content"] == [THOUGHT, call()]
    assert messages[3]["content"] == [call()]


def test_an_answer_of_thinking_alone_is_not_called_kept_when_it_goes() -> None:
    stored = rows(("user", "go"), ("assistant", [call()]), ("user", [result(content=LONG)]), ("assistant", [THOUGHT]))
    stored += rows(("assistant", [call("b")]), ("user", [result("b")]), first=4)
    built = build(Snapshot(), stored, POLICY)
    cut = cut_tool_results(built.view, 500)
    after: View = (*cut.view[:5], ViewMessage("user", [result("b", "shorter")], 5))
    new = settle(built, after, run_id="r", truncated=[2, 5])
    assert new.seqs == (0, 1, 2, 4, 5)
    assert find_span(new.coverage, 3) == Span(3, 3, "dropped", "r")


def test_a_summary_is_kept_by_what_comes_after_it() -> None:
    built = working()
    view = rebuild(built.view, Zone(1, 5), "so far")
    once = settle(built, view, run_id="run-1", removed="summarized", summary="so far")
    assert once.summary == "so far"
    assert (once.covers_through, once.seqs) == (4, (0,))
    assert once.coverage == (Span(0, 0, "kept"), Span(1, 4, "summarized", "run-1"))
    later = build(head(once), STORED[5:], POLICY, strip_thinking_through=7)
    trim = drop_oldest(later.view, lambda count, _: count <= 2, carries_summary=True)
    twice = settle(later, trim.view, run_id="run-2")
    assert twice.summary == "so far"
    assert twice.coverage == (*once.coverage, Span(5, 6, "dropped", "run-2"))


def test_settling_covers_no_less_than_before() -> None:
    once = cut()
    later = build(head(once), STORED[5:], POLICY)
    again = settle(later, later.view, run_id="run-2")
    assert (again.covers_through, again.coverage) == (once.covers_through, once.coverage)
    assert (again.messages_json, again.seqs) == (once.messages_json, once.seqs)


def test_a_change_of_everything_covers_everything() -> None:
    built = working()
    after = tuple(ViewMessage(message.role, message.content, message.seq) for message in built.view)
    assert settle(built, after, run_id="r").covers_through == 7


def test_a_step_costs_what_the_view_holds_whatever_was_there_before() -> None:
    gone = 10**12
    coverage = (Span(0, gone, "dropped", "old"), Span(gone + 1, gone + 2, "kept"))
    messages = (ViewMessage("user", "go", gone + 1), ViewMessage("assistant", "well", gone + 2))
    built = build(Snapshot(3, gone + 2, messages, coverage=coverage), rows(("user", "more"), first=gone + 3), POLICY)

    new = settle(built, (built.view[2],), run_id="r")

    assert new.coverage == (coverage[0], Span(gone + 1, gone + 2, "dropped", "r"))
    assert new.covers_through == gone + 2


def test_the_prefix_hash_tells_prefixes_apart() -> None:
    def hashed(*messages: tuple[str, Any]) -> bytes:
        built = build(Snapshot(), rows(*messages), POLICY)
        changed = tuple(ViewMessage(message.role, "other", message.seq) for message in built.view)
        return settle(built, changed, run_id="r").prefix_hash

    assert hashed(("user", "a")) == hashed(("user", "a"))
    hashes = {
        hashed(("user", "a")),
        hashed(("user", "b")),
        hashed(("user", [text_block("a")])),
        hashed(("user", "a"), ("assistant", "a")),
        hashed(("user", "a"), ("user", "a")),
    }
    assert len(hashes) == 5


def test_the_prefix_hash_is_chained() -> None:
    def settled(snapshot: Snapshot, tail: list[Original]) -> NewSnapshot:
        built = build(snapshot, tail, POLICY)
        changed = tuple(ViewMessage(message.role, "other", message.seq) for message in built.view)
        return settle(built, changed, run_id="r")

    first = settled(Snapshot(), rows(("user", "a")))
    other = settled(Snapshot(), rows(("user", "b")))
    tail = rows(("assistant", "c"), first=1)
    assert settled(head(first), tail).prefix_hash == settled(head(first), tail).prefix_hash
    assert settled(head(first), tail).prefix_hash != settled(head(other), tail).prefix_hash


@pytest.mark.parametrize("head_texts", [None, [], ["1"], ["1", "2"]])
@pytest.mark.parametrize("tail_texts", [[], ["3"], ["3", '{"a":[]}']])
def test_head_and_tail_are_joined_without_being_parsed(head_texts: list[str] | None, tail_texts: list[str]) -> None:
    joined = context_json(None if head_texts is None else f"[{','.join(head_texts)}]", ",".join(tail_texts) or None)
    assert joined == f"[{','.join([*(head_texts or []), *tail_texts])}]"


def test_a_snapshot_is_refused_if_its_summary_read_more_than_it_covers() -> None:
    built = build(Snapshot(), rows(*[("user", "one"), ("assistant", "two")] * 4), POLICY)
    new = settle(built, rebuild(built.view, Zone(1, 4), "so"), run_id="r", summary="so", read_through=5)
    assert new.covers_through == 5
    new.check_sources()
    with pytest.raises(UncoveredSourceError, match="cover: 6"):
        new._replace(sources=frozenset({6})).check_sources()
    with pytest.raises(UncoveredSourceError, match="cover: 2"):
        new._replace(sources=frozenset({2}), coverage=(Span(0, 1, "kept"), Span(3, 5, "kept"))).check_sources()
