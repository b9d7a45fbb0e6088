"""Deterministic compaction of a 500 KB context, against one decode and encode of the same JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bench import data
from bench.measure import Row, Sample, Target, interleave, pair
from compaction.ladder import Load, decide
from compaction.policy import Policy
from compaction.snapshot import Original, Snapshot, build, settle
from compaction.tool_results import cut_tool_results
from compaction.view import view_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.plan import Plan

CONTEXT_BYTES: Final = 500_000
_RESULT_CHARS: Final = 4_000
_PACE_SECONDS: Final = 0.5
"""Length of one side of one round: it is repeated until then."""


def compaction(plan: Plan) -> list[Row]:
    """Read, plan, cut and settle in this process; the fastest of the repetitions of each round counts."""
    tail = _conversation()
    text = data.json_text([{"role": row.role, "content": msgspec.Raw(row.content.encode())} for row in tail]).encode()
    policy = Policy()

    def compact() -> None:
        working = build(Snapshot(), tail, policy)
        tokens = view_tokens(working.view)
        if not decide(Load(tokens, None), policy).tool_results:
            raise AssertionError("the context is not over the budget")
        cut = cut_tool_results(working.view, policy.tool_result_retention_chars)
        truncated = [working.view[index].seq for index in cut.indices]
        settle(working, cut.view, run_id=str(data.conversation_id(1)), truncated=truncated)
        view_tokens(cut.view)

    def decode_and_encode() -> None:
        msgspec.json.encode(msgspec.json.decode(text))

    seconds = plan.seconds if plan.short else _PACE_SECONDS
    with plan.servers.cores.on(plan.servers.cores.measured):
        found = interleave(
            {
                "compaction": lambda: _fastest(compact, seconds),
                "decode + encode": lambda: _fastest(decode_and_encode, seconds),
            },
            plan.rounds,
        )
    return [
        Row(
            name="compaction",
            what=f"deterministic compaction of {len(text) // 1000} KB, {len(tail)} messages",
            measured="read, plan, cut, settle",
            reference="msgspec decode + encode",
            unit=" ms",
            samples=pair(found, "compaction", "decode + encode"),
            target=Target("<=", 2),
        )
    ]


def _fastest(work: Callable[[], Any], seconds: float) -> Sample:
    """Return the least CPU time of the work in milliseconds: it waits for nothing, so what others take is left out."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        started = time.thread_time()
        work()
        times.append((time.thread_time() - started) * 1000)
    return Sample(min(times))


def _conversation() -> list[Original]:
    """Return an agent's conversation: requests, calls with results of 4,000 characters, answers."""
    tail: list[Original] = []
    size = 0

    def add(role: str, content: Any) -> None:
        nonlocal size
        text = data.json_text(content)
        tail.append(Original(len(tail), role, text))
        size += len(text)

    while size < CONTEXT_BYTES:
        number = len(tail)
        add("user", data.prose(300))
        for step in range(4):
            call = f"toolu_{number:06}{step}"
            asked = {"type": "tool_use", "id": call, "name": "search", "input": {"query": data.prose(60)}}
            result = [{"type": "tool_result", "tool_use_id": call, "content": data.prose(_RESULT_CHARS)}]
            add("assistant", [{"type": "text", "text": data.prose(200)}, asked])
            add("user", result)
        add("assistant", data.prose(800))
    return tail
