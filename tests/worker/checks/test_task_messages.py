"""Tasks sent without Celery's producers are those that its producers would have sent."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import redis

from runtime.broker import CHECK_TASK, CHECKS, LATER, RUN_TASK, SUMMARIES, celery_app, queue_keys
from runtime.task_messages import Task, TaskSender

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.settings import Settings

UNIQUE = (("headers", "id"), ("headers", "root_id"), ("properties", "correlation_id"), ("properties", "delivery_tag"))


def taken(broker: redis.Redis, queue: str) -> dict[int, dict[str, Any]]:
    """Take the messages of a queue, one of each priority's list, and return them without what differs in each."""
    by_name = {}
    for place, key in enumerate(queue_keys(queue)):
        while (raw := broker.rpop(key)) is not None:
            message = json.loads(raw)  # type: ignore[arg-type] # no coroutine
            message["body"] = json.loads(base64.b64decode(message["body"]))
            for part, name in UNIQUE:
                assert UUID(message[part].pop(name))
            # Nobody waits for an answer, but Celery's producer always says where one should go.
            message["properties"].pop("reply_to")
            # Arguments as text, for log lines alone.
            assert message["headers"].pop("argsrepr")
            by_name[place] = message
    return by_name


@pytest.mark.parametrize(
    "task",
    [
        Task(CHECK_TASK, [["0190", "0191"]], CHECKS),
        Task(CHECK_TASK, [["0190"]], CHECKS, LATER),
        Task(RUN_TASK, ["0190", "0191"], SUMMARIES),
    ],
)
def test_a_message_is_as_celery_sends_it(make_settings: Callable[..., Settings], broker_url: str, task: Task) -> None:
    settings = make_settings(broker_url=broker_url)
    with redis.Redis.from_url(broker_url) as broker:
        app = celery_app(settings, "test")
        app.send_task(task.name, args=task.args, queue=task.queue, priority=task.priority)
        app.close()
        by_celery = taken(broker, task.queue)
        sender = TaskSender(settings, "test")
        sender.send([task])
        sender.close()
        assert by_celery == taken(broker, task.queue) != {}


def test_tasks_for_several_queues_arrive_in_order(make_settings: Callable[..., Settings], broker_url: str) -> None:
    sender = TaskSender(make_settings(broker_url=broker_url), "test")
    names = [(CHECKS, 0), (SUMMARIES, 0), (CHECKS, 0), (CHECKS, LATER)]
    sender.send(Task(CHECK_TASK, [place], queue, priority) for place, (queue, priority) in enumerate(names))
    sender.send([])
    sender.close()
    with redis.Redis.from_url(broker_url) as broker:
        by_name = {}
        for queue in (CHECKS, SUMMARIES):
            keys = queue_keys(queue)
            by_name[queue] = [[args(raw) for raw in broker.lrange(key, 0, -1)] for key in keys]
            broker.delete(*keys)
    # Workers take from the right.
    assert by_name == {CHECKS: [[2, 0], [], [], [3]], SUMMARIES: [[1], [], [], []]}


def args(raw: bytes) -> Any:
    """Return the first argument of a message's task."""
    return json.loads(base64.b64decode(json.loads(raw)["body"]))[0][0]
