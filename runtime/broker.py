"""The broker: task and queue names, and how every process talks to Redis.

A message is a wake-up that carries ids; Postgres has the work. Every setting here was chosen for that: losing or
repeating a message is harmless, hanging on the broker is not.
"""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from celery import Celery
from celery.schedules import schedule
from kombu import Queue as TaskQueue
from redis.backoff import NoBackoff
from redis.retry import Retry

from runtime.addresses.redis_clients import redis_client, sentinels_of
from runtime.queues import Queue

if TYPE_CHECKING:
    from runtime.settings import Settings

CHECKS: Final = Queue.CHECKS
SUMMARIES: Final = Queue.SUMMARIES
QUEUES: Final = tuple(Queue)
CHECK_TASK: Final = "palimpsest.check"
RUN_TASK: Final = "palimpsest.run"
DELIVER_TASK: Final = "palimpsest.deliver"
SWEEP_TASK: Final = "palimpsest.sweep"
WEBHOOKS_TASK: Final = "palimpsest.webhooks"
USAGES_TASK: Final = "palimpsest.usages"
HOUSEKEEPING_TASK: Final = "palimpsest.housekeeping"
PERIODIC_TASKS: Final = (SWEEP_TASK, WEBHOOKS_TASK, USAGES_TASK, HOUSEKEEPING_TASK)
"""Tasks that beat sends, each once an interval."""
EXPIRY_SECONDS: Final = 6 * 3_600
"""Seconds after which a periodic task that no worker took is dropped; more than clocks of hosts differ by."""

BATCH: Final = 100
"""Conversations that one check task carries: taking a message from the broker costs a worker as much as 40 checks."""
SHARE: Final = 50
"""Conversations of one tenant in a second, or in a sweep, whose wake-ups are as urgent as any; the rest wait LATER."""
LATER: Final = 9
"""Priority of messages that are taken only when no others wait (0 is the most urgent, and what a message has)."""

PREFIX: Final = "palimpsest:"
"""Of every key of the transport."""
PRIORITIES: Final = (0, 3, 6, 9)
"""Kombu's own steps: each is a Redis list."""
KEEPALIVE: Final = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2))
    if hasattr(socket, name)
}
"""A host that is gone without a word counts as away after 9 s; the kernel by itself waits for two hours."""
_DEPTH_SECONDS: Final = 2.0
"""Seconds that Redis may take to say how long a queue is."""


_started_at: Final = datetime.now(UTC) - timedelta(seconds=time.monotonic())


def _steady_now() -> datetime:
    """Return a time that passes evenly. Beat would send nothing for an hour if its clock was set back by one."""
    return _started_at + timedelta(seconds=time.monotonic())


def celery_settings(settings: Settings) -> dict[str, Any]:
    """Return Celery's configuration, by the names of its documentation."""
    url = settings.broker_url.get_secret_value()
    sentinels = sentinels_of(url)
    transport: dict[str, Any] = {
        # Redis has no list of messages under way: what a dead worker had is found in Postgres, and kombu 5.7 ends
        # a worker whose connection is lost while there is one.
        "ack_emulation": False,
        # Seconds that a sender goes on connecting; after that it is for the sweep.
        "connect_retries_timeout": 1,
        "socket_timeout": 10,
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
        "socket_keepalive_options": KEEPALIVE,
        "health_check_interval": 25,
        "global_keyprefix": PREFIX,
    }
    if sentinels:
        timeouts = {"socket_timeout": 2, "socket_connect_timeout": 2}
        transport |= {"master_name": sentinels.master_name, "sentinel_kwargs": timeouts | sentinels.own}
    interval = schedule(settings.sweep_interval_seconds, nowfun=_steady_now)
    every_sweep = {"schedule": interval, "options": {"expires": EXPIRY_SECONDS}}
    time_limit = {"time_limit": settings.task_time_limit_seconds}
    return {
        "broker_url": sentinels.kombu_url() if sentinels else url,
        "broker_transport_options": transport,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "task_queues": [TaskQueue(queue) for queue in QUEUES],
        "task_default_queue": CHECKS,
        "task_create_missing_queues": False,
        "task_routes": {RUN_TASK: {"queue": SUMMARIES}, DELIVER_TASK: {"queue": SUMMARIES}},
        "task_annotations": dict.fromkeys((CHECK_TASK, *PERIODIC_TASKS), time_limit),
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_publish_retry": False,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "worker_soft_shutdown_timeout": 30,
        "worker_max_tasks_per_child": 10_000,
        # In memory: the schedule is all in the settings, and containers have no disk to write to.
        "beat_scheduler": "celery.beat:Scheduler",
        "beat_schedule": {name: {"task": name, **every_sweep} for name in PERIODIC_TASKS},
    }


def celery_app(settings: Settings, name: str) -> Celery:
    """Return a Celery application that sends tasks; that of workers is `worker.celery.app`."""
    app = Celery(name, set_as_current=False)
    app.config_from_object(celery_settings(settings))
    return app


def queue_keys(queue: str) -> list[str]:
    """Return the Redis lists that a queue consists of, one for each priority; their lengths are its depth."""
    return [PREFIX + queue + (f"\x06\x16{priority}" if priority else "") for priority in PRIORITIES]


class QueueDepths:
    """Asks Redis how many messages wait, without ever hanging on it. Safe to use from many threads."""

    def __init__(self, settings: Settings) -> None:
        self._client = redis_client(
            settings.broker_url.get_secret_value(),
            socket_timeout=_DEPTH_SECONDS,
            socket_connect_timeout=_DEPTH_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def of(self, queue: str) -> int:
        """Return the messages of a queue that nobody has taken yet. Raises RedisError."""
        with self._client.pipeline(transaction=False) as pipe:
            for key in queue_keys(queue):
                pipe.llen(key)
            return sum(pipe.execute())

    def close(self) -> None:
        """Close every connection."""
        self._client.close()
