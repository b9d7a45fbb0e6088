"""The tasks. They carry ids only, and Postgres says what there is to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import structlog
from celery import Task
from celery.exceptions import Reject

from runtime.broker import (
    CHECK_TASK,
    DELIVER_TASK,
    HOUSEKEEPING_TASK,
    RUN_TASK,
    SWEEP_TASK,
    USAGES_TASK,
    WEBHOOKS_TASK,
)
from runtime.fault_points import pause_for_test
from runtime.log import fault
from worker.celery import app
from worker.metrics import METRICS
from worker.process.rejections import read_ids
from worker.services import process_services
from worker.tracing import traced_task

if TYPE_CHECKING:
    from collections.abc import Sequence

log = structlog.get_logger()


class ServiceTask(Task):  # type: ignore[misc] # Celery ships no types
    """A task that is acknowledged after the work and never retried by the broker.

    A failure is left to the database: the due check is still due, the run's lease expires, and the next sweep sends a
    message again. Its traceback may hold values of rows, so only its type is logged.
    """

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task, traced and counted."""
        outcome: Literal["done", "rejected", "failed"] = "failed"
        started = time.monotonic()
        with traced_task(self):
            try:
                result = super().__call__(*args, **kwargs)
                outcome = "done"
            except Reject:
                outcome = "rejected"
                raise
            finally:
                METRICS.task_ended(self.name, outcome, time.monotonic() - started)
        return result

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002
        """Log the type of a failure."""
        log.error("task.failed", task=self.name, task_id=task_id, error=fault(exc))


@app.task(base=ServiceTask, name=CHECK_TASK)
def check(conversation_ids: Sequence[str]) -> None:
    """Check a batch of conversations and carry out what is due at once."""
    pause_for_test("check.started")
    services = process_services()
    services.checker.check(read_ids(conversation_ids), services.dispatcher.execute)


@app.task(base=ServiceTask, name=RUN_TASK)
def run(tenant_id: str, run_id: str) -> None:
    """Carry out a queued run, unless another worker has it or its tenant has as many under way as it may."""
    services = process_services()
    if services.resources.calls.stopping:
        raise Reject("the worker stops", requeue=True)
    lease = services.claim(*read_ids([tenant_id, run_id]))
    if lease is None:
        return
    services.dispatcher.execute(lease)
    services.offer_place(lease)
    # Turns that came meanwhile were left to this run.
    services.checker.check([lease.conversation_id], services.dispatcher.execute)


@app.task(base=ServiceTask, name=DELIVER_TASK)
def deliver(tenant_id: str, delivery_id: str) -> None:
    """Make one attempt at a webhook's delivery."""
    process_services().courier.deliver(*read_ids([tenant_id, delivery_id]))


@app.task(base=ServiceTask, name=SWEEP_TASK)
def sweep() -> None:
    """Send lost wake-ups again, and the runs that no worker has."""
    process_services().sweeper.carry_out(SWEEP_TASK)


@app.task(base=ServiceTask, name=WEBHOOKS_TASK)
def send_webhooks() -> None:
    """Send the deliveries of webhooks that are due to the workers."""
    process_services().sweeper.carry_out(WEBHOOKS_TASK)


@app.task(base=ServiceTask, name=USAGES_TASK)
def reckon_usages() -> None:
    """Compute what new calls cost, and what compaction saved of them."""
    process_services().sweeper.carry_out(USAGES_TASK)


@app.task(base=ServiceTask, name=HOUSEKEEPING_TASK)
def keep_house() -> None:
    """Remove rows past their retention."""
    process_services().sweeper.carry_out(HOUSEKEEPING_TASK)
