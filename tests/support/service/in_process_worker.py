"""The workers' tasks, run in the test's own thread."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from runtime.broker import celery_app
from tests.support.service.running_api import conversation_at
from worker import tasks
from worker.services import TaskServices, replace_services

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from runtime.settings import Settings

_KEPT: list[TaskServices] = []
"""The services of the settings that were used last: those of a module, which its tests use again and again."""
QUEUED = "select tenant_id, id from runs where conversation_id = %s and state = 'queued'"


@contextmanager
def task_services(settings: Settings) -> Iterator[TaskServices]:
    """Have the tasks of this process use services of these settings in the block."""
    sender = celery_app(settings, "test")
    services = TaskServices(settings, sender)
    replace_services(services)
    try:
        yield services
    finally:
        replace_services(None)
        services.close()
        sender.close()


def work(settings: Settings, conversation: UUID | str) -> None:
    """Do everything that is due for a conversation, given by its id or its path: the check, then what it queues."""
    identifier = conversation_at(conversation) if isinstance(conversation, str) else conversation
    replace_services(_services(settings))
    try:
        tasks.check([str(identifier)])
        with psycopg.connect(settings.database_url.get_secret_value(), autocommit=True) as connection:
            for tenant_id, run_id in connection.execute(QUEUED, (identifier,)).fetchall():
                tasks.run(str(tenant_id), str(run_id))
    finally:
        replace_services(None)


def _services(settings: Settings) -> TaskServices:
    """Return the services of these settings, their connections open as a worker's are."""
    if not _KEPT or _KEPT[0].settings is not settings:
        while _KEPT:
            _KEPT.pop().close()
        _KEPT.append(TaskServices(settings, celery_app(settings, "test")))
    return _KEPT[0]
