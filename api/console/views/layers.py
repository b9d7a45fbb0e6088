"""The layers of an assembly as one stacked bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from store.conversations.assemblies import AssemblyRecord


class Fitted(Protocol):
    """What is counted of an assembly that had to fit a budget, as stored and as the API tells it."""

    @property
    def exchanges_total(self) -> int:
        """Exchanges of the history."""

    @property
    def exchanges_dropped(self) -> int:
        """Those of them that were left out."""

    @property
    def rounds_dropped(self) -> bool:
        """Whether older tool rounds of the last exchange were left out."""

    @property
    def responses_truncated(self) -> int:
        """Responses and results that were cut."""

    @property
    def blocks_shortened(self) -> int:
        """Context blocks that were shortened or left out."""


class Layer(NamedTuple):
    """A part of the bar: where it begins and how long it is, in percent of the bar."""

    name: str
    label: str
    tokens: int
    start: float
    length: float
    share: float


class Layers(NamedTuple):
    """The bar: what was sent, what is reserved for the answer, and what was free."""

    call: str
    at: datetime
    version: int
    parts: Sequence[Layer]
    total: int
    budget: int
    over: int
    gave_way: Sequence[str]
    warnings: int


_LABELS = {
    "system": "System prompt and tools",
    "prior_context": "Prior context",
    "turn_context": "Turn context",
    "history": "History",
    "user_message": "User message",
    "reserved": "Reserved for the answer",
    "free": "Free",
}


def layers(record: AssemblyRecord) -> Layers:
    """Return the bar of an assembly; it is as long as the budget, or as what was sent where that is more."""
    whole = max(record.total_token_budget, record.total + record.reserved_output_tokens, 1)
    free = max(0, record.total_token_budget - record.total - record.reserved_output_tokens)
    parts: list[Layer] = []
    start = 0.0
    for name, tokens in {**record.layers, "reserved": record.reserved_output_tokens, "free": free}.items():
        length = 100 * tokens / whole
        parts.append(Layer(name, _LABELS[name], tokens, start, length, tokens / whole))
        start += length
    return Layers(
        record.call,
        record.assembled_at,
        record.snapshot_version,
        parts,
        record.total,
        record.total_token_budget,
        record.over,
        gave_way(record),
        record.warnings,
    )


def gave_way(fitted: Fitted) -> list[str]:
    """Return what an assembly left out or shortened, a line each; empty where everything fitted."""
    notes = []
    if fitted.exchanges_dropped:
        notes.append(f"{fitted.exchanges_dropped:,} of {fitted.exchanges_total:,} exchanges left out")
    if fitted.rounds_dropped:
        notes.append("older tool rounds of the last exchange left out")
    if (cut := fitted.responses_truncated) > 0:
        notes.append(f"{cut:,} {'response or result' if cut == 1 else 'responses or results'} cut to the start")
    if (shortened := fitted.blocks_shortened) > 0:
        notes.append(f"{shortened:,} context {'block' if shortened == 1 else 'blocks'} shortened or left out")
    return notes
