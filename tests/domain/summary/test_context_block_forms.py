"""The forms of a context block, without a database: outlines that are carried, summaries by parts, what gives way."""

from __future__ import annotations

import re
from functools import partial
from threading import Event, Lock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.messages import blocks
from compaction.payload.assembly import History, Layers, assemble, blocks_tokens
from compaction.payload.block_summary import add_note, groups, is_shorter, merge_prompt, part_chars, part_prompt, split
from compaction.payload.context_blocks import prepare
from compaction.policy import Policy
from compaction.recall.handles import context_block_note
from compaction.summary.frames import DATA
from compaction.text.outline import MAX_READ, ContextBlock, read_share
from compaction.tokens import content_tokens
from compaction.view import ViewMessage
from worker.summarizers.parallel import all_answers

TEXT = "".join(f"## Section {number}\n\n{f'word{number} ' * 100}\n\n" for number in range(30))
TEXTS = st.one_of(
    st.text(min_size=1, max_size=400),
    st.sampled_from(
        [TEXT, "長い文章です。" * 2_000, "<h1>A</h1><p>" + "b " * 3_000, "x" * 5_000, "def f(x):\n  pass\n" * 300]
    ),
)
BLOCKS = st.lists(
    st.tuples(st.sampled_from(["a", "</context>", "b" * 512]), st.text(max_size=30), TEXTS).map(
        lambda fields: ContextBlock(*fields)
    ),
    max_size=4,
)


@pytest.mark.requirement("P16")
@given(BLOCKS, st.sampled_from([0, 1, 20, 300, 20_000]), st.sampled_from([1, 50, 500]), st.booleans())
def test_any_block_has_an_outline_that_may_be_carried_P16(
    blocks: list[ContextBlock], carried: int, section_chars: int, handles: bool
) -> None:
    policy = Policy(
        carried_context_max_tokens=carried,
        carry_forward_section_chars=section_chars,
        context_block_compact_chars=1_000,
        recall_handles=handles,
    )
    prepared = prepare(blocks, policy)
    assert prepare(blocks, policy) == prepared
    for position, (block, stored) in enumerate(zip(blocks, prepared, strict=True)):
        assert (stored.source, stored.title, stored.text) == block[:3]
        assert stored.is_large == (len(block.text) > 1_000)
        assert stored.tokens == blocks_tokens([block])
        handle = context_block_note(1, position, stored.tokens) if handles and stored.outline != block.text else ""
        carried_block = block._replace(text=stored.outline, handle=handle, is_carried=True)
        # What is counted has room for any seq.
        assert (
            blocks_tokens([carried_block]) <= stored.outline_tokens <= blocks_tokens([carried_block]) + 2 * bool(handle)
        )
        assert stored.outline_tokens <= stored.tokens
        name_alone = blocks_tokens([block._replace(text="")])
        if carried > name_alone + 10 + 12 * handles:
            assert stored.outline_tokens <= carried


@pytest.mark.requirement("P16")
def test_an_outline_reads_of_each_block_its_share_P16() -> None:
    text = ("# Part\n" + "word " * 400 + "\n") * (2 * MAX_READ // 2_000)
    one, *_ = prepare([ContextBlock("a", "", text)] * 2, Policy())
    (hidden,) = re.findall(r"\[… ([\d,]+) characters left out\]$", one.outline)
    assert int(hidden.replace(",", "")) >= len(text) - MAX_READ // 2


@given(st.lists(st.integers(0, 3 * MAX_READ), max_size=100))
def test_short_texts_leave_their_share_to_long_ones(lengths: list[int]) -> None:
    share = read_share(lengths)
    read = sum(min(length, share) for length in lengths)
    assert MAX_READ - len(lengths) < read <= MAX_READ or read == sum(lengths) <= MAX_READ
    assert share >= MAX_READ // max(1, len(lengths))


def test_the_outlines_of_a_payload_are_made_from_so_much_text() -> None:
    long, short = ("# Part\n" + "word " * 400 + "\n") * (2 * MAX_READ // 2_000), "# End\n" + "word " * 400
    user = ViewMessage("user", "hi")
    layers = Layers(turn=(ContextBlock("a", "", long), ContextBlock("b", "", short)), user_message=user)
    assembly = assemble(layers, Policy(total_token_budget=10_000, reserved_output_tokens=100), History(0))
    first, second, _ = (block["text"] for block in blocks(assembly.messages[-1].content))
    (hidden,) = re.findall(r"\[… ([\d,]+) characters left out\]\n</context>$", first)
    assert int(hidden.replace(",", "")) >= len(long) + len(short) - MAX_READ
    assert "# End" in second


def fitted(block: ContextBlock, budget: int) -> tuple[str, Any]:
    user = ViewMessage("user", "hi")
    policy = Policy(total_token_budget=budget, reserved_output_tokens=100)
    assembly = assemble(Layers(turn=(block,), user_message=user), policy, History(0))
    content = assembly.messages[-1].content
    assert isinstance(content, list)
    assert assembly.turn_tokens == content_tokens(content[0]["text"])
    assert content[-1]["text"] == "hi"
    return content[0]["text"], assembly


@pytest.mark.requirement("P4", "P15")
def test_a_block_gives_way_to_its_summary_and_only_then_to_its_outline_P15() -> None:
    block = ContextBlock("doc", "Doc", "word " * 8_000, summary="summary " * 1_000, outline="outline " * 100)
    assert "word word" in fitted(block, 12_000)[0]
    text, made = fitted(block, 3_000)
    assert "summary summary" in text
    assert made.blocks_shortened == 1
    text, made = fitted(block, 1_000)
    assert "outline outline" in text
    assert made.blocks_shortened == 1
    assert "characters left out" in fitted(block._replace(summary=None, outline=None), 3_000)[0]
    named = block._replace(handle="[shortened from 10,000 tokens: recall c0.0]")
    assert "recall" not in fitted(named, 12_000)[0]
    for budget in (3_000, 1_000):
        assert fitted(named, budget)[0].endswith("\n[shortened from 10,000 tokens: recall c0.0]\n</context>")


def test_context_stands_in_the_request_that_it_came_with() -> None:
    call = {"type": "tool_use", "id": "t", "name": "run", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "out"}
    block = ContextBlock("doc", "Doc", "The text.")
    history = (ViewMessage("user", "Fix it.", 0), ViewMessage("assistant", [call], 1))
    answered = ViewMessage("user", [result], 2)
    first, waiting, stored = (
        assemble(layers, Policy(), History(1)).messages
        for layers in (
            Layers(turn=(block,), user_message=history[0]),
            Layers(turn=(block,), history=history, user_message=answered),
            Layers(turn=(block,), history=(*history, answered)),
        )
    )
    assert first[0].content == stored[0].content == waiting[0].content
    assert [message.content for message in stored[1:]] == [[call], [result]]
    assert [message.content for message in waiting] == [message.content for message in stored]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 1_000))
def test_merging_halves_the_summaries_whatever_their_lengths(lengths: list[int], limit: int) -> None:
    texts = [f"{index:03}" + "x" * length for index, length in enumerate(lengths)]
    grouped = groups(texts, limit)
    assert [text for group in grouped for text in group] == texts
    assert len(texts) == 1 or all(len(group) > 1 for group in grouped)
    assert len(grouped) <= max(1, len(texts) // 2)


@pytest.mark.requirement("P15")
@given(TEXTS, st.sampled_from([16_000, 32_000, 200_000]), st.sampled_from([500, 4_096]))
def test_every_part_of_a_block_fits_the_models_window_P15(text: str, window: int, answer: int) -> None:
    policy = Policy(summary_max_tokens=answer)
    parts = split(text * 20, policy, window)
    assert "".join(parts) == text * 20
    for number, part in enumerate(parts, start=1):
        assert len(part) <= policy.summary_input_max_chars
        prompt = part_prompt("source", "title", part, number, len(parts), policy)
        assert content_tokens(prompt) + answer <= window


def test_a_small_window_still_leaves_parts() -> None:
    assert part_chars("x", Policy(summary_max_tokens=100_000), 16_000) > 0


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_line_of_a_summary_leaves_its_frame(first: str, second: str) -> None:
    prompt = merge_prompt("a", "b", [first, second], Policy())
    lines = prompt.split("\n")
    opening, closing = lines[1], lines[1].replace("<", "</")
    assert opening.startswith("<part-summary-")
    assert lines.count(opening) == lines.count(closing) == 2
    inside = False
    for line in lines:
        if line in {opening, closing}:
            inside = line == opening
        elif inside:
            assert not line or line.startswith(DATA)


def test_a_summary_says_that_it_is_one_and_has_to_be_shorter() -> None:
    text = "word " * 100
    assert add_note(" Short. \n", text) == "[Summary of a text of 500 characters]\nShort."
    assert is_shorter("Short.", text)
    assert not is_shorter(" \n", text)
    assert not is_shorter(text[:480], text)


def test_calls_run_side_by_side_within_their_limit() -> None:
    lock, running, most = Lock(), 0, 0
    together = Event()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                together.set()
        assert together.wait(20)
        with lock:
            running -= 1
        return number * number

    assert all_answers(range(9), work, threads=3, stop=Event()) == [number * number for number in range(9)]
    assert most == 3
    assert all_answers([], work, threads=3, stop=Event()) == []


def test_no_call_begins_after_an_error_or_once_it_is_given_up() -> None:
    begun: list[int] = []
    stop = Event()

    def work(number: int, *, fails: bool) -> None:
        begun.append(number)
        if number == 2:
            if fails:
                raise ValueError("two")
            stop.set()

    with pytest.raises(ValueError, match="two"):
        all_answers(range(9), partial(work, fails=True), threads=1, stop=stop)
    assert begun == [0, 1, 2]
    begun.clear()
    assert all_answers(range(9), partial(work, fails=False), threads=1, stop=stop) is None
    assert begun == [0, 1, 2]
