"""The whole product in its own processes: `palimpsest serve`, driven over HTTP as a chat backend drives it."""

from __future__ import annotations

import io
import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cli.client.client import ServiceClient
from cli.client.types import Message
from cli.local.serve import RunningService, running_service
from cli.transcripts.readers import read_transcripts
from compaction.summary.zone import OPENS
from compaction.view import MARKER
from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.places import TRANSCRIPTS
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import html, ok, refusal, status
from tests.support.service.in_process import SMALL
from tests.support.talk import answer, call, exchanges, request, result, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cli.client.types import Context, Run
    from cli.transcripts.readers import Transcript

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PALIMPSEST_", "ANTHROPIC_")) or name in {"PALIMPSEST_POSTGRES_BIN", "PALIMPSEST_REDIS_BIN"}
} | {"PALIMPSEST_SWEEP_INTERVAL_SECONDS": "0.5", "PALIMPSEST_RUN_OVERDUE_SECONDS": "3"}


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """The product as it comes, with no model behind it."""
    with running_service(durable=False, environ=ENVIRONMENT, log=io.StringIO()) as running:
        yield running


@pytest.fixture
def client(service: RunningService) -> Iterator[ServiceClient]:
    with ServiceClient(service.url, service.api_key) as made:
        yield made


@contextmanager
def asking(model: LoopbackModel, **options: Any) -> Iterator[RunningService]:
    """Run the product with a model to ask, and leases that are soon over."""
    environ = ENVIRONMENT | {
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": model.url,
        "PALIMPSEST_LEASE_SECONDS": "5",
    }
    with running_service(durable=False, environ=environ, log=io.StringIO(), **options) as running:
        yield running


def sent(messages: Sequence[dict[str, Any]]) -> list[Message]:
    return [
        Message(message["role"], msgspec.Raw(json.dumps(message["content"], ensure_ascii=False).encode()))
        for message in messages
    ]


def context_of(client: ServiceClient, conversation: str) -> tuple[Context, list[dict[str, Any]]]:
    """Return the context and its messages, which the Messages API would accept."""
    context = client.context(conversation)
    assert context is not None
    messages: list[dict[str, Any]] = json.loads(bytes(context.messages))
    assert problems(messages) == []
    return context, messages


def assert_originals(client: ServiceClient, conversation: str, expected: Sequence[Message]) -> None:
    stored = [(row.seq, row.role, bytes(row.content)) for row in client.messages(conversation)]
    assert stored == [(seq, row.role, bytes(row.content)) for seq, row in enumerate(expected)]


def steps_of(runs: Sequence[Run], name: str, state: str) -> int:
    return sum(step.name == name and step.state == state for run in runs for step in run.steps)


@pytest.mark.requirement("S2", "S14", "T1")
def test_a_chat_is_compacted_behind_its_back(client: ServiceClient) -> None:
    conversation = client.create_conversation(policy=SMALL).id
    said: list[Message] = []

    def say(*messages: dict[str, Any]) -> None:
        turn = sent(messages)
        client.append_turn(conversation, turn)
        said.extend(turn)

    say(request("find a job in Berlin, score each from 1 to 10"))
    say(*rounds(1, 600), answer("Acme Robotics scored 8/10, https://jobs.example.com/4711"))
    assert client.wait_settled(conversation) == []  # one round: nothing to do
    for number in range(1, 12):
        say(request(f"more, page {number}", 60), *rounds(2, 600, start=2 * number), answer(f"scores {number}", 150))
        client.wait_settled(conversation)
    runs = client.wait_settled(conversation)
    assert {run.state for run in runs} == {"committed"}
    assert steps_of(runs, "tool_results", "committed") > 1
    assert steps_of(runs, "summary", "committed") >= 1
    assert len(runs) < 12

    context, messages = context_of(client, conversation)
    assert context.tokens.context <= SMALL["compaction_threshold_tokens"]
    assert OPENS in messages[0]["content"]
    assert messages[0]["content"].startswith("find a job in Berlin")
    assert "https://jobs.example.com/4711" in str(messages)
    assert MARKER in str(messages)
    assert messages[-1] == answer("scores 11", 150)
    assert_originals(client, conversation, said)
    snapshots = client.snapshots(conversation)
    assert context.snapshot is not None
    assert [each.version for each in snapshots] == list(range(1, context.snapshot.version + 1))
    assert {each.summarizer for each in snapshots} == {None, "extractive"}
    for run in runs:
        for step in run.steps:
            assert step.state != "committed" or (step.tokens_before or 0) - (step.tokens_after or 0) >= 100


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_agents_run_is_compacted_between_its_rounds(client: ServiceClient) -> None:
    # Room for more than what is protected; the newest rounds alone must not be over the budget.
    policy = SMALL | {"input_token_budget": 4_000, "compaction_threshold_tokens": 8_000}
    conversation = client.create_conversation(policy=policy).id
    said = sent([request("work through all pages until none is left", 50)])
    client.append_turn(conversation, said)
    largest = 0
    for number in range(300):
        turn = sent([call(number), result(number, 250 + number % 7 * 50)])
        client.append_turn(conversation, turn)
        said += turn
        if number % 10 == 9:
            client.wait_settled(conversation)
            context, messages = context_of(client, conversation)
            largest = max(largest, context.tokens.context)
            assert messages[0]["content"].startswith("work through all pages")
            assert messages[-1] == result(number, 250 + number % 7 * 50)
        else:
            eventually(lambda: client.conversation(conversation).check_due_at is None)
    runs = client.wait_settled(conversation)
    # Over the threshold only by what may not be touched: the hold until it has grown by a fifth, and the newest rounds.
    assert largest < 1.5 * policy["compaction_threshold_tokens"]
    assert steps_of(runs, "tool_results", "committed") > 5
    assert steps_of(runs, "summary", "committed") > 2
    assert {run.state for run in runs} <= {"committed", "skipped"}
    assert len(runs) < 150
    assert_originals(client, conversation, said)


@pytest.mark.slow
def test_a_model_that_fails_now_and_then() -> None:
    with LoopbackModel() as model, asking(model) as service, ServiceClient(service.url, service.api_key) as client:
        policy = SMALL | {"max_conversation_messages": 12}
        failing, working = (client.create_conversation(policy=policy).id for _ in range(2))
        model.then(status(529, retry_after=0), refusal())
        client.append_turn(failing, sent(exchanges(12, 200)))
        (run,) = client.wait_settled(failing)
        assert (run.state, run.reason) == ("degraded", "summary_failed_extract_committed")
        assert run.error == "model_refused: the model declined to answer"
        _, messages = context_of(client, failing)
        assert len(messages) <= 12

        model.then(html(502), ok("The summary that came at last."))
        client.append_turn(working, sent(exchanges(12, 200)))
        (run,) = client.wait_settled(working)
        assert (run.state, run.attempts) == ("committed", 1)
        step = run.steps[-1]
        assert (step.summarizer, step.model) == ("anthropic", "claude-haiku-4-5")
        assert float(step.cost_usd or 0) > 0
        _, messages = context_of(client, working)
        assert "The summary that came at last." in messages[0]["content"]
        assert len(model.requests) == 4


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_but_time_and_a_restart_goes_on(tmp_path: Path) -> None:
    with LoopbackModel() as model:
        with (
            asking(model, data_dir=tmp_path) as service,
            ServiceClient(service.url, service.api_key) as client,
        ):
            conversation = client.create_conversation(policy=SMALL).id
            model.hold()
            said = sent(exchanges(12, 200))
            client.append_turn(conversation, said)
            model.wait_for_requests(1, 60)
            os.kill(service.supervisor.pid("summaries"), signal.SIGKILL)
            said += (late := sent([request("are you there?")]))
            client.append_turn(conversation, late)
            model.release()
            (run,) = client.wait_settled(conversation)
            assert (run.state, run.attempts) == ("committed", 2)
            assert [each.version for each in client.snapshots(conversation)] == [1]
            context, messages = context_of(client, conversation)
            assert messages[-1] == request("are you there?")
            assert_originals(client, conversation, said)

            # The service is stopped in the middle of a call …
            other = client.create_conversation(policy=SMALL).id
            model.hold()
            client.append_turn(other, sent(exchanges(12, 200)))
            model.wait_for_requests(3, 60)
        model.release()
        with (
            asking(model, data_dir=tmp_path) as service,
            ServiceClient(service.url, service.api_key) as client,
        ):
            # … and goes on with it when it is started again.
            again = client.context(conversation)
            assert again is not None
            assert (again.messages, again.snapshot) == (context.messages, context.snapshot)
            assert_originals(client, conversation, said)
            (run,) = client.wait_settled(other)
            assert (run.state, run.attempts) == ("committed", 1)
            context_of(client, other)


def recorded() -> list[Transcript]:
    path = TRANSCRIPTS / "airline-long.jsonl"
    if not path.exists():
        pytest.skip("PALIMPSEST_TRANSCRIPTS does not lead to airline-long.jsonl")
    return list(read_transcripts(path))


@pytest.mark.slow
@pytest.mark.recorded
@pytest.mark.timeout(240)
@pytest.mark.requirement("T1", "S2")
def test_real_transcripts(client: ServiceClient) -> None:
    for transcript in recorded():
        conversation = client.create_conversation(system=transcript.system, tools=transcript.tools).id
        for turn in transcript.turns:
            client.append_turn(conversation, turn.messages, usage=turn.usage)  # raises for all but a 201
        runs = client.wait_settled(conversation)
        context, _ = context_of(client, conversation)
        assert context.tokens.context <= 80_000
        assert 1 < len(runs) < len(transcript.turns) / 4
        assert_originals(client, conversation, list(transcript.messages))
