"""Questions about talk put to a model: what is asked, who judges, what it costs, and what is not asked twice."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest
import structlog
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.answers.costs import Estimate, questions_cost
from bench.answers.judging import judged, verdict_of
from bench.answers.kept import Kept, key_of
from bench.answers.originals import ONCE, Originals
from bench.fidelity.model import VARIABLES
from bench.fidelity.run import main
from bench.reach.talks import Question, made_up
from compaction.recall.tool import is_recall_result
from gateway.recalls.calls import RecallCall
from tests.support.servers.loopback_answers import answers
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import status
from worker.summarizers.prices import NO_OWN_PRICES

if TYPE_CHECKING:
    from pathlib import Path

WAYS: Final = [(way, once) for way in ("keep last", "extract", "model's summary") for once in (False, True)]
ARGUMENTS: Final = ("--json", "--talk-only", "--short", "--replicates", "2")


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = made_up(5, 400)
    questions = [
        {"question": each.text, "evidence": sorted(each.evidence), "keywords": each.keywords, "answer": each.answer}
        for each in made.questions
    ]
    path = tmp_path_factory.mktemp("talk") / "talk-made.jsonl"
    path.write_text(json.dumps({"id": "made", "messages": made.messages, "questions": questions}))
    return path


def run(
    monkeypatch: pytest.MonkeyPatch, talk: Path, kept: Path, *arguments: str, **environment: str
) -> tuple[dict[str, Any], str]:
    for name in (*(each for names in VARIABLES.values() for each in names), "PALIMPSEST_SUMMARIZER_PRICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    app = typer.Typer()
    app.command()(main)
    logging = structlog.get_config()
    try:
        done = CliRunner().invoke(app, [*ARGUMENTS, "--talk", str(talk), "--answers", str(kept), *arguments])
    finally:
        structlog.configure(**logging)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def rows_of(document: dict[str, Any]) -> dict[tuple[str, bool], dict[str, Any]]:
    return {(row["context"], row["may_recall"]): row for row in document["answers"]["rows"]}


@pytest.mark.parametrize("provider", ["anthropic", pytest.param("openai", marks=pytest.mark.slow)])
def test_every_context_is_asked_with_and_without_a_recall(
    provider: str, tmp_path: Path, talk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "answers.jsonl"
    with LoopbackModel(default=answers()) as model:
        url = model.url if provider == "anthropic" else f"{model.url}/v1"
        environment = {f"{provider.upper()}_BASE_URL": url, f"{provider.upper()}_API_KEY": "any"}
        document, told = run(monkeypatch, talk, kept, **environment)
        asked = model.requests
        again, _ = run(monkeypatch, talk, kept, **environment)
        assert len(model.requests) == len(asked), "what was answered is not asked again"
    rows = rows_of(document)
    assert list(rows) == WAYS
    for (_, once), row in rows.items():
        assert (row["answers"], row["failed"], row["undecided"], row["conversations"]) == (6, 0, 0, 1)
        assert row["by_rules"] + row["by_model"] == 6
        assert row["recalls"] == (6 if once else 0)
        assert row["calls"] == (12 if once else 6)
        assert row["lowest"] <= row["right"] <= row["highest"]
        assert row["usd"] > 0
    assert rows["keep last", True]["right"] >= rows["keep last", False]["right"]
    assert again["answers"]["rows"] == document["answers"]["rows"]
    assert (again["answers"]["spent_usd"], document["answers"]["spent_usd"] > 0) == (0, True)
    at_most = int(told.partition("together: at most ")[2].partition(" calls")[0].replace(",", ""))
    assert len(asked) <= at_most
    calls = [each.body for each in asked if each.body.get("tools")]
    assert {str(each["tool_choice"]) for each in calls} == (
        {"{'type': 'auto'}", "{'type': 'none'}"} if provider == "anthropic" else {"auto", "none"}
    )


def test_what_is_broken_off_goes_on(tmp_path: Path, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "answers.jsonl"
    with LoopbackModel(default=answers()) as model:
        environment = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "any"}
        whole, _ = run(monkeypatch, talk, kept, **environment)
        every = len(model.requests)
        lines = kept.read_bytes().splitlines(keepends=True)
        kept.write_bytes(b"".join(lines[:-3]) + lines[-3][:20])
        again, _ = run(monkeypatch, talk, kept, **environment)
        assert 3 <= len(model.requests) - every <= 6
    assert [row["right"] for row in again["answers"]["rows"]] == [row["right"] for row in whole["answers"]["rows"]]


def test_costs_are_told_before_anything_is_asked(tmp_path: Path, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackModel(default=answers()) as model:
        environment = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "any"}
        document, told = run(monkeypatch, talk, tmp_path / "none", "--limit", "0.01", **environment)
        assert (document["answers"], document["model"], model.requests) == (None, None, [])
        assert "over the limit of $0.01" in told
        assert "by the price of claude-haiku-4-5" in told
        monkeypatch.setenv("PALIMPSEST_SUMMARIZER_MODEL", "a-model-of-ones-own")
        document, told = run(monkeypatch, talk, tmp_path / "none", **environment)
        assert "no price is known" in told
        assert (document["answers"], model.requests) == (None, [])
        document, _ = run(monkeypatch, talk, tmp_path / "none", "--yes", "--replicates", "1", **environment)
    assert {row["usd"] for row in document["answers"]["rows"]} == {None}


def test_asking_stops_at_the_limit(tmp_path: Path, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackModel(default=answers()) as model:
        # A hundred times the estimate: the limit is passed on the way.
        monkeypatch.setattr("bench.answers.costs.questions_cost", lambda *_, **__: Estimate())
        monkeypatch.setattr("bench.answers.measuring.questions_cost", lambda *_, **__: Estimate())
        environment = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "any"}
        document, _ = run(monkeypatch, talk, tmp_path / "kept", "--limit", "0.15", **environment)
    assert document["answers"]["stopped_at_limit"]
    assert 0.15 <= document["answers"]["spent_usd"] < 0.6
    assert sum(row["stopped"] for row in document["answers"]["rows"]) > 0


def test_a_model_that_refuses_fails_and_is_asked_again(
    tmp_path: Path, talk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    with LoopbackModel(default=status(400)) as model:
        environment = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "any"}
        document, _ = run(monkeypatch, talk, kept, **environment)
        assert {row["failed"] for row in document["answers"]["rows"]} == {6}
        assert {row["context"] for row in document["answers"]["rows"]} == {"keep last", "extract"}
        model.default = answers()
        document, _ = run(monkeypatch, talk, kept, **environment)
    assert {row["failed"] for row in document["answers"]["rows"]} == {0}


@pytest.mark.parametrize(
    ("answer", "reply", "right"),
    [
        ("7 May 2023", "May 7, 2023", True),
        ("three", "She has 3 cats.", True),
        ("We've met up twice.", "2 times", None),
        ("under my bed", "You kept them under your bed.", True),
        ("30", "UNKNOWN", False),
        ("30", "", False),
        ("30", "There were many.", False),
        ("Yes", "Yes", True),
        ("Tim", "Not Tim", None),
        ("C. S. Lewis", "C. S. Lewis", True),
        ("in Lisbon", "Madrid", None),
        ("The information provided is not enough.", "UNKNOWN", True),
        ("The information provided is not enough.", "Twice.", None),
        ("Gonzalez", "Gonz\u00e1lez", True),
        ("tea", "tea " * 60, None),
    ],
)
def test_rules_judge_what_they_can(answer: str, reply: str, right: bool | None) -> None:
    assert judged(Question("?", frozenset({0}), True, (), answer), reply) is right


@given(st.text(max_size=60).filter(lambda text: any(each.isalpha() for each in text)))
def test_an_answer_itself_is_never_wrong(answer: str) -> None:
    assert judged(Question("?", frozenset({0}), True, (), answer), answer) is not False


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("RIGHT", True), ("Wrong.", False), ("It is right, not wrong", None), ("", None), ("**RIGHT**", True)],
)
def test_a_judgement_is_one_word(text: str, verdict: bool | None) -> None:
    assert verdict_of(text) is verdict


def test_recall_gives_back_what_was_asked_once() -> None:
    made = made_up(5)
    originals = Originals(made.messages)
    for question in made.questions[:5]:
        first, second = originals.answers(
            [RecallCall("a", {"query": question.text}), RecallCall("b", {"query": question.text})]
        )
        assert is_recall_result(first.text)
        assert any(f"[m{seq}.0," in first.text for seq in question.evidence)
        assert (second.text, second.is_error) == (ONCE, True)
    (whole,) = originals.answers([RecallCall("a", {"ref": "m3-m4"})])
    assert made.messages[3]["content"] in whole.text
    (found,) = originals.answers([RecallCall("a", {"pattern": r"\bcello|kiln\b"})])
    assert is_recall_result(found.text)
    for asked in ({"ref": "m99999"}, {"ref": "nowhere"}, {"pattern": "("}):
        (refused,) = originals.answers([RecallCall("a", asked)])
        assert refused.is_error


def test_answers_are_kept_by_all_that_was_asked(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept")
    kept.put(key_of("a", 1), ["one"])
    assert Kept(tmp_path / "kept").get(key_of("a", 1)) == ["one"]
    assert Kept(tmp_path / "kept").get(key_of("a", 2)) is None
    assert len({key_of("a", 1), key_of("a", "1"), key_of(["a"], 1), key_of("a1")}) == 4


@given(st.integers(0, 100_000), st.integers(1, 500), st.booleans())
def test_what_is_told_is_no_less_than_without_a_cache(tokens: int, count: int, may_recall: bool) -> None:
    estimate = questions_cost(tokens, count, may_recall=may_recall)
    most = estimate.most("claude-haiku-4-5", NO_OWN_PRICES)
    about = estimate.about("claude-haiku-4-5", NO_OWN_PRICES)
    assert most is not None
    assert about is not None
    assert Decimal(0) < about <= most
    assert estimate.prompt >= count * tokens
