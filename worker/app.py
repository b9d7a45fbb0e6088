"""The Celery application of the workers: its tasks, what they share, and what happens when one fails."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import structlog
from celery import Task
from celery.exceptions import Reject
from sqlalchemy.exc import SQLAlchemyError

from runtime import ids
from runtime.broker import CHECK_TASK, DELIVER_TASK, RUN_TASK, SUMMARIES, celery_app
from runtime.fault_points import pause_for_test
from runtime.log import fault
from runtime.settings import read_once
from runtime.tracing import header, here
from store.runs import runs, summary_places
from store.runs.runs import LeaseHolder
from store.runs.summary_places import Places
from worker.checks import Checker
from worker.database import Database
from worker.metrics import METRICS
from worker.parts import choose_model, choose_summarizer, choose_ways
from worker.process import place
from worker.process.progress import Progress
from worker.process.rejections import read_ids
from worker.runs.budgets import Budgets
from worker.runs.dispatch import Dispatcher
from worker.runs.pausing import Pausing
from worker.runs.resources import RunResources
from worker.runs.swapping import Swapping
from worker.tracing import traced_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from celery import Celery

    from runtime.settings import Settings
    from store.runs.runs import Lease
    from worker.sweeping.webhooks import Courier

log = structlog.get_logger()


class TaskServices:
    """What the tasks of one process share; no connection is opened before it is used, so a fork is safe."""

    def __init__(self, settings: Settings, app: Any) -> None:
        self._app = app
        self.settings = settings
        METRICS.name_models(settings)
        self.progress = Progress()
        self.database = Database(settings, "worker", self.progress)
        self.resources = RunResources(
            self.database,
            choose_summarizer(settings),
            make_model=choose_model(settings),
            lease_seconds=settings.lease_seconds,
            limit_seconds=settings.summary_limit_seconds,
            wake=self._wake,
            budgets=Budgets(self.database, settings),
            swapping=Swapping(settings, self.database),
        )
        self.dispatcher = Dispatcher(self.resources, choose_ways(settings))
        self.checker = Checker(
            self.database,
            settings.policy,
            holder=self.holder,
            lease_seconds=settings.lease_seconds,
            pausing=Pausing(settings),
        )
        self._places = Places(settings.summaries_per_tenant, settings.summaries_overall)

    @cached_property
    def process_id(self) -> UUID:
        """The process of `processes` that speaks for this one, and for the others of its pool, forked later."""
        return ids.new_id()

    @cached_property
    def courier(self) -> Courier:
        """What delivers webhooks, loaded with its HTTP client when there is one to deliver."""
        from worker.sweeping.webhooks import Courier  # noqa: PLC0415

        return Courier(
            self.database,
            private_addresses=self.settings.webhook_private_addresses,
            threads=self.settings.summaries_concurrency,
        )

    def holder(self) -> LeaseHolder:
        """Return whom a lease is given to now; the processes of a pool are forked off after the start."""
        return LeaseHolder(place.worker_name(), self.process_id)

    def claim(self, tenant_id: UUID, run_id: UUID) -> Lease | None:
        """Take a queued run over; None if somebody else has it, or its tenant has as many under way as it may.

        One that has to wait stays queued, with no attempt counted: whoever frees a place offers it.
        """
        with self.database.transaction(tenant_id) as connection:
            if self._places.are_bounded and not summary_places.is_free(connection, run_id, self._places):
                log.info("run.waits", run_id=str(run_id))
                return None
            lease = runs.claim(
                connection,
                run_id,
                holder=self.holder(),
                lease_seconds=self.settings.lease_seconds,
                max_attempts=self.settings.max_attempts,
            )
        if lease is not None and lease.ignored:
            log.warning("policy.ignored", run_id=str(run_id), reasons=lease.ignored)
        return lease

    def offer_place(self, lease: Lease) -> None:
        """Give the place of a run that has ended to the one whose turn it is."""
        if lease.queue != SUMMARIES or not self._places.are_bounded or self.resources.calls.stopping:
            return
        try:
            with self.database.transaction(None) as connection:
                offered = summary_places.offer(connection, self._places)
        except SQLAlchemyError as error:
            log.warning("place.not_offered", error=type(error).__name__)  # the sweeper offers it in its time
        else:
            if offered is not None:
                self._send(*offered)

    def _wake(self, lease: Lease) -> None:
        self._send(lease.run_id, lease.tenant_id)

    def _send(self, run_id: UUID, tenant_id: UUID) -> None:
        self._tell(RUN_TASK, tenant_id, run_id)

    def _tell(self, task: str, tenant_id: UUID, identifier: UUID) -> None:
        """Tell the workers of summaries what waits for them; if nobody hears it, the sweeper will."""
        try:
            place = here()
            headers = header({str(identifier): place} if place else {})
            self._app.send_task(task, args=[str(tenant_id), str(identifier)], queue=SUMMARIES, headers=headers)
        except Exception as error:  # noqa: BLE001 - whatever the broker's client raises, the run is queued
            log.warning("wakeup.lost", error=type(error).__name__)


class ServiceTask(Task):  # type: ignore[misc] # Celery ships no types
    """Carries ids only, is acknowledged after the work, and never retried by the broker.

    A failure is left to the database: the due check is still due, the run's lease runs out, and the sweeper wakes
    somebody. Its traceback may hold values of rows, so only its type is logged.
    """

    abstract = True
    services: ClassVar[TaskServices]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work, watched over."""
        outcome: Literal["done", "rejected", "failed"] = "failed"
        started = time.monotonic()
        with self.services.progress.task(self.name), traced_task(self):
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
        """Log what failed."""
        log.error("task.failed", task=self.name, task_id=task_id, error=fault(exc))


def create_app(settings: Settings | None = None) -> Celery:
    """Return the application that a worker runs."""
    settings = settings or read_once()
    app = celery_app(settings, "palimpsest")
    services = TaskServices(settings, app)
    base = type("BoundTask", (ServiceTask,), {"services": services, "abstract": True})

    @app.task(base=base, bind=True, shared=False, name=CHECK_TASK)
    def check(task: ServiceTask, conversation_ids: Sequence[str]) -> None:
        """Check a batch of conversations and carry out what is due at once."""
        pause_for_test("check.started")
        task.services.checker.check(read_ids(conversation_ids), task.services.dispatcher.execute)

    @app.task(base=base, bind=True, shared=False, name=RUN_TASK)
    def run(task: ServiceTask, tenant_id: str, run_id: str) -> None:
        """Carry out a queued run, if nobody else has it and its tenant may have one more under way."""
        services = task.services
        if services.resources.calls.stopping:
            raise Reject("the worker stops", requeue=True)
        lease = services.claim(*read_ids([tenant_id, run_id]))
        if lease is None:
            return
        services.dispatcher.execute(lease)
        services.offer_place(lease)
        # Whatever came meanwhile was left to this run.
        services.checker.check([lease.conversation_id], services.dispatcher.execute)

    @app.task(base=base, bind=True, shared=False, name=DELIVER_TASK)
    def deliver(task: ServiceTask, tenant_id: str, delivery_id: str) -> None:
        """Make one attempt at a webhook's delivery."""
        task.services.courier.deliver(*read_ids([tenant_id, delivery_id]))

    return app
