"""What a worker or beat counts for Prometheus. No label names a tenant, a conversation or what anybody wrote.

One set a process, as there is one log. The processes of a prefork pool tell theirs to the one that started them, which
is the one that is scraped (`worker.process.exposition`): so counts outlive the pool's processes, and no disk
fills with files.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector

from compaction.steps.runs import RunReason, RunState, StepState
from store.operations.statistics import tokens_cut
from worker.summarizers.list_prices import listed_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from runtime.settings import Settings
    from store.conversations.usages import Reckoned
    from store.runs.runs import StepRecord

CheckOutcome = Literal["idle", "begun", "in_the_way", "promoted", "recounted"]
Attempt = Literal["done", "lost", "released", "failed"]
Refusal = Literal["unknown_task", "misshapen", "invalid_ids"]
Delivery = Literal["delivered", "refused", "dead"]
Prefix = Literal["expected", "cached", "missing"]
Context = Literal["sent", "uncompacted"]
RetentionFailure = Literal["archive", "database"]

OTHER: Final = "other"
"""Stands for a reason or a model that is not among those that are known, so that no label has values without end."""

_TASK_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_MODEL_SECONDS: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
_REASONS: Final = frozenset(RunReason)
_PIPE_BYTES: Final = 4_096
"""Bytes that Linux writes to a pipe in one piece (PIPE_BUF): what several processes write does not get mixed up."""


class WorkerMetrics:
    """Counters and durations of one process, or of a pool of them. Safe to use from many threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._metrics: dict[str, Counter | Histogram] = {}
        self._models: frozenset[str] = frozenset()
        self._pipe: Pipe | None = None
        self._define()

    def _define(self) -> None:
        self._counter("tasks", "Tasks of the broker that ended.", "task", "outcome")
        self._histogram("task_duration_seconds", "Seconds that tasks took.", _TASK_SECONDS, "task")
        self._counter("messages_refused", "Messages of the broker that no task could be made of.", "reason")
        self._counter("checks", "Conversations checked, by what the check came to.", "outcome")
        self._counter(
            "runs",
            "Runs that workers and beat ended, by how they ended and why; those that requests end are the API's.",
            "state",
            "reason",
        )
        self._counter(
            "run_attempts",
            "Attempts at runs: done, given up as the run was lost or the worker stopped, failed.",
            "outcome",
        )
        self._counter("run_steps", "Steps of runs that were recorded.", "step", "state", "reason")
        self._histogram("run_step_duration_seconds", "Seconds that steps took.", _TASK_SECONDS, "step")
        for name, which in (("before", "before"), ("after", "after"), ("saved", "saved by")):
            self._counter(
                f"compaction_tokens_{name}", f"Tokens of contexts {which} committed steps, estimated.", "step"
            )
        self._counter("tool_results_cut", "Tool results that committed steps cut.")
        self._counter("model_calls", "Calls of models that steps recorded.", "model")
        self._counter("model_tokens", "Tokens that models billed.", "model", "direction")
        self._counter("model_cost_usd", "USD that model calls cost, where the price is known.", "model")
        self._counter("model_requests", "Requests to models, each attempt for itself.", "model", "outcome")
        self._histogram("model_request_duration_seconds", "Seconds until a model answered.", _MODEL_SECONDS, "model")
        self._counter("chat_calls", "Calls of chats' own models that were reckoned, from the usages of their turns.")
        self._counter("chat_input_tokens", "Tokens of input of these calls.")
        self._counter("chat_saved_tokens", "Tokens that compaction kept out of them, estimated.")
        self._counter(
            "chat_prefix_tokens",
            "Of calls whose usage says what a prompt cache had: what it should have had, had, and had less than it "
            "should. What is missing was not compaction's doing.",
            "which",
        )
        self._counter(
            "chat_cost_usd",
            "USD of these calls' input, where the model's price is known: as they were sent, and without compaction. "
            "The second less the first is what compaction saved.",
            "context",
        )
        self._counter(
            "chat_saved_uncached_usd", "USD that compaction would have saved of these calls were nothing ever cached."
        )
        self._counter(
            "secrets_masked",
            "Different credentials that were masked in what summarizers read, in what they wrote, and in what was cut.",
            "kind",
        )
        self._counter("guard_findings", "What the quality guard found wrong with summaries.", "reason")
        self._counter("webhook_attempts", "Attempts at webhook deliveries.", "outcome")
        self._counter("sweeps", "Sweeps.")
        self._counter("sweep_failures", "Parts of sweeps that failed.", "part")
        self._counter("sweep_found", "What sweeps woke workers for.", "part")
        self._histogram("sweep_duration_seconds", "Seconds that sweeps took.", _TASK_SECONDS)
        self._counter("leases_expired", "Runs that were taken from workers whose leases had run out.")
        self._counter(
            "commits_lost",
            "Times that this process, alive, met a database without commits that it had acknowledged: a standby was "
            "promoted without them, or a backup restored.",
        )
        self._counter(
            "rows_removed",
            "Rows that housekeeping removed; of `conversations` those erased by `message_retention_days`.",
            "table",
        )
        self._counter(
            "retention_failures",
            "Conversations past `message_retention_days` that were not erased: `archive` could not be written, or the "
            "`database` refused.",
            "why",
        )
        self._counter("metrics_lost", "Counts that a process of the pool could not pass on.")
        # There from the start, at 0: an alert sees the first of each as a change.
        known = {"checks": CheckOutcome, "run_attempts": Attempt, "messages_refused": Refusal}
        known |= {"chat_prefix_tokens": Prefix, "chat_cost_usd": Context, "retention_failures": RetentionFailure}
        for name, values in (known | {"webhook_attempts": Delivery}).items():
            for value in get_args(values):
                self._metrics[name].labels(value)

    def name_models(self, settings: Settings) -> None:
        """Let the models that the settings name have their own values, besides those with a list price."""
        own = filter(None, [settings.chosen_model, settings.summarizer_model])
        self._models = frozenset({*own, *settings.summarizer_models, *settings.summarizer_prices})

    def name_parts(self, parts: Iterable[str]) -> None:
        """Count these parts of sweeps from 0 on: an alert sees the first failure of one as a change."""
        for part in parts:
            for name in ("sweep_failures", "sweep_found"):
                self._metrics[name].labels(part)

    def task_ended(self, task: str, outcome: Literal["done", "rejected", "failed"], seconds: float) -> None:
        """Count a task."""
        self._add("tasks", task, outcome)
        self._add("task_duration_seconds", task, amount=seconds)

    def message_refused(self, reason: Refusal) -> None:
        """Count a message that was rejected."""
        self._add("messages_refused", reason)

    def checked(self, outcome: CheckOutcome, count: int = 1) -> None:
        """Count conversations that were checked."""
        self._add("checks", outcome, amount=count)

    def run_ended(self, state: RunState, reason: str | None) -> None:
        """Count a run that has ended."""
        self._add("runs", state, _known(reason))

    def attempted(self, outcome: Attempt) -> None:
        """Count an attempt at a run."""
        self._add("run_attempts", outcome)

    def step_recorded(self, step: StepRecord) -> None:
        """Count a step: what it did to the context, and what it cost."""
        self._add("run_steps", step.name, step.state, _known(step.reason))
        self._add("run_step_duration_seconds", step.name, amount=step.duration_ms / 1_000)
        if step.state == StepState.COMMITTED:
            self._add("compaction_tokens_before", step.name, amount=step.tokens_before)
            self._add("compaction_tokens_after", step.name, amount=step.tokens_after)
            self._add("compaction_tokens_saved", step.name, amount=tokens_cut(step))
            self._add("tool_results_cut", amount=step.results_cut or 0)
        if step.model_calls or step.model_input_tokens or step.model_output_tokens:
            model = self.model(step.model)
            self._add("model_calls", model, amount=step.model_calls)
            self._add("model_tokens", model, "input", amount=step.model_input_tokens or 0)
            self._add("model_tokens", model, "output", amount=step.model_output_tokens or 0)
            self._add("model_cost_usd", model, amount=float(step.cost_usd or 0))

    def requested(self, model: str, outcome: str, seconds: float) -> None:
        """Count a request to a model; `outcome` is `ok` or a reason code."""
        name = self.model(model)
        self._add("model_requests", name, outcome if outcome == "ok" else _known(outcome))
        self._add("model_request_duration_seconds", name, amount=seconds)

    def reckoned(self, input_tokens: int, cached: int | None, call: Reckoned) -> None:
        """Count a call of a chat's own model; `cached` is what its usage says that a cache had, None for nothing."""
        self._add("chat_calls")
        self._add("chat_input_tokens", amount=input_tokens)
        self._add("chat_saved_tokens", amount=max(0, call.saved_tokens))
        if cached is not None and call.expected_tokens is not None:
            had = min(cached, input_tokens)
            self._add("chat_prefix_tokens", "expected", amount=call.expected_tokens)
            self._add("chat_prefix_tokens", "cached", amount=had)
            self._add("chat_prefix_tokens", "missing", amount=max(0, call.expected_tokens - had))
        if call.cost_usd is not None and call.saved_usd is not None:
            self._add("chat_cost_usd", "sent", amount=call.cost_usd)
            self._add("chat_cost_usd", "uncompacted", amount=max(0.0, call.cost_usd + call.saved_usd))
            self._add("chat_saved_uncached_usd", amount=call.saved_uncached_usd or 0.0)

    def judged(self, reasons: Iterable[str]) -> None:
        """Count what the quality guard found."""
        for reason in reasons:
            self._add("guard_findings", reason)

    def masked(self, counts: Mapping[str, int]) -> None:
        """Count credentials that were masked, by their kinds."""
        for kind, count in counts.items():
            self._add("secrets_masked", kind, amount=count)

    def delivered(self, outcome: Delivery) -> None:
        """Count an attempt at a webhook's delivery."""
        self._add("webhook_attempts", outcome)

    def swept(self, seconds: float) -> None:
        """Count a sweep."""
        self._add("sweeps")
        self._add("sweep_duration_seconds", amount=seconds)

    def sweep_failed(self, part: str) -> None:
        """Count a part of a sweep that failed."""
        self._add("sweep_failures", part)

    def woke(self, part: str, count: int) -> None:
        """Count what a part of a sweep woke workers for."""
        self._add("sweep_found", part, amount=count)

    def lease_expired(self) -> None:
        """Count a run that was taken from a worker that is gone."""
        self._add("leases_expired")

    def lost_commits(self) -> None:
        """Count a database that does not have what it had acknowledged."""
        self._add("commits_lost")

    def removed(self, table: str, rows: int) -> None:
        """Count rows that housekeeping removed."""
        self._add("rows_removed", table, amount=rows)

    def retention_failed(self, why: RetentionFailure) -> None:
        """Count a conversation past its retention that was not erased."""
        self._add("retention_failures", why)

    def model(self, name: str | None) -> str:
        """Return the label's value for a model, `other` for one that neither the settings nor the price list name."""
        if name is None:
            return OTHER
        return name if name in self._models else listed_name(name) or OTHER

    def pass_on(self, pipe: Pipe) -> None:
        """Tell another process from now on, instead of counting here: in a process that was forked off."""
        self._pipe = pipe

    def take(self, name: str, labels: Iterable[str], amount: float) -> None:
        """Count here, what this process or one of its pool has seen."""
        metric = self._metrics[name]
        values = tuple(labels)
        child = metric.labels(*values) if values else metric
        if isinstance(child, Counter):
            child.inc(amount)
        else:
            child.observe(amount)

    def _add(self, name: str, *labels: str, amount: float = 1) -> None:
        if self._pipe is None:
            self.take(name, labels, amount)
        else:
            self._pipe.write(name, labels, amount)

    def _counter(self, name: str, description: str, *labels: str) -> None:
        self._metrics[name] = Counter(f"palimpsest_{name}", description, labels, registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...], *labels: str) -> None:
        self._metrics[name] = Histogram(
            f"palimpsest_{name}", description, labels, buckets=buckets, registry=self.registry
        )


class Pipe:
    """Takes counts from the processes of a pool to the one that started them.

    Nobody waits for it: what does not fit is lost, and the loss is reported with the next count that does.
    """

    def __init__(self) -> None:
        self._read, self._written_to = os.pipe()
        os.set_blocking(self._written_to, False)
        self.lost = 0
        """Counts lost since the last one that fitted."""

    def write(self, name: str, labels: Iterable[str], amount: float) -> None:
        """Pass a count on."""
        lines = [(name, list(labels), amount)] + ([("metrics_lost", [], self.lost)] if self.lost else [])
        written = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        try:
            # In one piece or not at all, whoever else writes.
            os.write(self._written_to, written[:_PIPE_BYTES])
        except OSError:
            self.lost += 1
        else:
            self.lost = 0

    def lines(self) -> Iterator[tuple[str, list[str], float]]:
        """Return counts as they come, for as long as this process lives."""
        with os.fdopen(self._read, "rb") as file:
            for line in file:
                yield msgspec.json.decode(line, type=tuple[str, list[str], float])


def _known(reason: str | None) -> str:
    return "" if reason is None else reason if reason in _REASONS else OTHER


METRICS: Final = WorkerMetrics()
"""Those of this process."""
