"""Whatever was stored, the work of `compaction/` grows no faster than it: counted, not timed."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.counting.adversarial import CONVERSATIONS, TEXTS, value_of_long_key
from tests.support.counting.rewriting import COUNTER, TooMuchError, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHARS = 200
MESSAGES = 80
PAIRS = 400
"""The smallest sizes; each is doubled twice. What goes wrong among calls and results shows late."""
GROWTH = 2.5
"""Times that the second doubling may add what the first one added: 2 is linear, 4 is quadratic."""
DOUBLED = 2.2
"""Times that the work may be in all; only what exceeds both grows too fast, since short texts are looked at harder."""
LIMIT = 6_000
"""Steps a character that nothing needs."""
MAX_CHARS = 400
"""Of an extract; how often it looks at its draft again grows with the logarithm of this."""
SUMMARY = "The user asked for work, and the assistant did some of it. " * 3

_extract, _evidence, _quality, _staging = map(
    counted, ("extract.extractive", "quality.evidence", "quality.verdict", "summary.staging")
)
_outline, _html, _inline, _pins, _private = map(
    counted, ("text.outline", "text.html_text", "shorten.inline_tags", "pins.pinned", "private_fields")
)
_repair, _pruning, _results, _summary, _view = map(
    counted, ("repair", "shorten.pruning", "shorten.tool_results", "summary.zone", "view")
)
_frames, _misfires, _messages, _trimming, _coverage = map(
    counted, ("summary.frames", "quality.misfires", "messages", "shorten.trimming", "coverage")
)
_blocks, _transcript, _assembly, _context_blocks = map(
    counted, ("payload.block_summary", "summary.transcript", "payload.assembly", "payload.context_blocks")
)
_policy = counted("policy")
_tidying, _framing, _passages = map(counted, ("summary.tidying", "recall.framing", "recall.passages"))


@cache
def policy() -> Any:
    return _policy.merge({"private_result_fields": ["secret"], "inline_tool_tags": ["result"]})


def view_of(messages: list[tuple[str, Any]]) -> Any:
    return tuple(_view.ViewMessage(role, content, seq) for seq, (role, content) in enumerate(messages))


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
    _extract.extract([message.as_message() for message in view], max_chars=MAX_CHARS)


def judge(view: Any, summary: str = SUMMARY) -> None:
    evidence = _evidence.gather(view)
    verdict = _quality.judge(
        summary, evidence, max_chars=1_500, prompt=_transcript.SYSTEM_PROMPT[:500], frames=["<draft-"]
    )
    _quality.mend(summary, verdict, evidence, max_chars=1_500)


def plan(view: Any) -> None:
    staged = _staging.plan(view, None, policy(), 20_000, strip_fields=["secret"])
    for part in staged.parts:
        staged.ask(part)


def reduce(view: Any) -> None:
    _results.cut_tool_results(view, 40)
    _view.cap_results(view, 40)
    _pruning.prune(
        (*view, *returned("x")),
        window_tokens=100,
        soft_share=0.1,
        hard_share=0.2,
        head_chars=20,
        tail_chars=20,
        min_freed_tokens=1,
    )
    _inline.cut_inline(view, ["result"], 40)
    _trimming.drop_oldest(view, lambda count, _: count < 3)


def keep(view: Any, text: str) -> None:
    pins = [*_pins.standing_pins(text, 0), _pins.Pin("a", 99, text)]
    framed = _pins.pin(view, pins, max_tokens=10**6)
    _pins.without_pins(framed.view, framed.framed)
    with_summary = _summary.with_summary(view[0], text)
    _summary.without_summary(with_summary, text)


def served(view: Any) -> None:
    repaired, _ = _repair.mend(view)
    _repair.repair(repaired)
    _summary.find_zone(repaired, 2)
    _summary.find_prefix(repaired, 2)
    _messages.turn_facts([_messages.message_facts(message.role, message.content) for message in view])


def block(text: str) -> None:
    given = _outline.ContextBlock("s", "t", text)
    _outline.outline(text, section_chars=40, max_chars=400)
    _context_blocks.prepare([given], policy())
    _assembly.render_block(given)
    for number, part in enumerate(_outline.split_structured(text, 200)):
        _blocks.part_prompt("s", "t", part, number, 2, policy())


def page(text: str) -> None:
    _html.html_text(text)


def recalled(text: str) -> None:
    row = _passages.StoredText(0, "user", json.dumps(text), datetime(2031, 4, 2, tzinfo=UTC))
    originals = _passages.quoted([row])
    _framing.framed(_passages.read(list(originals.values()), block=None, offset=0, max_tokens=20_000))


def answered(text: str) -> None:
    """What a model wrote."""
    _tidying.tidied(text)
    judge(said("Please order ID10009x for ann@b.example, by 2031-04-02. " * 4), text)
    _misfires.echoes(text, "canary", _transcript.SYSTEM_PROMPT[:500], lambda: text)


WORK: dict[str, Callable[[str], object]] = {
    "extract of what was said": lambda text: extract(said(text)),
    "extract of a call": lambda text: extract(called({"t": text, "l": text.split()})),
    "extract of a result": lambda text: extract(returned(text)),
    "extract of an extract": lambda text: _extract.extract([], max_chars=MAX_CHARS, previous=text),
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
    "private fields": lambda text: _private.without_fields(text, ["secret"]),
    "append": lambda text: served((*returned(text), *said(text))),
}
LIVES: dict[str, Callable[[Any], object]] = {
    "extract": extract,
    "guard": judge,
    "plan": plan,
    "view": reduce,
    "repair": served,
    "pins": lambda view: keep(view, "Always so."),
    "coverage": lambda view: _coverage.extend(
        _coverage.extend((), range(len(view)), {}, "a"), (), dict.fromkeys(range(0, len(view), 2), "dropped"), "b"
    ),
}


@pytest.fixture(autouse=True)
def _deep() -> Iterator[None]:
    """The matcher goes a few calls deep for each character."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    yield
    sys.setrecursionlimit(before)


def too_fast(work: Callable[[Any], object], make: Callable[[int], Any], size: int) -> list[int]:
    """Return the steps of work on three sizes, each twice the one before, if they grow faster than the sizes."""

    def steps(times: int) -> int:
        return COUNTER.of(partial(work, make(times * size)), LIMIT * size * 4)

    try:
        second, third = steps(2), steps(4)
        if third <= DOUBLED * second:
            return []
        first = steps(1)
    except TooMuchError:
        return [0, 0, LIMIT * size * 4]
    return [first, second, third] if third - second > GROWTH * (second - first) else []


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
        size = PAIRS if work is served else MESSAGES
        if counts := too_fast(work, lambda count: view_of(CONVERSATIONS[kind](count)), size):
            counts_by_name[name] = counts
    assert not counts_by_name


def test_long_keys_are_not_read_again_for_every_record() -> None:
    assert not too_fast(lambda given: extract(called(given)), value_of_long_key, CHARS)
    assert not too_fast(lambda given: judge(called(given)), value_of_long_key, CHARS)


def test_spans_of_code_do_not_each_look_for_the_end_of_their_line() -> None:
    result = f"<result>{'x' * 100}</result>"

    def work(text: str) -> None:
        _inline.cut_inline_results(text, ["result"], 40)

    assert not too_fast(work, lambda spans: "`a` " * spans + result, 500)


def test_what_is_quadratic_is_found_so() -> None:
    def searched(text: str) -> None:
        for place in range(0, len(text), 40):
            COUNTER.call(text.find, "y", place)

    def matched(text: str) -> None:
        COUNTER.call(re.compile(r"x+y").search, text)

    def once(text: str) -> None:
        COUNTER.call(re.compile(r"x+z|x++y|(?<=y)x").match, text)

    make = TEXTS["one word"]
    assert [bool(too_fast(work, make, CHARS)) for work in (searched, matched, once)] == [True, True, False]
