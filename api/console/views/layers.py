"""The layers of an assembly as one stacked bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from store.assemblies import Record


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


def layers(record: Record) -> Layers:
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
        _gave_way(record),
        record.warnings,
    )


def _gave_way(record: Record) -> list[str]:
    found = []
    if record.exchanges_dropped:
        found.append(f"{record.exchanges_dropped:,} of {record.exchanges_total:,} exchanges left out")
    if record.rounds_dropped:
        found.append("older tool rounds of the last exchange left out")
    if record.responses_truncated:
        found.append(f"{record.responses_truncated:,} responses or results cut to their start")
    if record.blocks_shortened:
        found.append(f"{record.blocks_shortened:,} context blocks shortened or left out")
    return found
