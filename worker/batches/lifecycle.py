"""Message batches on their way: sent when a conversation nears its threshold, polled until they have ended.

Every attempt is claimed first, in a transaction of its own, and counted; the claim runs out like a lease. While the
provider is asked no transaction is open.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
from msgspec.structs import replace

from compaction.overrides import in_force
from compaction.steps import steps
from compaction.steps.runs import RunKind, RunReason, RunTrigger
from compaction.view import WRITTEN
from runtime import ids
from runtime.fault_points import pause_for_test
from store.conversations import claims, conversations, snapshots
from store.runs import batches, runs
from store.tenants import budgets, tenants
from worker.batches.ahead import fingerprint
from worker.batches.answers import close, collect, fail
from worker.runs.journal import read_originals
from worker.runs.resources import StoppingError
from worker.runs.summarizing import request_of
from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.policy import Policy
    from compaction.steps.stage import Stage
    from compaction.summary.prompts import Prompt
    from compaction.summary.staging import Plan
    from compaction.summary.zone import Zone
    from store.conversations.snapshots import Material
    from store.runs.batches import Batch
    from store.runs.runs import Lease, LeaseHolder
    from worker.batches.provider import AnthropicBatches
    from worker.runs.resources import RunResources
    from worker.summarizers.base import SummaryRequest

log = structlog.get_logger()

MAX_FAILURES: Final = 5
"""Claims in a row that fail, by a fault of ours or by one that does not pass, before a batch is given up."""
LIFETIME_SECONDS: Final = 48 * 3_600.0
"""A batch ends within 24 hours; one that is not over after twice that is given up, whatever the reason."""
CLOCKS_DIFFER: Final = timedelta(minutes=5)
"""By how much the provider's clock may differ from the database's, where a batch is searched for by its time."""
BUSY_SECONDS: Final = 10.0
"""Seconds until answers are tried again where another run of the conversation is active."""
BEAT_SECONDS: Final = 15.0
DAY_SECONDS: Final = 24 * 3_600.0

PASSING: Final = frozenset(
    {
        RunReason.CIRCUIT_OPEN,
        RunReason.MODEL_ERROR,
        RunReason.MODEL_GARBAGE,
        RunReason.MODEL_OVERLOADED,
        RunReason.MODEL_RATE_LIMITED,
        RunReason.MODEL_TIMEOUT,
        RunReason.MODEL_UNREACHABLE,
    }
)
"""Reason codes of what may pass by itself: a batch waits for that as long as it lives."""


class _Reading(NamedTuple):
    """A conversation at the moment in which a batch is made of it."""

    policy: Policy
    material: Material
    zone: Zone
    previous: str | None
    """The summary before it, by which it is found again: the request has what of it is given on."""
    request: SummaryRequest


class Lifecycle:
    """Takes batches a step further, one attempt at a time. Safe to use from many threads."""

    def __init__(
        self, resources: RunResources, defaults: Mapping[str, Any], *, holder: Callable[[], LeaseHolder]
    ) -> None:
        self._resources = resources
        self._database = resources.database
        self._defaults = defaults
        self._holder = holder

    def advance(
        self, tenant_id: UUID, batch_id: UUID, api: AnthropicBatches | None, execute: Callable[[Lease], None]
    ) -> UUID | None:
        """Do what is due about a batch; return its conversation if a run of it has ended, which is to be checked."""
        claim_seconds = 60.0 + 2 * (api.deadline_seconds if api is not None else 0)
        with self._database.transaction(tenant_id) as connection:
            batch = batches.claim(connection, tenant_id, batch_id, lease_seconds=claim_seconds)
        if batch is None:
            return None
        request_id = None if batch.request_id is None else ids.external("req", batch.request_id)
        with structlog.contextvars.bound_contextvars(batch_id=str(batch.id), request_id=request_id):
            try:
                return self._advance(batch, api, execute)
            except StoppingError:
                self._postpone(batch, 0)
            except SummaryError as error:
                self._trouble(batch, error)
            return None

    def _advance(self, batch: Batch, api: AnthropicBatches | None, execute: Callable[[Lease], None]) -> UUID | None:
        if api is None:
            fail(
                self._database,
                batch,
                SummaryError(RunReason.BATCHES_OFF, "no provider is asked here"),
                self._policy(batch),
            )
        elif batch.age_seconds > LIFETIME_SECONDS or batch.failures > MAX_FAILURES:
            detail = f"after {batch.age_seconds / 3_600:.0f} h and {batch.failures - 1} failures in a row"
            fail(self._database, batch, SummaryError(RunReason.BATCH_LOST, detail), self._policy(batch))
        elif batch.state == "wanted":
            self._send(batch, api)
        elif batch.provider_batch_id is None and batch.state != "ended":
            self._find(batch, api)
        elif batch.state == "canceling":
            self._cancel(batch, api, batch.provider_batch_id or "")
        else:
            return self._collect(batch, api, execute)
        return None

    def _send(self, batch: Batch, api: AnthropicBatches) -> None:
        """Send the questions. From the moment before they go out the row says so: what comes of it is looked up."""
        reading = self._read(batch)
        if reading is None:
            return
        api = api.chosen_by(reading.policy)
        try:
            plan = api.plan(reading.request)
        except SummaryError as error:
            fail(self._database, batch, error, reading.policy)
            return
        prompts = [plan.ask(part) for part in plan.parts]
        outline = _outline(reading, plan, api)
        with self._database.transaction(batch.tenant_id) as connection:
            if not self._is_affordable(connection, batch, prompts, outline, reading.policy):
                self._wait_for_budget(connection, batch, reading.policy)
                return
            if not batches.sending(connection, batch, outline):
                return  # superseded meanwhile
        try:
            status = self._wait(lambda: api.create(batch.id.hex, prompts, plan.answer_tokens))
        except StoppingError:
            log.info(
                "batch.left", reason="the worker stops"
            )  # it may get there yet: to be searched for after the claim
            return
        except SummaryError as error:
            if error.code not in api.not_taken:
                log.warning("batch.unsure", reason=error.code, detail=error.detail)
                self._postpone(batch, batches.FIRST_WAIT_SECONDS, well=error.code in PASSING)
                return
            with self._database.transaction(batch.tenant_id) as connection:
                batches.not_sent(connection, batch, batch.wait_seconds)
            raise
        pause_for_test("batch.sent")
        if self._adopt(batch, status.id, status.expires_at):
            log.info("batch.submitted", parts=len(prompts), provider_batch_id=status.id)
        else:
            # This worker stood still for so long that another has sent it again.
            log.warning("batch.sent_twice", provider_batch_id=status.id)
            self._wait(lambda: api.cancel(status.id))

    def _is_affordable(
        self, connection: Connection, batch: Batch, prompts: Sequence[Prompt], outline: batches.Outline, policy: Policy
    ) -> bool:
        """Reserve what the questions may cost; False if the tenant's budget of today is spent."""
        paying = self._resources.budgets
        if paying is None:
            return True
        read, written = sum(prompt.tokens(0) for prompt in prompts), outline.answer_tokens * len(prompts)
        amount = paying.estimate(outline.model, read, written, policy, batch=True)
        return paying.reserve_batch(connection, batch.tenant_id, batch.id, amount)

    def _wait_for_budget(self, connection: Connection, batch: Batch, policy: Policy) -> None:
        """Have a batch wait for the next day, once: what is still not asked for then is wished for anew."""
        if batch.age_seconds > DAY_SECONDS:
            close(connection, batch, "discarded", RunReason.BUDGET_SPENT, policy=policy)
        else:
            batches.postpone(connection, batch, budgets.seconds_left(connection), failures=0)
        log.info("batch.waits", reason=RunReason.BUDGET_SPENT)

    def _find(self, batch: Batch, api: AnthropicBatches) -> None:
        """Find out whether the provider has a batch that was on its way to it when a worker ended."""
        assert batch.sent_at is not None and batch.outline is not None  # noqa: S101, PT018 - it was on its way
        since = batch.sent_at - CLOCKS_DIFFER
        until = batch.sent_at + timedelta(seconds=api.deadline_seconds) + CLOCKS_DIFFER
        listed = self._wait(lambda: api.recent(since, until))
        with self._database.transaction(batch.tenant_id) as connection:
            known = batches.known(connection, [each.id for each in listed])
        parts = len(batch.outline.part_ends)
        strange = [each for each in listed if each.id not in known and each.requests == parts]
        for status in strange:
            if status.ended and self._wait(partial(api.is_of, status.id, batch.id.hex)):
                self._adopt(batch, status.id, status.expires_at)
                log.info("batch.found", provider_batch_id=status.id)
                return
        if any(not each.ended for each in strange):
            # Whose it is, only its results tell.
            self._postpone(batch, batch.wait_seconds)
        elif batch.state == "canceling":
            self._close_superseded(batch, batches.Costs())
        else:
            log.info("batch.not_there")
            with self._database.transaction(batch.tenant_id) as connection:
                batches.not_sent(connection, batch, 0)

    def _adopt(self, batch: Batch, provider_id: str, expires_at: datetime) -> bool:
        return self._database.insist(
            batch.tenant_id, lambda connection: batches.sent(connection, batch, provider_id, expires_at)
        )

    def _cancel(self, batch: Batch, api: AnthropicBatches, provider_id: str) -> None:
        """Cancel a batch that nobody waits for any more, and write down what it has cost until then."""
        assert batch.outline is not None  # noqa: S101 - it was submitted
        status = self._wait(lambda: api.status(provider_id))
        if not status.ended and not status.canceling:
            status = self._wait(lambda: api.cancel(provider_id))
        if not status.ended:
            self._postpone(batch, batch.wait_seconds)
            return
        outline = batch.outline
        asked = api.chosen_by(replace(self._policy(batch), summarizer_model=outline.model or ""))
        results = self._wait(
            lambda: asked.results(provider_id, batch.id.hex, len(outline.part_ends), outline.answer_tokens)
        )
        self._close_superseded(batch, batches.Costs(*results.spent))

    def _close_superseded(self, batch: Batch, costs: batches.Costs) -> None:
        policy = self._policy(batch)
        with self._database.transaction(batch.tenant_id) as connection:
            close(connection, batch, "superseded", RunReason.BATCH_SUPERSEDED, policy=policy, costs=costs)

    def _collect(self, batch: Batch, api: AnthropicBatches, execute: Callable[[Lease], None]) -> UUID | None:
        """Fetch the answers, if there are any yet, and have a run commit them."""
        policy = self._policy(batch)
        if batch.state == "submitted":
            ended = collect(self._database, api, batch, policy, self._wait)
            if ended is None:
                return None
            batch = ended
        if batch.state != "ended":
            self._postpone(batch, batch.wait_seconds)
            return None
        lease = self._start(batch)
        if lease is None:
            return None
        execute(lease)
        return batch.conversation_id

    def _start(self, batch: Batch) -> Lease | None:
        """Begin the run that commits the answers; None if the conversation is to be left alone, for now or for good."""
        with self._database.transaction(batch.tenant_id) as connection:
            conversations.lock(connection, batch.conversation_id)
            row = conversations.get(connection, batch.tenant_id, batch.conversation_id)
            if row is None:
                return None
            policy = self._policy_of(connection, batch)
            if not policy.compaction_enabled:
                close(connection, batch, "discarded", RunReason.SUMMARIES_DISABLED, policy=policy)
                return None
            lease = None
            if row.pending_version is None:
                lease = runs.start(
                    connection,
                    batch.tenant_id,
                    batch.conversation_id,
                    kind=RunKind.BATCH,
                    trigger=RunTrigger.BATCH,
                    policy=policy,
                    holder=self._holder(),
                    lease_seconds=self._resources.leases.lease_seconds,
                )
            # A run that ends without closing the batch counts as a failure; one that is in the way does not.
            if lease is not None:
                batches.postpone(connection, batch, self._resources.leases.lease_seconds, failures=batch.failures)
            else:
                batches.postpone(connection, batch, BUSY_SECONDS, failures=batch.failures - 1)
            return lease

    def _read(self, batch: Batch) -> _Reading | None:
        """Return what is to be summarized; None if nothing is, or not now."""
        policy = self._policy(batch)
        with self._database.transaction(batch.tenant_id, one_moment=True) as connection:
            if conversations.get(connection, batch.tenant_id, batch.conversation_id) is None:
                return None  # It was erased, and the batch closed with it.
            material = snapshots.load(connection, batch.tenant_id, batch.conversation_id)
            stage = material.stage(policy)
            zone = _zone(stage, policy)
            if batches.restored_since(connection, batch):
                zone = RunReason.BATCH_OUTDATED
            if not isinstance(zone, str):
                replaced = stage.view[zone.start : zone.stop]
                whole, origins = read_originals(connection, batch.conversation_id, stage, replaced)
                unsourced = claims.unsourced_summary(connection, batch.conversation_id)
        if material.pending_version is not None:
            self._postpone(batch, batch.wait_seconds)
            return None
        if isinstance(zone, str):
            with self._database.transaction(batch.tenant_id) as connection:
                close(connection, batch, "discarded", zone, policy=policy)
            log.info("batch.not_needed", reason=zone)
            return None
        request = request_of(stage, zone, policy, whole, origins, unsourced)
        return _Reading(policy, material, zone, stage.previous_summary, request)

    def _policy(self, batch: Batch) -> Policy:
        with self._database.transaction(batch.tenant_id) as connection:
            return self._policy_of(connection, batch)

    def _policy_of(self, connection: Connection, batch: Batch) -> Policy:
        """Return the conversation's policy in force."""
        row = conversations.get(connection, batch.tenant_id, batch.conversation_id)
        tenant = tenants.settings_of(connection, batch.tenant_id)
        if row is None:
            return in_force(self._defaults, tenant.policy).policy
        return in_force(self._defaults, tenant.policy, row.policy, model=row.model).policy

    def _trouble(self, batch: Batch, error: SummaryError) -> None:
        """Try again later, or give the batch up where that would do no good."""
        passing = error.code in PASSING
        if not passing and batch.failures >= MAX_FAILURES:
            fail(self._database, batch, error, self._policy(batch))
            return
        log.warning("batch.trouble", state=batch.state, reason=error.code, detail=error.detail)
        self._postpone(batch, batch.wait_seconds, well=passing)

    def _postpone(self, batch: Batch, seconds: float, *, well: bool = True) -> None:
        with self._database.transaction(batch.tenant_id) as connection:
            batches.postpone(connection, batch, seconds, failures=0 if well else batch.failures)

    def _wait(self, call: Callable[[], Any]) -> Any:
        """Return what the provider answers; raise SummaryError, StoppingError."""
        answer = self._resources.calls.wait(call, lambda: None, BEAT_SECONDS)
        self._database.mark()  # each call has its deadline
        return answer


def _zone(stage: Stage, policy: Policy) -> Zone | str:
    """Return what a batch is to summarize, or the reason why none is sent: the wish for it may be hours old."""
    if not policy.compaction_enabled:
        return RunReason.SUMMARIES_DISABLED
    if stage.load.input_tokens <= policy.batch_threshold_tokens:
        return RunReason.UNDER_BUDGET
    return steps.find_zone(stage, policy)


def _outline(reading: _Reading, plan: Plan, api: AnthropicBatches) -> batches.Outline:
    zone = reading.request.zone
    seqs = [message.seq for message in zone if message.seq != WRITTEN]
    return batches.Outline(
        base_version=reading.material.head_version,
        first_seq=min(seqs),
        last_seq=max(seqs),
        zone_messages=len(zone),
        part_ends=tuple(part.stop for part in plan.parts),
        fingerprint=fingerprint(zone, reading.previous),
        canary=plan.secret,
        model=api.model,
        prompt_version=api.prompt_version,
        answer_tokens=plan.answer_tokens,
    )
