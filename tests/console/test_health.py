"""The console tells whether queues are served and which alerts would fire; its rules are those of Prometheus."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args
from uuid import uuid4

import pytest
import yaml

from actions.background.gateway_outcomes import GatewayOutcomes, Outcomes
from actions.monitoring.alerts import PROMETHEUS_ALONE, RULES, Rule, alerts
from actions.monitoring.installation import CACHE_SECONDS, Seen, families
from runtime.addresses.redis_clients import redis_client
from store.operations.processes import Backlog
from store.runs.backlog import Kind, Waits
from tests.support.eventually import eventually
from tests.support.service.console_client import query, signed_in, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.service.running_api import Service

ALERTS: Final = Path("deploy/prometheus/alerts.yml")
_BEAT: Final = """
    insert into processes (id, kind, host, pid, queues, version, slots, seen_at)
    values (%s, %s, 'worker-7 <b>', 4711, %s, '0.1.0', 8, now() - %s * interval '1 second') returning 1
"""


def prometheus() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return {rule["alert"].removeprefix("Palimpsest"): rule for rule in rules}


def expression(rule: Rule) -> str:
    """Return a rule as Prometheus has it: every API process answers for the whole installation."""
    only = f'{{{rule.only[0]}="{rule.only[1]}"}}' if rule.only else ""
    metric = f"palimpsest_{rule.metric}{only}"
    if rule.test == "absent":
        return f"absent({metric})"
    by = f" by ({rule.by}) " if rule.by else ""
    return f"max{by}({metric}) " + ("== 0" if rule.test == "zero" else f"> {rule.above:g}")


def test_every_rule_is_that_of_prometheus() -> None:
    theirs = prometheus()
    for rule in RULES:
        told = theirs[rule.name]
        assert " ".join(told["expr"].split()) == expression(rule)
        assert (told.get("for"), told["labels"]["severity"], told["annotations"]["summary"]) == (
            rule.lasting,
            rule.severity,
            rule.summary,
        )
    assert {rule.name for rule in RULES} | set(PROMETHEUS_ALONE) == set(theirs)
    named = {family.name for family in families()}
    assert {f"palimpsest_{rule.metric}" for rule in RULES} <= named


def seen(**fields: Any) -> Seen:
    waits = dict.fromkeys(get_args(Kind), Waits(0, 0.0))
    nothing = Seen(Backlog(0, 0.0, 0, 0, 0, 0), None, waits, None, (), {"checks": 0, "summaries": 0})
    return nothing._replace(**fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"NoWorkers", "NoBeat"}),
        ({"depths": None}, {"NoWorkers", "NoBeat", "BrokerAway"}),
        ({"depths": {"checks": 1_000, "summaries": 1_001}}, {"NoWorkers", "NoBeat", "QueueDeep"}),
        ({"backlog": Backlog(10_000, 60.0, 1_000, 5_000, 0, 9)}, {"NoWorkers", "NoBeat"}),
        (
            {"backlog": Backlog(10_001, 60.5, 1_001, 0, 1, 0)},
            {"NoWorkers", "NoBeat", "ChecksLate", "ChecksPileUp", "RunsWait", "LeasesExpired"},
        ),
        ({"gateways": Outcomes(1_000, 10)}, {"NoWorkers", "NoBeat"}),
        ({"gateways": Outcomes(1_000, 11)}, {"NoWorkers", "NoBeat", "GatewayFailsOpen"}),
        ({"gateways": Outcomes(0, 0)}, {"NoWorkers", "NoBeat"}),
    ],
)
def test_an_alert_is_over_its_threshold_and_not_at_it(fields: dict[str, Any], expected: set[str]) -> None:
    told = alerts(seen(**fields).families())
    assert {alert.name for alert in told} == expected
    assert [alert.severity for alert in told] == sorted(alert.severity for alert in told)
    assert not any("$labels" in alert.summary for alert in told)


@pytest.fixture(autouse=True)
def uncounted(request: pytest.FixtureRequest) -> None:
    """Forget the requests of gateways, those of other modules too."""
    if "service" in request.fixturenames:
        service: Service = request.getfixturevalue("service")
        with redis_client(service.settings.broker_url.get_secret_value()) as client:
            client.delete("none", *client.keys("palimpsest:gateway-outcomes:*"))


@pytest.fixture
def processes(service: Service) -> Iterator[None]:
    """A worker of summaries and a sweeper that live, and a worker of checks that fell silent a minute ago."""
    for kind, queues, silent in (("worker", ["summaries"], 0), ("beat", [], 0), ("worker", ["checks"], 60)):
        query(service, _BEAT, uuid4(), kind, queues, silent)
    yield
    query(service, "delete from processes returning 1")


def test_a_dead_worker_is_seen_on_every_page(service: Service, processes: None) -> None:
    with signed_in(service, {"audit:read"}) as client:

        def mark() -> str:
            return client.get("/console/health", headers={"hx-request": "true"}).text

        # What was seen before the processes were there answers for some seconds more.
        until = time.monotonic() + 4 * CACHE_SECONDS
        eventually(lambda: "1 alert<" in mark() or time.monotonic() > until)
        assert "dot-missing" in mark()
        overview = client.get("/console").text
        text = text_of(overview)
        assert "Nobody serves the queue checks." in text
        assert "Nobody serves the queue summaries." not in text
        assert "Installation not served" in text
        assert re.search(r"checks nobody there 0 \W 0", text)
        assert re.search(r"summaries served 1 0 of 8", text)
        assert re.search(r"worker-7 <b>, 4711 gone 1 min \d+ s silent", text)
        assert "worker-7 &lt;b&gt;" in overview
        assert 'hx-get="/console/health"' in client.get("/console/runs").text
        whole = client.get("/console/health")
        assert (whole.status_code, whole.headers["location"]) == (303, "/console#workers")


def test_the_share_that_failed_open_is_told(service: Service) -> None:
    async def count() -> None:
        outcomes = GatewayOutcomes(service.settings)
        outcomes.start()
        for number in range(50):
            outcomes.add(is_open=number % 10 == 0)
        await outcomes.stop()

    asyncio.run(count())
    with signed_in(service, {"audit:read"}) as client:
        # What was seen before answers for some seconds more.
        eventually(lambda: "50 requests, 10% of them passed on as they came" in text_of(client.get("/console").text))
        text = text_of(client.get("/console").text)
        assert re.search("as it came: the database does not answer in time. Now 10%", text)
    assert "palimpsest_gateway_failed_open_ratio 0.1" in service.client.get("/metrics").text
