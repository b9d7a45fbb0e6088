"""The audit: originals with their lineage, runs with their steps, snapshots with what they changed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.service.running_api import Service

POLICY = {
    "input_token_budget": 3_000,
    "compaction_threshold_tokens": 5_000,
    "min_savings_tokens": 100,
    "protected_tail_messages": 4,
}
Document = dict[str, Any]


class Told(NamedTuple):
    """A conversation with a long past: its path, its contents as they were sent, and the ids of the requests."""

    path: str
    sent: list[bytes]
    requests: set[str]


def turns() -> Iterator[list[tuple[str, bytes]]]:
    """A search with long results, then much talk."""
    yield [("user", b'"Find me \\u00e9 a position in Aachen, under https://example.org/jobs "')]
    for number in range(6):
        name = f"t{number}".encode()
        page = json.dumps(f"<li>Position {number}</li>" * 200).encode()
        yield [
            ("assistant", b'[ {"type":"tool_use","id":"' + name + b'","name":"look","input":{"page": 1.0}} ]'),
            ("user", b'[{"type":"tool_result","tool_use_id":"' + name + b'","content":' + page + b"}]"),
        ]
    for number in range(12):
        talk = json.dumps(f"Score {number}: {number * 7} of 100. " + "I decided on part time. " * 100).encode()
        yield [("assistant", talk), ("user", b'[{"type":"text",  "text":"Go on."}]')]


@pytest.fixture(scope="module")
def told(service: Service) -> Told:
    path = service.conversation(policy=POLICY)
    sent, requests = [], set()
    for turn in turns():
        messages = b",".join(b'{"role":"' + role.encode() + b'","content":' + text + b"}" for role, text in turn)
        done = service.client.post(f"{path}/turns", content=b'{"messages":[' + messages + b"]}")
        assert done.status_code == 201
        requests.add(done.headers["request-id"])
        sent += [text for _, text in turn]
        work(service.settings, path)
    return Told(path, sent, requests)


def every(service: Service, url: str) -> list[Document]:
    """Return all rows of a list, newest first, read in pages of three."""
    rows: list[Document] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        answer = service.client.get(url, params=query).json()
        rows += answer["data"]
        if not answer["has_more"]:
            return rows
        query["after_id"] = answer["last_id"]


def test_originals_are_what_was_sent_byte_for_byte(service: Service, told: Told) -> None:
    answer = service.client.get(f"{told.path}/messages", params={"limit": 1_000})
    data = answer.json()["data"]
    assert [message["seq"] for message in data] == list(range(len(told.sent)))
    for message, text in zip(data, told.sent, strict=True):
        assert b'"content":' + text + b',"tokens":' in answer.content
        one = service.client.get(f"{told.path}/messages/{message['seq']}")
        assert b'"content":' + text + b',"tokens":' in one.content
        assert message["created_at"].endswith("Z")
        assert message["superseded_at"] is None
        assert "lineage" not in message


def test_originals_page_by_seq(service: Service, told: Told) -> None:
    last = len(told.sent) - 1

    def page(**query: Any) -> tuple[list[int], bool, int | None, int | None]:
        answer = service.client.get(f"{told.path}/messages", params=query).json()
        seqs = [message["seq"] for message in answer["data"]]
        return seqs, answer["has_more"], answer["first_id"], answer["last_id"]

    assert page(limit=2) == ([0, 1], True, 0, 1)
    assert page(after=-1, limit=2) == ([0, 1], True, 0, 1)
    assert page(after=1, limit=3) == ([2, 3, 4], True, 2, 4)
    assert page(after=last - 2, limit=2) == ([last - 1, last], False, last - 1, last)
    assert page(after=last) == ([], False, None, None)
    assert page(after=2**31 - 1) == ([], False, None, None)


def test_every_message_is_accounted_for(service: Service, told: Told) -> None:
    runs = {run["id"] for run in every(service, f"{told.path}/runs")}
    head = service.client.get(told.path).json()["head_version"]
    newest = service.client.get(f"{told.path}/snapshots/{head}").json()
    fates = {seq: span["fate"] for span in newest["coverage"] for seq in range(span["first_seq"], span["last_seq"] + 1)}
    assert sorted(fates) == list(range(newest["covers_through"] + 1))
    seen = set()
    for seq in range(len(told.sent)):
        message = service.client.get(f"{told.path}/messages/{seq}").json()
        assert message["fate"] == fates.get(seq, "kept")
        seen.add(message["fate"])
        steps = [change["fate"] for change in message["lineage"]]
        assert all(before != after for before, after in pairwise(["kept", *steps]))
        assert (steps or ["kept"])[-1] == message["fate"]
        for change in message["lineage"]:
            assert change["run_id"] in runs
        versions = [change["version"] for change in message["lineage"]]
        assert versions == sorted(set(versions))
    assert seen >= {"kept", "summarized"}
    cut_then_summarized = service.client.get(f"{told.path}/messages/2").json()["lineage"]
    assert [change["fate"] for change in cut_then_summarized] == ["truncated", "summarized"]


@pytest.mark.requirement("T8", "S13")
def test_runs_tell_what_was_done(service: Service, told: Told) -> None:
    runs = every(service, f"{told.path}/runs")
    assert [run["id"] for run in runs] == sorted((run["id"] for run in runs), reverse=True)
    assert {run["state"] for run in runs} <= {"committed", "skipped"}
    names = set()
    for run in runs:
        assert service.client.get(f"/v1/runs/{run['id']}").json() == run
        assert run["conversation_id"] == told.path.rpartition("/")[2]
        assert run["trigger"] == "check"
        assert run["request_id"] in told.requests
        assert run["policy"] == service.client.get(told.path).json()["policy"]
        assert run["attempts"] >= 1
        assert run["error"] is None
        assert run["started_at"].endswith("Z")
        assert run["finished_at"] >= run["started_at"]
        assert run["duration_ms"] >= 0
        for step in run["steps"]:
            names.add(step["name"])
            if step["state"] == "committed":
                assert step["snapshot_version"] is not None
                assert step["tokens_after"] < step["tokens_before"]
        if run["state"] == "committed":
            assert run["tokens_after"] < run["tokens_before"]
            assert run["snapshot_version"] == max(step["snapshot_version"] or 0 for step in run["steps"])
    assert names >= {"tool_results", "summary"}
    cuts = [step for run in runs for step in run["steps"] if step["name"] == "tool_results" and step["results_cut"]]
    for step in cuts:
        assert str(step["results_cut"]) in step["detail"]
        assert "3,000" in step["detail"]
    summary = next(step for run in runs for step in run["steps"] if step["name"] == "summary")
    assert summary["summarizer"] == "extractive"
    assert summary["model_calls"] == 0
    assert "5,000" in summary["detail"]


def test_a_run_that_has_ended_is_not_waited_for(service: Service, told: Told) -> None:
    run = every(service, f"{told.path}/runs")[0]
    assert service.client.get(f"/v1/runs/{run['id']}", params={"wait": 60}).json() == run


def test_snapshots_form_a_chain(service: Service, told: Told) -> None:
    listed = every(service, f"{told.path}/snapshots")
    assert [each["version"] for each in listed] == list(range(len(listed), 0, -1))
    assert listed[0]["version"] == service.client.get(told.path).json()["head_version"]
    runs = {run["id"]: run for run in every(service, f"{told.path}/runs")}
    hashes = set()
    for brief in listed:
        full = service.client.get(f"{told.path}/snapshots/{brief['version']}").json()
        assert {name: full[name] for name in brief} == brief
        assert "messages" not in brief
        assert full["parent_version"] == brief["version"] - 1
        assert full["version"] in {step["snapshot_version"] for step in runs[full["run_id"]]["steps"]}
        assert len(full["messages"]) == len(full["seqs"]) == full["message_count"]
        assert problems(full["messages"]) == []
        spans = full["coverage"]
        assert (spans[0]["first_seq"], spans[-1]["last_seq"]) == (0, full["covers_through"])
        assert all(old["last_seq"] + 1 == new["first_seq"] for old, new in pairwise(spans))
        hashes.add(full["prefix_hash"])
        if full["step"] == "summary":
            assert full["summary"]
            assert full["summarizer"] == "extractive"
    assert len(hashes) == len(listed)


def test_the_head_is_what_the_context_begins_with(service: Service, told: Told) -> None:
    context = service.client.get(f"{told.path}/context").json()
    head = service.client.get(f"{told.path}/snapshots/{context['snapshot']['version']}").json()
    assert context["snapshot"]["covers_through"] == head["covers_through"]
    assert context["messages"][: head["message_count"]] == head["messages"]
    tail = [json.loads(text) for text in told.sent[head["covers_through"] + 1 :]]
    assert [message["content"] for message in context["messages"][head["message_count"] :]] == tail
    assert problems(context["messages"]) == []
    assert context["tokens"]["context"] < 5_000


def test_a_diff_tells_what_a_snapshot_changed(service: Service, told: Told) -> None:
    for snapshot in every(service, f"{told.path}/snapshots"):
        version = snapshot["version"]
        diff = service.client.get(f"{told.path}/snapshots/{version}/diff").json()
        assert (diff["version"], diff["parent_version"]) == (version, version - 1)
        assert diff["tokens_after"] == snapshot["tokens"] < diff["tokens_before"]
        assert diff["messages_after"] == snapshot["message_count"] <= diff["messages_before"]
        assert diff["changes"]
        for change in diff["changes"]:
            assert change["before"] != change["after"]
            assert change["run_id"] == snapshot["run_id"]
        full = service.client.get(f"{told.path}/snapshots/{version}").json()
        assert diff["summary_after"] == full["summary"]
    first = service.client.get(f"{told.path}/snapshots/1/diff").json()
    assert first["summary_before"] is None
    assert {change["after"] for change in first["changes"]} == {"truncated"}


def test_lists_go_both_ways(service: Service, told: Told) -> None:
    for name in ("runs", "snapshots"):
        rows = every(service, f"{told.path}/{name}")
        key = "id" if name == "runs" else "version"
        middle = service.client.get(f"{told.path}/{name}", params={"limit": 2, "before_id": rows[3][key]}).json()
        assert middle["data"] == rows[1:3]
        assert middle["has_more"]
        top = service.client.get(f"{told.path}/{name}", params={"limit": 2, "before_id": rows[2][key]}).json()
        assert top["data"] == rows[:2]
        assert not top["has_more"]


@pytest.mark.parametrize(
    "path",
    [
        "messages/1000",
        "messages/2147483648",
        "messages/-1",
        "messages/x",
        "snapshots/0",
        "snapshots/0/diff",
        "snapshots/999",
        "snapshots/99999999999999999999/diff",
    ],
)
def test_what_there_is_not(service: Service, told: Told, path: str) -> None:
    assert problem(service.client.get(f"{told.path}/{path}"), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "status", "code", "pointer"),
    [
        ("messages?after=-2", 422, "invalid", "after"),
        ("messages?limit=1001", 422, "invalid", "limit"),
        ("messages?after_id=1", 422, "invalid", "after_id"),
        ("runs?after_id=nonsense", 400, "bad_cursor", "after_id"),
        ("snapshots?after_id=nonsense", 400, "bad_cursor", "after_id"),
        ("snapshots?before_id=" + "9" * 5_000, 400, "bad_cursor", "before_id"),
    ],
)
def test_a_parameter_that_cannot_be_taken(
    service: Service, told: Told, path: str, status: int, code: str, pointer: str
) -> None:
    assert problem(service.client.get(f"{told.path}/{path}"), status, code, pointer)
