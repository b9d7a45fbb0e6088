"""What this process counts for Prometheus. No label names a tenant or a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from actions.monitoring.pools import Pools
from actions.monitoring.shared_metrics import registry_of_all
from compaction.steps.runs import RunReason, StepState
from store.conversations.overflows import Outcome as Overflow
from store.operations.statistics import tokens_cut
from store.recall.requests import Kind as RecallKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from store.conversations.assemblies import AssemblyRecord, Call
    from store.runs.ended import EndedRun

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)
_TOKENS: Final = (1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 64e3, 128e3, 200e3, 400e3, 1e6, 2e6)

_REASONS: Final = frozenset({RunReason.HEAD_MOVED, RunReason.ERASED})
"""Reasons of runs that requests end; that of a restore names its version, which would be values without end."""

ContextPath = Literal["plain", "mended", "not_modified"]
WakeUp = Literal["sent", "deferred", "lost"]
RecallOutcome = Literal["found", "nothing", "refused"]
RateScope = Literal["key", "tenant"]
"""Whose rate limit it is."""


class Metrics:
    """Counters and durations of one application."""

    def __init__(self) -> None:  # noqa: PLR0915 - one statement for each metric
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._requests = Counter(
            "palimpsest_http_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "palimpsest_http_request_duration_seconds",
            "Seconds from a request's head to the end of its answer.",
            ["method", "route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        turns = Counter("palimpsest_turns", "Turns taken.", ["outcome"], registry=self._registry)
        self.turns_appended = turns.labels("appended")
        """Turns that were stored."""
        self.turns_replayed = turns.labels("replayed")
        """Turns that an idempotency key found stored already."""
        self.turn_messages = Counter("palimpsest_turn_messages", "Messages of turns stored.", registry=self._registry)
        """Messages of turns that were stored."""
        self.turn_bytes = Counter(
            "palimpsest_turn_bytes", "Bytes of the requests whose turns were stored.", registry=self._registry
        )
        """Bytes of their requests' bodies."""
        self.unreadable_rows = Counter(
            "palimpsest_gateway_unreadable_rows",
            "Rows of histories that a gateway stored as a remark, because they cannot be read.",
            registry=self._registry,
        )
        """Rows that a gateway stored as a remark."""
        self.ambiguous_rows = Counter(
            "palimpsest_gateway_ambiguous_rows",
            "Rows of histories with a key given twice, of which a gateway stored the last value.",
            registry=self._registry,
        )
        """Rows with a key given twice."""
        overflows = Counter(
            "palimpsest_overflows",
            "Prompts reported as too long for their model, by what was done.",
            ["outcome"],
            registry=self._registry,
        )
        done: tuple[Overflow, ...] = get_args(Overflow)
        # There from the start, at 0: an alert sees the first one as a change.
        self.overflows = {outcome: overflows.labels(outcome) for outcome in done}
        """Overflows that were reported, by what was done."""
        contexts = Counter(
            "palimpsest_contexts",
            "Contexts served: as stored (plain), parsed to cap, strip or repair (mended), or known (not_modified).",
            ["path"],
            registry=self._registry,
        )
        paths: tuple[ContextPath, ...] = ("plain", "mended", "not_modified")
        self.contexts = {path: contexts.labels(path) for path in paths}
        """Contexts served, by how."""
        wakeups = Counter(
            "palimpsest_wakeups",
            "Conversations of which a worker was told, left to the sweep, or in a batch that did not arrive.",
            ["outcome"],
            registry=self._registry,
        )
        outcomes: tuple[WakeUp, ...] = ("sent", "deferred", "lost")
        self.wakeups = {outcome: wakeups.labels(outcome) for outcome in outcomes}
        """Conversations in wake-ups, by what became of them."""
        messages = Counter(
            "palimpsest_wakeup_messages",
            "Messages with wake-ups: batches of conversations, and runs.",
            ["outcome"],
            registry=self._registry,
        )
        self.wakeup_messages = {outcome: messages.labels(outcome) for outcome in ("sent", "lost")}
        """Messages with wake-ups, by what became of them."""
        self._recalls = Counter(
            "palimpsest_recalls",
            "Recalls by what they asked (query, ref, pattern), and whether something came back or they were refused.",
            ["kind", "outcome"],
            registry=self._registry,
        )
        for kind in get_args(RecallKind):
            for outcome in ("found", "nothing", "refused"):
                self._recalls.labels(kind, outcome)
        self._recall_regret = Counter(
            "palimpsest_recall_regret_messages",
            "Messages that came back by recall of the API after a step had taken them out of the context.",
            ["step"],
            registry=self._registry,
        )
        self.recalls_unrecorded = Counter(
            "palimpsest_recalls_unrecorded",
            "Recalls that were to be written down and were not: the database was away, or takes no writes.",
            registry=self._registry,
        )
        """Recalls that are missing in the audit."""
        self._runs = Counter(
            "palimpsest_runs",
            "Runs that requests carried out, or put an end to, by how they ended and why.",
            ["state", "reason"],
            registry=self._registry,
        )
        self._steps = {
            which: Counter(
                f"palimpsest_compaction_tokens_{which}",
                f"Tokens of contexts {meaning} steps that requests took and committed, estimated.",
                ["step"],
                registry=self._registry,
            )
            for which, meaning in (("before", "before"), ("after", "after"), ("saved", "saved by"))
        }
        self._assemblies = _Assemblies(self._registry)
        self.assemblies_lost = Counter(
            "palimpsest_assemblies_lost",
            "Assemblies that were not kept with their conversation: too many at once, or the database was away.",
            registry=self._registry,
        )
        """Assemblies that nobody will read again."""
        self.usages_lost = Counter(
            "palimpsest_usages_lost",
            "Usages of turns that were not kept: too many at once, or the database was away.",
            registry=self._registry,
        )
        """Usages that figures of spending will not have."""
        refusals = Counter(
            "palimpsest_rate_limited", "Requests refused over a rate limit.", ["scope"], registry=self._registry
        )
        scopes: tuple[RateScope, ...] = ("key", "tenant")
        self.rate_limited = {scope: refusals.labels(scope) for scope in scopes}
        """Requests refused, by whose limit it was."""
        self.rate_limits_unknown = Counter(
            "palimpsest_rate_limits_unknown",
            "Requests that could not be counted, as Redis was away.",
            registry=self._registry,
        )
        """Requests that were answered, or refused, uncounted."""
        self.pools = Pools(self._registry)
        """Connections to the database."""
        # Finding a metric by its labels takes a lock and builds strings; a request should not.
        self._of_route: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; `route` is its template, never its path."""
        key = (method, route, status)
        children = self._of_route.get(key)
        if children is None:
            name = method if method in _METHODS else "other"
            children = (self._requests.labels(name, route, status), self._seconds.labels(name, route))
            self._of_route[key] = children
        children[0].inc()
        children[1].observe(seconds)

    def took(self, *, replayed: bool, messages: int, size: int) -> None:
        """Count a turn; what it brought only where it was stored."""
        if replayed:
            self.turns_replayed.inc()
            return
        self.turns_appended.inc()
        self.turn_messages.inc(messages)
        self.turn_bytes.inc(size)

    def run_ended(self, run: EndedRun) -> None:
        """Count a run that a request has ended, and the step that it took."""
        reason = run.reason if run.reason in _REASONS else "" if run.reason is None else "other"
        self._runs.labels(run.state, reason).inc()
        if run.step is not None and run.step.state == StepState.COMMITTED:
            self._steps["before"].labels(run.step.name).inc(run.step.tokens_before)
            self._steps["after"].labels(run.step.name).inc(run.step.tokens_after)
            self._steps["saved"].labels(run.step.name).inc(tokens_cut(run.step))

    def recalled(self, kind: RecallKind, outcome: RecallOutcome) -> None:
        """Count a recall."""
        self._recalls.labels(kind, outcome).inc()

    def regretted(self, steps: Iterable[str]) -> None:
        """Count messages that were asked back, by the steps that had taken them out of the context."""
        for step in steps:
            self._recall_regret.labels(step).inc()

    def assembled(self, record: AssemblyRecord) -> None:
        """Count an assembly: its tokens by layer and in all, and what had to give way."""
        self._assemblies.count(record)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        self.pools.sample()
        return generate_latest(registry_of_all() or self._registry)

    @property
    def registry(self) -> CollectorRegistry:
        """Where everything that this process counts is."""
        return self._registry


class _Assemblies:
    """What assemblies weighed and left out, by call: `payload`, or `context` where the guard had to fit it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        calls: tuple[Call, ...] = ("payload", "context")
        layers = ("system", "prior_context", "turn_context", "history", "user_message")
        tokens = Histogram(
            "palimpsest_assembly_tokens",
            "Tokens of an assembled input, without the reserved output; of contexts only those that had to be fitted.",
            ["call"],
            buckets=_TOKENS,
            registry=registry,
        )
        by_layer = Counter(
            "palimpsest_assembly_layer_tokens", "Tokens assembled, by layer.", ["call", "layer"], registry=registry
        )

        def counter(name: str, description: str) -> dict[Call, Counter]:
            metric = Counter(f"palimpsest_assembly_{name}", description, ["call"], registry=registry)
            return {call: metric.labels(call) for call in calls}

        self._tokens = {call: tokens.labels(call) for call in calls}
        self._layers = {call: {layer: by_layer.labels(call, layer) for layer in layers} for call in calls}
        self._exchanges = counter("exchanges_dropped", "Exchanges left out of assemblies.")
        self._rounds = counter("rounds_dropped", "Assemblies that left out tool rounds of the last exchange.")
        self._responses = counter("responses_truncated", "Texts that assemblies cut to their beginning and end.")
        self._blocks = counter("blocks_shortened", "Context blocks that gave way to an outline or were left out.")
        self._over = counter("over_budget", "Assemblies over their budget after everything that may go was gone.")

    def count(self, record: AssemblyRecord) -> None:
        call = record.call
        self._tokens[call].observe(record.total)
        for layer, tokens in record.layers.items():
            self._layers[call][layer].inc(tokens)
        self._exchanges[call].inc(record.exchanges_dropped)
        self._rounds[call].inc(record.rounds_dropped)
        self._responses[call].inc(record.responses_truncated)
        self._blocks[call].inc(record.blocks_shortened)
        self._over[call].inc(record.over > 0)
