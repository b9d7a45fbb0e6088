"""Calls a statement over several asyncpg connections for some seconds: what stands in for pgbench without one.

It is run as a process of its own: the order comes pickled on stdin, the numbers of calls leave on stdout.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import sys
import time
from typing import Any
from uuid import UUID

import asyncpg
import uvloop


async def run(order: dict[str, Any]) -> tuple[int, int]:
    """Return the calls made, and those before them that warm up."""
    settings = {"jit": "off", **({"role": order["role"]} if order["role"] else {})}
    connections = [await asyncpg.connect(order["dsn"], server_settings=settings) for _ in range(order["clients"])]
    statements = [await connection.prepare(order["query"]) for connection in connections]
    warm = time.perf_counter() + order["warm_seconds"]
    before = await asyncio.gather(*(_call(statement, order, warm) for statement in statements))
    end = time.perf_counter() + order["seconds"]
    calls = await asyncio.gather(*(_call(statement, order, end) for statement in statements))
    for connection in connections:
        await connection.close()
    return sum(calls), sum(before)


async def _call(statement: Any, order: dict[str, Any], end: float) -> int:
    chosen = random.Random()  # noqa: S311 - picks conversations
    arguments = list(order["arguments"])
    first, count = order["numbers"]
    calls = 0
    while time.perf_counter() < end:
        number = first + chosen.randrange(count)
        arguments[order["conversation"]] = UUID(f"{order['uuid_start']}{number:012}")
        if order["key"] is not None:
            arguments[order["key"]] = str(chosen.getrandbits(62))
        await statement.fetchrow(*arguments)
        calls += 1
    return calls


if __name__ == "__main__":
    print(*uvloop.run(run(pickle.load(sys.stdin.buffer))))  # noqa: S301 - from our own parent
