"""The workers' tasks, run in the test's own thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from runtime.broker import CHECK_TASK, RUN_TASK
from tests.support.service.running_api import conversation_at
from worker.app import create_app

if TYPE_CHECKING:
    from uuid import UUID

    from celery import Celery

    from runtime.settings import Settings

_KEPT: list[tuple[Settings, Celery]] = []
"""The application of the settings that were used last: those of a module, which its tests use again and again."""
QUEUED = "select tenant_id, id from runs where conversation_id = %s and state = 'queued'"


def work(settings: Settings, conversation: UUID | str) -> None:
    """Do everything that is due for a conversation, given by its id or its path: the check, then what it queues."""
    identifier = conversation_at(conversation) if isinstance(conversation, str) else conversation
    app = _app(settings)
    check, run = app.tasks[CHECK_TASK], app.tasks[RUN_TASK]
    check([str(identifier)])
    with psycopg.connect(settings.database_url.get_secret_value(), autocommit=True) as connection:
        for tenant_id, run_id in connection.execute(QUEUED, (identifier,)).fetchall():
            run(str(tenant_id), str(run_id))


def _app(settings: Settings) -> Celery:
    """Return the worker's application, its connections open as a worker's are."""
    if not _KEPT or _KEPT[0][0] is not settings:
        while _KEPT:
            _, other = _KEPT.pop()
            other.tasks[CHECK_TASK].services.database.close()
            other.close()
        _KEPT.append((settings, create_app(settings)))
    return _KEPT[0][1]
