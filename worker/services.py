"""Services that the tasks of one process share. No connection is opened before it is used, so that a fork is safe."""

from __future__ import annotations

import os
import socket
from functools import cached_property
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from runtime import ids
from runtime.broker import RUN_TASK, SUMMARIES
from runtime.settings import read_once
from runtime.tracing import header, here
from store.runs import runs, summary_places
from store.runs.runs import LeaseHolder
from store.runs.summary_places import Places
from worker.celery import app
from worker.checks import Checker
from worker.database import Database
from worker.metrics import METRICS
from worker.parts import choose_model, choose_signed, choose_summarizer
from worker.runs.budgets import Budgets
from worker.runs.dispatch import Dispatcher
from worker.runs.pausing import Pausing
from worker.runs.resources import RunResources
from worker.runs.swapping import Swapping

if TYPE_CHECKING:
    from uuid import UUID

    from celery import Celery

    from runtime.settings import Settings
    from store.runs.runs import Lease
    from worker.sweeping.sweeper import Sweeper
    from worker.sweeping.webhooks import Courier

log = structlog.get_logger()


class TaskServices:
    """The services of one process's tasks. `sender` is the Celery application that other workers are told by."""

    def __init__(self, settings: Settings, sender: Celery) -> None:
        self._sender = sender
        self.settings = settings
        METRICS.name_models(settings)
        self.database = Database(settings, "worker")
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
        self.dispatcher = Dispatcher(self.resources, choose_signed(settings))
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
        """The client that delivers webhooks. Its HTTP client is loaded when there is one to deliver."""
        from worker.sweeping.webhooks import Courier  # noqa: PLC0415

        return Courier(
            self.database,
            private_addresses=self.settings.webhook_private_addresses,
            threads=self.settings.summaries_concurrency,
        )

    @cached_property
    def sweeper(self) -> Sweeper:
        """The periodic tasks."""
        from worker.sweeping.sweeper import Sweeper  # noqa: PLC0415

        return Sweeper(self.settings, self._sender)

    def holder(self) -> LeaseHolder:
        """Return whom a lease is given to now; the processes of a pool are forked off after the start."""
        return LeaseHolder(f"{socket.gethostname()}:{os.getpid()}", self.process_id)

    def claim(self, tenant_id: UUID, run_id: UUID) -> Lease | None:
        """Claim a queued run; return None if another worker has it, or its tenant has as many under way as it may.

        One that has to wait stays queued, with no attempt counted, until a slot is free and offered to it.
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
        """Offer the slot of a run that has ended to the next in turn."""
        if lease.queue != SUMMARIES or not self._places.are_bounded or self.resources.calls.stopping:
            return
        try:
            with self.database.transaction(None) as connection:
                offered = summary_places.offer(connection, self._places)
        except SQLAlchemyError as error:
            log.warning("place.not_offered", error=type(error).__name__)  # the next sweep offers it
        else:
            if offered is not None:
                self._send_run(*offered)

    def close(self) -> None:
        """Close every connection to the database."""
        self.database.close()
        if "beat" in self.__dict__:
            self.sweeper.close()

    def _wake(self, lease: Lease) -> None:
        self._send_run(lease.run_id, lease.tenant_id)

    def _send_run(self, run_id: UUID, tenant_id: UUID) -> None:
        """Send a run to the workers of summaries. If the message is lost, the next sweep sends it again."""
        try:
            place = here()
            headers = header({str(run_id): place} if place else {})
            self._sender.send_task(RUN_TASK, args=[str(tenant_id), str(run_id)], queue=SUMMARIES, headers=headers)
        except Exception as error:  # noqa: BLE001 - whatever the broker's client raises, the run is queued
            log.warning("wakeup.lost", error=type(error).__name__)


_services: Final[list[TaskServices]] = []


def process_services() -> TaskServices:
    """Return the services of this process; they are made with the environment's settings when they are first needed."""
    if not _services:
        _services.append(TaskServices(read_once(), app))
    return _services[0]


def replace_services(services: TaskServices | None) -> None:
    """Have the tasks of this process use other services, or new ones of the environment."""
    _services[:] = [] if services is None else [services]
