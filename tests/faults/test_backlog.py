"""Ten thousand due checks at once, a sweeper that is gone, and what a backlog costs the requests: nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from runtime.broker import BATCH, CHECKS
from tests.conftest import make_tenant
from tests.faults.installation import installed
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.processes import START_SECONDS
from tests.support.service.hot_calls import hot_calls
from tests.support.service.in_process import SMALL, Chat
from tests.support.talk import request, rounds
from tests.worker.checks.test_fairness import DUE, MANY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.faults.installation import Installation
    from tests.support.processes import Worker

pytestmark = pytest.mark.slow
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
EVERY_SCRAPE_LOOKS = """
from actions.monitoring import installation
installation.CACHE_SECONDS = 0
from cli.main import main
main()
"""
ROWS = "select relname, seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables"


@pytest.fixture(scope="module")
def installation(postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis) -> Iterator[Installation]:
    with installed(postgres.url, template, redis_server.url) as made:
        made.program = ["-c", EVERY_SCRAPE_LOOKS]
        with made.api():
            yield made


@pytest.fixture(scope="module")
def workers(installation: Installation) -> Iterator[list[Worker]]:
    """A worker with one process for the checks, and beat."""
    with installation.worker("checks", "--concurrency", "1") as checks, installation.worker("beat") as beat:
        eventually(lambda: {checks.process.pid, beat.process.pid} <= installation.alive(), START_SECONDS)
        yield [checks, beat]


def gauges(installation: Installation) -> dict[str, float]:
    """Return the gauges that have no labels."""
    families = text_string_to_metric_families(installation.client.get("/metrics").text)
    return {each.name: each.value for family in families for each in family.samples if not each.labels}


def fires(alert: str, seen: dict[str, float]) -> bool:
    """Tell whether an alert's expression, `max(metric) > bound` or `== bound`, is true of what is seen."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    (rule,) = (rule for group in groups for rule in group["rules"] if rule.get("alert") == alert)
    read = re.fullmatch(r"max\((\w+)\) (>|==) (\d+)", rule["expr"])
    assert read, rule
    value, bound = seen[read[1]], float(read[3])
    return value > bound if read[2] == ">" else value == bound


@pytest.mark.fault("F31")
def test_ten_thousand_due_at_once(
    installation: Installation, workers: list[Worker], measured: Callable[[str, float], None]
) -> None:
    """While the one process of the checks is held nothing is done; two batches later another tenant's is."""
    flood = make_tenant(installation.database_url, "flood")
    due = "select count(*) from conversations where check_due_at is not null"
    talk = installation.talk(SMALL)
    started, sent = installation.points.counts["check.started"], installation.points.counts["wakeup.sent"]
    installation.points.hold("check.started", 3)
    with Chat(installation.chat.settings, flood.id) as chat:
        chat.query(DUE, tenant=flood.id, many=MANY)
        first = installation.points.arrival("check.started")
        talk.append(*talk.tool_rounds())
        eventually(lambda: any(event["event"] == "sweep.checks" for event in workers[0].events), 60)
        eventually(lambda: installation.points.counts["wakeup.sent"] > sent)
        assert installation.queued(CHECKS) <= 2 * MANY // BATCH  # periodic tasks wait, too
        first.release()
        installation.points.arrival("check.started").release()
        third = installation.points.arrival("check.started")
        assert talk.is_at_rest()
        assert chat.query(due)[0][0] >= MANY - 2 * BATCH
        began = installation.now()
        third.release()
        eventually(lambda: chat.query(due)[0][0] == 0, 60)
        measured("F31 ten thousand due checks done", (installation.now() - began).total_seconds())
        assert talk.end_state(runs=1).outcome == [("committed", None)]
        # Each was sent once, but for what a sweep found undone that had just begun.
        assert installation.points.counts["check.started"] - started <= 2 * (MANY // BATCH)
        assert chat.query("select count(*) from runs")[0][0] == 0


@pytest.mark.fault("F29")
def test_beat_is_gone(installation: Installation, workers: list[Worker]) -> None:
    beat = workers[1]
    eventually(lambda: not fires("PalimpsestNoBeat", gauges(installation)), 60)
    beat.kill()
    talk = installation.talk(SMALL)
    said = talk.tool_rounds()
    installation.chat.append(talk.id, said)  # as the API does, but nobody sends a wake-up
    talk.sent.extend(said)
    eventually(lambda: fires("PalimpsestNoBeat", gauges(installation)), 60)
    first = gauges(installation)["palimpsest_oldest_due_check_seconds"]
    eventually(lambda: gauges(installation)["palimpsest_oldest_due_check_seconds"] > first > 0)
    assert not fires("PalimpsestChecksLate", gauges(installation))
    installation.chat.query("update conversations set check_due_at = check_due_at - interval '61 s'")
    assert fires("PalimpsestChecksLate", gauges(installation))
    with installation.worker("beat"):
        assert talk.end_state(runs=1).outcome == [("committed", None)]
        assert gauges(installation)["palimpsest_oldest_due_check_seconds"] == 0
        assert not fires("PalimpsestNoBeat", gauges(installation))


@pytest.mark.fault("F31")
def test_a_backlog_costs_a_turn_nothing(
    make_settings: Callable[..., Settings], tenant: Tenant, database_url: str
) -> None:
    """The same rows are read, from the same tables, whether ten thousand checks and runs wait or none."""
    settings = make_settings()

    def turn() -> dict[str, int]:
        """Return how many rows of each table an append and a context read; statistics come when connections close."""
        with psycopg.connect(database_url, autocommit=True) as owner:
            owner.execute("select pg_stat_force_next_flush()")
            before = rows(owner)
            with hot_calls(settings, tenant.id) as calls:
                conversation = calls.conversation()
            eventually(lambda: alone(owner))
            begun = rows(owner)
            with hot_calls(settings, tenant.id) as calls:
                calls.append(conversation, request("hello"), *rounds(2, 50))
                assert calls.context(conversation) is not None
            eventually(lambda: alone(owner))
            after = rows(owner)
        assert begun != before
        return {name: after[name] - begun[name] for name in after if after[name] != begun[name]}

    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("alter table conversations set (autovacuum_enabled = false)")
        owner.execute("alter table runs set (autovacuum_enabled = false)")
    turn()
    without = turn()
    with Chat(settings, tenant.id) as chat:
        chat.query(DUE, tenant=tenant.id, many=MANY)
        chat.query(
            "insert into runs (id, tenant_id, conversation_id, trigger, state, queue, policy)"
            " select gen_random_uuid(), tenant_id, id, 'check', 'queued', 'summaries', '{}' from conversations"
        )
    assert sum(without.values()) > 0
    assert turn() == without


def rows(owner: psycopg.Connection[Any]) -> dict[str, int]:
    owner.execute("select pg_stat_clear_snapshot()")
    return dict(owner.execute(ROWS.encode()).fetchall())


def alone(owner: psycopg.Connection[Any]) -> bool:
    """Tell whether every other connection to the database has ended."""
    others = "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    return owner.execute(others + " and backend_type = 'client backend'").fetchone() is None
