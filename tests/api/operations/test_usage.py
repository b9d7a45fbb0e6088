"""Usage as the API tells it, and the end of a budget as clients and operators see it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from cli.installation.tenants import Changes, run_limits
from runtime import ids
from store.engine import act_for, owner_engine
from store.tenants import api_keys, webhooks
from tests.support.service.in_process import Chat
from tests.support.service.paid_workers import PaidWorkers
from tests.support.service.problem_documents import problem
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

pytestmark = pytest.mark.usefixtures("within_a_day")
LIMIT = 1_000


def test_a_budget_from_the_first_token_to_the_last(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    usage = service.client.get("/v1/tenant/usage").json()
    assert usage["days"] == []
    assert usage["today"]["limits"] == {"tokens": None, "cost_usd": None}
    assert usage["today"]["spent"] == {"tokens": 0, "cost_usd": "0.000000"}
    changes = Changes(daily_model_tokens=str(LIMIT), daily_model_cost_usd="2.5")
    assert run_limits(service.settings, "acme", changes, as_json=True) == 0
    with Chat(service.settings, service.tenant_id) as chat:
        with chat.database.transaction(chat.tenant_id) as connection:
            webhooks.add(connection, chat.tenant_id, "https://hooks.example.com/", webhooks.EVENTS)
        workers = PaidWorkers(chat, StubSummarizer())
        conversations = [chat.begin(), chat.begin()]
        for conversation in conversations:
            chat.append(conversation, exchanges(12, 200))
            workers.settle(conversation)
        rows = chat.query("select body::text as body from webhook_deliveries order by id")
    usage = service.client.get("/v1/tenant/usage").json()
    today = datetime.now(UTC).date()
    midnight = datetime.combine(today + timedelta(days=1), datetime.min.time(), UTC)
    assert usage["today"] == {
        "day": today.isoformat(),
        "limits": {"tokens": LIMIT, "cost_usd": "2.500000"},
        "spent": {"tokens": 1_050, "cost_usd": None},
        "unpriced_calls": 1,
        "reserved": {"tokens": 0, "cost_usd": "0.000000"},
        "is_spent": True,
        "waiting_summaries": 1,
        "resets_at": usage["today"]["resets_at"],
    }
    assert datetime.fromisoformat(usage["today"]["resets_at"]) == midnight
    assert usage["days"] == [
        {
            "day": today.isoformat(),
            "model_calls": 1,
            "unpriced_calls": 1,
            "input_tokens": 1_000,
            "output_tokens": 50,
            "cost_usd": None,
        }
    ]
    done, waits = (
        service.client.get(f"/v1/conversations/{ids.external('conv', conversation)}/runs").json()["data"][0]
        for conversation in conversations
    )
    assert (done["reason"], done["not_before"]) == (None, None)
    assert (waits["state"], waits["reason"]) == ("committed", "budget_spent")
    assert datetime.fromisoformat(waits["not_before"]) == midnight
    assert [step["name"] for step in waits["steps"] if step["state"] == "committed"] == ["extract"]
    assert [_reason(row.body) for row in rows] == [None, "budget_spent"]
    metrics = service.api.client().get("/metrics").text
    assert "palimpsest_model_tokens_today 1050.0" in metrics
    assert "palimpsest_waiting_summaries 1.0" in metrics
    assert run_limits(service.settings, "acme", Changes(), as_json=True) == 0
    said = msgspec.json.decode(capsys.readouterr().out.splitlines()[-1])
    assert said["in_force"]["daily_model_tokens"] == LIMIT
    assert (said["today"]["tokens"], said["today"]["waiting_summaries"]) == (1_050, 1)
    # Another tenant has spent nothing, and is bound by nothing.
    other = service.stranger.get("/v1/tenant/usage").json()
    assert (other["days"], other["today"]["limits"]["tokens"], other["today"]["waiting_summaries"]) == ([], None, 0)


def _reason(body: str) -> str | None:
    document = msgspec.json.decode(body)
    reason: str | None = document["data"]["reason"]
    return reason


def test_usage_is_for_auditors(service: Service) -> None:
    with owner_engine(service.database_url).begin() as connection:
        act_for(connection, service.tenant_id)
        _, key = api_keys.create(connection, service.tenant_id, "writer", scopes=["turns:write"])
    with service.api.client(key) as client:
        assert problem(client.get("/v1/tenant/usage"), 403, "forbidden")
    assert problem(service.client.get("/v1/tenant/usage", params={"days": 0}), 422, "invalid", "days")
