"""The commands about one conversation: its life, its versions, what changed, and the way back."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from cli.client.client import ServiceClient
from cli.local.processes import COMMAND
from cli.main import app
from cli.tables import columns, print_table
from tests.api.doors.test_problems import key_with
from tests.support import talk
from tests.support.eventually import eventually
from tests.support.processes import environment
from tests.support.service.command_line import heeding_ctrl_c, own_logging
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.service.running_api import Service

__all__ = ["heeding_ctrl_c", "own_logging"]

POLICY = {
    "input_token_budget": 400,
    "tool_result_retention_chars": 100,
    "compaction_threshold_tokens": 900,
    "min_savings_tokens": 50,
    "protected_tail_messages": 2,
}


class Told(NamedTuple):
    """A conversation that was compacted several times, and a key to it."""

    id: str
    path: str
    key: str
    head: int


@pytest.fixture(scope="module")
def key(service: Service) -> str:
    found: str = service.client.headers["authorization"].removeprefix("Bearer ")
    return found


@pytest.fixture(scope="module")
def told(service: Service, key: str) -> Told:
    return compacted(service, key)


@pytest.fixture
def own(service: Service, key: str) -> Told:
    """One that a test may change."""
    return compacted(service, key)


def compacted(service: Service, key: str) -> Told:
    path = service.conversation(policy=POLICY, user_ref="anna")
    service.append(path, talk.request("first", 100))
    for number in range(6):
        service.append(path, talk.call(number), talk.result(number, 150), talk.answer(f"answer {number}", 80))
        service.append(path, talk.request(f"request {number}", 40))
        work(service.settings, path)
    head = service.client.get(path).json()["head_version"]
    assert head >= 3
    return Told(path.rpartition("/")[2], path, key, head)


def run(service: Service, told: Told, *arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    environment = {"PALIMPSEST_URL": service.api.url, "PALIMPSEST_KEY": told.key, "COLUMNS": "60"}
    result = CliRunner().invoke(app, list(arguments), env=environment, input=stdin)
    assert result.exit_code == code, result.output
    return result


def as_json(service: Service, told: Told, *arguments: str) -> Any:
    result = run(service, told, *arguments, "--json")
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_snapshots_are_listed_and_the_head_has_a_star(service: Service, told: Told) -> None:
    document = as_json(service, told, "snapshots", told.id)
    assert document["head_version"] == told.head
    assert [each["version"] for each in document["snapshots"]] == list(range(1, told.head + 1))
    printed = run(service, told, "snapshots", told.id).stdout
    assert [line.split()[1] for line in printed.splitlines() if line.lstrip().startswith("*")] == [str(told.head)]


def test_a_narrow_terminal_gets_every_id_and_number_whole(service: Service, told: Told) -> None:
    document = as_json(service, told, "inspect", told.id)
    printed = run(service, told, "inspect", told.id).stdout + run(service, told, "snapshots", told.id).stdout
    rows = {tuple(line.split()) for line in printed.splitlines()}
    for each in document["runs"]:
        (row,) = [row for row in rows if each["id"] in row]
        assert {each["trigger"], each["state"], f"{each['tokens_before']:,}", f"{each['tokens_after']:,}"} <= set(row)
    for each in document["snapshots"]:
        assert any(
            {f"{each['version']}", f"{each['tokens']:,}"} <= {*row} and each["step"] in " ".join(row) for row in rows
        ), each
    assert "…" not in printed
    assert all(line == line.rstrip() for line in printed.splitlines() if "committed" in line)


def test_a_diff_tells_what_each_message_became(service: Service, told: Told) -> None:
    document = as_json(service, told, "diff", told.id, "0")
    head = service.client.get(f"{told.path}/snapshots/{told.head}").json()
    assert (document["from"], document["to"]) == (0, told.head)
    assert document["messages_before"] == head["covers_through"] + 1
    assert document["messages_after"] == head["message_count"]
    # A snapshot's own figure has what the API wraps messages in as well.
    assert document["tokens_before"] > head["tokens"] >= document["tokens_after"] > head["tokens"] - 100
    became = {}
    for section in document["sections"]:
        if section["first_seq"] is not None:
            for seq in range(section["first_seq"], section["last_seq"] + 1):
                became[seq] = section
    assert set(became) == set(range(head["covers_through"] + 1))
    for span in head["coverage"]:
        for seq in range(span["first_seq"], span["last_seq"] + 1):
            gone = became[seq]["kind"] == "gone"
            assert gone == (span["fate"] in {"summarized", "dropped"})
            assert not gone or span["fate"] in became[seq]["fates"]
            assert span["fate"] != "truncated" or became[seq]["kind"] == "changed"
    assert "".join(piece["text"] for piece in document["summary"]) == head["summary"]
    assert all(head["summary"] not in piece["text"] for section in document["sections"] for piece in section["pieces"])


def test_a_diff_between_two_versions_is_readable(service: Service, told: Told) -> None:
    first = as_json(service, told, "diff", told.id, "1", "2")
    back = as_json(service, told, "diff", told.id, "2", "1")
    assert (first["tokens_before"], first["tokens_after"]) == (back["tokens_after"], back["tokens_before"])
    assert as_json(service, told, "diff", told.id, "2", "2")["sections"][0]["kind"] == "same"
    printed = run(service, told, "diff", told.id, "0", str(told.head)).stdout
    assert printed.startswith(f"no compaction → version {told.head}: ")
    assert "summarized" in printed
    assert "\nSummary\n" in printed
    printed = run(service, told, "diff", told.id, str(told.head), "1").stdout
    assert "[-" in printed


def test_a_restore_shows_first_what_it_changes(service: Service, own: Told) -> None:
    printed = run(service, own, "restore", own.id, "1", "--yes").stdout
    assert printed.startswith(f"version {own.head} → version 1: ")
    assert f"The head is version {own.head + 1}, equal to version 1" in printed
    restored = service.client.get(f"{own.path}/snapshots/{own.head + 1}").json()
    assert restored["messages"] == service.client.get(f"{own.path}/snapshots/1").json()["messages"]
    done = as_json(service, own, "restore", own.id, "0", "--yes")
    assert done["conversation"]["head_version"] == own.head + 2
    assert (done["changed"]["from"], done["changed"]["to"]) == (own.head + 1, 0)


def test_a_restore_asks_before_it_changes_anything(service: Service, own: Told) -> None:
    for reply, code in (("n\n", 1), ("\n", 1), (None, 1), ("y\n", 0)):
        answered = run(service, own, "restore", own.id, "1", code=code, stdin=reply)
        assert (service.client.get(own.path).json()["head_version"] == own.head) == bool(code)
        assert "Go back to version 1?" in answered.stderr
        assert ("--yes" in answered.stderr) == (reply is None)


def test_what_is_not_there_is_told_in_one_line(service: Service, told: Told) -> None:
    unknown = "there is no conversation conv_x"
    with ServiceClient(service.api.url, told.key) as client:
        newest = client.snapshots(told.id)[-1].version
    version = f"there is no version 99; the newest is {newest}"
    for arguments, reason in (
        (("inspect", "conv_x"), unknown),
        (("snapshots", "conv_x"), unknown),
        (("bisect", "conv_x", "--text", "any"), unknown),
        (("recall", "conv_x", "any"), unknown),
        (("erase", "conv_x", "--yes"), unknown),
        (("diff", "conv_x", "0", "1"), unknown),
        (("diff", told.id, "0", "99"), version),
        (("diff", told.id, "98"), version.replace("99", "98")),
        (("restore", told.id, "99", "--yes"), version),
    ):
        result = run(service, told, *arguments, code=1)
        assert (result.stdout, result.stderr) == ("", f"palimpsest: {reason}\n")


def test_a_key_that_is_not_taken_is_told_with_what_sets_it(service: Service, told: Told) -> None:
    result = run(service, told, "inspect", told.id, "--key", "key_wrong", code=1)
    reason = f"palimpsest: the API at {service.api.url} does not take this key: correct --key or PALIMPSEST_KEY"
    assert result.stderr.startswith(reason)


def test_an_api_that_cannot_be_reached_is_told_in_one_line(service: Service, told: Told) -> None:
    for command in (["inspect"], ["restore", "1"]):
        result = run(service, told, command[0], told.id, *command[1:], "--url", "http://127.0.0.1:1", code=1)
        assert result.stdout == ""
        assert result.stderr.startswith(
            "palimpsest: the API at http://127.0.0.1:1 cannot be reached (--url or PALIMPSEST_URL): "
        )
        assert result.stderr.count("\n") == 1


def test_a_key_is_taken_from_a_file_and_one_that_no_header_may_have_is_told(service: Service, key: str) -> None:
    def listed(key: str) -> Result:
        return CliRunner().invoke(app, ["conversations", "--url", service.api.url, "--key", key])

    assert listed(f"{key}\n").exit_code == 0
    for wrong in ("key_\u2026", f"{key}\r\nx-other: 1"):
        refused = listed(wrong)
        assert refused.exit_code == 2
        assert "it has characters" in refused.output
        assert key not in refused.output


def test_bad_usage_ends_with_2() -> None:
    clear = {"PALIMPSEST_URL": "", "PALIMPSEST_KEY": ""}
    for arguments in (
        ["inspect"],
        ["inspect", "conv_x"],
        ["inspect", "conv_x", "--url", "127.0.0.1:8080", "--key", "any"],
        ["diff", "conv_x", "one"],
        ["diff", "conv_x", "-1"],
        ["restore", "conv_x"],
        ["import", "there-is-no-such-file"],
        ["runs", "--state", "odd"],
        ["runs", "--state", "failed", "--dead"],
        ["stats", "--days", "0"],
        ["no-such-command"],
    ):
        result = CliRunner().invoke(app, arguments, env=clear)
        assert (result.exit_code, result.stdout) == (2, ""), arguments


def test_inspect_links_to_the_plot(service: Service, told: Told) -> None:
    printed = run(service, told, "inspect", told.id).stdout
    assert f"{service.api.url}/console/conversations/{told.id}" in printed.replace("\n", "")
    document = as_json(service, told, "inspect", told.id)
    assert document["conversation"]["id"] == told.id
    assert len(document["history"]) >= 24


def test_conversations_are_listed_and_filtered(service: Service, key: str) -> None:
    paths = [service.conversation(user_ref=f"ben-{number % 2}", external_id=f"list-{number}") for number in range(4)]
    identifiers = [path.rpartition("/")[2] for path in paths]
    own = Told(identifiers[0], paths[0], key, 0)

    def listed(*arguments: str) -> list[str]:
        return [each["id"] for each in as_json(service, own, "conversations", *arguments)["conversations"]]

    assert listed("--limit", "4") == identifiers[::-1]
    assert listed("--user", "ben-1") == [identifiers[3], identifiers[1]]
    assert listed("--external-id", "list-2") == [identifiers[2]]
    assert listed("--user", "ben-1", "--since", "2199-01-01") == []
    assert listed("--user", "ben-1", "--until", "2020-01-01") == []
    assert listed("--user", "ben-1", "--since", "2020-01-01", "--until", "2199-01-01") == listed("--user", "ben-1")
    assert listed("--user", "ben-1", "--compacted") == []
    assert listed("--user", "ben-1", "--not-compacted") == listed("--user", "ben-1")
    printed = run(service, own, "conversations", "--user", "ben-0").stdout
    assert all(word in printed for word in (identifiers[0], identifiers[2], "list-0", "ben-0"))


@pytest.mark.parametrize(("reply", "code"), [("n\n", 1), (None, 1), ("y\n", 0)])
def test_an_erasure_says_how_much_and_asks(service: Service, key: str, reply: str | None, code: int) -> None:
    path = service.conversation(user_ref="carl")
    service.append(path, talk.request("gone", 10), talk.answer("soon", 10))
    own = Told(path.rpartition("/")[2], path, key, 0)
    answered = run(service, own, "erase", own.id, code=code, stdin=reply)
    assert f"Erase {own.id} with its 2 messages, for good? [y/N]" in answered.stderr
    assert service.client.get(path).status_code == (200 if code else 404)
    if code == 0:
        assert f"{own.id} is erased" in answered.stdout


def test_a_users_conversations_are_erased_together(service: Service, key: str) -> None:
    paths = [service.conversation(user_ref="dora/../dora") for _ in range(3)]
    own = Told(paths[0].rpartition("/")[2], paths[0], key, 0)
    assert as_json(service, own, "erase", "--user", "dora/../dora", "--yes") == {"conversations": 3}
    assert {service.client.get(path).status_code for path in paths} == {404}
    run(service, own, "erase", code=2)
    run(service, own, "erase", own.id, "--user", "dora", code=2)


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_an_erasure_that_is_broken_off_goes_on_and_the_command_says_so(
    service: Service, key: str, tmp_path: Path
) -> None:
    path, log = service.conversation(user_ref="emil"), tmp_path / "log"
    held = "select pg_advisory_xact_lock(hashtextextended('palimpsest.erasures' || %s::text, 0))"
    here = "select oid from pg_database where datname = current_database()"
    waits = f"select from pg_locks where locktype = 'advisory' and not granted and database = ({here})"
    with psycopg.connect(service.database_url) as connection:
        connection.execute(held, (service.tenant_id,))
        command = [*COMMAND, "erase", "--user", "emil", "--yes"]
        given = environment(PALIMPSEST_URL=service.api.url, PALIMPSEST_KEY=key)
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=given, stdout=output, stderr=output)
        eventually(lambda: connection.execute(waits).fetchone() is not None)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT, log.read_text()
        assert "does not stop the service" in log.read_text()
    eventually(lambda: service.client.get(path).status_code == 404)


def test_a_terminal_that_is_too_narrow_gets_a_row_as_lines() -> None:
    table = columns(("id", "what it was that happened", "note"), numbers=("id",), title="Things")
    table.add_row("conv_0197f2c08d1e7b1fa3c5d2e4f6a80911", "a thing that takes forty characters or so", "")
    for width, is_wide in ((80, False), (200, True)):
        console = Console(force_terminal=True, width=width, file=io.StringIO(), no_color=True)
        print_table(table, console)
        assert isinstance(console.file, io.StringIO)
        lines = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()
        assert max(map(len, lines)) <= width
        assert any("conv_0197f2c08d1e7b1fa3c5d2e4f6a80911" in line for line in lines)
        assert any("so" in line and "conv_" in line for line in lines) == is_wide


def test_what_took_a_text_out_is_told(service: Service, told: Told) -> None:
    gone = service.client.get(f"{told.path}/messages/3").json()["content"]
    document = as_json(service, told, "bisect", told.id, "--text", gone)
    assert (document["seqs"], document["in_context"]) == ([3], False)
    loss = document["loss"]
    printed = " ".join(run(service, told, "bisect", told.id, "--text", gone).stdout.split())
    assert f"first missing in version {loss['version']} (version {loss['parent_version']} had it)" in printed
    assert f"made by step {loss['step']} of {loss['run_id']}" in printed
    assert "m3 summarized" in printed
    newest = service.client.get(f"{told.path}/messages/{service.client.get(told.path).json()['last_seq']}").json()
    assert "No snapshot took it out" in run(service, told, "bisect", told.id, "--text", newest["content"]).stdout
    never = run(service, told, "bisect", told.id, "--text", "zebra crossing", code=1).stdout
    assert "No message that is in force has this text" in never


def test_what_was_said_is_given_back(service: Service, told: Told) -> None:
    # The URL of the calls is as good.
    service_options = ["--url", f"{service.api.url}/v1", "--key", told.key]
    found = CliRunner().invoke(app, ["recall", told.id, "lorem ipsum", "--max-tokens", "300", *service_options])
    assert found.exit_code == 0, found.output
    assert re.search(r"m\d+\.0 \d{4}-\d\d-\d\d", found.output)
    one = CliRunner().invoke(app, ["recall", told.id, "--ref", "m0", "--json", *service_options])
    ((passage),) = json.loads(one.output)["passages"]
    original = service.client.get(f"{told.path}/messages/0").json()["content"]
    assert passage["parts"][0]["text"] == original
    assert "conversations" not in json.loads(one.output)
    assert CliRunner().invoke(app, ["recall", told.id, "--pattern", "zebra", *service_options]).exit_code == 1
    assert CliRunner().invoke(app, ["recall", told.id, "--pattern", "(", *service_options]).exit_code == 1
    assert CliRunner().invoke(app, ["recall", told.id, "a", "--ref", "m1", *service_options]).exit_code == 2


def test_what_was_said_to_a_user_is_given_back(service: Service, told: Told) -> None:
    paths = [service.conversation(user_ref="edda/2") for _ in range(2)]
    for path in paths:
        service.append(path, {"role": "user", "content": f"The garage of {path} opens with 4711."})
    options = ["--url", service.api.url, "--key"]

    def recall(key: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["recall", *arguments, *options, key])

    key = key_with(service, ["recall:user"])
    found = recall(key, "--user", "edda/2", "garage")
    assert found.exit_code == 0, found.output
    assert "2 passages of 2 messages in 2 conversations" in found.output
    passages = json.loads(recall(key, "garage", "--user", "edda/2", "--json").output)["passages"]
    assert {passage["ref"] for passage in passages} == {f"{path.rpartition('/')[2]}:m0" for path in paths}
    (one,) = json.loads(recall(key, "--user", "edda/2", "--ref", passages[0]["ref"], "--json").output)["passages"]
    assert one["parts"] == passages[0]["parts"]
    assert recall(key, "--user", "edda", "garage").exit_code == 1
    assert recall(told.key, "--user", "edda/2", "garage").exit_code == 1
    for wrong in ([], ["--user", "edda"], [told.id, "garage", "--user", "edda"], ["--pattern", "a"]):
        assert recall(key, *wrong).exit_code == 2, wrong
