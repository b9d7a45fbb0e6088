"""Whatever was stored, the work of `compaction/` grows no faster than it: two sizes, and a generous ratio."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from compaction import coverage, private_fields, repair
from compaction import messages as facts
from compaction import policy as policies
from compaction import view as views
from compaction.extract import extractive
from compaction.payload import assembly, block_summary, context_blocks
from compaction.pins import pinned
from compaction.quality import evidence as gathering
from compaction.quality import misfires
from compaction.quality import verdict as verdicts
from compaction.recall import framing, passages
from compaction.shorten import inline_tags, pruning, tool_results, trimming
from compaction.summary import staging, tidying, transcript, zone
from compaction.text import html_text, outline
from tests.support.adversarial import CONVERSATIONS, TEXTS, value_of_long_key

if TYPE_CHECKING:
    from collections.abc import Callable

CHARS = 2_000
MESSAGES = 200
TIMES = 8
"""Times that the second size is the first."""
GROWTH = 3
"""Times as long as linear work that it may take: quadratic work takes TIMES times as long."""
QUICK_SECONDS = 0.02
"""Seconds of CPU time up to which work on the second size is not compared: a quadratic part is too small to tell."""
TRIES = 4
MAX_CHARS = 400
"""Of an extract; how often it looks at its draft again grows with the logarithm of this."""
SUMMARY = "The user asked for work, and the assistant did some of it. " * 3


@cache
def policy() -> Any:
    return policies.merge({"private_result_fields": ["secret"], "inline_tool_tags": ["result"]})


def view_of(messages: list[tuple[str, Any]]) -> Any:
    return tuple(views.ViewMessage(role, content, seq) for seq, (role, content) in enumerate(messages))


def said(text: str) -> Any:
    return view_of([("user", "Start."), ("assistant", "ok"), ("user", text), ("assistant", "done")])


def called(given: Any) -> Any:
    use = {"type": "tool_use", "id": "c1", "name": "w", "input": given}
    return view_of([("user", "Start."), ("assistant", [use]), ("user", [answer("ok")]), ("assistant", "done")])


def returned(text: str) -> Any:
    use = {"type": "tool_use", "id": "c1", "name": "w", "input": {}}
    return view_of([("user", "Start."), ("assistant", [use]), ("user", [answer(text)]), ("assistant", "done")])


def answer(text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", "content": text}


def extract(view: Any) -> None:
    extractive.extract([message.as_message() for message in view], max_chars=MAX_CHARS)


def judge(view: Any, summary: str = SUMMARY) -> None:
    evidence = gathering.gather(view)
    verdict = verdicts.judge(
        summary, evidence, max_chars=1_500, prompt=transcript.SYSTEM_PROMPT[:500], frames=["<draft-"]
    )
    verdicts.mend(summary, verdict, evidence, max_chars=1_500)


def plan(view: Any) -> None:
    staged = staging.plan(view, None, policy(), 20_000, strip_fields=["secret"])
    for part in staged.parts:
        staged.ask(part)


def reduce(view: Any) -> None:
    tool_results.cut_tool_results(view, 40)
    views.cap_results(view, 40)
    pruning.prune(
        (*view, *returned("x")),
        window_tokens=100,
        soft_share=0.1,
        hard_share=0.2,
        head_chars=20,
        tail_chars=20,
        min_freed_tokens=1,
    )
    inline_tags.cut_inline(view, ["result"], 40)
    trimming.drop_oldest(view, lambda count, _: count < 3)


def keep(view: Any, text: str) -> None:
    pins = [*pinned.standing_pins(text, 0), pinned.Pin("a", 99, text)]
    framed = pinned.pin(view, pins, max_tokens=10**6)
    pinned.without_pins(framed.view, framed.framed)
    with_summary = zone.with_summary(view[0], text)
    zone.without_summary(with_summary, text)


def served(view: Any) -> None:
    repaired, _ = repair.mend(view)
    repair.repair(repaired)
    zone.find_zone(repaired, 2)
    zone.find_prefix(repaired, 2)
    facts.turn_facts([facts.message_facts(message.role, message.content) for message in view])


def block(text: str) -> None:
    given = outline.ContextBlock("s", "t", text)
    outline.outline(text, section_chars=40, max_chars=400)
    context_blocks.prepare([given], policy())
    assembly.render_block(given)
    for number, part in enumerate(outline.split_structured(text, 200)):
        block_summary.part_prompt("s", "t", part, number, 2, policy())


def page(text: str) -> None:
    html_text.html_text(text)


def recalled(text: str) -> None:
    row = passages.StoredText(0, "user", json.dumps(text), datetime(2031, 4, 2, tzinfo=UTC))
    originals = passages.quote_messages([row])
    framing.frame_passages(passages.read_range(list(originals.values()), block=None, offset=0, max_tokens=20_000))


def answered(text: str) -> None:
    """What a model wrote."""
    tidying.tidy_answer(text)
    judge(said("Please order ID10009x for ann@b.example, by 2031-04-02. " * 4), text)
    misfires.is_prompt_echo(text, "canary", transcript.SYSTEM_PROMPT[:500], lambda: text)


WORK: dict[str, Callable[[str], object]] = {
    "extract of what was said": lambda text: extract(said(text)),
    "extract of a call": lambda text: extract(called({"t": text, "l": text.split()})),
    "extract of a result": lambda text: extract(returned(text)),
    "extract of an extract": lambda text: extractive.extract([], max_chars=MAX_CHARS, previous=text),
    "guard over what was said": lambda text: judge(said(text)),
    "guard over a call": lambda text: judge(called({"t": text, "l": text.split()})),
    "guard over a result": lambda text: judge(returned(text)),
    "guard over a summary": answered,
    "plan": lambda text: plan((*said(text), *called({"t": text}), *returned(text))),
    "view": lambda text: reduce((*returned(text), *said(text))),
    "pins": lambda text: keep(said(text), text),
    "context block": block,
    "page": page,
    "recalled": recalled,
    "private fields": lambda text: private_fields.without_fields(text, ["secret"]),
    "append": lambda text: served((*returned(text), *said(text))),
}
LIVES: dict[str, Callable[[Any], object]] = {
    "extract": extract,
    "guard": judge,
    "plan": plan,
    "view": reduce,
    "repair": served,
    "pins": lambda view: keep(view, "Always so."),
    "coverage": lambda view: coverage.extend(
        coverage.extend((), range(len(view)), {}, "a"), (), dict.fromkeys(range(0, len(view), 2), "dropped"), "b"
    ),
}


def measure(work: Callable[[Any], object], given: Any) -> float:
    """Return the seconds of CPU time that work takes, the least of two."""
    return min(_measure_once(work, given), _measure_once(work, given))


def _measure_once(work: Callable[[Any], object], given: Any) -> float:
    began = time.thread_time()
    work(given)
    return time.thread_time() - began


def too_fast(work: Callable[[Any], object], make: Callable[[int], Any], size: int) -> list[float]:
    """Return the seconds on two sizes if work grows faster than they do, every time that it is tried."""
    large = make(TIMES * size)
    second = _measure_once(work, large)
    if second <= QUICK_SECONDS:
        return []
    small = make(size)
    for _ in range(TRIES):
        first, second = measure(work, small), min(second, measure(work, large))
        if second <= GROWTH * TIMES * first:
            return []
    return [first, second]


@pytest.mark.parametrize("kind", TEXTS)
def test_work_grows_with_text_and_no_faster(kind: str) -> None:
    counts_by_name = {}
    for name, work in WORK.items():
        if counts := too_fast(work, TEXTS[kind], CHARS):
            counts_by_name[name] = counts
    assert not counts_by_name


@pytest.mark.parametrize("kind", CONVERSATIONS)
def test_work_grows_with_messages_and_no_faster(kind: str) -> None:
    counts_by_name = {}
    for name, work in LIVES.items():
        if counts := too_fast(work, lambda count: view_of(CONVERSATIONS[kind](count)), MESSAGES):
            counts_by_name[name] = counts
    assert not counts_by_name


def test_long_keys_are_not_read_again_for_every_record() -> None:
    assert not too_fast(lambda given: extract(called(given)), value_of_long_key, CHARS)
    assert not too_fast(lambda given: judge(called(given)), value_of_long_key, CHARS)


def test_spans_of_code_do_not_each_look_for_the_end_of_their_line() -> None:
    result = f"<result>{'x' * 100}</result>"

    def work(text: str) -> None:
        inline_tags.cut_inline_results(text, ["result"], 40)

    assert not too_fast(work, lambda spans: "`a` " * spans + result, 5_000)


def test_quadratic_work_is_found() -> None:
    def search(text: str) -> None:
        for place in range(len(text)):
            text.find("yx", place)

    def match(text: str) -> None:
        re.compile(r"x+y").search(text)

    def match_once(text: str) -> None:
        re.compile(r"x+z|x++y|(?<=y)x").match(text)

    make = TEXTS["one word"]
    assert [bool(too_fast(work, make, 4_000)) for work in (search, match, match_once)] == [True, True, False]
