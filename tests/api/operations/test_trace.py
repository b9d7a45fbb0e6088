"""A request followed by its id: to its turn, the check, the runs and the version that covers it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psycopg
import pytest

from cli.installation.trace import run_trace
from runtime import ids
from tests.support.service.in_process_worker import work
from tests.support.service.running_api import conversation_at

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

POLICY: Final = {"input_token_budget": 300, "compaction_threshold_tokens": 600, "min_savings_tokens": 50}
QUESTION: Final = {"role": "user", "content": "What is it?"}
LONG_ANSWER: Final = {"role": "assistant", "content": "It is what was asked for, at length. " * 60}


class Traces:
    """What `palimpsest trace` prints."""

    def __init__(self, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
        self._service = service
        self._capsys = capsys

    def of(self, request_id: str, *, code: int = 0, tenant: str | None = None) -> dict[str, Any]:
        self._capsys.readouterr()
        assert run_trace(self._service.settings, request_id, tenant, as_json=True) == code
        printed = self._capsys.readouterr()
        if code:
            return {"error": printed.err.splitlines()[-1]}
        traced: dict[str, Any] = json.loads(printed.out.splitlines()[-1])
        return traced

    def lines(self, request_id: str) -> list[str]:
        self._capsys.readouterr()
        assert run_trace(self._service.settings, request_id, None, as_json=False) == 0
        return self._capsys.readouterr().out.splitlines()


@pytest.fixture
def traces(service: Service, capsys: pytest.CaptureFixture[str]) -> Traces:
    return Traces(service, capsys)


def post(service: Service, path: str, *messages: dict[str, Any], **fields: Any) -> str:
    """Append a turn; return the id of the request."""
    answer = service.client.post(f"{path}/turns", json={"messages": messages, **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["request-id"])


def test_a_turn_that_nothing_came_of(service: Service, traces: Traces) -> None:
    path = service.conversation()
    post(service, path, QUESTION)
    request = post(service, path, {"role": "assistant", "content": "This."}, QUESTION)
    (turn,) = traces.of(request)["turns"]
    assert turn["conversation_id"] == path.rsplit("/", 1)[1]
    assert (turn["first_seq"], turn["last_seq"]) == (1, 2)
    assert turn["check_due_at"] == turn["stored_at"] or turn["check_due_at"] < turn["stored_at"]
    assert (turn["runs"], turn["covered_by"]) == ([], None)
    work(service.settings, path)
    (turn,) = traces.of(request)["turns"]
    assert (turn["check_due_at"], turn["runs"]) == (None, [])
    assert any("nothing was due" in line for line in traces.lines(request))


def test_a_turn_whose_check_led_to_a_commit(service: Service, traces: Traces) -> None:
    path = service.conversation(policy=POLICY)
    for _ in range(8):
        post(service, path, QUESTION, LONG_ANSWER)
    # The check is due since the first turn; no request but that one has its id in the run.
    work(service.settings, path)
    request = post(service, path, QUESTION, LONG_ANSWER)
    for _ in range(8):
        post(service, path, QUESTION, LONG_ANSWER)
    work(service.settings, path)
    traced = traces.of(request)
    (turn,) = traced["turns"]
    covering = turn["covered_by"]
    by_id = {run["id"]: run for run in turn["runs"]}
    assert by_id[covering["run_id"]]["snapshot_version"] == covering["version"]
    assert by_id[covering["run_id"]]["state"] in {"committed", "degraded"}
    assert covering["version"] <= turn["head_version"]
    assert "this request" in {run["relation"] for run in turn["runs"]}
    assert traced["others"] == []
    assert any(f"version {covering['version']} at" in line for line in traces.lines(request))


def test_a_turn_that_was_replaced(service: Service, traces: Traces) -> None:
    path = service.conversation()
    replaced = post(service, path, QUESTION)
    edit = post(service, path, QUESTION, {"role": "assistant", "content": "That."}, replace_from=0)
    assert traces.of(replaced)["turns"][0]["superseded_at"] is not None
    (turn,) = traces.of(edit)["turns"]
    assert (turn["first_seq"], turn["last_seq"], turn["superseded_at"]) == (1, 2, None)


def test_a_repeated_turn_has_the_id_of_the_request_that_stored_it(service: Service, traces: Traces) -> None:
    path = service.conversation()
    body, headers = {"messages": [QUESTION]}, {"idempotency-key": "once"}
    first, second = (service.client.post(f"{path}/turns", json=body, headers=headers) for _ in range(2))
    assert len(traces.of(first.headers["request-id"])["turns"]) == 1
    said = traces.of(second.headers["request-id"], code=1)["error"]
    assert "sent again has the id of the request that stored it" in said


def test_a_fork_takes_no_request_along(service: Service, traces: Traces) -> None:
    path = service.conversation()
    request = post(service, path, QUESTION)
    fork = service.client.post(f"{path}/fork", json={"through_seq": 0})
    assert fork.status_code == 201
    assert [turn["conversation_id"] for turn in traces.of(request)["turns"]] == [path.rsplit("/", 1)[1]]
    (run,) = traces.of(fork.headers["request-id"])["others"]
    assert (run["kind"], run["conversation_id"]) == ("run", fork.json()["id"])


def test_an_erasure_leaves_its_own_request_alone(service: Service, traces: Traces) -> None:
    path = service.conversation()
    request = post(service, path, QUESTION)
    gone = service.client.delete(path)
    traces.of(request, code=1)
    assert [each["kind"] for each in traces.of(gone.headers["request-id"])["others"]] == ["erasure"]


def test_an_unknown_request(service: Service, traces: Traces) -> None:
    read = service.client.get("/v1/tenant").headers["request-id"]
    said = traces.of(read, code=1)["error"]
    assert read in said
    assert "request.answered" in said
    made = ids.time_of(UUID(read.removeprefix("req_")))
    assert made is not None
    assert f"{made:%Y-%m-%d %H:%M:%S} UTC" in said
    assert "there is no tenant" in traces.of(read, code=1, tenant="nobody")["error"]


@pytest.mark.parametrize("words", ["", "req_12", "hello", "conv_01a2227ef0cd76fe9f474838196fa385"])
def test_what_is_no_request_id(traces: Traces, words: str) -> None:
    assert "is no request id" in traces.of(words, code=2)["error"]


def test_a_search_reads_the_index(service: Service) -> None:
    path = service.conversation()
    request = post(service, path, QUESTION)
    with psycopg.connect(service.database_url) as connection:
        connection.execute("set enable_seqscan = off")
        statement = "explain select 1 from messages where request_id = %s"
        plan = "\n".join(row[0] for row in connection.execute(statement, (UUID(request.removeprefix("req_")),)))
        assert "ix_messages_request_id" in plan
        stored = "select count(request_id), count(*) from messages where conversation_id = %s"
        assert connection.execute(stored, (conversation_at(path),)).fetchone() == (1, 1)
