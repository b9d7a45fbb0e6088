"""The alerts that one look at an installation can tell: those of deploy/prometheus/alerts.yml that need no history.

A test holds the two together: names, thresholds, times and sentences are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from compaction.steps.runs import RunState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

Severity = Literal["page", "ticket"]


class Rule(NamedTuple):
    """An alert that fires where a gauge of the installation is over a threshold, or is `zero` or `absent`.

    The rules of Prometheus wait for `lasting` before they tell anybody; a look at the present cannot.
    """

    name: str
    metric: str
    severity: Severity
    lasting: str
    summary: str
    above: float = 0
    test: Literal["above", "zero", "absent"] = "above"
    by: str = ""
    """The label of whose values each is looked at by itself."""
    only: tuple[str, str] | None = None
    """The label and the value of the one that counts."""


class Alert(NamedTuple):
    """A rule that is met now."""

    name: str
    severity: Severity
    summary: str
    value: float | None
    lasting: str
    is_seconds: bool
    is_ratio: bool = False


RULES: Final = (
    Rule(
        "ChecksLate",
        "oldest_due_check_seconds",
        "page",
        "2m",
        "A conversation has waited for its check for more than a minute.",
        60,
    ),
    Rule("ChecksPileUp", "due_checks", "ticket", "5m", "More than 10,000 conversations wait for their check.", 10_000),
    Rule(
        "LeasesExpired",
        "expired_leases",
        "page",
        "1m",
        "Runs of dead workers are not taken over: the sweep is away or stuck.",
    ),
    Rule(
        "RunsWait",
        "active_runs",
        "ticket",
        "10m",
        "More than 1,000 runs wait for a worker.",
        1_000,
        only=("state", RunState.QUEUED),
    ),
    Rule(
        "NoWorkers",
        "workers_alive",
        "page",
        "1m",
        "Nobody serves the queue {{ $labels.queue }}.",
        test="zero",
        by="queue",
    ),
    Rule(
        "NoBeat",
        "beats_alive",
        "page",
        "2m",
        "No beat runs: lost wake-ups and dead workers' runs stay where they are.",
        test="zero",
    ),
    Rule(
        "QueueDeep",
        "queue_depth",
        "ticket",
        "10m",
        "More than 1,000 messages wait in the queue {{ $labels.queue }}.",
        1_000,
        by="queue",
    ),
    Rule("BrokerAway", "queue_depth", "page", "2m", "No API process reaches Redis: compactions wait.", test="absent"),
    Rule(
        "SummariesOverdue",
        "oldest_overdue_summary_seconds",
        "ticket",
        "5m",
        "A summary that waited for another day's budget is not made although its day has come.",
        900,
    ),
    Rule(
        "SummariesWait",
        "oldest_waiting_summary_seconds",
        "ticket",
        "1h",
        "A summary has waited for a budget for more than three days: the budget is too small.",
        259_200,
    ),
    Rule(
        "DeliveriesLate",
        "oldest_due_delivery_seconds",
        "ticket",
        "5m",
        "A webhook has been due for more than ten minutes.",
        600,
    ),
    Rule(
        "GatewayFailsOpen",
        "gateway_failed_open_ratio",
        "ticket",
        "5m",
        "The gateway passes more than one request in a hundred on as it came: the database does not answer in time.",
        0.01,
    ),
)
PROMETHEUS_ALONE: Final = (
    "RunsDead",
    "NothingKnown",
    "ScrapeFails",
    "CommitsLost",
    "Errors",
    "PoolsExhausted",
    "ModelFails",
    "SummariesRefused",
    "OverBudget",
    "Overflows",
    "SweepsFail",
    "RetentionFails",
    "NoGateway",
    "GatewayProviderAway",
    "GatewayTurnsLost",
)
"""Alerts that need past values, or a view from outside the service."""
_PREFIX: Final = "palimpsest_"


def alerts(families: Iterable[Metric]) -> list[Alert]:
    """Return the alerts whose condition is met by the gauges of an installation, those that call people first."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name.removeprefix(_PREFIX), []).append((sample.labels, sample.value))
    met = [alert for rule in RULES for alert in _met(rule, samples.get(rule.metric, []))]
    return sorted(met, key=lambda alert: alert.severity != "page")


def _met(rule: Rule, samples: list[tuple[dict[str, str], float]]) -> list[Alert]:
    if rule.test == "absent":
        return [] if samples else [Alert(rule.name, rule.severity, rule.summary, None, rule.lasting, is_seconds=False)]
    return [
        Alert(
            rule.name,
            rule.severity,
            rule.summary.replace(f"{{{{ $labels.{rule.by} }}}}", labels.get(rule.by, "")),
            value,
            rule.lasting,
            is_seconds=rule.metric.endswith("_seconds"),
            is_ratio=rule.metric.endswith("_ratio"),
        )
        for labels, value in samples
        if rule.only is None or labels.get(rule.only[0]) == rule.only[1]
        if (value == 0 if rule.test == "zero" else value > rule.above)
    ]
