"""Replayed conversations: what schedules of compaction cost, and that none is cheaper than the best."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import pytest

from bench.cost.best import SwapPoints, best
from bench.cost.gaps import GAPS, gaps
from bench.cost.ladder import NO_HEAD, Recording, recorded
from bench.cost.models import models, summarizer
from bench.cost.replay import Played, at_once, stored
from bench.cost.run import STRATEGIES, main
from compaction.policy import merge
from tests.support.long_conversation import turns

if TYPE_CHECKING:
    from pathlib import Path

POLICY = {"input_token_budget": 8_000, "compaction_threshold_tokens": 16_000, "model_context_tokens": 32_000}
MODELS = dict(models())


@cache
def recording(kind: str = "agent") -> Recording:
    messages = [message for turn in turns("agent" if kind == "agent" else "chat", 120) for message in turn]
    return recorded(kind, messages, "Be brief.", merge(POLICY))


@pytest.mark.parametrize("kind", GAPS)
@pytest.mark.parametrize("model", MODELS)
def test_no_schedule_is_cheaper_than_the_best_and_none_is_broken_by_nothing(kind: str, model: str) -> None:
    played = Played(recording(), gaps(kind, recording().requests, "one"), MODELS[model], summarizer())
    every = [played.thresholds, played.break_even([]), best(played, SwapPoints(recording()))]
    assert len({bill.calls for bill in every}) == 1
    # The grid of swap points may miss a schedule by a little.
    assert every[2].usd <= 1.01 * min(bill.usd for bill in every)
    assert every[1].usd <= 1.10 * every[2].usd
    assert every[1].usd <= every[0].usd
    assert every[1].breaks <= every[0].breaks
    assert played.none.breaks == 0


def test_no_context_that_waits_is_over_the_limit() -> None:
    whole = recording()
    head = NO_HEAD
    for number in range(len(whole.calls)):
        head = at_once(whole, head, stored(whole, number))
        assert whole.tokens(head, stored(whole, number)) < whole.policy.pending_limit_tokens


def test_what_two_contexts_begin_with_alike_is_counted_in_whole_messages() -> None:
    whole = recording()
    count = whole.calls[-1]
    due = next(at for at in range(1, count) if whole.is_due(NO_HEAD, at))
    made = whole.climb(NO_HEAD, due)
    assert made is not None
    shared = whole.shared(NO_HEAD, made, due)
    assert whole.fixed < shared < whole.tokens(made, due) < whole.tokens(NO_HEAD, due)
    assert whole.shared(made, made, due) == whole.tokens(made, due)


def test_a_call_after_a_pause_reads_nothing_from_the_cache() -> None:
    whole = recording("chat")
    warm, cold = (
        Played(whole, [gap] * len(whole.calls), MODELS["claude-opus-5-5"], summarizer()) for gap in (1.0, 1_000.0)
    )
    assert cold.call(3, NO_HEAD, NO_HEAD).usd > warm.call(3, NO_HEAD, NO_HEAD).usd
    assert cold.none.usd > cold.thresholds.usd


def test_it_prints_a_row_for_each_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "short.jsonl"
    file.write_text(json.dumps({"id": "a", "system": "Be brief.", "messages": recording("chat").messages[:8]}))
    main(transcripts=[file], as_json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == len(GAPS) * len(MODELS) * len(STRATEGIES)
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    assert all(
        set(row) == {"source", "gaps", "model", "strategy", "cost_usd", "prefix_breaks_per_100_turns"} for row in rows
    )
    assert all(row["cost_usd"] > 0 for row in rows)
