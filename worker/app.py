"""The Celery application of the workers, and its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from celery.exceptions import Reject

from runtime.broker import BATCH_TASK, CHECK_TASK, DELIVER_TASK, RUN_TASK, celery_app
from runtime.fault_points import reach
from runtime.settings import Settings
from worker.task import ServiceTask, TaskServices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery


def create_app(settings: Settings | None = None) -> Celery:
    """Return the application that a worker runs."""
    settings = settings or Settings()
    app = celery_app(settings, "palimpsest")
    services = TaskServices(settings, app)
    base = type("BoundTask", (ServiceTask,), {"services": services, "abstract": True})

    @app.task(base=base, bind=True, shared=False, name=CHECK_TASK)
    def check(task: ServiceTask, conversation_ids: Sequence[str]) -> None:
        """Check a batch of conversations and carry out what is due at once."""
        reach("check.started")
        ids = [UUID(text) for text in conversation_ids]
        task.services.checker.check(ids, task.services.dispatcher.execute)

    @app.task(base=base, bind=True, shared=False, name=RUN_TASK)
    def run(task: ServiceTask, tenant_id: str, run_id: str) -> None:
        """Carry out a queued run, if nobody else has it and its tenant may have one more under way."""
        services = task.services
        if services.resources.calls.stopping:
            raise Reject("the worker stops", requeue=True)
        lease = services.claim(UUID(tenant_id), UUID(run_id))
        if lease is None:
            return
        services.dispatcher.execute(lease)
        services.offer_place(lease)
        # Whatever came meanwhile was left to this run.
        services.checker.check([lease.conversation_id], services.dispatcher.execute)

    @app.task(base=base, bind=True, shared=False, name=BATCH_TASK)
    def advance(task: ServiceTask, tenant_id: str, batch_id: str) -> None:
        """Take a summary that was asked for ahead of time a step further."""
        services = task.services
        if services.resources.calls.stopping:
            raise Reject("the worker stops", requeue=True)
        conversation_id = services.ahead.advance(UUID(tenant_id), UUID(batch_id), services.dispatcher.execute)
        if conversation_id is not None:
            services.checker.check([conversation_id], services.dispatcher.execute)

    @app.task(base=base, bind=True, shared=False, name=DELIVER_TASK)
    def deliver(task: ServiceTask, tenant_id: str, delivery_id: str) -> None:
        """Make one attempt at a webhook's delivery."""
        task.services.courier.deliver(UUID(tenant_id), UUID(delivery_id))

    return app
