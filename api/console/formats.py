"""How the console writes numbers, moments, durations and ids."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import json

from compaction.claims.citations import format_seqs
from runtime import ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal
    from uuid import UUID

NONE: Final = "\u2013"
"""A dash, for what is not known or not there."""
_THOUSAND: Final = 1_000
_MILLION: Final = 1_000_000
_ROUGH: Final = 100_000
_MINUTE: Final = 60
_HOUR: Final = 3_600
_DAY: Final = 86_400
_SHORT_ID: Final = 8
_PREFIXES: Final[dict[str, ids.Prefix]] = {
    "conversation": "conv",
    "run": "run",
    "key": "key",
    "webhook": "hook",
    "delivery": "evt",
    "action": "act",
    "pin": "pin",
    "erasure": "era",
    "tenant": "ten",
}


def number(value: float | None) -> str:
    """Return a whole number with its thousands apart."""
    return NONE if value is None else f"{round(value):,}"


def compact(value: float | None) -> str:
    """Return a number for a label: 950, 12.3k, 128k, 1.2M."""
    if value is None:
        return NONE
    if abs(value) >= _MILLION:
        return f"{value / _MILLION:.1f}M"
    if abs(value) >= _ROUGH:
        return f"{value / _THOUSAND:.0f}k"
    return f"{value / _THOUSAND:.1f}k".replace(".0k", "k") if abs(value) >= _THOUSAND else f"{value:.0f}"


def percent(share: float | None) -> str:
    """Return a share as whole percents."""
    return NONE if share is None else f"{share:.0%}"


def money(amount: Decimal | float | None) -> str:
    """Return dollars: to the cent, small sums to the hundredth of one."""
    if amount is None:
        return NONE
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.4f}"


def axis_money(amount: float) -> str:
    """Return dollars for a scale: to the cent, unless it is finer."""
    text = f"${amount:,.4f}"
    return text.removesuffix("00")


def setting(value: Any) -> str:
    """Return the value of a policy key as a request has it: JSON, a text without its quotes."""
    return value if isinstance(value, str) else json.encode(value).decode()


def duration(seconds: float | None) -> str:
    """Return a length of time in the unit that fits."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE)
    if seconds < _HOUR:
        return f"{minutes} min {rest} s"
    return f"{minutes // _MINUTE} h {minutes % _MINUTE} min" if seconds < _DAY else f"{seconds / _DAY:.1f} days"


def moment(at: datetime | None) -> str:
    """Return a moment in UTC, to the second."""
    return NONE if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def iso(at: datetime) -> str:
    """Return a moment for machines."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(at: datetime | None) -> str:
    """Return how long ago a moment was, by this machine's clock."""
    return NONE if at is None else f"{_rough(max(0.0, (datetime.now(UTC) - at).total_seconds()))} ago"


def ahead(at: datetime) -> str:
    """Return how long it is until a moment, or how long ago it was."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    return f"in {_rough(seconds)}" if seconds > 0 else ago(at)


def _rough(seconds: float) -> str:
    steps = ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h"))
    for below, unit, name in steps:
        if seconds < below:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // _DAY)} d"


def words(name: str | None) -> str:
    """Return a code as words."""
    return NONE if name is None else name.replace("_", " ")


def conversation_id(identifier: UUID) -> str:
    """Return a conversation's id."""
    return ids.external("conv", identifier)


def run_id(identifier: UUID) -> str:
    """Return a run's id."""
    return ids.external("run", identifier)


def external_key(identifier: UUID) -> str:
    """Return a key's id."""
    return ids.external("key", identifier)


def id_of(identifier: UUID, kind: str) -> str:
    """Return the id of a thing of a kind as everything shows it; logs have those of the rest as UUIDs."""
    prefix = _PREFIXES.get(kind)
    return str(identifier) if prefix is None else ids.external(prefix, identifier)


def request_id(identifier: UUID) -> str:
    """Return a request's id."""
    return ids.external("req", identifier)


def short(identifier: str) -> str:
    """Return the end of an id, by which people tell those of one list apart; its beginning is the time."""
    head, _, digits = identifier.rpartition("_")
    return f"{head}_…{digits[-_SHORT_ID:]}" if head else digits


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "number": number,
    "compact": compact,
    "citation": format_seqs,
    "percent": percent,
    "money": money,
    "axis_money": axis_money,
    "setting": setting,
    "duration": duration,
    "moment": moment,
    "iso": iso,
    "ago": ago,
    "ahead": ahead,
    "words": words,
    "conversation_id": conversation_id,
    "run_id": run_id,
    "key_id": external_key,
    "id_of": id_of,
    "request_id": request_id,
    "short": short,
}
