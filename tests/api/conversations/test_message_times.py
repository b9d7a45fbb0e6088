"""When messages were said: as the client gives it, when they were stored, or unknown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

MONDAY = "2025-06-02T10:00:00Z"
TUESDAY = "2025-06-03T10:00:00+02:00"


def said(service: Service, path: str) -> list[Any]:
    """Return the times of all messages."""
    return [each["created_at"] for each in service.client.get(f"{path}/messages?after=-1").json()["data"]]


def post(service: Service, path: str, created_at: Any, *texts: str) -> Any:
    messages = [{"role": "user", "content": text} for text in texts or ("hello", "again")]
    return service.client.post(f"{path}/turns", json={"messages": messages, "created_at": created_at})


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (MONDAY, [MONDAY, MONDAY]),
        ([TUESDAY, MONDAY], ["2025-06-03T08:00:00Z", MONDAY]),
        ([None, MONDAY], [None, MONDAY]),
        ([None, None], [None, None]),
    ],
)
def test_times_are_stored_as_given(service: Service, given: Any, stored: list[Any]) -> None:
    path = service.conversation()
    assert post(service, path, given).status_code == 201
    assert said(service, path) == stored


def test_the_next_turn_is_said_when_it_is_stored(service: Service) -> None:
    path = service.conversation()
    began = datetime.now(UTC) - timedelta(minutes=1)
    post(service, path, MONDAY)
    service.append(path, answer("hi", 10))
    assert began < datetime.fromisoformat(said(service, path)[2])


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ("1969-12-31T23:59:59Z", "/created_at"),
        ("2999-01-01T00:00:00Z", "/created_at"),
        ([MONDAY, "1900-01-01T00:00:00Z"], "/created_at/1"),
        ([MONDAY], "/created_at"),
        ("2025-06-02T10:00:00", "/created_at"),
        ("Monday", "/created_at"),
    ],
)
def test_a_time_that_cannot_be_one_is_refused(service: Service, given: Any, pointer: str) -> None:
    path = service.conversation()
    problem(post(service, path, given), 422, "invalid", pointer)
    assert said(service, path) == []


def test_recall_goes_by_when_messages_were_said(service: Service) -> None:
    path = service.conversation()
    post(service, path, [MONDAY, None], "the kiln needs a new thermocouple", "the loom needs a new shuttle")
    work(service.settings, path)
    for asked, time in (("kiln thermocouple", MONDAY), ("loom shuttle", None)):
        found = service.client.post(f"{path}/recall", json={"query": asked}).json()["passages"][0]["parts"]
        assert time in [part["created_at"] for part in found if asked.split()[0] in part["text"]]
    dated = service.client.post(f"{path}/recall", json={"query": "what was said on 2 June 2025"}).json()["passages"]
    assert [passage["ref"] for passage in dated][:1] == ["m0-m1"]
    framed = service.client.post(f"{path}/recall", json={"query": "loom shuttle", "framed": True}).text
    assert "time unknown" in framed


def test_times_come_with_exports_and_forks(service: Service) -> None:
    path = service.conversation()
    post(service, path, [MONDAY, None])
    service.append(path, answer("hi", 10), request("more", 10))
    fork = service.client.post(f"{path}/fork", json={"through_seq": 1}).json()
    assert said(service, f"/v1/conversations/{fork['id']}") == [MONDAY, None]
