"""What the database does by itself: the product's own calls, made by pgbench, or by asyncpg where there is none.

The statement and its arguments are taken from `store.hot_path` as it runs, so that the reference is always the same
work as what it is compared with.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actions.input.turn_bodies import read_turn
from bench.data import UUID_START, conversation_id
from bench.machine import cpu_seconds
from bench.measure import Sample
from cli.local.installations import postgres_installations
from compaction.policy import Policy
from runtime import ids
from store import hot_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from bench.servers import Servers

CLIENTS: Final = 8
"""Connections, as many as the API's pool has."""
SERVICE: Final = "palimpsest_service"
RESULT_CAP: Final = 40_000
WARM_SECONDS: Final = 1
"""Seconds that count nothing: eight new backends compile the function and plan what is in it five times over, which the
connections of the API have behind them."""
_DRIVER: Final = Path(__file__).with_name("driver.py")
_RATE: Final = re.compile(r"^tps = ([\d.]+) \(without initial", re.MULTILINE)
_CALLS: Final = re.compile(r"actually processed: (\d+)")
_CONNECTING: Final = re.compile(r"^initial connection time = ([\d.]+) ms", re.MULTILINE)
"""Part of the seconds that progress is told after, and no part of what the rate is reckoned with."""
_PROGRESS: Final = re.compile(r"^progress: ([\d.]+) s, ([\d.]+) tps")
_KEY: Final = "a key"
_DIGEST: Final = "0123456789ab"
"""Stands for a policy, as long as a real one: pgbench takes no empty variable."""


class Statement(NamedTuple):
    """A statement and its arguments; the conversation's id and the idempotency key differ in every call."""

    query: str
    arguments: Sequence[Any]
    conversation: int
    """Index of the argument that is the conversation's id."""
    key: int | None
    """Index of the argument that is the idempotency key."""


class CallError(Exception):
    """The reference did not run."""


class _Recorder:
    """Stands where the pool of the hot calls stands, and keeps what it would have sent."""

    def __init__(self, row: Any) -> None:
        self._row = row
        self.query = ""
        self.arguments: tuple[Any, ...] = ()

    async def fetchrow(self, query: str, *arguments: Any) -> Any:
        """Keep a statement."""
        self.query, self.arguments = query, arguments
        return self._row

    write = fetchrow

    async def read_together(self, _: UUID, query: str, *arguments: Any) -> Any:
        """Keep it as one that goes alone."""
        return await self.fetchrow(query, *arguments)

    async def write_together(self, _: UUID, query: str, *arguments: Any) -> Any:
        """Keep it as one that goes alone."""
        return await self.fetchrow(query, *arguments)


def append_statement(tenant_id: UUID, body: str) -> Statement:
    """Return what the API sends for a turn with this body and a key."""
    recorder, turn, conversation = _Recorder(("appended", 0, 0, 0, False)), read_turn(body.encode()), conversation_id(0)
    asyncio.run(
        hot_path.append_turn(
            recorder,
            tenant_id=tenant_id,
            conversation_id=conversation,
            request_id=ids.new_id(),
            contents=turn.contents,
            facts=turn.facts,
            usage=turn.usage,
            result_cap=RESULT_CAP,
            expected_seq=turn.expected_seq,
            idempotency_key=_KEY,
            body_hash=bytes(32),
        )
    )
    return _statement(recorder, conversation)


def context_statement(tenant_id: UUID) -> Statement:
    """Return what the API sends to read a context."""
    recorder, conversation = _Recorder({"etag": None}), conversation_id(0)
    asyncio.run(
        hot_path.read_context(
            recorder,
            tenant_id=tenant_id,
            conversation_id=conversation,
            etag=None,
            policy=Policy(),
            policy_digest=_DIGEST,
        )
    )
    return _statement(recorder, conversation)


def find_pgbench() -> Path | None:
    """Return pgbench, of the server's own installation if that has one."""
    for installation in postgres_installations():
        if os.access(installation.directory / "pgbench", os.X_OK):
            return installation.directory / "pgbench"
    program = shutil.which("pgbench")
    return Path(program) if program else None


def call(
    servers: Servers,
    statement: Statement,
    numbers: tuple[int, int],
    seconds: float,
    *,
    pgbench: Path | None,
    role: str | None = SERVICE,
) -> Sample:
    """Make the call over eight connections from the core of the API; return calls a second and CPU time a call.

    `numbers` are the first conversation's number and how many there are.
    """
    with servers.cores.on(servers.cores.measured):
        run = _pgbench if pgbench else _driver
        rate, used = run(servers, statement, numbers, seconds, pgbench, role)
    return Sample(rate, {"Postgres CPU µs": 1e6 * used})


def _statement(recorder: _Recorder, conversation: UUID) -> Statement:
    arguments = recorder.arguments
    key = arguments.index(_KEY) if _KEY in arguments else None
    return Statement(recorder.query, arguments, arguments.index(conversation), key)


def _pgbench(
    servers: Servers,
    statement: Statement,
    numbers: tuple[int, int],
    seconds: float,
    program: Path | None,
    role: str | None,
) -> tuple[float, float]:
    """Return calls a second and CPU seconds a call, once the backends are warm."""
    # pgbench knows whole seconds only; a shorter run is a number of calls, all of them cold.
    limit = ["--transactions", "50"]
    if seconds >= 1:
        limit = ["--time", str(WARM_SECONDS + int(seconds)), "--progress", str(WARM_SECONDS)]
    script, variables = _script(statement, numbers)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [str(program), "--no-vacuum", "--protocol", "prepared", "--client", str(CLIENTS), *limit]
        command += [f"--define={name}={value}" for name, value in variables.items()]
        cold_seconds = cold_calls = 0.0
        before = cpu_seconds(servers.postgres_pid)
        environment = servers.libpq_environment(role=role)
        command += ["--file", file.name]
        with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) as running:
            error_lines = []
            for line in running.stderr or ():
                error_lines.append(line)
                if not cold_seconds and (first := _PROGRESS.match(line)):
                    cold_seconds, cold_calls = float(first[1]), float(first[1]) * float(first[2])
                    before = cpu_seconds(servers.postgres_pid)
            output = running.stdout.read() if running.stdout else ""
    used = cpu_seconds(servers.postgres_pid) - before
    rate, calls, connecting = _RATE.search(output), _CALLS.search(output), _CONNECTING.search(output)
    if running.returncode or not rate or not calls or not connecting:
        raise CallError(f"pgbench failed: {''.join(error_lines).strip() or output}")
    warm_calls = int(calls[1]) - cold_calls
    if warm_calls <= 0:
        raise CallError("pgbench made no call after its first second: the machine is busy with something else")
    warm_seconds = int(calls[1]) / float(rate[1]) - max(0.0, cold_seconds - float(connecting[1]) / 1000)
    return warm_calls / warm_seconds, used / warm_calls


def _script(statement: Statement, numbers: tuple[int, int]) -> tuple[str, dict[str, str]]:
    """Return a pgbench script and its variables, which travel as parameters in every call."""
    variables: dict[str, str] = {}
    places: list[str] = []
    for index, argument in enumerate(statement.arguments):
        if index == statement.conversation:
            places.append(f"('{UUID_START}' || :number)::uuid")
        elif index == statement.key:
            places.append(":key")
        elif argument is None:
            places.append("null")
        else:
            variables[f"a{index}"] = _text(argument)
            places.append(f":a{index}")
    query = re.sub(r"\$(\d+)", lambda match: places[int(match.group(1)) - 1], statement.query)
    first, count = numbers
    lines = [f"\\set number random({first}, {first + count - 1})"]
    if statement.key is not None:
        lines.append("\\set key random(1, 9000000000000000000)")
    return "\n".join([*lines, f"{query};", ""]), variables


def _text(value: Any) -> str:
    """Return a value as Postgres reads it from text."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return f"\\x{value.hex()}"
        case list() | tuple():
            return "{" + ",".join("NULL" if item is None else _quoted(_text(item)) for item in value) + "}"
        case _:
            return str(value)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _driver(
    servers: Servers,
    statement: Statement,
    numbers: tuple[int, int],
    seconds: float,
    _: Path | None,
    role: str | None,
) -> tuple[float, float]:
    before = cpu_seconds(servers.postgres_pid)
    order = {
        "dsn": servers.database_url,
        "role": role,
        "clients": CLIENTS,
        "seconds": seconds,
        "warm_seconds": WARM_SECONDS if seconds >= 1 else 0,
        "uuid_start": UUID_START,
        "numbers": numbers,
        **statement._asdict(),
    }
    done = subprocess.run([sys.executable, str(_DRIVER)], input=pickle.dumps(order), capture_output=True, check=False)
    if done.returncode:
        raise CallError(f"the driver failed: {done.stderr.decode().strip()}")
    calls, before_them = map(int, done.stdout.split())
    return calls / seconds, (cpu_seconds(servers.postgres_pid) - before) / (calls + before_them)
