"""What a gateway counts for Prometheus, beside what every process that answers requests counts."""

from __future__ import annotations

from itertools import product
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.doors import CALLED

_OUTCOMES: Final = ("compacted", "unchanged", "bypassed", "failed_open")
_PROVIDER_AWAY: Final = (502, 504)
_TURNS: Final = ("stored", "resent", "lost", "not_storable")
FailedOpen = Literal["database", "key", "limits", "opaque"]
"""Why a request went on as it came: the database did not answer in time; it was away, so that the key could not be
looked up; the request is over a limit of what is read; or its history is JSON that cannot be read here."""
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class GatewayMetrics:
    """Requests, what became of them, and what was learned of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "palimpsest_gateway_requests",
            "Requests passed on to a provider, by what was done to them.",
            ["door", "outcome"],
            registry=registry,
        )
        for door, outcome in product(CALLED, _OUTCOMES):
            requests.labels(door, outcome)
        turns = Counter(
            "palimpsest_gateway_turns",
            "Answered requests by what became of their turn: stored at once; stored with a later request; not "
            "stored ten minutes later; refused as not storable.",
            ["state"],
            registry=registry,
        )
        refused = Counter(
            "palimpsest_gateway_refused",
            "Requests that the gateway answered with an error of its own; 502 and 504: of the provider came nothing.",
            ["door", "status"],
            registry=registry,
        )
        for door, status in product(CALLED, _PROVIDER_AWAY):
            refused.labels(door, status)
        self.refused = refused
        failed_open = Counter(
            "palimpsest_gateway_failed_open",
            "Requests passed on as they came, by why: the database, a key that could not be looked up, limits, or a "
            "history that cannot be read (opaque).",
            ["why"],
            registry=registry,
        )
        self.failed_open = {why: failed_open.labels(why) for why in get_args(FailedOpen)}
        self.answers = Counter(
            "palimpsest_gateway_answers",
            "Answers of providers, by their status.",
            ["door", "status"],
            registry=registry,
        )
        self.requests = requests
        self.turns = {state: turns.labels(state) for state in _TURNS}
        self.unstored_turns = Gauge(
            "palimpsest_gateway_unstored_turns",
            "Turns that could not be stored, and that may still come with a later request.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.saved_tokens = Counter(
            "palimpsest_gateway_saved_tokens", "Tokens that were not sent, by estimate.", registry=registry
        )
        self.retries = Counter(
            "palimpsest_gateway_retries",
            "Requests sent again, smaller, after a refusal as too large.",
            registry=registry,
        )
        self.unread_refusals = Counter(
            "palimpsest_gateway_unread_refusals",
            "Refusals (400, 413, 422, and errors with status 200) that the table of refusals does not know.",
            ["provider", "status"],
            registry=registry,
        )
        self.aborted = Counter(
            "palimpsest_gateway_aborted", "Answers that ended before they were whole.", registry=registry
        )
        self.under_way = Gauge(
            "palimpsest_gateway_answers_under_way",
            "Answers under way.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.added_seconds = Histogram(
            "palimpsest_gateway_added_seconds",
            "Seconds from a request's last byte to its first one to the provider.",
            buckets=_SECONDS,
            registry=registry,
        )
