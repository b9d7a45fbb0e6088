"""Requests that wait for a run: what they cost others, when they are answered, how many there may be."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from actions.background import run_waits
from store.runs import runs
from tests.support.eventually import eventually
from tests.support.service.problem_documents import problem

if TYPE_CHECKING:
    import httpx2

    from tests.support.service.running_api import Service

WAITS = 20


def queued_run(service: Service, client: httpx2.Client) -> str:
    """Return the path of a run that no worker takes."""
    path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
    hello = {"role": "user", "content": "Hello."}
    assert client.post(f"{path}/turns", json={"messages": [hello]}).status_code == 201
    asked = client.post(f"{path}/compactions", json={})
    assert asked.status_code == 202, asked.text
    return f"/v1/runs/{asked.json()['run_id']}"


def set_ended(service: Service) -> None:
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute("select set_config('app.tenant_id', %s, false)", (str(service.tenant_id),))
        connection.execute(
            "update runs set state = 'skipped', reason = 'x', finished_at = now() where state = 'queued'"
        )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries about runs, by name, as they are made."""
    seen: list[str] = []
    for module, name in ((runs, "get"), (run_waits, "active_among")):
        inner = getattr(module, name)

        def counted(*args: Any, inner: Any = inner, name: str = name) -> Any:
            seen.append(name)
            return inner(*args)

        monkeypatch.setattr(module, name, counted)
    return seen


def test_those_who_wait_share_their_looks_and_are_told_the_end(service: Service, reads: list[str]) -> None:
    run = queued_run(service, service.client)
    with ThreadPoolExecutor(WAITS) as pool:
        waiting = [pool.submit(service.client.get, run, params={"wait": 60}) for _ in range(WAITS)]
        eventually(lambda: reads.count("get") == WAITS and reads.count("active_among") >= 20)
        # Nobody asked for a run by itself meanwhile, and others are served.
        assert reads.count("get") == WAITS
        assert service.stranger.get("/v1/conversations").status_code == 200
        set_ended(service)
        answers = [each.result() for each in waiting]
    assert {answer.json()["state"] for answer in answers} == {"skipped"}
    assert reads.count("get") == 2 * WAITS


def test_a_wait_ends_with_its_seconds(service: Service, reads: list[str]) -> None:
    run = queued_run(service, service.client)
    assert service.client.get(run, params={"wait": 0.3}).json()["state"] == "queued"
    assert reads.count("get") == 2
    set_ended(service)


def test_what_is_erased_meanwhile_is_told(service: Service, reads: list[str]) -> None:
    run = queued_run(service, service.client)
    conversation = service.client.get(run).json()["conversation_id"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.client.get, run, params={"wait": 60})
        eventually(lambda: "active_among" in reads)
        assert service.client.delete(f"/v1/conversations/{conversation}").status_code < 300
        assert waiting.result().json()["reason"] == "erased"


def test_a_tenant_may_have_so_many(service: Service, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_waits, "MOST", 3)
    own, others = queued_run(service, service.client), queued_run(service, service.stranger)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(service.client.get, own, params={"wait": 60}) for _ in range(3)]
        eventually(lambda: reads.count("get") == 3 and "active_among" in reads)
        refused = service.client.get(own, params={"wait": 60})
        problem(refused, 429, "rate_limited")
        assert refused.headers["retry-after"] == "1"
        assert service.client.get(own).status_code == 200
        assert service.stranger.get(others, params={"wait": 0.2}).json()["state"] == "queued"
        set_ended(service)
        assert {each.result().json()["state"] for each in waiting} == {"skipped"}
    assert service.client.get(own, params={"wait": 60}).status_code == 200


def test_a_database_that_goes_away_is_told_to_who_waits(
    service: Service, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queued_run(service, service.client)

    def away(*_: Any) -> None:
        raise ConnectionRefusedError

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.client.get, run, params={"wait": 60})
        eventually(lambda: "active_among" in reads)
        monkeypatch.setattr(run_waits, "active_among", away)
        assert problem(waiting.result(), 503, "unavailable")
    set_ended(service)
