"""How much memory the largest things that the limits allow take, all of them at once: no more than Compose gives."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from tests.faults.installation import installed
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.processes import START_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
    from tests.faults.installation import Installation
    from tests.support.processes import Api

MB: Final = 1 << 20
COMPOSE: Final = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
BIRD: Final = "\U0001f99c"
"""Makes Python keep four bytes for each character of the text that it stands in."""
ROUNDS: Final = 3
READ_EVERY_SECONDS: Final = 0.05


@pytest.fixture(scope="module")
def served(
    postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis
) -> Iterator[tuple[Installation, Api]]:
    """An installation with the default limits, and its API."""
    with installed(postgres.url, template, redis_server.url, PALIMPSEST_LEASE_SECONDS="45") as made, made.api() as api:
        yield made, api


def limit(service: str) -> int:
    """Return the bytes that Compose gives a service."""
    text = COMPOSE[service]["mem_limit"]
    return int(text[:-1]) * {"m": MB, "g": 1 << 30}[text[-1]]


class Peak:
    """The most bytes that a process and its children had at a time; what several of them share counts once."""

    def __init__(self, process: int) -> None:
        self.process, self.size = process, 0

    def read(self) -> None:
        """See how much it is now."""
        self.size = max(self.size, sum(map(proportional_set, group_of(self.process))))


def group_of(leader: int) -> Iterator[Path]:
    """Yield the folders in /proc of the processes in a group."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[2]) == leader:
                yield folder


def proportional_set(folder: Path) -> int:
    """Return the bytes of a process, each page divided by how many have it: a container is charged once for all."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = (folder / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("Pss:"))
    return 0


@contextmanager
def watched(*processes: int) -> Iterator[list[Peak]]:
    """Read again and again how much memory processes have, until the block ends."""
    peaks, is_over = [Peak(process) for process in processes], Event()

    def watch() -> None:
        while not is_over.wait(READ_EVERY_SECONDS):
            for each in peaks:
                each.read()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield peaks
        finally:
            is_over.set()
        watching.result()


def said(*content: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": list(content)}]}, ensure_ascii=False).encode()


def text(size: int) -> dict[str, Any]:
    return {"type": "text", "text": BIRD + "a" * (size - 4)}


def image(size: int) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * size}}


def begin(client: httpx2.Client, **fields: Any) -> str:
    return f"/v1/conversations/{client.post('/v1/conversations', json=fields).json()['id']}"


def large(client: httpx2.Client, turns: int, size: int, **fields: Any) -> str:
    """Return a conversation of pictures, `turns` of `size` bytes, each with a word of its own."""
    path = begin(client, **fields)
    for _ in range(turns):
        done = client.post(f"{path}/turns", content=said({"type": "text", "text": BIRD}, image(size)))
        assert done.status_code == 201, done.text
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.fault("F41")
def test_the_api_stays_within_its_memory_whatever_is_asked_at_once(
    served: tuple[Installation, Api], record_property: Callable[[str, object], None]
) -> None:
    client, api = served[0].client, served[1]
    whole, several = said(text(7 * MB), text(7 * MB)), said(text(5 * MB))
    talk = large(client, 18, 7 * MB, user_ref="Ann")
    fitting = large(client, 2, 7 * MB)
    calls: list[Callable[[], httpx2.Response]] = [
        *[lambda: client.post(f"{begin(client)}/turns", content=whole)] * 4,
        *[lambda: client.post(f"{begin(client)}/turns", content=several)] * 4,
        *[lambda: client.get(f"{talk}/context")] * 3,
        *[lambda: client.get(f"{fitting}/context")] * 3,
        *[lambda: client.post(f"{talk}/context", json={"user_message": "And now?"})] * 2,
        *[lambda: client.get(f"{talk}/messages?limit=1000")] * 2,
        *[lambda: client.get(f"{talk}/messages/3")] * 2,
        *[lambda: client.get("/v1/users/Ann/export")] * 2,
        *[lambda: client.post(f"{talk}/compactions", json={"dry_run": True})] * 2,
        lambda: client.post(f"{talk}/pins", json={"seq": 2}),
    ]
    with watched(api.process.pid) as (memory,), ThreadPoolExecutor(len(calls)) as pool:
        for _ in range(ROUNDS):
            answers = [each.result() for each in [pool.submit(call) for call in calls]]
            assert {answer.status_code for answer in answers} <= {200, 201, 409, 422, 503}
            refused = [answer for answer in answers if answer.status_code == 503]
            assert all(answer.headers["retry-after"] for answer in refused)
            assert {answer.status_code for answer in answers} & {200, 201}
    assert client.get("/healthz").status_code == 200
    record_property("measured", f"F41 memory of api: {memory.size / MB:.0f} MB")
    assert 0 < memory.size < limit("api")
    # One after the other they are all answered.
    assert [call().status_code for call in calls[3:6:2]] == [201, 201]
    assert client.get(f"{fitting}/context").status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.fault("F41")
def test_workers_stay_within_their_memory_whatever_is_compacted_at_once(
    served: tuple[Installation, Api], record_property: Callable[[str, object], None]
) -> None:
    installation, _ = served
    client = installation.client
    policy = {"compaction_threshold_tokens": 2_000, "min_savings_tokens": 100}
    sizes = [(18, 7 * MB)] * 2 + [(8, 2 * MB)] * 6
    talks = [large(client, turns, size, policy=policy) for turns, size in sizes]

    def settled() -> bool:
        left = installation.chat.query(
            "select 1 from conversations where check_due_at is not null"
            " union all select 1 from runs where state in ('queued', 'running')"
        )
        return not left

    with (
        installation.worker("checks", "--concurrency", "2") as checks,
        installation.worker("summaries") as summaries,
        installation.worker("beat"),
        watched(checks.process.pid, summaries.process.pid) as peaks,
    ):
        eventually(settled, START_SECONDS * 4)
    for path in talks:
        ended = client.get(f"{path}/runs").json()["data"]
        assert ended
        assert not [run for run in ended if run["state"] == "dead"]
    for service, memory in zip(("worker-checks", "worker-summaries"), peaks, strict=True):
        record_property("measured", f"F41 memory of {service}: {memory.size / MB:.0f} MB")
        assert 0 < memory.size < limit(service), service
