"""Rate limits at the door: of keys and tenants, by the installation and by tenant, with Redis and without it."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest
import redis
from limits import parse
from pydantic import ValidationError
from sqlalchemy import make_url

from actions.auth import rate_limits
from api.console.assets import asset_url
from cli.installation.tenants import Changes, run_limits
from runtime.settings import read_rate_limit
from store.engine import act_for, owner_engine
from store.tenants import api_keys
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.servers.tcp_gate import Gate
from tests.support.service.console_client import sign_in_to
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import RunningApi, running_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from limits import RateLimitItem

    from actions.monitoring.metrics import RateScope
    from runtime.settings import Settings
    from tests.conftest import Tenant

LIST: Final = "/v1/conversations"
FIELD: Final = re.compile(r'"(?P<name>[a-z0-9-]+)";(?P<first>[qr])=(?P<amount>\d+);(?P<second>[wt])=(?P<seconds>\d+)')


@pytest.fixture
def limited(make_settings: Callable[..., Settings], broker_url: str) -> Callable[..., Settings]:
    """Return settings with a Redis of the test's own to count in."""
    return lambda **fields: make_settings(broker_url=broker_url, **fields)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for Redis as long as a busy machine takes: what is not counted in time is not limited."""
    monkeypatch.setattr(rate_limits, "REDIS_SECONDS", 10.0)


def second_key(settings: Settings, tenant: Tenant) -> str:
    with owner_engine(settings.database_url.get_secret_value()).begin() as connection:
        act_for(connection, tenant.id)
        return api_keys.create(connection, tenant.id, "second")[1]


def fields_of(header: str) -> dict[str, tuple[int, int]]:
    """Return the two numbers of each item of a header field, by the item's name."""
    items = [FIELD.fullmatch(item) for item in header.split(", ")]
    assert all(items), header
    return {item["name"]: (int(item["amount"]), int(item["seconds"])) for item in items if item}


def test_one_key_too_often(limited: Callable[..., Settings], tenant: Tenant) -> None:
    settings = limited(rate_limit_key="3/hour")
    other = second_key(settings, tenant)
    with running_api(settings) as api, api.client(tenant.key) as client, api.client(other) as another:
        left = []
        for _ in range(3):
            answer = client.get(LIST)
            assert answer.status_code == 200
            assert fields_of(answer.headers["ratelimit-policy"]) == {"key-3600": (3, 3_600)}
            left.append(fields_of(answer.headers["ratelimit"])["key-3600"][0])
        assert left == [2, 1, 0]
        refused = client.get(LIST)
        problem(refused, 429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 3_600
        assert fields_of(refused.headers["ratelimit"])["key-3600"][0] == 0
        # A key's limit is not its tenant's, and refusals do not count.
        assert another.get(LIST).status_code == 200
        metrics = api.client().get("/metrics").text
        assert 'palimpsest_rate_limited_total{scope="key"} 1.0' in metrics
        assert 'palimpsest_rate_limited_total{scope="tenant"} 0.0' in metrics
        assert str(tenant.id) not in metrics


def test_the_hot_routes_and_refusals_of_scope_count_too(limited: Callable[..., Settings], tenant: Tenant) -> None:
    settings = limited(rate_limit_key="4/hour")
    with owner_engine(settings.database_url.get_secret_value()).begin() as connection:
        act_for(connection, tenant.id)
        _, reader = api_keys.create(connection, tenant.id, "reader", scopes=["context:read"])
    with running_api(settings) as api, api.client(tenant.key) as client, api.client(reader) as narrow:
        path = f"{LIST}/{client.post(LIST, json={}).json()['id']}"
        appended = client.post(f"{path}/turns", json={"messages": [{"role": "user", "content": "Hello."}]})
        assert appended.status_code == 201
        assert fields_of(appended.headers["ratelimit"])["key-3600"][0] == 2
        assert client.get(f"{path}/context").headers["ratelimit"].startswith('"key-3600";r=1')
        client.get(f"{path}/context")
        problem(client.get(f"{path}/context"), 429, "rate_limited")
        problem(client.post(f"{path}/turns", json={"messages": []}), 429, "rate_limited")
        problem(client.post("/mcp", json={}), 429, "rate_limited")
        assert [narrow.post(LIST, json={}).status_code for _ in range(5)] == [403, 403, 403, 403, 429]


def test_pages_count_as_calls_do(limited: Callable[..., Settings], tenant: Tenant) -> None:
    """A key that signs in spends what it may call, and its pages say when there is more."""
    with running_api(limited(rate_limit_key="4/hour")) as api, api.client(tenant.key) as client:
        with sign_in_to(api.url, tenant.key) as browser:
            for page in ("runs", "keys", "conversations"):
                assert browser.get(f"/console/{page}").status_code == 200
            refused = browser.get("/console")
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 3_600
            assert refused.headers["content-type"].startswith("text/html")
            assert browser.post("/console/keys", data={"name": "more"}).status_code == 429
            again = browser.post("/console/sign-in", data={"key": tenant.key})
            assert again.status_code == 429
            assert browser.get(asset_url("console.css")).status_code == 200
        problem(client.get(LIST), 429, "rate_limited")


def test_all_keys_of_a_tenant_together(limited: Callable[..., Settings], tenant: Tenant) -> None:
    settings = limited(rate_limit_key="10/hour; 2/second", rate_limit_tenant="5/hour")
    url = settings.database_url.get_secret_value()
    rival = make_tenant(url, "rival")
    keys = [tenant.key, *(second_key(settings, tenant) for _ in range(4))]
    with running_api(settings) as api:
        codes = []
        for key in keys:
            with api.client(key) as client:
                codes += [client.get(LIST) for _ in range(2)]
        assert [answer.status_code for answer in codes[:5]] == [200] * 5
        assert {answer.status_code for answer in codes[5:]} == {429}
        assert (
            codes[0].headers["ratelimit-policy"] == '"key-1";q=2;w=1, "key-3600";q=10;w=3600, "tenant-3600";q=5;w=3600'
        )
        with api.client(rival.key) as stranger:
            assert stranger.get(LIST).status_code == 200


def test_what_one_limit_refuses_does_not_count_against_the_others(
    limited: Callable[..., Settings], tenant: Tenant
) -> None:
    settings = limited(rate_limit_key="4/hour; 1000/day", rate_limit_tenant="6/hour")
    other = second_key(settings, tenant)
    with running_api(settings) as api, api.client(tenant.key) as client, api.client(other) as another:
        assert [client.get(LIST).status_code for _ in range(8)] == [200] * 4 + [429] * 4
        assert [another.get(LIST).status_code for _ in range(4)] == [200] * 2 + [429] * 2
        # Neither the day of the first key nor the hour of the second has those that were refused.
        assert fields_of(client.get(LIST).headers["ratelimit"])["key-86400"][0] == 996
        assert fields_of(another.get(LIST).headers["ratelimit"])["key-3600"][0] == 2


def test_many_at_once_get_no_more_than_the_limit(limited: Callable[..., Settings], tenant: Tenant) -> None:
    settings = limited(rate_limit_tenant="20/hour")
    with running_api(settings) as one, running_api(settings) as two, ThreadPoolExecutor(16) as threads:
        clients = [one.client(tenant.key), two.client(tenant.key)]
        codes = list(threads.map(lambda number: clients[number % 2].get(LIST).status_code, range(60)))
        assert codes.count(200) == 20
        assert codes.count(429) == 40


def unknown(api: RunningApi) -> int:
    match = re.search(r"^palimpsest_rate_limits_unknown_total (\d+)", api.client().get("/metrics").text, re.MULTILINE)
    assert match is not None
    return int(match[1])


def test_health_metrics_and_wrong_keys_are_not_counted(limited: Callable[..., Settings], tenant: Tenant) -> None:
    settings = limited(rate_limit_key="1/hour", rate_limit_tenant="1/hour")
    with running_api(settings) as api, api.client(tenant.key) as client, api.client(tenant.key + "x") as wrong:
        for _ in range(3):
            problem(wrong.get(LIST), 401, "unauthenticated")
            for path in ("/healthz", "/readyz", "/metrics"):
                answer = client.get(path)
                assert answer.status_code == 200
                assert "ratelimit" not in answer.headers
        assert client.get(LIST).status_code == 200
        problem(client.get(LIST), 429, "rate_limited")


def test_without_limits_nobody_asks_redis(limited: Callable[..., Settings], tenant: Tenant) -> None:
    settings = limited()
    with running_api(settings) as api, api.client(tenant.key) as client:
        answer = client.get(LIST)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("ratelimit")]
    with redis.Redis.from_url(settings.broker_url.get_secret_value()) as store:
        assert list(store.scan_iter("palimpsest:rate*")) == []


@contextmanager
def behind_a_gate(settings: Settings, **fields: Any) -> Iterator[tuple[RunningApi, Gate]]:
    """Serve the API with a gate before its Redis."""
    url = make_url(settings.broker_url.get_secret_value())
    assert url.port is not None
    gate = Gate(url.port)
    behind = url.set(port=gate.port).render_as_string(hide_password=False)
    changed = type(settings)(**{**settings.model_dump(exclude_unset=True), "broker_url": behind, **fields})
    with running_api(changed) as api:
        try:
            yield api, gate
        finally:
            gate.shut()


@pytest.mark.parametrize("fault", ["shut", "silence"])
@pytest.mark.parametrize("without", ["open", "closed"])
def test_redis_goes_away_and_comes_back(
    limited: Callable[..., Settings],
    tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    without: str,
) -> None:
    monkeypatch.setattr(rate_limits, "PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(rate_limits, "REDIS_SECONDS", 0.05)
    settings = limited(rate_limit_key="5/hour", rate_limit_without_redis=without)
    with behind_a_gate(settings) as (api, gate), api.client(tenant.key) as client:
        eventually(lambda: "ratelimit" in client.get(LIST).headers)
        getattr(gate, fault)()
        for _ in range(10):
            answer = client.get(LIST)
            assert "ratelimit" not in answer.headers
            if without == "open":
                assert answer.status_code == 200
            else:
                problem(answer, 503, "unavailable")
                assert answer.headers["retry-after"] == "1"
        assert unknown(api) >= 10
        gate.open()

        def refused() -> bool:
            return client.get(LIST).status_code == 429

        eventually(refused)


def test_requests_that_wait_at_the_same_time_are_one_sign_of_redis_being_away(
    limited: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do when the process itself was held up for a moment."""
    settings = limited()
    asked: list[tuple[RateScope, RateLimitItem, str]] = [("key", parse("1000/hour"), "k")]

    async def run(store: redis.Redis) -> None:
        counter = rate_limits._Counter(settings)
        assert await counter.count(asked) is not None
        monkeypatch.setattr(rate_limits, "REDIS_SECONDS", 0.05)
        store.client_pause(60_000, all=False)
        assert await asyncio.gather(*(counter.count(asked) for _ in range(8))) == [None] * 8
        store.client_unpause()
        monkeypatch.setattr(rate_limits, "REDIS_SECONDS", 10.0)
        assert await counter.count(asked) is not None
        await counter.close()

    with redis.Redis.from_url(settings.broker_url.get_secret_value()) as store:
        asyncio.run(run(store))


def test_a_tenants_own_limit_is_followed_within_seconds(
    limited: Callable[..., Settings],
    tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rate_limits, "REFRESH_SECONDS", 0.05)
    settings = limited()
    rival = make_tenant(settings.database_url.get_secret_value(), "rival")
    with running_api(settings) as api, api.client(tenant.key) as client, api.client(rival.key) as stranger:
        assert "ratelimit" not in client.get(LIST).headers
        assert run_limits(settings, "acme", Changes(rate_limit_key="2/hour"), as_json=True) == 0
        eventually(lambda: "ratelimit" in client.get(LIST).headers)
        eventually(lambda: client.get(LIST).status_code == 429)
        usage = httpx2.get(f"{api.url}/v1/tenant/usage", headers={"x-api-key": rival.key}).json()
        assert usage["rate_limits"] == {"key": None, "tenant": None}
        answer = stranger.get(LIST)
        assert answer.status_code == 200
        assert "ratelimit" not in answer.headers
        assert run_limits(settings, "acme", Changes(rate_limit_key="none"), as_json=True) == 0
        eventually(lambda: client.get(LIST).status_code == 200)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"tenant"')]
    assert [each["in_force"]["rate_limit_key"] for each in said] == ["2/hour", None]
    # No limit, which is something else than the installation's.
    assert [each["limits"]["rate_limit_key"] for each in said] == ["2/hour", ""]


@pytest.mark.parametrize("text", ["many", "600", "0/minute", "-1/minute", "5/fortnight", "5/minute and more"])
def test_what_is_no_limit_is_refused(make_settings: Callable[..., Settings], text: str) -> None:
    with pytest.raises(ValidationError):
        make_settings(rate_limit_key=text)
    with pytest.raises(ValueError, match=r"rate limit"):
        read_rate_limit(text)


def test_the_command_refuses_what_is_no_limit(make_settings: Callable[..., Settings], tenant: Tenant) -> None:
    del tenant
    settings = make_settings()
    for changes in (
        Changes(rate_limit_key="often"),
        Changes(daily_model_tokens="1.5"),
        Changes(daily_model_tokens="-1"),
        Changes(daily_model_cost_usd="nan"),
        Changes(daily_model_cost_usd="a lot"),
        Changes(daily_model_cost_usd="1e8"),
        Changes(daily_model_cost_usd="0.0000004"),  # 0 in the column, which is no limit
    ):
        with pytest.raises(ValueError, match=r"rate_limit_key|daily_model"):
            run_limits(settings, "acme", changes, as_json=True)
    assert run_limits(settings, "nobody", Changes(), as_json=True) == 1
