"""The benchmark of recall: it runs, on recorded talk as on talk of its own, and finds more than the newest messages."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench.reach.baselines import PlainSearch, keep_last
from bench.reach.talks import Question, made_up, recorded
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_it_runs_on_recorded_talk(tmp_path: Path) -> None:
    talk = made_up(1, 120)
    questions = [
        {
            "question": each.text,
            "evidence": sorted(each.evidence),
            "category": 4,
            "keywords": each.keywords,
            "answer": each.answer,
        }
        for each in talk.questions
    ]
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps({"id": "one", "messages": talk.messages, "questions": questions}), encoding="utf-8")
    (again,) = recorded(file)
    assert again == talk._replace(name="one")
    command = [sys.executable, str(ROOT / "bench/reach/run.py"), "--short", "--json", str(file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert [row["talk"] for row in document["evidence"]] == ["talk"] * 3 + ["of its own"] * 3
    assert [row["tokens"] for row in document["evidence"][:3]] == [1_000, 2_000, 4_000]
    assert all(row["recall"] >= row["keep-last"] for row in document["evidence"])
    assert document["latency"][0]["words p50"] > 0
    assert document["prepared"][0]["p50"] > 0
    assert all(row["and one recall"] >= row["context"] for row in document["later"])
    assert [row["of"] for row in document["stored"]] == ["talk", "of its own", document["later"][0]["of"]]


def test_a_question_is_answered_by_its_evidence() -> None:
    assert Question("?", frozenset({1, 2}), one_is_enough=False).share_found([2, 7]) == 0.5
    assert Question("?", frozenset({1, 2}), one_is_enough=True).share_found([2, 7]) == 1.0
    assert Question("?", frozenset({1, 2}), one_is_enough=True).share_found([]) == 0.0


def test_the_baselines_keep_their_bounds() -> None:
    texts = [f"message {number} about {'harbours' if number == 3 else 'rain'}" for number in range(9)]
    assert PlainSearch(texts).search("a harbour?", 60) == [1, 2]
    assert PlainSearch(texts).search("a harbour?", 1_000) == [1, 2, 3, 4, 5]
    assert keep_last(texts, 59) == [8, 7]
