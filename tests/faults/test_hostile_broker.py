"""Somebody else writes to Redis: workers neither end, nor fall silent, nor grow, and the work is done once."""

from __future__ import annotations

import base64
import json
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import kombu
import pytest
import redis

from runtime.broker import CHECK_TASK, CHECKS, KEY_TYPES, PREFIX, QUEUES, queue_keys
from tests.faults.installation import SETTLE_SECONDS, installed, once
from tests.faults.test_broker import NOTHING_DUE, envelope, refusals, say
from tests.support.eventually import eventually
from tests.support.servers.own_servers import own_redis
from worker.process.wary_channel import WaryChannel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.local.embedded import EmbeddedPostgres
    from tests.faults.installation import Installation
    from tests.support.processes import Worker

pytestmark = [pytest.mark.fault("F15"), pytest.mark.slow]
UNACKED, INDEX = f"{PREFIX}unacked", f"{PREFIX}unacked_index"
BOMB_MB: Final = 150
"""Packed it is as long as a body may be, unpacked it is this."""
ITEM_MB: Final = 300
GROWTH_MB: Final = 100
"""More than a worker needs for what is refused, and less than one copy of either."""


@pytest.fixture(scope="module")
def installation(postgres: EmbeddedPostgres, template: str) -> Iterator[Installation]:
    with own_redis() as broker, installed(postgres.url, template, broker.url) as made, made.api():
        yield made


@pytest.fixture
def stranger(installation: Installation) -> Iterator[redis.Redis]:
    """Somebody who may write to Redis."""
    with redis.Redis.from_url(installation.broker_url, socket_timeout=60) as client:
        yield client
        client.flushall()


def body(conversation: str, embed: dict[str, Any] | None = None) -> str:
    return base64.b64encode(json.dumps([[[conversation]], {}, embed or {}]).encode()).decode()


def hostile_headers(conversation: str) -> Iterator[dict[str, Any]]:
    """Yield messages whose ids are good, with what Celery would obey: limits, dates, other tasks, other encodings."""
    own = envelope()["headers"]
    for extra in (
        {"timelimit": ["a", "b"]},
        {"timelimit": [0.001, 0.001]},
        {"eta": "2099-01-01T00:00:00+00:00"},
        {"expires": "2001-01-01T00:00:00+00:00"},
        {"retries": "many", "group": [1], "stamped_headers": "x", "stamps": 7},
        {"replaced_task_nesting": "a", "delivery_info": 3, "ignore_result": {"a": 1}},
    ):
        yield envelope(headers={**own, "id": str(uuid4()), **extra}, body=body(conversation))
    other = {"task": "celery.backend_cleanup", "args": [], "kwargs": {}, "options": {}}
    yield envelope(
        body=body(conversation, {"callbacks": [other], "errbacks": [other], "chain": [other], "chord": other})
    )


def peak_mb(worker: Worker) -> int:
    """Return the most memory that a worker and its pool's processes have had, in MB."""
    pids = [worker.process.pid, *children(worker.process.pid)]
    return max(peak_of(pid) for pid in pids)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def peak_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in text if line.startswith("VmHWM"))


def works(installation: Installation, workers: list[Worker]) -> None:
    """Assert that a conversation is compacted, once, by workers that all go on."""
    talk = installation.talk()
    say(talk)
    once(talk.end_state(runs=1))
    assert [worker.process.poll() for worker in workers] == [None] * len(workers)


def test_headers_that_celery_would_obey_are_not_passed_on(installation: Installation, stranger: redis.Redis) -> None:
    with installation.running("checks", "summaries", "sweeper") as workers:
        talk = installation.talk()
        conversation = str(talk.id)
        for _ in range(3):
            for message in hostile_headers(conversation):
                stranger.lpush(queue_keys(CHECKS)[0], json.dumps(message))
        eventually(lambda: not (installation.queued(CHECKS) or installation.unacknowledged()), SETTLE_SECONDS)
        works(installation, workers)
        assert sum(map(refusals, workers)) == 0
        assert all("Traceback" not in worker.log.read_text() for worker in workers)


@pytest.mark.parametrize("queue", QUEUES)
def test_what_is_far_too_large_is_never_in_memory(
    installation: Installation, stranger: redis.Redis, queue: str
) -> None:
    bomb = base64.b64encode(zlib.compress(bytes(BOMB_MB << 20), 9)).decode()
    headers = {**envelope()["headers"], "compression": "application/x-gzip"}
    with installation.running("checks", "summaries", "sweeper") as workers:
        worker = workers[QUEUES.index(queue)]
        before = peak_mb(worker)
        stranger.lpush(queue_keys(queue)[0], json.dumps(envelope(headers=headers, body=bomb)))
        # A script makes it in Redis itself: a client that may send no such thing can have it made.
        made = "local item = string.rep('a', ARGV[1]) return redis.call('lpush', KEYS[1], item)"
        stranger.eval(made, 1, queue_keys(queue)[0], ITEM_MB << 20)
        eventually(lambda: refusals(worker) == 2, SETTLE_SECONDS)
        assert peak_mb(worker) - before < GROWTH_MB
        works(installation, workers)


def poisoned_books() -> dict[str, bytes]:
    """Return entries of messages under way, by tag, that are none."""
    message = envelope()
    return {
        "garbage": b"\xff\xfe garbage",
        "empty": b"",
        "a number": b"7",
        "another length": b"[1]",
        "deep": b"[" * 100_000,
        "no message": json.dumps([7, "", CHECKS]).encode(),
        "another queue": json.dumps([{**message, "properties": {}}, "x", "elsewhere"]).encode(),
        "a header": json.dumps([{**message, "headers": [1]}, "", CHECKS]).encode(),
    }


def test_books_that_somebody_has_filled_keep_no_worker_from_starting(
    installation: Installation, stranger: redis.Redis
) -> None:
    poison = poisoned_books()
    for tag, entry in poison.items():
        stranger.hset(UNACKED, tag, entry)
    stranger.zadd(INDEX, dict.fromkeys([*poison, "an entry that is not there"], 1.0))
    with installation.running("checks", "summaries", "sweeper") as workers:
        works(installation, workers)
        eventually(lambda: sum(map(refusals, workers)) == len(poison), SETTLE_SECONDS)
        assert not stranger.hgetall(UNACKED)
        assert not stranger.zrange(INDEX, 0, -1)


def test_a_message_of_a_worker_that_died_comes_again_from_the_books(
    installation: Installation, stranger: redis.Redis
) -> None:
    talk = installation.talk()
    say(talk)
    stranger.flushall()
    message = envelope(body=body(str(talk.id)))
    stranger.hset(UNACKED, "tag", json.dumps([message, "", CHECKS]))
    stranger.zadd(INDEX, {"tag": time.time() - 3_600})
    # No sweeper: nobody else would find it.
    with installation.running("checks", "summaries"):
        once(talk.end_state(runs=1))


@pytest.mark.parametrize("queue", QUEUES)
def test_a_worker_begins_where_every_key_is_of_another_type(
    installation: Installation, stranger: redis.Redis, queue: str
) -> None:
    """Nobody else is there who would have thrown them away before."""
    for key in KEY_TYPES:
        stranger.set(PREFIX + key, "not what it was")
    with installation.running(queue) as (worker,):
        eventually(lambda: refusals(worker) > 0, SETTLE_SECONDS)
        assert worker.end() == 0


def test_keys_of_another_type_silence_nobody(installation: Installation, stranger: redis.Redis) -> None:
    def spoil() -> None:
        for key in (UNACKED, INDEX, *queue_keys(CHECKS), *queue_keys("summaries")):
            stranger.set(key, "not what it was")

    spoil()
    with installation.running("checks", "summaries", "sweeper") as workers:
        works(installation, workers)
        spoil()
        works(installation, workers)
        assert sum(map(refusals, workers)) > 0


def test_books_that_are_spoiled_while_a_task_is_under_way_are_thrown_away(
    installation: Installation, stranger: redis.Redis
) -> None:
    """Whichever worker is first: for the others there is nothing left to throw away, and that ends nobody."""
    messages: list[kombu.Message] = []
    with kombu.Connection(installation.broker_url, transport_options={"global_keyprefix": PREFIX}) as connection:
        connection.transport.Channel = WaryChannel
        channel = connection.channel()
        with kombu.Consumer(channel, kombu.Queue("few"), on_message=messages.append, prefetch_count=1):
            stranger.lpush(f"{PREFIX}few", json.dumps(envelope(body=NOTHING_DUE)))
            while not messages:
                connection.drain_events(timeout=SETTLE_SECONDS)
            stranger.set(UNACKED, "not what it was")
            messages[0].ack()
            assert (stranger.exists(UNACKED), channel.qos.can_consume()) == (0, True)
            channel.throw_away_wrong_types(redis.ResponseError("WRONGTYPE Operation against a key"))
            with pytest.raises(redis.ResponseError, match="OOM"):
                channel.throw_away_wrong_types(redis.ResponseError("OOM command not allowed"))


def test_nobody_commands_a_worker(installation: Installation, stranger: redis.Redis) -> None:
    with installation.running("checks", "summaries", "sweeper") as workers:
        control = installation.app.control
        assert control.ping(timeout=1) == []
        for command, arguments in (
            ("rate_limit", {"task_name": CHECK_TASK, "rate_limit": "1/h"}),
            ("time_limit", {"task_name": CHECK_TASK, "hard": 0.001}),
            ("cancel_consumer", {"queue": CHECKS}),
            ("pool_shrink", {"n": 10}),
            ("pool_restart", {}),
            ("revoke", {"task_id": "*"}),
            ("shutdown", {}),
        ):
            control.broadcast(command, arguments=arguments)
        for _ in range(3):
            works(installation, workers)
