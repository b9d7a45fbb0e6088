"""A Redis, a replica of it, and three Sentinels that make the replica the master when the Redis is gone."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
import redis

from cli.local.embedded import free_port
from cli.local.installations import redis_server
from tests.support.eventually import eventually
from tests.support.servers.own_servers import OwnRedis, own_redis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MASTER_NAME: Final = "palimpsest"
DOWN_SECONDS: Final = 1.0
"""Seconds of silence after which Sentinels agree that a master is down; 30 by default."""


class Sentinels:
    """The two, and what watches them. `url` is what the product is told."""

    def __init__(self, one: OwnRedis, two: OwnRedis, ports: list[int]) -> None:
        self.one, self.two = one, two
        places = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.url = f"sentinel://{places}/0?master_name={MASTER_NAME}"
        # Typed by nobody: what redis-py says of these commands is that they return anything.
        self._sentinels: list[Any] = [redis.Redis(port=port, socket_timeout=5) for port in ports]

    @property
    def masters(self) -> set[int]:
        """The ports that the Sentinels say the master is at."""
        found = (each.sentinel_get_master_addr_by_name(MASTER_NAME) for each in self._sentinels)
        return {int(place[1]) for place in found if place}

    def know_all(self) -> bool:
        """Tell whether each Sentinel knows the replica and the other two."""
        items = [each.sentinel_master(MASTER_NAME) for each in self._sentinels]
        return all((one["num-slaves"], one["num-other-sentinels"]) == (1, 2) for one in items)

    def change_roles(self) -> None:
        """Have the replica made the master, while the master is well."""
        self._sentinels[0].execute_command("SENTINEL FAILOVER", MASTER_NAME)

    def close(self) -> None:
        for each in self._sentinels:
            each.close()


@contextmanager
def watched_redis(folder: Path) -> Iterator[Sentinels]:
    """Run all of it. Skips the test where the Redis here can be no Sentinel."""
    with own_redis() as one, own_redis() as two:
        with two.client() as client:
            client.replicaof("127.0.0.1", one.port)
        ports = [free_port() for _ in range(3)]
        running = [_start(folder / f"{port}.conf", port, one.port) for port in ports]
        sentinels = Sentinels(one, two, ports)
        try:
            eventually(lambda: all(map(_answers, ports, running)))
            eventually(sentinels.know_all)
            yield sentinels
        finally:
            sentinels.close()
            for process in running:
                process.kill()
                process.wait()


def _start(config: Path, port: int, master: int) -> subprocess.Popen[bytes]:
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"sentinel monitor {MASTER_NAME} 127.0.0.1 {master} 2",
        f"sentinel down-after-milliseconds {MASTER_NAME} {DOWN_SECONDS * 1_000:.0f}",
        f"sentinel failover-timeout {MASTER_NAME} 5000",
    ]
    config.write_text("\n".join(lines) + "\n")
    return subprocess.Popen([str(redis_server()), str(config), "--sentinel"], stdout=subprocess.DEVNULL)


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        pytest.skip("the redis-server here can be no Sentinel")
    with redis.Redis(port=port, socket_timeout=5) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
