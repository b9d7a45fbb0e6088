"""The fidelity benchmark: its measures are what they say, its contexts the product's, and its report whole."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import structlog
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bench.fidelity.chained import FIRST_RULES, LATER_RULES, chains_of, compact_ten_times
from bench.fidelity.look_ahead import cuts_of, score
from bench.fidelity.model import VARIABLES
from bench.fidelity.pipeline import Memory
from bench.fidelity.recall import characters, cut, find, text_of
from bench.fidelity.run import main
from bench.fidelity.sources import ROOT, Source, scenario, sources, transcripts_folder
from bench.fidelity.strategies import LEAST_SUMMARY_TOKENS, POLICY, Left, Strategy, keep_last, summarized
from bench.reach.talks import made_up
from compaction.pins.pinned import Pin
from compaction.view import MARKER
from tests.support.dialogues import DIALOGUES, coding
from tests.support.messages_api import problems
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok
from tests.support.service.stub_summarizer import StubSummarizer, refusing
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from bench.fidelity.recall import Message

DEFINITION = ROOT.parent / "shared" / "eval" / "lookahead.py"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(*blocks: dict[str, Any] | str) -> Message:
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    return {"role": "assistant", "content": content}


def use(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments}


def result(content: Any) -> Message:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": content}]}


PAST = [
    user("Please send parcel PX-4471 to the harbour office before Monday, contact ana@reis.example about customs."),
    assistant(use("find_parcel", parcel="PX-4471")),
    result([{"type": "text", "text": "Parcel PX-4471 stands on shelf T-902 of hall four."}, {"type": "image"}]),
    assistant("It weighs 1,250 grams; nobody asked about QQ-1111."),
]
FUTURE = [user("Is ana@reis.example told about PX-4471?"), assistant(use("move", shelf="T-902")), result("QQ-1111")]


def test_wanted_is_what_speakers_use_again_not_what_tools_say() -> None:
    assert cut(PAST, FUTURE).wanted == {"px-4471", "t-902", "ana@reis.example"}


def test_a_value_counts_where_the_context_still_says_something_about_it() -> None:
    at = cut(PAST, FUTURE)
    everything = find(at, PAST)
    assert everything.kept == everything.bound == at.wanted
    listed = find(at, [user("PX-4471, T-902, ana@reis.example")])
    assert listed.kept == at.wanted
    assert listed.bound == set()
    told = find(at, [user("Parcel PX-4471 goes to the harbour office. Parcel stands on shelf T-902.")])
    assert told.kept == told.bound == {"px-4471", "t-902"}


def test_other_words_than_before_do_not_bind() -> None:
    context = [user("Something completely different mentions PX-4471 without sense or reason.")]
    found = find(cut(PAST, FUTURE), context)
    assert found.kept == {"px-4471"}
    assert found.bound == set()


@pytest.fixture(scope="module")
def definition() -> ModuleType:
    if not DEFINITION.is_file():
        pytest.skip("lookahead.py, which defines the measure, is not beside the repository")
    spec = importlib.util.spec_from_file_location("lookahead", DEFINITION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def agree(
    definition: ModuleType, past: Sequence[Message], context: Sequence[Message], future: Sequence[Message]
) -> None:
    found = find(cut(past, future), context)
    kept, wanted = definition.recall(past, context, future)
    bound, _ = definition.bound_recall(past, context, future)
    assert (found.wanted, found.kept, found.bound) == (wanted, kept, bound)
    assert characters(context) == definition.size(context)


@pytest.mark.parametrize("name", [*DIALOGUES, "scenario"])
def test_agrees_with_the_definition(definition: ModuleType, name: str) -> None:
    messages = scenario().conversations[0][:40] if name == "scenario" else DIALOGUES[name]()
    for at in range(8, len(messages), 11):
        past, future = messages[:at], messages[at:]
        for context in (past, keep_last(past, characters(past) // 4).context, definition.cut_tools(past, 100)):
            agree(definition, past, context, future)
        assert keep_last(past, characters(past) // 4).context == definition.keep_last(past, characters(past) // 4)


TOKENS = st.sampled_from(
    ["PX-4471", "a_b_c", "/srv/app/x.py", "ana@reis.example", "12", "1234.", "3.14159", "the", "harbour", "office",
     "Zähler", "\u212a123", "x" * 90, "customs-2031-04-05", '"k": 1', "\n", "snake_case_key", "what", "shelf"]
)  # fmt: skip
TEXT = st.lists(TOKENS, max_size=25).map(" ".join) | st.text(max_size=60)
MESSAGE = st.one_of(
    st.builds(user, TEXT),
    st.builds(assistant, TEXT),
    st.builds(lambda text: assistant(use("find", text=text)), TEXT),
    st.builds(result, TEXT),
)


@given(st.lists(MESSAGE, max_size=6), st.lists(MESSAGE, max_size=4), st.lists(MESSAGE, max_size=4))
def test_agrees_with_the_definition_on_any_text(
    definition: ModuleType, past: list[Message], context: list[Message], future: list[Message]
) -> None:
    agree(definition, past, context, future)


@pytest.mark.parametrize("name", ["airline", "swe-agent"])
def test_agrees_with_the_definition_on_recorded_conversations(definition: ModuleType, name: str) -> None:
    path = transcripts_folder() / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there: set PALIMPSEST_TRANSCRIPTS to the transcripts' directory")
    (source,) = sources([path], most=4)
    for messages in source.conversations:
        for at in cuts_of(messages, 4):
            context = summarized(at.past, characters(at.past) // 4, ExtractiveSummarizer()).context
            agree(definition, at.past, context, messages[len(at.past) :])


@pytest.mark.parametrize("name", DIALOGUES)
@pytest.mark.parametrize("cut_results", [False, True])
def test_contexts_fit_and_are_valid(name: str, cut_results: bool) -> None:
    for at in cuts_of(DIALOGUES[name](), 6):
        budget = characters(at.past) // 2
        context = summarized(at.past, budget, ExtractiveSummarizer(), cut_results=cut_results).context
        assert problems(context) == []
        memory = Memory(at.past)
        around = memory.around_summary(POLICY)
        if around is not None:
            least = characters(message.as_message() for message in around) + 4 * LEAST_SUMMARY_TOKENS
            assert characters(context) <= max(budget, least)


def test_what_does_not_fit_is_counted_apart() -> None:
    messages = DIALOGUES["support"]()
    source = Source("support", [messages])
    cuts = list(cuts_of(messages, 3))
    everything = Strategy("all", lambda past, _: Left(list(past)))
    found = score(source, cuts, everything, 0.5)
    assert (found.over, found.bound_recall, found.bound_recall_within) == (3, 1.0, None)
    nothing = score(source, cuts, Strategy("none", lambda past, _: Left(list(past[-1:]))), 0.5)
    assert (nothing.over, nothing.bound_recall_within) == (0, nothing.bound_recall)


def test_a_summarizer_that_fails_leaves_what_the_fallback_leaves() -> None:
    messages = DIALOGUES["coding"]()
    left = summarized(messages, characters(messages) // 4, refusing())
    assert left.failed == "model_refused"
    assert len(left.context) <= POLICY.max_conversation_messages
    assert problems(left.context) == []


def test_the_ladder_cuts_results_before_it_summarizes() -> None:
    messages = [*PAST[:2], result("page " * 400), *DIALOGUES["meetings"]()]
    messages += [assistant(use("find_parcel", parcel="PX-2")), result("here")]
    stub = StubSummarizer()
    summarized(messages, 2_000, stub, cut_results=True)
    (request,) = stub.requests
    assert MARKER in json.dumps([message.as_message() for message in request.zone])


def test_a_second_summary_is_given_the_first() -> None:
    memory = Memory(DIALOGUES["german"]())
    memory.summarize(POLICY, StubSummarizer("The first summary."))
    memory.append(DIALOGUES["support"]())
    stub = StubSummarizer("The second summary.")
    memory.summarize(POLICY, stub)
    assert stub.requests[0].previous == "The first summary."
    written = "\n".join(map(text_of, memory.context(POLICY)))
    assert "The second summary." in written
    assert "The first summary." not in written


@pytest.fixture(scope="module")
def long_chain() -> tuple[Source, list[list[Message]]]:
    source = Source("coding", [coding(seed) for seed in range(3)])
    chains = chains_of(source, most=2)
    assert [len(chain) >= 100 for chain in chains] == [True]
    return source, chains


def test_pinned_rules_outlive_ten_compactions(long_chain: tuple[Source, list[list[Message]]]) -> None:
    pinned = compact_ten_times(*long_chain, ExtractiveSummarizer(), pinned=True)
    assert pinned.rules == (1.0,) * 10
    assert pinned.failed == 0


def test_values_drift_away_slowly(long_chain: tuple[Source, list[list[Message]]]) -> None:
    alone = compact_ten_times(*long_chain, ExtractiveSummarizer(), pinned=False)
    stated = len(FIRST_RULES) + len(LATER_RULES)
    assert alone.rules[-1] >= (len(FIRST_RULES) + 4) / stated
    assert alone.spoken[0] > 0.9
    # They are few: after one of ten compactions alone half of them may be missing.
    assert sum(alone.spoken) / len(alone.spoken) >= 0.7
    assert alone.spoken[-1] > alone.values[-1]
    assert alone.share_kept[-1] < 0.2


def test_a_summarizer_that_forgets_is_seen_to_forget(long_chain: tuple[Source, list[list[Message]]]) -> None:
    forgotten = compact_ten_times(*long_chain, StubSummarizer("Nothing."), pinned=False)
    assert forgotten.spoken[-1] < 0.2
    assert forgotten.rules[-1] < 0.5
    assert len(forgotten.values) == 10


def test_a_pin_stands_in_the_context_once() -> None:
    memory = Memory(DIALOGUES["meetings"]())
    rule = text_of(memory.context(POLICY)[2])
    for _ in range(3):
        memory.summarize(POLICY, ExtractiveSummarizer(), [Pin("pin-1", 2, rule)])
        memory.append(DIALOGUES["german"]()[1:])
    written = "\n".join(map(text_of, memory.context(POLICY)))
    assert written.count("[END PINNED") == 1
    assert rule in written


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, **environment: str) -> tuple[int, str, str]:
    for name in (*(each for names in VARIABLES.values() for each in names), "PALIMPSEST_SUMMARIZER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    app = typer.Typer()
    app.command()(main)
    logging = structlog.get_config()
    try:
        done = CliRunner().invoke(app, [*arguments, "--plot", str(tmp_path / "plots" / "fidelity.svg")])
    finally:
        structlog.configure(**logging)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    lines = [json.dumps({"id": name, "messages": DIALOGUES[name]()}) for name in ("coding", "support")]
    path.write_text("\n".join(lines))
    return path


def test_reports_as_json_and_as_a_plot(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run(tmp_path, monkeypatch, "--json", "--cuts", "3", "--short", "--transcripts", str(recorded))
    assert code == 0, err
    assert "model: skipped" in err
    document = json.loads(out)
    assert document["model"] is None
    names = [row["strategy"] for row in document["look_ahead"]]
    assert names == ["keep last N", "tool results cut", "extractive", "full ladder"]
    scores = {row["strategy"]: row for row in document["look_ahead"]}
    assert scores["extractive"]["bound_recall"] > scores["keep last N"]["bound_recall"]
    assert [chain["pinned"] for chain in document["chains"]] == [False, True]
    assert document["extractive_speed"][0]["characters"] >= 125_000
    drawn = ET.parse(tmp_path / "plots" / "fidelity.svg").getroot()  # noqa: S314 - just written here
    told = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"talks", "bound recall", "extractive", "full ladder", "extractive: values"} <= told


def test_reports_as_tables(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run(tmp_path, monkeypatch, "--cuts", "3", "--short", "--transcripts", str(recorded))
    assert code == 0, err
    assert re.search(r"talks\s+│\s+0\.25\s+│\s+extractive\s+│\s+0\.\d{3}", out)
    assert "Chained compactions" in out


@pytest.mark.slow
def test_asks_a_model_where_there_is_one(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackModel(default=ok("They spoke of many things.")) as model:
        code, out, err = run(
            tmp_path,
            monkeypatch,
            "--json",
            "--cuts",
            "3",
            "--short",
            "--transcripts",
            str(recorded),
            ANTHROPIC_BASE_URL=model.url,
            ANTHROPIC_API_KEY="any",
        )
    assert code == 0, err
    document = json.loads(out)
    assert document["model"]
    assert "model" in {row["strategy"] for row in document["look_ahead"]}
    assert model.requests


def test_a_file_that_is_no_transcript_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('{"hello": 1}')
    code, _, err = run(tmp_path, monkeypatch, "--transcripts", str(path))
    assert code == 2
    assert "notes.jsonl" in "".join(err.replace("\u2502", "").split())
    path.write_text(json.dumps({"messages": [user("Too short.")]}))
    code, _, err = run(tmp_path, monkeypatch, "--transcripts", str(path))
    assert code == 2
    assert "20 messages" in err


def test_without_transcripts_the_demo_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALIMPSEST_TRANSCRIPTS", str(tmp_path / "nowhere"))
    (source,) = sources()
    assert source == scenario()
    assert len(source.conversations[0]) >= 100


def test_measures_talk_with_questions_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = made_up(5)
    questions = [
        {"question": question.text, "evidence": sorted(question.evidence), "category": 4, "keywords": question.keywords}
        for question in talk.questions
    ]
    path = tmp_path / "talk-made.jsonl"
    path.write_text(json.dumps({"id": "made", "messages": talk.messages, "questions": questions}))
    code, out, err = run(tmp_path, monkeypatch, "--json", "--talk-only", "--talk", str(path))
    assert code == 0, err
    document = json.loads(out)
    assert document["look_ahead"] == []
    row = document["talk"][0]
    assert (row["source"], row["threshold"], row["questions"]) == ("talk-made", 8_000, len(questions))
    assert row["whole"] == row["questions"]
    assert row["whole"] >= row["served"] > row["keep_last"]
    assert row["runs"] >= 1
    path.write_text(json.dumps({"id": "made", "messages": talk.messages, "questions": questions[:1]}))
    code, out, err = run(tmp_path, monkeypatch, "--talk-only", "--talk", str(path))
    assert code == 0, err
    assert re.search(r"talk-made \(1\)\s+│\s+8,000", out)
    assert "Look-ahead" not in out
