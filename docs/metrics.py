#!/usr/bin/env python3
"""Prints docs/metrics.md from the metrics that the processes have; `make docs` writes the file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from actions.monitoring import installation
from actions.monitoring.metrics import Metrics
from gateway.metrics import GatewayMetrics
from store.operations.processes import Activity
from worker.metrics import WorkerMetrics
from worker.process.exposition import ProcessGauges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric

HEADER: Final = """\
# Metrics

What `/metrics` has, by the processes that have it; [operations.md](operations.md#metrics-and-alerts) says how they are
scraped, what to watch and what to do. `make docs` writes this page.

No label names a tenant, a conversation or anything that somebody wrote, and none has values without end: routes are
templates, methods, states and steps are the product's own words, a reason that is not among
[its own](runs.md) is `other`, and so is a model that neither the settings nor the price list name.

Counters of a process begin at 0 with it, as Prometheus expects: `rate` and `increase` see through restarts. Where a
label has many values, or values that others choose (routes, reasons, steps, tasks, models, tables), a series begins
with its first count instead, which `increase` does not see. What has to outlive every process is read from Postgres:
the gauges of the installation, and its counters `palimpsest_recorded_…`. Histograms have `_bucket`, `_sum` and
`_count`.
"""

SECTIONS: Final = {
    "Installation": """\
Of the whole installation, read from Postgres and Redis by whichever API process is scraped, at most every 5
seconds. All say the same: take `max`. What cannot be known is absent.
""",
    "API": """\
Of one API process; with `--workers`, of all processes of one server together.
""",
    "Gateway": """\
Of one gateway process, beside those of the API that are about turns, runs, pools and wake-ups.
""",
    "Workers and beat": """\
Of one worker, the processes of its pool included, or of one beat. Each counts what it does: a worker has no
sweeps. `palimpsest_runs_total` is the API's as well, for runs that requests end: add them up.
""",
}
_LIBRARY: Final = """
## Of every process

`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds`, `process_max_fds`,
`process_virtual_memory_bytes`, `process_start_time_seconds`, `python_gc_…` and `python_info`, by the client
library. Of a prefork pool they are those of the process that started it; an API with `--workers` does not have
them.
"""


class Described(NamedTuple):
    """What there is to say of a metric."""

    name: str
    """As queries have it: a counter's with `_total`."""
    type: str
    labels: tuple[str, ...]
    meaning: str


def families() -> tuple[list[Described], ...]:
    """Return the metrics of the product by section."""
    worker = WorkerMetrics()
    gauges = ProcessGauges(Activity, {})
    return (
        [_described(each) for each in installation.families()],
        _registered(Metrics().registry),
        _registered(_of_gateway()),
        sorted({*_registered(worker.registry), *(_described(each) for each in gauges.collect())}),
    )


def _of_gateway() -> CollectorRegistry:
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    return registry


def _registered(registry: CollectorRegistry) -> list[Described]:
    # The library tells the labels of a metric that has no sample yet only here.
    metrics = [each for each in registry._collector_to_names if isinstance(each, MetricWrapperBase)]  # noqa: SLF001
    return [_described(family, each._labelnames) for each in metrics for family in each.describe()]  # noqa: SLF001


def _described(family: Metric, labels: Iterable[str] | None = None) -> Described:
    if labels is None:
        labels = getattr(family, "_labelnames", None) or dict.fromkeys(
            label for sample in family.samples for label in sample.labels
        )
    name = family.name + ("_total" if family.type == "counter" else "")
    return Described(name, family.type, tuple(labels), family.documentation)


def page() -> str:
    """Return the page."""
    parts = [HEADER]
    for (title, text), described in zip(SECTIONS.items(), families(), strict=True):
        parts.append(f"\n## {title}\n\n{text}\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
        for each in sorted(described):
            labels = ", ".join(f"`{label}`" for label in each.labels)
            parts.append(f"| `{each.name}` | {each.type} | {labels} | {each.meaning} |\n")
    return "".join([*parts, _LIBRARY])


if __name__ == "__main__":
    sys.stdout.write(page())
