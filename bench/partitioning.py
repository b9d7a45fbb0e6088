"""What moving `messages` into parts costs, as docs/scaling.md has the steps: `python -m bench.partitioning`.

Appends go on all the while over one connection; the CPU time is that of its server process, so it needs Linux and psql.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from pydantic import SecretStr

from bench.row_security import Caller, open_caller
from cli.local.embedded import EmbeddedPostgres
from migrations.run import upgrade
from runtime.settings import Settings
from store.conversations import conversations
from store.engine import owner_engine, service_engine, transaction
from store.tenants import tenants

if TYPE_CHECKING:
    from uuid import UUID

STEPS: Final = Path(__file__).resolve().parents[1] / "deploy" / "partitioning"
CALLS: Final = 1_500
"""Appends and contexts measured before the move and after it."""
TURNS_EACH: Final = 25
"""Turns of two messages in each conversation before the move."""


async def run_step(url: str, name: str, *, parts: int = 16) -> float:
    """Run one step of the move with psql; return the seconds it took."""
    single = () if name == "2_copy" else ("--single-transaction",)
    started = time.perf_counter()
    await asyncio.to_thread(
        subprocess.run,
        ["psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--set", f"parts={parts}", *single,
         "--file", str(STEPS / f"{name}.sql"), url],
        check=True, capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - started


async def _course(caller: Caller, conversation_ids: list[UUID]) -> dict[str, float]:
    """Return milliseconds and server microseconds of appends and contexts."""
    measured = {}
    for name, call in (("append", caller.append), ("context", caller.read)):
        before, times = caller.cpu_seconds(), []
        for number in range(CALLS):
            started = time.perf_counter()
            await call(conversation_ids[number % len(conversation_ids)])
            times.append((time.perf_counter() - started) * 1e3)
        measured[f"{name} CPU µs"] = (caller.cpu_seconds() - before) / CALLS * 1e6
        measured[f"{name} p50 ms"] = statistics.median(times)
    return measured


async def _appending(caller: Caller, conversation_ids: list[UUID], work: asyncio.Future[Any]) -> list[float]:
    """Append until `work` is done; return the milliseconds of each append."""
    times, number = [], 0
    while not work.done():
        started = time.perf_counter()
        await caller.append(conversation_ids[number % len(conversation_ids)])
        times.append((time.perf_counter() - started) * 1e3)
        number += 1
    return times


async def _measure(settings: Settings, url: str, tenant_id: UUID, conversation_ids: list[UUID], parts: int) -> None:
    filler = await open_caller(settings, settings.database_role, tenant_id)
    for number in range(len(conversation_ids) * TURNS_EACH):
        await filler.append(conversation_ids[number % len(conversation_ids)])
    await filler.pool.close()
    # A connection of its own: the pool ends one after some ten thousand calls.
    caller = await open_caller(settings, settings.database_role, tenant_id)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("vacuum analyze messages")
        row = owner.execute("select count(*), pg_total_relation_size('messages') from messages").fetchone()
        assert row is not None  # noqa: S101 - an aggregate has a row
        print(f"{row[0]:,} messages, {row[1] / row[0]:,.0f} bytes each with index and TOAST", flush=True)
        print("before:", _line(await _course(caller, conversation_ids)), flush=True)
        for name in ("1_prepare", "2_copy", "3_swap"):
            work = asyncio.ensure_future(run_step(url, name, parts=parts))
            times = await _appending(caller, conversation_ids, work)
            print(f"{name}: {work.result():.2f} s, appends meanwhile p50 {statistics.median(times):.2f} ms, "
                  f"most {max(times):.0f} ms", flush=True)  # fmt: skip
        print("after, both tables:", _line(await _course(caller, conversation_ids)), flush=True)
        await run_step(url, "4_finish")
        owner.execute("vacuum analyze messages")
        print("after, parts alone:", _line(await _course(caller, conversation_ids)), flush=True)
    await caller.pool.close()


def _line(measured: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {value:.2f}" if "ms" in name else f"{name} {value:.0f}" for name, value in measured.items()
    )


def main() -> None:
    """Fill a table, move it, and print what it took."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=100_000)
    arguments.add_argument("--parts", type=int, default=16)
    wanted = arguments.parse_args()
    if shutil.which("psql") is None:
        raise SystemExit("psql is needed")
    with EmbeddedPostgres() as postgres:
        upgrade(postgres.url)
        settings = Settings(database_url=SecretStr(postgres.url))
        owner, service = owner_engine(postgres.url), service_engine(settings, "bench")
        with owner.begin() as connection:
            tenant_id = tenants.create_tenant(connection, "bench").id
        count = max(1, wanted.messages // TURNS_EACH // 2)
        with transaction(service, tenant_id) as connection:
            conversation_ids = [conversations.create(connection, tenant_id, {})[0].id for _ in range(count)]
        owner.dispose()
        service.dispose()
        asyncio.run(_measure(settings, postgres.url, tenant_id, conversation_ids, wanted.parts))


if __name__ == "__main__":
    main()
