"""The commands about a whole installation: runs, figures, help, completion, and failures in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import make_url
from typer.main import get_command
from typer.testing import CliRunner, Result

from cli.local.embedded import free_port
from cli.local.processes import COMMAND
from cli.main import app
from compaction.recall.departures import Departure
from migrations.revisions import HEAD as REVISION
from runtime import ids
from runtime.release import VERSION
from store.operations.operator_actions import Operator
from store.recall import requests
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.processes import started
from tests.support.service.command_line import own_logging
from tests.support.service.in_process import Chat, Workers
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import call, exchanges, request, result
from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from uuid import UUID

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.service.running_api import Service

__all__ = ["own_logging"]

NOWHERE = "postgresql://127.0.0.1:1/palimpsest"


@pytest.fixture
def chat(make_settings: Callable[..., Settings], tenant: Tenant, broker_url: str) -> Iterator[Chat]:
    with Chat(make_settings(broker_url=broker_url), tenant.id) as made:
        yield made


def environment(settings: Settings) -> dict[str, str]:
    return {
        "PALIMPSEST_DATABASE_URL": settings.database_url.get_secret_value(),
        "PALIMPSEST_BROKER_URL": settings.broker_url.get_secret_value(),
        "PALIMPSEST_LOG_LEVEL": "error",
        "COLUMNS": "60",
    }


def run(chat: Chat, *arguments: str, code: int = 0, **more: str) -> Result:
    done = CliRunner().invoke(app, list(arguments), env=environment(chat.settings) | more)
    assert done.exit_code == code, done.output
    return done


def as_json(chat: Chat, *arguments: str) -> Any:
    done = run(chat, *arguments, "--json")
    assert done.stderr == ""
    return json.loads(done.stdout)


def summarized(chat: Chat) -> UUID:
    """A conversation with a summary that a model was paid for."""
    conversation = chat.begin({"input_token_budget": 0})
    chat.append(conversation, exchanges(12, 200))
    Workers(chat, StubSummarizer()).settle(conversation)
    return conversation


def cut(chat: Chat) -> UUID:
    """A conversation with an old tool result that was cut."""
    conversation = chat.begin()
    for number in range(2):
        chat.append(conversation, [request("look", 20), call(number), result(number, 1_500)])
    Workers(chat).settle(conversation)
    return conversation


def test_runs_are_listed_by_conversation_and_state(chat: Chat) -> None:
    first, second = summarized(chat), cut(chat)
    document = as_json(chat, "runs")
    assert {run["conversation_id"] for run in document} == {ids.external("conv", each) for each in (first, second)}
    for conversation in (first, second):
        name = ids.external("conv", conversation)
        own = [ids.external("run", run.id) for run in reversed(chat.runs(conversation))]
        assert [run["id"] for run in as_json(chat, "runs", "--conversation", name)] == own
    states = Counter(run["state"] for run in document)
    for state in ("committed", "skipped", "failed", "dead"):
        assert len(as_json(chat, "runs", "--state", state)) == states[state]
    assert as_json(chat, "runs", "--dead") == []
    assert run(chat, "runs", "--conversation", "conv_x", code=1).stderr.count("\n") == 1


def test_one_run_is_shown_in_full(chat: Chat) -> None:
    conversation = summarized(chat)
    row = next(run for run in chat.runs(conversation) if run.state == "committed")
    name = ids.external("run", row.id)
    document = as_json(chat, "runs", name)
    assert (document["id"], document["state"], document["tenant"]) == (name, "committed", "acme")
    (step,) = document["steps"]
    assert (step["name"], step["summarizer"], step["model"], step["model_calls"]) == (
        "summary",
        "stub",
        "stub-model",
        1,
    )
    assert document["policy"]["compaction_threshold_tokens"] == 4_000
    (listed,) = [line.split() for line in run(chat, "runs").stdout.splitlines() if name in line]
    assert listed[:3] == [name, "acme", "committed"]
    printed = run(chat, "runs", name).stdout
    assert "stub-model" in printed
    assert "1,000" in printed
    assert run(chat, "runs", "run_x", code=1).stderr == "palimpsest: there is no run 'run_x'\n"
    assert run(chat, "runs", ids.external("run", conversation), code=1).stdout == ""


@pytest.mark.usefixtures("within_a_day")
def test_stats_add_up(chat: Chat, database_url: str) -> None:
    summarized(chat)
    conversation = cut(chat)
    chat.append(conversation, [request("instead", 10)], replace_from=3)
    left = {seq: Departure("summary", None, 1) for seq in (1, 2)}
    who = Operator(chat.tenant_id, ids.new_id(), ids.new_id())
    answers: list[tuple[list[str], list[int], dict[int, Departure]]] = [
        (["m0-m2"], [0, 1, 2], left),
        (["m3"], [3], {}),
        ([], [], {}),
    ]
    for refs, seqs, of in answers:
        given = requests.RecalledPassages(conversation, refs, seqs, of, 7, 9)
        with chat.database.transaction(chat.tenant_id) as connection:
            asked = who._replace(request_id=ids.new_id())
            requests.insert_recalls(connection, asked, requests.Question("query", "what?", "api"), [given])
    other = make_tenant(database_url, "rival")
    with Chat(chat.settings, other.id) as rival:
        summarized(rival)
    document = as_json(chat, "stats", "--days", "2")
    assert (document["tenants"], document["conversations"], document["messages"]) == (2, 3, 24 + 7 + 24)
    assert document["tokens_stored"] - document["tokens_served"] == document["tokens_saved_per_call"] > 0
    mine = as_json(chat, "stats", "--tenant", "acme")
    theirs = as_json(chat, "stats", "--tenant", "rival")
    sums = ("conversations", "messages", "tokens_stored", "tokens_served", "tokens_cut", "tokens_saved_per_call")
    for name in sums:
        assert document[name] == mine[name] + theirs[name]
    stored = chat.query("select sum(tokens) as tokens from messages where superseded_at is null")
    assert mine["tokens_stored"] == stored[0].tokens
    assert mine["tokens_served"] == chat.query("select sum(context_tokens) as n from conversations")[0].n
    runs = {(each["state"], each["reason"]): each["runs"] for each in mine["runs"]}
    rows = chat.query("select state, reason, count(*) as runs from runs group by 1, 2")
    assert runs == {(row.state, row.reason): row.runs for row in rows}
    today, yesterday = document["days"]
    assert today["day"] > yesterday["day"]
    assert (today["model_calls"], today["model_input_tokens"], today["model_output_tokens"]) == (2, 2_000, 100)
    assert today["runs"] == sum(each["runs"] for each in mine["runs"] + theirs["runs"])
    assert not any(yesterday[name] for name in ("runs", "model_calls", "tokens_cut"))
    assert len(mine["days"]) == 30
    assert document["queues"] == {"checks": 0, "summaries": 0}
    assert document["recalls"] == {"recalls": 3, "found": 2, "missed": 1, "regret": {"summary": 2}}
    assert theirs["recalls"]["recalls"] == 0
    assert document["processes"] == []
    assert document["backlog"]["due_checks"] == 1
    assert run(chat, "stats", "--tenant", "nobody", code=1).stderr == "palimpsest: there is no tenant 'nobody'\n"
    printed = run(chat, "stats").stdout
    assert f"{document['tokens_served']:,}, {document['tokens_saved_per_call']:,} less" in printed
    assert "3 times, 1 what had left (summary 2)" in printed


def test_stats_do_without_redis(chat: Chat) -> None:
    done = run(chat, "stats", "--json", PALIMPSEST_BROKER_URL="redis://127.0.0.1:1/0")
    assert json.loads(done.stdout)["queues"] == {"checks": None, "summaries": None}
    assert "unknown" in run(chat, "stats", PALIMPSEST_BROKER_URL="redis://127.0.0.1:1/0").stdout


@pytest.mark.usefixtures("within_a_day")
def test_stats_of_a_tenant_by_the_api(service: Service) -> None:
    key = service.client.headers["authorization"].removeprefix("Bearer ")
    asked = {"PALIMPSEST_URL": service.api.url, "PALIMPSEST_KEY": key, "PALIMPSEST_DATABASE_URL": NOWHERE}
    document = json.loads(CliRunner().invoke(app, ["stats", "--json"], env=asked).stdout)
    assert document["usage"]["today"] == service.client.get("/v1/tenant/usage").json()["today"]
    assert document["services"]["database"] == "ok"
    printed = CliRunner().invoke(app, ["stats"], env=asked)
    assert printed.exit_code == 0
    assert f"from the API at {service.api.url}. " in printed.stdout
    assert "\nToday: 0 tokens" in printed.stdout
    # A tenant that is named is looked up: the API would tell of the key's own.
    named = CliRunner().invoke(app, ["stats", "--tenant", "acme"], env=asked)
    assert named.exit_code == 1
    assert named.stderr.startswith("palimpsest: the database cannot be reached")


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["runs", "run_" + "0" * 32],
        ["stats"],
        ["export", "conv_" + "0" * 32],
        ["keys", "list", "--tenant", "acme"],
        ["tenants", "list"],
        ["migrate"],
    ],
)
def test_a_database_that_cannot_be_reached_is_told_in_one_line(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments, env={"PALIMPSEST_DATABASE_URL": NOWHERE})
    assert done.exit_code == 1
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.output
    assert done.stderr.startswith("palimpsest: the database ")
    assert "127.0.0.1" in done.stderr
    assert "PALIMPSEST_DATABASE_URL" in done.stderr


def test_an_empty_database_is_told_in_one_line(empty_database_url: str) -> None:
    for arguments in (["runs"], ["stats"], ["tenants", "list"]):
        done = CliRunner().invoke(app, arguments, env={"PALIMPSEST_DATABASE_URL": empty_database_url})
        assert (done.exit_code, done.stdout) == (1, "")
        assert "run `palimpsest migrate`" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_login_that_may_not_is_told_in_one_line(chat: Chat) -> None:
    # Whoever may nothing but connect.
    url = make_url(chat.settings.database_url.get_secret_value())
    limited = url.update_query_dict({"options": "-c role=pg_read_server_files"})
    done = run(chat, "runs", code=1, PALIMPSEST_DATABASE_URL=limited.render_as_string(hide_password=False))
    assert done.stderr.startswith("palimpsest: the database's login may not do this")
    assert done.stderr.count("\n") == 1
    done = run(chat, "migrate", code=1, PALIMPSEST_DATABASE_URL=limited.render_as_string(hide_password=False))
    assert "could not be migrated: the database's login may not do this" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("part", "setting"), [("api", "PALIMPSEST_PORT"), ("gateway", "PALIMPSEST_GATEWAY_PORT")])
def test_a_server_that_cannot_listen_ends_before_it_says_that_it_started(
    chat: Chat, tmp_path: Path, part: str, setting: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, (tmp_path / "log").open("wb") as log:
        port = taken.getsockname()[1]
        command = [*COMMAND, part, "--port", str(port)]
        own = environment(chat.settings) | {"PALIMPSEST_LOG_LEVEL": "info"}
        assert started(command, os.environ | own, log).wait(60) == 1
    assert (tmp_path / "log").read_text() == (
        f"palimpsest: cannot listen on port {port} of 127.0.0.1: Address already in use; "
        f"set another one with --port or {setting}\n"
    )


@pytest.mark.parametrize("part", ["api", "gateway"])
def test_a_server_without_its_stores_names_them_and_their_settings(chat: Chat, tmp_path: Path, part: str) -> None:
    own = environment(chat.settings) | {
        "PALIMPSEST_DATABASE_URL": "postgresql://me:secret@127.0.0.1:1/chats",
        "PALIMPSEST_BROKER_URL": "redis://:secret@127.0.0.1:2/0",
        "PALIMPSEST_LOG_LEVEL": "info",
    }
    with (tmp_path / "log").open("wb") as log:
        server = started([*COMMAND, part, "--port", str(free_port())], os.environ | own, log)

        def lines() -> dict[str, dict[str, str]]:
            text = (tmp_path / "log").read_text()
            assert "secret" not in text
            events = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
            return {event["event"]: event for event in events}

        eventually(lambda: {"database.unreachable", "broker.unreachable"} <= set(lines()))
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    database, broker = (lines()[f"{store}.unreachable"] for store in ("database", "broker"))
    assert (database["address"], database["setting"]) == ("127.0.0.1:1/chats", "PALIMPSEST_DATABASE_URL")
    assert (broker["address"], broker["setting"]) == ("127.0.0.1:2/0", "PALIMPSEST_BROKER_URL")


def test_a_demo_on_a_wrong_address_is_told_in_one_line() -> None:
    done = CliRunner().invoke(app, ["demo", "--url", "http://127.0.0.1:1", "--key", "key_x"])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.output
    assert "the API at http://127.0.0.1:1 cannot be reached (--url or PALIMPSEST_URL)" in done.stderr
    done = CliRunner().invoke(app, ["demo", "--url", "127.0.0.1:1", "--key", "key_x"])
    assert (done.exit_code, done.stdout) == (2, "")


def test_stats_and_doctor_name_the_addresses_that_they_looked_at(chat: Chat) -> None:
    url = make_url(chat.settings.database_url.get_secret_value())
    told = " ".join(run(chat, "stats").stdout.split())
    assert f"the database at {url.host}:{url.port}/{url.database} (PALIMPSEST_DATABASE_URL)" in told
    found = CliRunner().invoke(app, ["doctor"], env=environment(chat.settings)).stdout
    assert f"answers at {url.host}:{url.port}/{url.database} (PALIMPSEST_DATABASE_URL)" in found
    assert "no API was asked" in found


def test_an_export_names_a_tenant_that_is_not_there(chat: Chat) -> None:
    done = run(chat, "export", ids.external("conv", cut(chat)), "--tenant", "nobody", code=1)
    assert done.stderr == "palimpsest: there is no tenant 'nobody'\n"


@pytest.mark.parametrize("name", ["prod [/eu]", "[red]prod", ":smile:", "\x1b]0;prod\x07\x9b2J"])
def test_names_are_shown_as_they_are(chat: Chat, name: str) -> None:
    text = "".join(each for each in name if each.isprintable())
    run(chat, "keys", "create", "--tenant", name, "--name", name)
    for arguments in (["keys", "list", "--tenant", name], ["tenants", "list"]):
        finished = run(chat, *arguments, COLUMNS="200").stdout
        assert text in finished
        assert not {"\x1b", "\x07", "\x9b"} & set(finished)
    finished = run(chat, "runs", "--tenant", f"no {name}", code=1).stderr
    assert not {"\x1b", "\x07", "\x9b"} & set(finished)


@pytest.mark.parametrize("name", ["", "  "])
def test_a_name_that_is_blank_makes_no_tenant(chat: Chat, name: str) -> None:
    # As of a variable of a script that is not set.
    done = run(chat, "keys", "create", "--tenant", name, code=1)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert done.stderr.endswith(": a tenant's name is not blank\n")


class Page(QuietHandler):
    """Another service: answers with a page, whatever is asked."""

    def do_GET(self) -> None:
        self.answer(200, b"<!doctype html>")


@pytest.mark.parametrize("command", ["snapshots", "inspect"])
def test_another_services_answer_is_told_in_one_line(command: str) -> None:
    with ThreadedServer(Page) as server:
        done = CliRunner().invoke(app, [command, "conv_" + "0" * 32, "--url", server.url, "--key", "k"])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.output
    assert done.stderr.startswith("palimpsest: this is no answer of the API: ")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PALIMPSEST_GATEWAY_UPSTREAMS", "{bad", "gateway_upstreams: Input should be a valid dictionary"),
        ("PALIMPSEST_SUMMARIZER_PRICES", "cheap", "summarizer_prices: Input should be a valid dictionary"),
        ("PALIMPSEST_SUMMARIZER_MODELS", "[claude", "summarizer_models: Input should be a valid list"),
        ("PALIMPSEST_POLICY", "{bad", "policy: Input should be a valid dictionary"),
        ("ANTHROPIC_BASE_URL", "api.example", "ANTHROPIC_BASE_URL: Value error, expected an http or https URL"),
        ("OPENAI_BASE_URL", "ftp://api.example", "OPENAI_BASE_URL: Value error, expected an http or https URL"),
        ("PALIMPSEST_PORT", "70000", "port: Input should be less than or equal to 65535"),
        ("PALIMPSEST_DATABASE_POOL_SIZE", "0", "database_pool_size: Input should be greater than or equal to 1"),
        ("PALIMPSEST_SWEEP_INTERVAL_SECONDS", "0", "sweep_interval_seconds: Input should be greater than 0"),
        ("PALIMPSEST_MAX_ATTEMPTS", "0", "max_attempts: Input should be greater than or equal to 1"),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_one_line(name: str, value: str, told: str) -> None:
    done = CliRunner().invoke(app, ["tenants", "list"], env={name: value, "PALIMPSEST_DATABASE_URL": NOWHERE})
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
    assert done.stderr.startswith(f"palimpsest: {told}")


def test_a_url_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text('[{"role": "user", "content": "Hello."}]')
    for command in (["snapshots", "conv_" + "0" * 32], ["stats"], ["demo"], ["replay", str(file)]):
        done = CliRunner().invoke(app, [*command, "--url", "http://localhost:80x", "--key", "k"])
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.output
        assert done.stderr.startswith("palimpsest: the API's URL cannot be read: ")


@pytest.mark.parametrize("revision", ["9999", "nosuch", "+1", "base", "head:head", "0001_initial_"])
def test_a_revision_that_is_not_there_is_told_in_one_line(chat: Chat, revision: str) -> None:
    done = run(chat, "migrate", revision, code=2)
    assert done.stdout == ""
    assert done.stderr == (
        f"palimpsest: there is no revision {revision!r}: this release has {REVISION}. `palimpsest migrate` "
        "alone brings the schema to the newest\n"
    )


def migrated(url: str, *arguments: str, code: int = 0, **environment: str) -> Result:
    done = CliRunner().invoke(app, ["migrate", *arguments], env={"PALIMPSEST_DATABASE_URL": url, **environment})
    assert done.exit_code == code, done.output
    return done


def test_a_schema_of_a_newer_release_lets_this_one_start(database_url: str) -> None:
    # Whoever goes back to the release before has its migration come before its services.
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '9999_later'")
    login = f"login_{ids.new_id().hex}"
    done = migrated(database_url, "--service-login", login, PALIMPSEST_SERVICE_PASSWORD="a-password-of-its-own")
    assert done.stderr.startswith(
        "palimpsest: the schema is at revision '9999_later', of a newer release: this one knows"
    )
    assert done.stdout.startswith("The schema is at revision 9999_later: nothing to do.\nThe login ")
    assert "'9999_later'" in migrated(database_url, REVISION, code=1).stderr


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"{VERSION}\n")


def test_impossible_settings_end_with_2() -> None:
    done = CliRunner().invoke(app, ["stats"], env={"PALIMPSEST_PORT": "none"})
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("palimpsest: port: ")


@pytest.mark.parametrize(
    "arguments",
    [["keys", "list", "--tenant", "t"], ["api"], ["worker"], ["beat"], ["migrate"], ["runs"], ["tenants", "list"]],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize(
    "url", ["hello", "mysql://localhost/x", "postgresql://localhost:port/x", "postgresql://localhost:99999999/x"]
)
def test_a_database_url_that_is_none_is_told_in_one_line(arguments: list[str], url: str) -> None:
    done = CliRunner().invoke(app, arguments, env={"PALIMPSEST_DATABASE_URL": url})
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
    assert done.stderr.startswith("palimpsest: database_url: ")
    assert url not in done.stderr


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that call it."""
    command = command or get_command(app)
    found: Mapping[str, Any] = getattr(command, "commands", {})
    if path and not found:
        yield path, command
    for name, inner in found.items():
        yield from commands(inner, (*path, name))


def test_every_command_says_what_it_does_and_stands_in_a_panel() -> None:
    for path, command in commands():
        assert command.help, path
        assert len(path) > 1 or command.rich_help_panel, path
        for parameter in command.params:
            assert getattr(parameter, "help", None), (path, parameter.name)


def test_whatever_prints_a_table_prints_json() -> None:
    tables = {path for path, command in commands() if any("--json" in parameter.opts for parameter in command.params)}
    own = {("inspect",), ("snapshots",), ("diff",), ("restore",), ("runs",), ("stats",), ("doctor",), ("import",)}
    assert own | {("replay",), ("demo",), ("keys", "list"), ("tenants", "list"), ("tenants", "limits")} <= tables


@pytest.mark.server
def test_completion_can_be_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli.main", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert "complete" in done.stdout


@pytest.mark.server
def test_commands_complete_themselves() -> None:
    done = subprocess.run(
        ["palimpsest"],
        executable=f"{sys.prefix}/bin/palimpsest",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "_PALIMPSEST_COMPLETE": "complete_bash", "COMP_WORDS": "palimpsest d", "COMP_CWORD": "1"},
    )
    assert done.stdout.split() == ["demo", "diff", "doctor"]


def test_a_reader_that_has_had_enough_is_no_failure_to_tell(chat: Chat) -> None:
    conversation = ids.external("conv", summarized(chat))
    script = f"{sys.executable} -P -m cli.main export {conversation} | head -c 10"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        check=True,
        env={**os.environ, **environment(chat.settings)},
    )
    assert (len(done.stdout), done.stderr) == (10, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("command", "to", "told"),
    [
        ("keys --help", "> /dev/full", b"palimpsest: the output cannot be written: No space left on device\n"),
        ("--version", "> /dev/full", b"palimpsest: the output cannot be written: No space left on device\n"),
        ("--version", "> >(true)", b""),
    ],
)
def test_an_output_that_cannot_be_written_is_told_in_one_line(
    command: str, to: str, told: bytes, unbuffered: str
) -> None:
    # What nobody reads any more is written into by the time that reader is gone.
    script = f"exec {to}; wait $!; {sys.executable} -P -m cli.main {command}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.returncode, done.stderr) == (1, told)
