"""What a conversation was set up with, taking it along, erasing it, webhooks, many retries, and lists narrowed down."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from runtime.ids import external
from tests.console.test_pages import HOSTILE
from tests.support import talk
from tests.support.service.console_client import key_of, query, sign_in, signed_in, text_of
from tests.support.service.in_process_worker import work
from tests.support.spent_days import Call, spend

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.support.service.running_api import Service

READER: Final = {"audit:read"}
TOOL: Final = {"name": f"look {HOSTILE}"[:60], "description": HOSTILE, "input_schema": {"type": "object"}}


@pytest.fixture
def client(service: Service) -> Iterator[httpx2.Client]:
    with signed_in(service) as found:
        yield found


@pytest.fixture
def path(service: Service) -> str:
    conversation = service.conversation(
        external_id=None,
        system=f"You help. {HOSTILE}",
        tools=[TOOL],
        metadata={"team": HOSTILE, "n": 4711},
        policy={"compaction_threshold_tokens": 2_000, "min_savings_tokens": 50},
        model="claude-haiku-4-5",
    )
    service.append(conversation, *talk.exchanges(6, 60))
    return conversation


def page_of(path: str) -> str:
    return f"/console{path.removeprefix('/v1')}"


def last_actions(service: Service, count: int) -> list[tuple[Any, ...]]:
    return query(
        service,
        "select action, outcome, conversation_id, run_id, subject_id from operator_actions order by id desc limit %s",
        count,
    )


def test_what_a_conversation_was_set_up_with(service: Service, client: httpx2.Client, path: str) -> None:
    assert service.client.patch("/v1/tenant", json={"policy": {"protected_tail_messages": 8}}).status_code == 200
    page = client.get(f"{page_of(path)}/setup").text
    text = text_of(page)
    assert f"You help. {HOSTILE}".replace("\ud7ff", "") in text.replace("\ud7ff", "")
    assert '"n": 4711' in text
    for hostile in ("<script>alert", "<img src=x", "onerror=alert(1)>", "</textarea>{{"):
        assert hostile not in page
    assert re.search(r"compaction_threshold_tokens 2000 this conversation", text)
    assert re.search(r"protected_tail_messages 8 tenant", text)
    assert re.search(r"model_context_tokens \d+ (model's window|default)", text)
    in_force = service.client.get(path).json()["policy"]
    assert len(re.findall(r"<tr><th scope=\"row\">", page.partition("All ")[2])) == len(in_force)
    assert f'href="{page_of(path)}/setup" aria-current="page"' in page
    bare = page_of(service.conversation())
    assert "Not stored" in text_of(client.get(f"{bare}/setup").text)
    with sign_in(service, key_of(service.stranger)) as stranger:
        assert stranger.get(f"{page_of(path)}/setup").status_code == 404
    assert service.client.patch("/v1/tenant", json={"policy": {"protected_tail_messages": None}}).status_code == 200


def test_taking_a_conversation_along_is_written_down(service: Service, path: str) -> None:
    with signed_in(service, READER) as reader:
        answer = reader.post(f"{page_of(path)}/export")
    assert answer.status_code == 200
    name = path.rpartition("/")[2]
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}.jsonl"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["type"] for line in lines][:2] == ["conversation", "message"]
    assert lines[-1] == {"type": "end", "conversations": 1}
    assert sum(line["type"] == "message" for line in lines) == 12
    assert last_actions(service, 1) == [("export", "done", UUID(name[5:]), None, None)]
    with sign_in(service, key_of(service.stranger)) as stranger:
        assert stranger.post(f"{page_of(path)}/export").status_code == 404


def test_erasing_asks_first_and_is_written_down(service: Service, client: httpx2.Client, path: str) -> None:
    page = page_of(path)
    asked = client.get(f"{page}/erase").text
    assert "Its 12 messages" in text_of(asked)
    assert client.post(f"{page}/erase", data={}).status_code == 422
    assert client.post(f"{page}/erase", data={"agreed": "no"}).status_code == 422
    assert (
        client.post(f"{page}/erase", data={"agreed": "yes"}, headers={"sec-fetch-site": "cross-site"}).status_code
        == 403
    )
    with signed_in(service, READER) as reader:
        assert "danger" not in reader.get(f"{page}/erase").text
        assert reader.post(f"{page}/erase", data={"agreed": "yes"}).status_code == 403
    with sign_in(service, key_of(service.stranger)) as stranger:
        assert stranger.post(f"{page}/erase", data={"agreed": "yes"}).status_code == 404
    assert service.client.get(path).status_code == 200
    done = client.post(f"{page}/erase", data={"agreed": "yes"})
    assert (done.status_code, done.headers["location"]) == (303, "/console/operators?done=erased")
    assert "Erased." in text_of(client.get(done.headers["location"]).text)
    assert service.client.get(path).status_code == 404
    identifier = UUID(path[-32:])
    assert ("erase", "done", identifier, None, None) in last_actions(service, 3)
    ((by,),) = query(service, "select key_id from erasures where conversation_id = %s", identifier)
    assert by is not None
    assert client.post(f"{page}/erase", data={"agreed": "yes"}).status_code == 404
    assert sum(action[0] == "erase" for action in last_actions(service, 50)) == 1


def dead_runs(service: Service, reasons: list[str]) -> list[str]:
    """Make a dead run for each reason, each of a conversation of its own."""
    runs = []
    for reason in reasons:
        path = service.conversation()
        service.append(path, *talk.exchanges(2, 20))
        run = service.client.post(f"{path}/compactions", json={"strategy": "trim"}).json()["run_id"]
        work(service.settings, path)
        dead = "update runs set state = 'dead', reason = %s where id = %s returning 1"
        assert query(service, dead, reason, UUID(run[4:])) == [(1,)]
        runs.append(run)
    return runs


def test_dead_runs_are_retried_at_once_after_a_look(service: Service, client: httpx2.Client) -> None:
    runs = dead_runs(service, ["attempts_exhausted", "attempts_exhausted", "of <b>"])
    listed = client.get("/console/runs", params={"state": "dead", "reason": "of <b>"}).text
    assert 'href="/console/runs/retry?reason=of+%3Cb%3E"' in listed
    asked = client.get("/console/runs/retry", params={"reason": "of <b>"}).text
    assert "1 run that died of of <b> is queued again" in text_of(asked)
    assert "of <b>" not in asked.partition("<main")[2]
    assert "No dead run died of other" in text_of(client.get("/console/runs/retry", params={"reason": "other"}).text)
    with signed_in(service, READER) as reader:
        assert "Retry them" not in reader.get("/console/runs", params={"state": "dead"}).text
        assert reader.get("/console/runs/retry").status_code == 403
        assert reader.post("/console/runs/retry", data={"reason": ""}).status_code == 403
    assert client.post("/console/runs/retry", data={"reason": "x" * 201}).status_code == 422
    assert client.post("/console/runs/retry", headers={"sec-fetch-site": "same-site"}).status_code == 403
    done = client.post("/console/runs/retry", data={"reason": "attempts_exhausted"})
    assert (done.status_code, done.headers["location"]) == (303, "/console/runs?state=queued&retried=2")
    assert "2 runs are queued again." in text_of(client.get(done.headers["location"]).text)
    states = [service.client.get(f"/v1/runs/{run}").json()["state"] for run in runs]
    assert states == ["queued", "queued", "dead"]
    names = {(action, outcome, run) for action, outcome, _, run, _ in last_actions(service, 2)}
    assert names == {("retry", "queued", UUID(run[4:])) for run in runs[:2]}


def test_webhooks_are_made_and_removed_and_their_deliveries_sent_again(service: Service, client: httpx2.Client) -> None:
    form: dict[str, Any] = {"url": "https://hooks.example.org/<b>?a=1", "events": ["compaction.failed"], "newest": ""}
    odd_fields: tuple[dict[str, Any], ...] = (
        {"url": "http://example.org"},
        {"url": ""},
        {"url": "https://u:p@x/"},
        {"events": ["sign_in"]},
        {"events": []},
    )
    for wrong in odd_fields:
        assert client.post("/console/webhooks", data=form | wrong).status_code == 422, wrong
    response = client.post("/console/webhooks", data=form)
    assert response.status_code == 201
    secret = re.search(r'value="(whsec_[^"]+)"', response.text)
    assert secret
    assert client.post("/console/webhooks", data=form).status_code == 409
    ((hook,),) = query(service, "select id from webhooks where removed_at is null")
    listed = client.get("/console/webhooks").text
    assert secret[1] not in listed
    assert "https://hooks.example.org/&lt;b&gt;?a=1" in listed
    (run,) = dead_runs(service, ["attempts_exhausted"])
    query(
        service,
        "insert into webhook_deliveries (id, tenant_id, webhook_id, run_id, run_finished_at, event, body, state, error)"
        " values (%s, %s, %s, %s, now(), 'compaction.failed', '{}', 'dead', 'refused') returning 1",
        hook,
        service.tenant_id,
        hook,
        UUID(run[4:]),
    )
    event = external("evt", hook)
    page = client.get("/console/webhooks", params={"state": "dead"}).text
    assert f'action="/console/deliveries/{event}/retry"' in page
    found = client.get("/console/find", params={"q": event})
    assert found.headers["location"].endswith(f"#{event}")
    assert event in client.get(found.headers["location"]).text
    assert client.post(f"/console/deliveries/{event}/retry").status_code == 303
    assert client.post(f"/console/deliveries/{event}/retry").status_code == 404
    asked = client.get(f"/console/webhooks/{external('hook', hook)}/remove")
    assert "cannot be had back" in text_of(asked.text)
    assert client.post(f"/console/webhooks/{external('hook', hook)}/remove").status_code == 303
    assert client.post(f"/console/webhooks/{external('hook', hook)}/remove").status_code == 404
    items = [(action, subject) for action, _, _, _, subject in last_actions(service, 3)]
    assert items == [("webhook_remove", hook), ("delivery_retry", hook), ("webhook_create", hook)]
    assert external("hook", hook)[-8:] in client.get("/console/operators").text
    with signed_in(service, READER) as reader:
        told_of = reader.get("/console/find", params={"q": external("hook", hook)}).text
        assert "webhook" in told_of
        assert "hooks.example.org" not in told_of
        assert reader.get("/console/webhooks").status_code == 403
        assert reader.post("/console/webhooks", data=form).status_code == 403
        assert "/console/webhooks" not in reader.get("/console").text
    odd = {"/console/webhooks?state=lost": 422, "/console/webhooks?after=x": 400, "/console/webhooks/x/remove": 404}
    assert {each: client.get(each).status_code for each in odd} == odd


def test_lists_are_narrowed_to_days_a_user_and_a_cost(service: Service, client: httpx2.Client) -> None:
    calls = [
        Call(0, "claude-haiku-4-5", 1_000, 10, Decimal("0.5"), "cheap today"),
        Call(5, "claude-haiku-4-5", 1_000, 10, Decimal("2.5"), "dear then"),
    ]
    today_run, then_run = (external("run", run) for run in spend(service.database_url, service.tenant_id, calls))
    path = service.conversation(external_id="of bert", user_ref="bert <b>")
    service.append(path, *talk.exchanges(2, 20))
    asked = service.client.post(f"{path}/compactions", json={"strategy": "trim"}).json()["run_id"]
    today = datetime.now(UTC).date()
    then = today - timedelta(days=5)

    def runs(**only: object) -> set[str]:
        answer = client.get("/console/runs", params={name: str(value) for name, value in only.items()})
        assert answer.status_code == 200, text_of(answer.text)
        names = set(re.findall(r'href="/console/runs/(run_[0-9a-f]{32})"', answer.text))
        return names & {today_run, then_run, asked}

    assert runs(since=then, until=then) == {then_run}
    assert runs(since=today) == {today_run, asked}
    assert runs(until=today) == {today_run, then_run, asked}
    assert runs(until=then - timedelta(days=1)) == set()
    assert runs(user="bert <b>") == {asked}
    assert runs(user="bert") == set()
    assert runs(cost="0.5") == {today_run, then_run}
    assert runs(cost="2.4999", state="committed", since=then) == {then_run}

    def listed(**only: object) -> str:
        answer = client.get("/console/conversations", params={name: str(value) for name, value in only.items()})
        assert answer.status_code == 200
        return text_of(answer.text.partition("<main")[2])

    assert "of bert" in listed(user="bert <b>")
    assert "cheap today" not in listed(user="bert <b>")
    assert "dear then" in listed(cost="2.5")
    assert "cheap today" not in listed(cost="2.5")
    assert "No conversation matches" in listed(user="nobody", q="x")
    assert "of bert" in listed(since=today, until=today)
    assert "cheap today" not in listed(since=today)
    page = client.get("/console/runs", params={"user": "bert <b>", "cost": "1.50", "since": str(then)}).text
    for field in ('value="bert &lt;b&gt;"', 'value="1.50"', f'value="{then}"'):
        assert field in page
    for name in ("runs", "conversations"):
        assert client.get(f"/console/{name}?since=&until=&user=&cost=").status_code == 200
        for odd in (
            "since=yesterday",
            "since=2026-02-30",
            "until=0001-01-01",
            "until=9999-12-31",
            "cost=-1",
            "cost=nan",
            "cost=inf",
            "cost=1e400",
            "cost=cheap",
            "user=%00",
            "user=" + "x" * 513,
        ):
            assert client.get(f"/console/{name}?{odd}").status_code == 422, (name, odd)
