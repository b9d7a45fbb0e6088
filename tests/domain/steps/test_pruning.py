"""Pruning: old tool results thinned, then cleared, and nothing else touched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.transcripts.readers import read_transcripts
from compaction.messages import has_tool_results, is_request
from compaction.policy import Policy
from compaction.shorten.pruning import PrunedView, prune
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.tokens import content_tokens
from compaction.view import View, ViewMessage, view_tokens
from tests.support.blocks import image_block, text_block
from tests.support.messages_api import problems
from tests.support.places import TRANSCRIPTS
from tests.support.strategies import any_conversations

if TYPE_CHECKING:
    from collections.abc import Mapping

WINDOW = 10_000
SETTINGS: dict[str, Any] = {
    "window_tokens": WINDOW,
    "soft_share": 0.3,
    "hard_share": 0.5,
    "head_chars": 1_500,
    "tail_chars": 500,
    "min_freed_tokens": 0,
}


def agent_run(*results: Any, tool: str = "read_file") -> View:
    """One request and a round for each result, each call with its own id and file."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look into it."}]
    for number, content in enumerate(results):
        call = {"type": "tool_use", "id": f"t{number}", "name": tool, "input": {"path": f"{number}.txt"}}
        messages.append({"role": "assistant", "content": [call]})
        block = {"type": "tool_result", "tool_use_id": f"t{number}", "content": content}
        messages.append({"role": "user", "content": [block]})
    return tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(messages))


def first_result(message: ViewMessage) -> dict[str, Any]:
    assert isinstance(message.content, list)
    return message.content[0]


def shown(view: View) -> list[Any]:
    return [first_result(message)["content"] for message in view if has_tool_results(message.role, message.content)]


def pruned(view: View, **settings: Any) -> PrunedView:
    result = prune(view, **SETTINGS | settings)
    again = prune(result.view, **SETTINGS | settings)
    assert again.view == result.view
    assert again[1:] == (0, 0, (), 0)
    return result


@pytest.mark.requirement("O7")
def test_under_the_soft_share_nothing_is_touched_O7() -> None:
    view = agent_run("x" * 6_000, "y" * 6_000)
    assert content_tokens("x" * 12_000) == 0.3 * WINDOW
    result = pruned(view)
    assert all(new is old for new, old in zip(result.view, view, strict=True))
    assert result[1:] == (0, 0, (), 0)


@pytest.mark.requirement("O7")
def test_over_the_soft_share_oversized_results_keep_head_and_tail_O7() -> None:
    long = "h" * 1_500 + "m" * 4_000 + "t" * 500
    view = agent_run(long, "s" * 2_000, "n" * 8_000)
    result = pruned(view)
    note = "\n[4,000 characters between are stored but not shown]\n"
    assert shown(result.view) == ["h" * 1_500 + note + "t" * 500, "s" * 2_000, "n" * 8_000]
    assert (result.softened, result.cleared, result.seqs) == (1, 0, (2,))
    assert result.freed_tokens == (4_000 - len(note)) // 4
    assert [message for message in result.view if message.seq != 2] == [message for message in view if message.seq != 2]


@pytest.mark.requirement("O7")
def test_over_the_hard_share_the_oldest_give_way_to_a_line_that_names_tool_size_and_place_O7() -> None:
    view = agent_run(*("r" * 2_000 for _ in range(10)), "n" * 2_000)
    result = pruned(view)
    line = "[cleared: result of read_file, 2,000 characters, message {} of the originals]"
    assert shown(result.view)[:2] == [line.format(2), line.format(4)]
    assert shown(result.view)[2:] == shown(view)[2:], "no more than needed to reach the share"
    assert (result.softened, result.cleared, result.seqs) == (0, 2, (2, 4))


def test_a_cleared_result_states_its_own_size_although_it_was_thinned_before() -> None:
    view = agent_run("r" * 30_000, "n" * 12_000)
    thinned = pruned(view, hard_share=1.0)
    assert thinned.softened == 1
    cleared = pruned(thinned.view, hard_share=0.1)
    assert shown(cleared.view)[0] == "[cleared: result of read_file, 30,000 characters, message 2 of the originals]"
    assert pruned(view, hard_share=0.1).view == cleared.view


def test_a_gap_is_widened_not_doubled_when_less_may_be_shown() -> None:
    view = agent_run("".join(f"{number:05}" for number in range(5_000)), "n")
    wide = pruned(view, hard_share=1.0)
    narrow = pruned(wide.view, soft_share=0.01, hard_share=1.0, head_chars=100, tail_chars=50)
    assert shown(narrow.view) == shown(
        pruned(view, soft_share=0.01, hard_share=1.0, head_chars=100, tail_chars=50).view
    )
    assert shown(narrow.view)[0].count("between are stored but not shown") == 1


@pytest.mark.requirement("O7")
def test_the_newest_results_and_what_stands_before_the_first_request_are_exempt_O7() -> None:
    call = {"type": "tool_use", "id": "t", "name": "boot", "input": {}}
    block = {"type": "tool_result", "tool_use_id": "t", "content": "b" * 20_000}
    parallel = [{"type": "tool_use", "id": name, "name": "bash", "input": {}} for name in "ab"]
    view = (
        ViewMessage("assistant", [call], 0),
        ViewMessage("user", [block], 1),
        *(ViewMessage(message.role, message.content, message.seq + 2) for message in agent_run("o" * 20_000)),
        ViewMessage("assistant", parallel, 5),
        ViewMessage("user", [{"type": "tool_result", "tool_use_id": "a", "content": "a" * 20_000}], 6),
        ViewMessage("user", [{"type": "tool_result", "tool_use_id": "b", "content": "b" * 20_000}], 7),
        ViewMessage("assistant", "Well.", 8),
        ViewMessage("user", "Go on.", 9),
    )
    assert pruned(view).seqs == (4,)


def test_without_a_request_and_with_one_result_message_nothing_may_go() -> None:
    assert pruned(agent_run("a" * 90_000)).cleared == 0
    assert pruned(agent_run("a" * 90_000, "b" * 90_000)[1:]).cleared == 0


@pytest.mark.requirement("O7")
@pytest.mark.parametrize(
    ("allow", "deny", "goes"),
    [
        ((), (), True),
        (("read_*",), (), True),
        (("READ_*",), (), False),
        (("write_*", "bash"), (), False),
        (("*",), ("read_file",), False),
        (("read_file",), ("*_file",), False),
        ((), ("write_*",), True),
    ],
)
def test_globs_of_tool_names_allow_and_deny_and_deny_wins_O7(
    allow: tuple[str, ...], deny: tuple[str, ...], goes: bool
) -> None:
    view = agent_run("a" * 90_000, "b")
    assert (pruned(view, allow=allow, deny=deny).cleared + pruned(view, allow=allow, deny=deny).softened == 1) is goes


def test_a_result_whose_call_is_gone_has_no_tool_name() -> None:
    view = (agent_run("a")[0], *agent_run("a" * 90_000, "b")[2:])
    assert pruned(view, allow=["read_file"]).cleared == 0
    assert "an unknown tool" in shown(pruned(view, hard_share=0.0).view)[0]


@pytest.mark.requirement("O7")
def test_images_stay_when_text_is_thinned_and_go_when_it_is_cleared_O7() -> None:
    content = [text_block("h" * 9_000), image_block(), text_block(" \n"), text_block("t" * 9_000)]
    view = agent_run(content, "n" * 100)
    soft = shown(pruned(view, hard_share=1.0).view)[0]
    assert [part["type"] for part in soft] == ["text", "image", "text"]
    assert soft[0]["text"] == "h" * 1_500 + "\n[16,002 characters between are stored but not shown]\n"
    assert soft[2]["text"] == "t" * 500
    assert shown(pruned(view, hard_share=0.1).view)[0] == (
        "[cleared: result of read_file, 18,002 characters and 1 other block, message 2 of the originals]"
    )


def test_errors_stay_errors_and_tool_definitions_stay() -> None:
    view = agent_run("e" * 90_000, [{"type": "tool_reference", "tool_name": "bash"}, text_block("d" * 9_000)], "n")
    first_result(view[2])["is_error"] = True
    result = pruned(view, hard_share=0.1)
    assert first_result(result.view[2])["is_error"] is True
    assert result.seqs == (2,)


def test_what_was_recalled_is_cleared_first_and_to_a_line_that_names_it() -> None:
    recalled = '<recalled refs="m3-m5">\n' + "x" * 12_000 + "\n</recalled>"
    call = {"type": "tool_use", "id": "t1", "name": "recall", "input": {"query": "x"}}
    view = agent_run("r" * 5_000, recalled, "n" * 5_000)
    view = (*view[:3], ViewMessage("assistant", [call], 3), *view[4:])
    first = pruned(view)
    assert shown(first.view)[0] == "r" * 5_000
    assert shown(first.view)[1] == "[recalled before: m3-m5] [truncated for context management]"
    assert (first.softened, first.cleared, first.seqs) == (0, 1, (4,))
    # What a line alone does not free is softened, then cleared, as ever; and the line stays.
    more = pruned(view, soft_share=0.1, hard_share=0.1)
    assert shown(more.view)[1] == shown(first.view)[1]
    assert (more.softened, more.cleared) == (0, 2)
    # The tool may be exempt like any other.
    assert shown(pruned(view, deny=["recall"]).view)[1] == recalled


@pytest.mark.requirement("O7")
def test_less_than_the_minimum_is_not_worth_the_prompt_cache_O7() -> None:
    view = agent_run("r" * 6_000, "n" * 12_000)
    freed = pruned(view, min_freed_tokens=0).freed_tokens
    assert pruned(view, min_freed_tokens=freed).freed_tokens == freed
    held = pruned(view, min_freed_tokens=freed + 1)
    assert held[1:] == (0, 0, (), 0)
    assert all(new is old for new, old in zip(held.view, view, strict=True))


def test_clearing_goes_on_until_the_minimum_is_freed() -> None:
    view = agent_run(*("r" * 2_000 for _ in range(10)), "n" * 2_000)
    assert pruned(view, min_freed_tokens=2_000).cleared == 5


@pytest.mark.requirement("O7")
@pytest.mark.recorded
@pytest.mark.skipif(not TRANSCRIPTS.is_dir(), reason=f"no recorded conversations in {TRANSCRIPTS}")
@pytest.mark.parametrize("window", [20_000, 4_000, 1_000])
def test_recorded_conversations_stay_valid_and_come_under_the_hard_share_where_they_can_O7(window: int) -> None:
    pruned_any = 0
    for path in sorted(TRANSCRIPTS.glob("*.jsonl")):
        for transcript in read_transcripts(path)[:5]:
            tail = [
                Original(seq, message.role, bytes(message.content).decode())
                for seq, message in enumerate(transcript.messages)
            ]
            view = build(Snapshot(), tail, Policy()).view
            result = pruned(view, window_tokens=window, min_freed_tokens=200)
            assert problems([message.as_message() for message in result.view]) == []
            pruned_any += bool(result.seqs)
    assert pruned_any


def settings() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "window_tokens": st.sampled_from([100, 2_000, 20_000]),
            "soft_share": st.sampled_from([0.0, 0.1, 0.5]),
            "hard_share": st.sampled_from([0.0, 0.2, 0.8]),
            "head_chars": st.sampled_from([0, 1, 100, 1_500]),
            "tail_chars": st.sampled_from([0, 1, 100, 1_500]),
            "min_freed_tokens": st.sampled_from([0, 100, 5_000]),
            "allow": st.sampled_from([(), ("*",), ("bash", "read_*")]),
            "deny": st.sampled_from([(), ("mcp__*",)]),
        }
    )


def skeleton(message: Mapping[str, Any]) -> Any:
    """A message without what its tool results say."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return [block | {"content": ""} if block.get("type") == "tool_result" else block for block in content]


@pytest.mark.requirement("O7")
@given(any_conversations(max_chars=12_000), settings())
def test_pruning_any_conversation_is_valid_smaller_stable_and_touches_results_only_O7(
    messages: list[dict[str, Any]], given_settings: dict[str, Any]
) -> None:
    tail = [Original(seq, message["role"], json.dumps(message["content"])) for seq, message in enumerate(messages)]
    view = build(Snapshot(), tail, Policy()).view
    result = prune(view, **given_settings)
    assert prune(view, **given_settings) == result
    assert prune(result.view, **given_settings) == PrunedView(result.view)

    before, after = ([message.as_message() for message in each] for each in (view, result.view))
    assert len(problems(after)) <= len(problems(before))
    assert list(map(skeleton, after)) == list(map(skeleton, before))
    freed = view_tokens(view) - view_tokens(result.view)
    # The view rounds every message up, pruning rounds once.
    assert abs(freed - result.freed_tokens) <= len(view)
    assert bool(result.seqs) == (result.softened + result.cleared > 0) == (result.view != view)
    if result.seqs:
        assert result.freed_tokens >= given_settings["min_freed_tokens"]
    first = next((m.seq for m in view if is_request(m.role, m.content)), None)
    newest = max((m.seq for m in view if has_tool_results(m.role, m.content)), default=-1)
    assert all(first is not None and first <= seq < newest for seq in result.seqs)
