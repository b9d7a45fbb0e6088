"""Sending tasks as Celery does, without what its producers do around every message.

A producer routes, declares, opens a client and fires signals for each task, four times the work of making the message
and handing it to Redis. A process that sends a batch every few milliseconds pays for that on every turn.
"""

from __future__ import annotations

import base64
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import msgspec
from redis.backoff import NoBackoff
from redis.retry import Retry

from runtime.addresses.redis_clients import redis_client
from runtime.broker import PRIORITIES, celery_app, queue_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from runtime.settings import Settings

_CONNECT_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 10.0
_PERSISTENT: Final = 2
_UNSPELLED: Final = "…"
"""Stands for the arguments as Celery would spell them, for log lines of its own: half the cost of a message."""


class Task(NamedTuple):
    """A task to be sent."""

    name: str
    args: Sequence[Any]
    queue: str
    priority: int = 0
    headers: Mapping[str, Any] = MappingProxyType({})
    """Beside Celery's own; the task finds them in its request."""


class TaskSender:
    """Sends tasks in one round trip. For one thread at a time."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._app = celery_app(settings, name)
        self._client = redis_client(
            settings.broker_url.get_secret_value(),
            socket_timeout=_ANSWER_SECONDS,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )

    def send(self, tasks: Iterable[Task]) -> None:
        """Put tasks into their queues, all or none. Raises RedisError."""
        by_key: dict[str, list[bytes]] = {}
        for task in tasks:
            key = queue_keys(task.queue)[PRIORITIES.index(task.priority)]
            by_key.setdefault(key, []).append(self._message(task))
        if len(by_key) == 1:
            # Nearly always: and a pipeline costs twice what a single command does.
            ((key, messages),) = by_key.items()
            self._client.lpush(key, *messages)
            return
        with self._client.pipeline(transaction=True) as pipe:
            for key, messages in by_key.items():
                pipe.lpush(key, *messages)
            pipe.execute()

    def close(self) -> None:
        """Close every connection."""
        self._client.close()
        self._app.close()

    def _message(self, task: Task) -> bytes:
        """Return what kombu's Redis transport would put into the list."""
        message = self._app.amqp.as_task_v2(
            str(uuid4()), task.name, args=list(task.args), kwargs={}, ignore_result=None, argsrepr=_UNSPELLED
        )
        return msgspec.json.encode(
            {
                "body": base64.b64encode(msgspec.json.encode(message.body)).decode(),
                "content-encoding": "utf-8",
                "content-type": "application/json",
                "headers": {**message.headers, **task.headers},
                "properties": {
                    **message.properties,
                    "delivery_mode": _PERSISTENT,
                    "delivery_info": {"exchange": "", "routing_key": task.queue},
                    "priority": task.priority,
                    "body_encoding": "base64",
                    "delivery_tag": str(uuid4()),
                },
            }
        )
