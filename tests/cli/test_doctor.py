"""`palimpsest doctor` finds what is wrong: each fault is put into a real installation, and named with its remedy."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import redis
from psycopg import sql
from sqlalchemy import make_url
from typer.testing import CliRunner, Result

from cli.doctor.database import clock
from cli.local.embedded import EmbeddedRedis
from cli.main import app
from runtime import ids
from runtime.release import VERSION
from store.engine import owner_engine
from store.operations import processes
from store.operations.processes import Activity, Process
from tests.api.operations.test_pgbouncer import Pooler, pooled
from tests.support.eventually import eventually
from tests.support.servers.loopback_chat import choice
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok, status
from tests.support.service.command_line import own_logging
from tests.support.service.running_api import running_api
from worker.summarizers.breaker import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.settings import Settings
    from tests.conftest import Tenant

__all__ = ["own_logging", "pooled"]

NOWHERE = "postgresql://127.0.0.1:1/palimpsest"
SILENT = {
    "ANTHROPIC_API_KEY": None,
    "ANTHROPIC_BASE_URL": None,
    "PALIMPSEST_URL": None,
    "PALIMPSEST_KEY": None,
    "PALIMPSEST_HYPOTHESIS": None,
    "PALIMPSEST_TRANSCRIPTS": None,
}


class Installation(NamedTuple):
    """A database and a Redis with everything in its place, as processes tell of themselves."""

    settings: Settings
    url: str

    def run(self, *arguments: str, **more: str | None) -> Result:
        environment = {
            "PALIMPSEST_DATABASE_URL": self.url,
            "PALIMPSEST_BROKER_URL": self.settings.broker_url.get_secret_value(),
            "PALIMPSEST_SUMMARIZER": "extractive",
            "COLUMNS": "300",
            **SILENT,
            **more,
        }
        return CliRunner().invoke(app, ["doctor", *arguments], env=environment)

    def look(self, *arguments: str, **more: str | None) -> dict[str, dict[str, Any]]:
        """Return the findings by check; the exit code agrees with them."""
        done = self.run("--json", *arguments, **more)
        document = json.loads(done.stdout)
        found = document["findings"]
        states = [each["state"] for each in found]
        assert (document["problems"], document["warnings"]) == (states.count("problem"), states.count("warning"))
        assert done.exit_code == int("problem" in states)
        assert all((each["why"] and each["mend"]) or each["state"] == "ok" for each in found)
        return {each["check"]: each for each in found}

    def faults(self, *arguments: str, **more: str | None) -> dict[str, str]:
        """Return the state of what is not well."""
        rows = self.look(*arguments, **more)
        return {check: each["state"] for check, each in rows.items() if each["state"] != "ok"}

    def change(self, statement: str, *values: object) -> None:
        """Change the database as its owner."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode(), values or None)


def alive(
    url: str,
    kind: Any,
    *queues: str,
    version: str | None = None,
    oldest: float | None = None,
    summarizer: str | None = None,
) -> None:
    """Let a process be alive in the database's eyes."""
    process = Process(ids.new_id(), kind, "host", 7, list(queues), version or VERSION, 2, summarizer)
    engine = owner_engine(url)
    with engine.begin() as connection:
        processes.beat(connection, process, Activity(int(oldest is not None), oldest))
    engine.dispose()


@pytest.fixture
def installation(make_settings: Callable[..., Settings], database_url: str, broker_url: str) -> Installation:
    alive(database_url, "worker", "checks", "summaries")
    alive(database_url, "beat")
    return Installation(make_settings(broker_url=broker_url), database_url)


def test_a_variable_that_nothing_reads_is_named_with_the_one_that_was_meant(installation: Installation) -> None:
    (found,) = [each for each in installation.look(PALIMPSEST_SUMARIZER="none").values() if each["state"] != "ok"]
    assert (found["check"], found["state"]) == ("variables", "warning")
    assert "PALIMPSEST_SUMARIZER" in found["what"]
    assert "PALIMPSEST_SUMMARIZER," in found["mend"]
    assert installation.faults(PALIMPSEST_INPUT_TOKEN_BUDGET="50000", PALIMPSEST_LEASE_SECONDS="45") == {}


def test_a_healthy_installation_has_nothing_wrong(installation: Installation) -> None:
    rows = installation.look()
    assert {check for check, each in rows.items() if each["state"] != "ok"} == set()
    assert set(rows) >= {
        "settings",
        "database",
        "database_clock",
        "database_connections",
        "database_locks",
        "schema",
        "service_role",
        "row_level_security",
        "indexes",
        "service_login",
        "workers_checks",
        "workers_summaries",
        "beat",
        "checks",
        "dead_runs",
        "broker",
        "broker_clock",
        "eviction",
        "queues",
        "summarizer",
    }
    done = installation.run()
    assert done.exit_code == 0
    assert done.stdout.count("✓") == len(rows)
    assert done.stdout.endswith("\n0 problems, 0 warnings\n")


def test_it_goes_on_without_the_database(installation: Installation) -> None:
    rows = installation.look(PALIMPSEST_DATABASE_URL=NOWHERE)
    assert rows["database"]["state"] == "problem"
    assert "PALIMPSEST_DATABASE_URL" in rows["database"]["mend"]
    assert {"broker", "eviction", "queues", "summarizer"} <= set(rows)
    printed = installation.run(PALIMPSEST_DATABASE_URL=NOWHERE)
    assert (printed.exit_code, printed.stderr) == (1, "")
    assert "\n    mend: start Postgres" in printed.stdout


def test_what_refuses_is_told_apart_from_what_does_not_answer(installation: Installation) -> None:
    url = make_url(installation.url)
    told = {
        "the database refuses the password of this login": url.set(password="another"),
        "the server has no database of this name": url.set(database="nowhere"),
        "the database cannot be reached": make_url(NOWHERE),
        # As two standbys would.
        "the database takes no writes": url.set(
            host=None,
            port=None,
            query={"host": [f"{url.host}:{url.port}"] * 2, "options": "-c default_transaction_read_only=on"},
        ),
    }
    for what, wrong in told.items():
        rows = installation.look(PALIMPSEST_DATABASE_URL=wrong.render_as_string(hide_password=False))
        assert (rows["database"]["state"], what in rows["database"]["what"]) == ("problem", True), rows["database"]
    broker = urlsplit(installation.settings.broker_url.get_secret_value())
    for login in ("", ":another@", "nobody:another@"):
        wrong_url = f"redis://{login}{broker.hostname}:{broker.port}/0"
        rows = installation.look(PALIMPSEST_BROKER_URL=wrong_url)
        assert "answers, and refuses the login" in rows["broker"]["what"]
    assert "does not answer" in installation.look(PALIMPSEST_BROKER_URL="redis://127.0.0.1:1/0")["broker"]["what"]


def test_it_goes_on_without_redis(installation: Installation) -> None:
    assert installation.faults(PALIMPSEST_BROKER_URL="redis://127.0.0.1:1/0") == {"broker": "problem"}


def test_impossible_settings_are_all_named(installation: Installation) -> None:
    found = installation.run("--json", PALIMPSEST_PORT="none", PALIMPSEST_LOG_LEVEL="loud")
    document = json.loads(found.stdout)["findings"]
    wrong = [each for each in document if each["state"] == "problem"]
    assert {each["what"].partition(":")[0] for each in wrong} == {"port", "log_level"}
    assert found.exit_code == 1
    assert {"database", "schema", "broker", "summarizer"} <= {each["check"] for each in document}, (
        "the rest is looked at"
    )


def test_settings_that_show_once_others_hold_are_named_too(installation: Installation) -> None:
    asked = {
        "PALIMPSEST_PORT": "none",
        "PALIMPSEST_DATABASE_URL": "hello",
        "PALIMPSEST_BROKER_URL": "no-url",
        "PALIMPSEST_JWT_JWKS": "https://issuer.example/keys",
        "PALIMPSEST_POLICY": '{"input_token_budgett": 1, "summary_max_tokens": "many"}',
        "PALIMPSEST_TRIM_THRESHOLD_RATIO": "7",
    }
    for printed in (
        installation.run(**asked).stdout,
        CliRunner().invoke(app, ["stats"], env={**SILENT, **asked}).stderr,
    ):
        for word in (
            *("port: ", "database_url: ", "broker_url: "),
            *("input_token_budgett", "summary_max_tokens", "trim_threshold_ratio"),
        ):
            assert word in printed
        assert "hello" not in printed
    known = {name: value for name, value in asked.items() if "POLICY" not in name and "RATIO" not in name}
    assert "jwt_jwks needs jwt_issuer and jwt_audience" in installation.run(**known).stdout


def test_a_database_without_a_schema(empty_database_url: str, installation: Installation) -> None:
    rows = installation.look(PALIMPSEST_DATABASE_URL=empty_database_url)
    assert rows["schema"]["state"] == "problem"
    assert rows["schema"]["mend"] == "palimpsest migrate"
    assert "workers_checks" not in rows


@pytest.mark.parametrize(("revision", "state"), [("0001", "problem"), ("9999_later", "warning")])
def test_a_schema_of_another_release(installation: Installation, revision: str, state: str) -> None:
    installation.change("update alembic_version set version_num = %s", revision)
    assert installation.faults() == {"schema": state}


def test_an_index_that_was_broken_off(installation: Installation) -> None:
    installation.change("update pg_index set indisvalid = false where indexrelid = 'ix_runs_failed'::regclass")
    assert installation.faults() == {"indexes": "warning"}
    found = installation.look()["indexes"]
    assert "ix_runs_failed" in found["what"]
    installation.change(found["mend"])
    assert installation.faults() == {}


def test_row_level_security_that_somebody_took_off(installation: Installation) -> None:
    installation.change("alter table messages no force row level security")
    rows = installation.look()
    assert rows["row_level_security"]["state"] == "problem"
    assert "messages" in rows["row_level_security"]["what"]
    installation.change(rows["row_level_security"]["mend"])
    assert installation.faults() == {}


@contextmanager
def role(installation: Installation, attributes: str) -> Iterator[str]:
    """Make a role that a service might be told to act in."""
    name = f"role_{uuid4().hex[:12]}"
    installation.change(f"create role {name} {attributes}; grant palimpsest_service to {name}")
    try:
        yield name
    finally:
        installation.change(f"drop owned by {name}; drop role {name}")


@pytest.mark.parametrize(
    ("attributes", "reason"), [("superuser", "is a superuser"), ("bypassrls", "bypasses row-level security")]
)
def test_a_role_that_row_level_security_does_not_bind(
    installation: Installation, tenant: Tenant, attributes: str, reason: str
) -> None:
    installation.change("insert into conversations (id, tenant_id) values (%s, %s)", uuid4(), tenant.id)
    with role(installation, attributes) as name:
        rows = installation.look(PALIMPSEST_DATABASE_ROLE=name)
        assert reason in rows["service_role"]["what"]
        assert (rows["service_role"]["state"], rows["isolation"]["state"]) == ("problem", "problem")
    assert "isolation" not in installation.look()


def test_a_role_that_owns_a_table(installation: Installation) -> None:
    with role(installation, "nologin") as name:
        installation.change(f"grant create on schema public to {name}")
        installation.change(f"alter table pins owner to {name}")
        rows = installation.look(PALIMPSEST_DATABASE_ROLE=name)
        assert "owns 1 of the tables" in rows["service_role"]["what"]
        installation.change("alter table pins owner to current_user")


def test_a_role_that_is_not_there(installation: Installation) -> None:
    faults = installation.faults(PALIMPSEST_DATABASE_ROLE="nobody_at_all")
    assert faults == {"service_role": "problem", "service_login": "problem"}


@contextmanager
def as_login(installation: Installation) -> Iterator[str]:
    """Make a login that is nothing but a member of the services' role; yield its URL."""
    name, password = f"login_{uuid4().hex[:12]}", "only-for-this-test"
    statement = sql.SQL("create role {} login password {} in role palimpsest_service")
    with psycopg.connect(installation.url, autocommit=True) as connection:
        connection.execute(statement.format(sql.Identifier(name), password))
    try:
        yield make_url(installation.url).set(username=name, password=password).render_as_string(hide_password=False)
    finally:
        installation.change(f"drop role {name}")


def test_a_session_whose_locks_others_wait_for_is_named_to_any_login(installation: Installation) -> None:
    waits = (
        "select pid from pg_locks where not granted and database = (select oid from pg_database where datname ="
        " current_database()) and waitstart < clock_timestamp() - interval '2 seconds'"
    )
    with (
        as_login(installation) as url,
        closing(psycopg.connect(installation.url, application_name="left-open")) as holder,
        psycopg.connect(installation.url, autocommit=True) as looking,
        ThreadPoolExecutor(1) as elsewhere,
    ):
        holder.execute("lock table conversations, runs")
        waiting = elsewhere.submit(installation.change, "do $$ begin lock table conversations; end $$")
        eventually(lambda: looking.execute(waits).fetchone(), 60)
        rows = installation.look(PALIMPSEST_DATABASE_URL=url)
        found = rows["database_locks"]
        assert (found["state"], "'left-open'" in found["what"]) == ("problem", True)
        assert rows["work"]["state"] == "warning"
        assert "service_login" not in {check for check, each in rows.items() if each["state"] == "problem"}
        looking.execute(found["mend"].rpartition(": ")[2].encode())
        waiting.result()
    assert installation.look()["database_locks"]["state"] == "ok"


def test_connections_of_other_logins_count_for_one_that_is_no_superuser(installation: Installation) -> None:
    with psycopg.connect(installation.url), psycopg.connect(installation.url), as_login(installation) as url:
        used = installation.look(PALIMPSEST_DATABASE_URL=url)["database_connections"]["what"].split()[0]
    assert int(used) >= 3


def test_a_login_that_may_not_take_on_the_role(installation: Installation) -> None:
    name, password = f"login_{uuid4().hex[:12]}", "only-for-this-test"
    statement = sql.SQL("create role {} login password {}").format(sql.Identifier(name), password)
    with psycopg.connect(installation.url, autocommit=True) as connection:
        connection.execute(statement)
    url = make_url(installation.url).set(username=name, password=password)
    try:
        faults = installation.faults(PALIMPSEST_DATABASE_URL=url.render_as_string(hide_password=False))
        assert faults == {"schema": "problem", "service_login": "problem"}
        installation.change(f"grant palimpsest_service to {name}")
        assert installation.faults(PALIMPSEST_DATABASE_URL=url.render_as_string(hide_password=False)) == {}
        installation.change(f"revoke palimpsest_service from {name}; alter role {name} noinherit")
        installation.change(f"grant palimpsest_service to {name}")
        assert installation.faults(PALIMPSEST_DATABASE_URL=url.render_as_string(hide_password=False)) == {}
    finally:
        installation.change(f"drop role {name}")


def test_nobody_there_to_work(installation: Installation) -> None:
    installation.change("update processes set seen_at = now() - interval '1 hour'")
    rows = installation.look()
    faults = {check for check, each in rows.items() if each["state"] == "problem"}
    assert faults == {"workers_checks", "workers_summaries", "beat"}
    assert rows["workers_summaries"]["mend"] == "palimpsest worker --queues summaries"
    alive(installation.url, "worker", "checks")
    assert set(installation.faults()) == {"workers_summaries", "beat"}


def test_processes_that_are_odd(installation: Installation) -> None:
    alive(installation.url, "worker", "checks", version="0.0.1", oldest=9_000)
    rows = installation.look()
    assert "0.0.1" in rows["releases"]["what"]
    assert " at a task for 9,0" in rows["stuck_task"]["what"]  # and what the look took


def test_work_that_is_left_behind(installation: Installation, tenant: Tenant) -> None:
    conversation = uuid4()
    installation.change(
        "insert into conversations (id, tenant_id, check_due_at) values (%s, %s, now() - interval '1 hour')",
        conversation,
        tenant.id,
    )
    for state, minutes in (("running", -1), ("dead", None)):
        installation.change(
            "insert into runs (id, tenant_id, conversation_id, trigger, state, queue, policy, lease_expires_at)"
            " values (%s, %s, %s, 'check', %s, 'checks', '{}', now() + make_interval(mins => %s))",
            *(uuid4(), tenant.id, conversation, state, minutes),
        )
    rows = installation.look()
    faults = {check: each["state"] for check, each in rows.items() if each["state"] != "ok"}
    assert faults == {"checks": "problem", "leases": "warning", "dead_runs": "warning"}
    assert "--retry-all" in rows["dead_runs"]["mend"]


def test_system_prompts_and_tools_that_are_over_a_threshold_by_themselves(
    installation: Installation, tenant: Tenant
) -> None:
    with psycopg.connect(installation.url) as connection:
        for unstored, policy in ((81_000, "{}"), (45_000, "{}"), (45_000, '{"input_token_budget": 0}')):
            connection.execute(
                "insert into conversations (id, tenant_id, unstored_tokens, policy) values (%s, %s, %s, %s)",
                (ids.new_id(), tenant.id, unstored, policy),
            )
    rows = installation.look()["fixed_tokens"]
    assert rows["state"] == "warning"
    assert "compaction_threshold_tokens in 1 conversations, over input_token_budget in 2" in rows["what"]


def test_a_redis_that_forgets(installation: Installation) -> None:
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert installation.faults(PALIMPSEST_BROKER_URL=server.url) == {"eviction": "problem"}
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "100kb")
        assert installation.faults(PALIMPSEST_BROKER_URL=server.url) == {"broker_memory": "problem"}
        client.config_set("maxmemory", "0")
        client.lpush("palimpsest:checks", "x", "y")
        assert "2 messages wait in checks" in installation.look(PALIMPSEST_BROKER_URL=server.url)["queues"]["what"]
        client.replicaof("127.0.0.1", "1")
        assert installation.faults(PALIMPSEST_BROKER_URL=server.url) == {"broker_primary": "problem"}


def test_a_pooler_is_seen(installation: Installation, pooled: Pooler) -> None:
    behind = {"PALIMPSEST_DATABASE_URL": pooled.url, "PALIMPSEST_DATABASE_ROLE": ""}
    assert installation.faults(**behind) == {"pooler": "warning"}
    # As a service that asks for its role there is refused.
    assert installation.faults(PALIMPSEST_DATABASE_URL=pooled.url) == {"pooler": "warning", "service_login": "problem"}


@pytest.mark.parametrize(("skew", "state"), [(0.0, "ok"), (1.9, "ok"), (2.1, "warning"), (9_000.0, "warning")])
def test_clocks_that_differ(skew: float, state: str) -> None:
    assert clock("database_clock", "the database's clock", skew).state == state


def test_a_summarizer_that_cannot_work(installation: Installation) -> None:
    assert installation.faults(PALIMPSEST_SUMMARIZER="anthropic") == {"summarizer": "problem"}
    assert installation.faults(PALIMPSEST_SUMMARIZER="none") == {"summarizer": "warning"}
    chosen = installation.look(PALIMPSEST_SUMMARIZER=None)["summarizer"]
    assert (chosen["state"], "because ANTHROPIC_API_KEY is not set" in chosen["what"]) == ("ok", True)
    with_key = installation.look(PALIMPSEST_SUMMARIZER=None, ANTHROPIC_API_KEY="sk-test")
    assert "claude" in with_key["summarizer"]["what"]
    assert with_key["breaker"]["state"] == "ok"


def test_the_summarizer_is_that_of_the_workers(installation: Installation) -> None:
    installation.change("update processes set summarizer = 'anthropic', model = 'claude-x' where kind = 'worker'")
    rows = installation.look(PALIMPSEST_SUMMARIZER="none")["summarizer"]
    assert (rows["state"], "'anthropic' with claude-x" in rows["what"]) == ("ok", True)
    alive(installation.url, "worker", "summaries", summarizer="none")
    rows = installation.look()["summarizer"]
    assert (rows["state"], "in different ways" in rows["what"]) == ("warning", True)
    installation.change("update processes set summarizer = 'none', model = null")
    rows = installation.look(PALIMPSEST_SUMMARIZER="extractive")["summarizer"]
    assert (rows["state"], rows["what"]) == ("warning", "the workers have no summarizer")


def test_a_circuit_that_is_open(
    installation: Installation, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackModel() as model:
        asked = {"PALIMPSEST_SUMMARIZER": "anthropic", "ANTHROPIC_API_KEY": "sk-x", "ANTHROPIC_BASE_URL": model.url}
        assert installation.faults(**asked) == {}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        settings = make_settings(broker_url=installation.settings.broker_url, summarizer="anthropic")
        breaker = CircuitBreaker.of(settings, "anthropic")
        breaker.report(breaker.admit(), "model_auth")
        assert installation.faults(**asked) == {"breaker": "warning"}
        assert installation.faults(**asked) == {"breaker": "warning"}
        assert model.requests == []
    # An operator's shell has not the workers' key.
    installation.change("update processes set summarizer = 'anthropic', model = 'claude-x' where kind = 'worker'")
    assert installation.faults() == {"breaker": "warning"}
    assert installation.faults("--model") == {"breaker": "warning", "model": "warning"}


def test_a_model_is_asked_once_where_that_is_wanted(installation: Installation) -> None:
    with LoopbackModel() as model:
        asked = {"PALIMPSEST_SUMMARIZER": "anthropic", "ANTHROPIC_API_KEY": "sk-x", "ANTHROPIC_BASE_URL": model.url}
        model.then(ok("ready"))
        assert "model" not in installation.look(**asked)
        rows = installation.look("--model", **asked)
        assert rows["model"]["state"] == "ok"
        assert len(model.requests) == 1
        model.then(status(401))
        rows = installation.look("--model", **asked)
        assert (rows["model"]["state"], "model_auth" in rows["model"]["what"]) == ("problem", True)
    assert installation.look("--model")["model"]["what"] == "no model is asked for summaries"


def test_a_server_of_chat_completions(installation: Installation) -> None:
    chosen = {"PALIMPSEST_SUMMARIZER": "openai"}
    without = installation.look(**chosen)["summarizer"]
    assert (without["state"], "OPENAI_API_KEY" in without["mend"]) == ("problem", True)
    assert "gpt-6-luna" in installation.look(**chosen, OPENAI_API_KEY="sk-x")["summarizer"]["what"]
    with LoopbackModel() as model:
        asked = chosen | {"OPENAI_BASE_URL": f"{model.url}/v1"}
        rows = installation.look("--model", **asked)
        assert (rows["summarizer"]["state"], rows["breaker"]["state"]) == ("warning", "ok")
        assert "PALIMPSEST_SUMMARIZER_MODEL" in rows["summarizer"]["mend"]
        asked |= {"PALIMPSEST_SUMMARIZER_MODEL": "ours"}
        model.then(choice({"content": "ready"}, usage=None), choice({"content": None}, "length"), status(404))
        rows = installation.look("--model", **asked)
        assert rows["summarizer"]["state"] == "ok"
        assert rows["model"]["what"] == "ours answers (tokens not told)"
        assert installation.look("--model", **asked)["model"]["state"] == "ok"  # it thought, and is there
        refused = installation.look("--model", **asked)["model"]
        assert (refused["state"], "OPENAI_BASE_URL" in refused["mend"]) == ("problem", True)


def test_an_api_is_asked_whether_it_is_ready(installation: Installation) -> None:
    with running_api(installation.settings) as api:
        assert installation.look(PALIMPSEST_URL=api.url)["api"]["state"] == "ok"
        installation.change("delete from processes where kind = 'beat'")
        rows = installation.look("--url", api.url)["api"]
        assert installation.look("--url", f"{api.url}/v1/")["api"]["state"] == rows["state"]
        elsewhere = installation.look("--url", f"{api.url}/docs")["api"]
        assert (elsewhere["state"], elsewhere["what"]) == ("problem", f"what answers at {api.url}/docs is not the API")
        assert (rows["state"], "beat missing" in rows["what"]) == ("warning", True)
        installation.change("update alembic_version set version_num = '0001'")
        assert installation.look("--url", api.url)["api"]["state"] == "problem"
    assert installation.look("--url", "http://127.0.0.1:1")["api"]["state"] == "problem"
    assert installation.look("--url", "http://[")["api"]["state"] == "problem"
