"""Deterministic compaction of a 500 KB context, against one decode and encode of the same JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bench import data
from bench.measure import Row, Sample, interleave, pair
from compaction.coverage import Coverage
from compaction.policy import Policy
from compaction.steps.catalogue import TOOL_RESULTS
from compaction.steps.plan import Progress, RunContext, next_step
from compaction.steps.snapshot import Original, Snapshot, build, load_view
from compaction.steps.stage import Stage
from compaction.steps.steps import NO_OPTIONS, cut_results
from compaction.steps.stored_view import StoredView
from compaction.tokens import content_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.plan import Plan
    from compaction.steps.snapshot import NewSnapshot

CONTEXT_BYTES: Final = 500_000
_BEFORE_BYTES: Final = 1_300_000
_SINCE_BYTES: Final = 150_000
_RESULT_CHARS: Final = 4_000
_PACE_SECONDS: Final = 0.5
"""Length of one side of one round: it is repeated until then."""
_LEAST: Final = 5
"""Repetitions at least: the first ones find caches cold and a heap to be made."""
_RUN: Final = str(data.conversation_id(1))


def compaction(plan: Plan) -> list[Row]:
    """Do in this process what a run does between its reads and its commit, once more with what follows the commit.

    The fastest of the repetitions of each round counts.
    """
    tail = conversation(CONTEXT_BYTES, _RESULT_CHARS)
    policy = Policy()
    last, more = after_another(policy)
    text = _text(tail)
    text_after = last.messages_json[:-1].encode() + b"," + _text(more)[1:]

    seconds = plan.seconds if plan.short else _PACE_SECONDS
    with plan.servers.cores.on(plan.servers.cores.measured):
        samples = interleave(
            {
                "compaction": lambda: fastest(lambda: plan_and_cut(Snapshot(), tail, policy), seconds),
                "run": lambda: fastest(lambda: whole_run(tail, policy), seconds),
                "again": lambda: fastest(lambda: plan_and_cut(_read(last), more, policy), seconds),
                "decode + encode": lambda: fastest(lambda: _decode_and_encode(text), seconds),
                "of all": lambda: fastest(lambda: _decode_and_encode(text_after), seconds),
            },
            plan.rounds,
        )
    first = f"deterministic compaction of {len(text) // 1000} KB, {len(tail)} messages"
    again = (
        f"the same after another, {len(text_after) // 1000} KB of which {len(last.messages_json) // 1000} are unchanged"
    )
    return [
        Row(
            name=name,
            what=what,
            measured=measured,
            reference="msgspec decode + encode",
            unit=" ms",
            samples=pair(samples, side, reference),
        )
        for name, what, side, reference, measured in (
            ("compaction", first, "compaction", "decode + encode", "read, plan, cut, settle"),
            ("compaction-again", again, "again", "of all", "read, plan, cut, settle"),
            ("compaction-run", first, "run", "decode + encode", "the same, then read again and find nothing due"),
        )
    ]


def plan_and_cut(snapshot: Snapshot, tail: tuple[Original, ...], policy: Policy) -> tuple[Stage, NewSnapshot]:
    """Compute what a run computes between its reads and its commit, in its order (worker/runs/execute.py)."""
    stage = _stage(snapshot, tail, policy)
    context = RunContext(policy, can_summarize=True, can_extract=True)
    step = next_step(context, Progress(), stage.load, len(stage.view))
    if step is not TOOL_RESULTS:
        raise AssertionError(f"tool results are not due, but {step}")
    looked_at = stage.newest_result
    outcome = cut_results(stage, policy, NO_OPTIONS)
    if outcome.reason is not None or looked_at < 0:
        raise AssertionError(f"nothing was cut: {outcome.reason}")
    # What the record of the step has.
    if stage.estimate(outcome.view) >= stage.tokens:
        raise AssertionError("nothing was saved")
    return stage, outcome.settle(stage, _RUN)


def whole_run(tail: tuple[Original, ...], policy: Policy) -> None:
    """Compute what a run computes from its first read to its end, where it reads again: another step may be due."""
    _, new = plan_and_cut(Snapshot(), tail, policy)
    after = _stage(_read(new), tuple(row for row in tail if row.seq > new.covers_through), policy)
    context = RunContext(policy, can_summarize=True, can_extract=True)
    step = next_step(context, Progress({TOOL_RESULTS: "committed"}), after.load, len(after.view))
    if step is not None:
        raise AssertionError(f"one step was not enough: {step}")


def after_another(policy: Policy) -> tuple[NewSnapshot, tuple[Original, ...]]:
    """Return a snapshot of some 360 KB, and the tail that makes another compaction of 500 KB due."""
    before = conversation(_BEFORE_BYTES, _RESULT_CHARS)
    _, new = plan_and_cut(Snapshot(), before, policy)
    since = [row._replace(seq=len(before) + row.seq) for row in conversation(_SINCE_BYTES, _RESULT_CHARS)]
    return new, (*(row for row in before if row.seq > new.covers_through), *since)


def fastest(work: Callable[[], Any], seconds: float) -> Sample:
    """Return the least CPU time of the work in milliseconds: it waits for nothing, so what others take is left out."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _LEAST or time.perf_counter() < end:
        started = time.thread_time()
        work()
        times.append((time.thread_time() - started) * 1000)
    return Sample(min(times))


def conversation(size: int, result_chars: int) -> tuple[Original, ...]:
    """Return an agent's conversation of about `size` bytes: requests, calls with results, answers."""
    tail: list[Original] = []
    total = 0

    def add(role: str, content: Any) -> None:
        nonlocal total
        text = data.json_text(content)
        tail.append(Original(len(tail), role, text, content_tokens(content)))
        total += len(text)

    while total < size:
        number = len(tail)
        add("user", data.prose(300))
        for step in range(4):
            call = f"toolu_{number:06}{step}"
            asked = {"type": "tool_use", "id": call, "name": "search", "input": {"query": data.prose(60)}}
            result = [{"type": "tool_result", "tool_use_id": call, "content": data.prose(result_chars)}]
            add("assistant", [{"type": "text", "text": data.prose(200)}, asked])
            add("user", result)
        add("assistant", data.prose(800))
    return tuple(tail)


def _text(tail: tuple[Original, ...]) -> bytes:
    return data.json_text([{"role": row.role, "content": msgspec.Raw(row.content.encode())} for row in tail]).encode()


def _decode_and_encode(text: bytes) -> None:
    msgspec.json.encode(msgspec.json.decode(text))


def _read(new: NewSnapshot) -> Snapshot:
    """Return a snapshot as `store.conversations.snapshots` reads it back; coverage comes parsed from the driver."""
    messages = load_view(new.messages_json, new.seqs)
    return Snapshot(
        version=1,
        covers_through=new.covers_through,
        messages=messages,
        summary=new.summary,
        coverage=msgspec.convert(msgspec.to_builtins(new.coverage), Coverage),
        prefix_hash=new.prefix_hash,
        pins=new.pins,
        stored=StoredView(messages, new.messages_json, new.tokens, new.exchanges),
    )


def _stage(snapshot: Snapshot, tail: tuple[Original, ...], policy: Policy) -> Stage:
    """Return what `store.conversations.snapshots.load` gives a step; rows are read by database and driver."""
    return Stage(build(snapshot, tail, policy, pinned=(), broken_through=-1))
