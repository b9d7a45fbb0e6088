"""What row-level security costs at the database: the hot calls in the service's role, and in one that bypasses it.

`python -m bench.row_security`; the CPU time is that of the connection's server process, so it needs Linux.
"""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg
from pydantic import SecretStr

from actions.input.turn_bodies import read_turn
from bench import data
from cli.local.embedded import EmbeddedPostgres
from compaction.policy import Policy
from migrations.run import upgrade
from runtime import ids
from runtime.settings import Settings
from store import hot_path
from store.conversations import conversations
from store.engine import owner_engine, service_engine, transaction
from store.tenants import tenants

if TYPE_CHECKING:
    from uuid import UUID

    import asyncpg

ROUNDS: Final = 5
CALLS: Final = 1_000
"""Of each kind, in each role, in one round."""
CONVERSATIONS: Final = 50
READ_TURNS: Final = 4
"""Turns of two messages in each conversation whose context is read."""
BYPASS: Final = "bench_bypass"


class Caller(NamedTuple):
    """One connection in one role."""

    pool: asyncpg.Pool
    pid: int
    tenant_id: UUID

    def cpu_seconds(self) -> float:
        """Return the CPU time that the connection's server process has used so far."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9

    async def append(self, conversation: UUID) -> None:
        """Append a turn of two messages."""
        turn = read_turn(data.turn_body().encode())
        done = await hot_path.append_turn(
            self.pool,
            tenant_id=self.tenant_id,
            conversation_id=conversation,
            request_id=ids.new_id(),
            contents=turn.contents,
            facts=turn.facts,
            usage=turn.usage,
            result_cap=Policy().max_tool_result_chars,
            expected_seq=None,
            idempotency_key=ids.new_id().hex,
            body_hash=bytes(32),
            policy=Policy(),
        )
        if done.outcome != "appended":
            raise RuntimeError(done.outcome)

    async def read(self, conversation: UUID) -> None:
        """Read a context."""
        context = await hot_path.read_context(
            self.pool, tenant_id=self.tenant_id, conversation_id=conversation, etag=None, policy=Policy()
        )
        if context is None:
            raise RuntimeError("no context")


async def open_caller(settings: Settings, role: str, tenant_id: UUID) -> Caller:
    """Open one connection in a role."""
    pool = await hot_path.open_pool(settings.model_copy(update={"database_role": role, "database_pool_size": 1}))
    row = await pool.fetchrow("select pg_backend_pid() as pid")
    if row is None:
        raise RuntimeError("no connection")
    return Caller(pool, row["pid"], tenant_id)


async def _measure(settings: Settings, tenant_id: UUID, conversation_ids: list[UUID]) -> dict[str, list[float]]:
    enforced = await open_caller(settings, settings.database_role, tenant_id)
    bypassing = await open_caller(settings, BYPASS, tenant_id)
    ratios: dict[str, list[float]] = {"append": [], "context": []}
    written, read = conversation_ids[::2], conversation_ids[1::2]
    for conversation in read * READ_TURNS:
        await enforced.append(conversation)
    for number in range(ROUNDS + 1):
        for name, calls in ratios.items():
            spent = {}
            for caller in (enforced, bypassing) if number % 2 else (bypassing, enforced):
                do, among = (caller.append, written) if name == "append" else (caller.read, read)
                before = caller.cpu_seconds()
                for call in range(CALLS):
                    await do(among[call % len(among)])
                spent[caller] = (caller.cpu_seconds() - before) / CALLS * 1e6
            if number:  # the first round warms up
                calls.append(spent[enforced] / spent[bypassing])
                print(f"{name}: {spent[enforced]:.0f} µs enforced, {spent[bypassing]:.0f} µs bypassed", flush=True)
    await enforced.pool.close()
    await bypassing.pool.close()
    return ratios


def main() -> None:
    """Measure, and print the median ratio of each call with its range."""
    with EmbeddedPostgres() as postgres:
        upgrade(postgres.url)
        settings = Settings(database_url=SecretStr(postgres.url))
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"create role {BYPASS} bypassrls in role palimpsest_service")
            connection.execute(f"grant {BYPASS} to current_user")
        owner = owner_engine(postgres.url)
        with owner.begin() as connection:
            tenant_id = tenants.create_tenant(connection, "bench").id
        service = service_engine(settings, "bench")
        with transaction(service, tenant_id) as connection:
            conversation_ids = [conversations.create(connection, tenant_id, {})[0].id for _ in range(CONVERSATIONS)]
        ratios = asyncio.run(_measure(settings, tenant_id, conversation_ids))
        owner.dispose()
        service.dispose()
    for name, each in ratios.items():
        print(f"{name}: {statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f}) times the CPU time")


if __name__ == "__main__":
    main()
