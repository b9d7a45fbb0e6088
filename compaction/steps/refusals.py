"""Refusals: what a provider's error says about a request that is too large, read by status, wording and unit."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.policy import reserved_output
from compaction.steps.refusal_wordings import LEAST_ERROR, WORDINGS, Fault, Unit, Wording

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CHARS: Final = 20_000
"""Characters of an error that are searched. Errors that quote the prompt do so after the statement."""
LARGEST: Final = 100_000_000_000
LARGEST_TOKENS: Final = 100_000_000
"""A larger number is no count."""
LEAST_BYTES: Final = 10_000
"""A smaller limit of bytes or characters is that of one field, not of the history."""
_NUMBER: Final = r"(?:\d{1,3}(?:[,_]\d{3})+|\d{1,12})"
_GAPS: Final = {"…": r"[^0-9]{0,100}?", "*": r".{0,200}?"}
_PART: Final = re.compile(r"\{([^{}]*)\}|([…*])")
_ESCAPES: Final = {r"\u003e": ">", r"\u003c": "<", r"\u0026": "&", r"\u0027": "'", '\\"': '"', r"\n": " "}
_value: Final = msgspec.json.Decoder().decode


class Refusal(NamedTuple):
    """What a provider refused: whose fault it is, the unit, the amount that was sent, and the limit on the history.

    Both numbers are None if the error does not name them. The output that was asked for is subtracted from both.
    `size` are the bytes of the request, None if they are not known.
    """

    fault: Fault
    unit: Unit = Unit.TOKENS
    amount: int | None = None
    limit: int | None = None
    size: int | None = None

    @property
    def is_of_history(self) -> bool:
        """Whether a shorter history mends it."""
        return self.fault is Fault.HISTORY

    def with_size(self, size: int) -> Refusal:
        """Return the refusal of a request of so many bytes.

        If the error names a limit alone, the request's own size is the amount; a limit that the request does not reach
        is not the one that it was refused for.
        """
        if self.unit not in {Unit.BYTES, Unit.CHARACTERS}:
            return self
        if self.amount is not None or self.limit is None:
            return self._replace(size=size)
        if self.limit >= size:
            return self._replace(size=size, limit=None)
        return self._replace(size=size, amount=size)


def read_refusal(error: str, *, status: int | None = None, output_tokens: int | None = None) -> Refusal | None:
    """Return what a provider's error says about the size of a request, None if no wording of the table fits.

    `status` is the HTTP status, None if it is not known. `output_tokens` is what the request asked for at most.
    """
    found = find_wording(error, status=status)
    return None if found is None else _refusal(*found, output_tokens or 0)


def find_wording(error: str, *, status: int | None = None) -> tuple[Wording, dict[str, str | None]] | None:
    """Return the row of the table that a provider's error fits, with the numbers that it names; None for no row."""
    text = _flatten(error)
    for wording in WORDINGS:
        if wording.statuses and status is not None and status not in wording.statuses:
            continue
        if not wording.says:
            if status in wording.statuses:
                return wording, {}
        elif match := _pattern(wording).search(text):
            return wording, match.groupdict()
    return None


def status_of(error: Any) -> int | None:
    """Return the HTTP status that an error within a stream names, None if it names none."""
    if not isinstance(error, dict):
        return None
    for name in ("code", "status", "status_code", "error_code"):
        value = error.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and value >= LEAST_ERROR:
            return value
    return None


def error_text(error: str | dict[str, Any]) -> tuple[str, int | None]:
    """Return the text of an error and the HTTP status that it names, None if it names none."""
    if isinstance(error, dict):
        inner = error.get("error")
        return msgspec.json.encode(error).decode(), status_of(inner) or status_of(error)
    try:
        value = _value(error)
    except (msgspec.DecodeError, RecursionError):
        return error, None
    return error, (status_of(value.get("error")) or status_of(value)) if isinstance(value, dict) else None


def _refusal(wording: Wording, named: Mapping[str, str | None], output_tokens: int) -> Refusal:
    """Return the refusal of a wording with the numbers that its error names."""
    numbers = {name: int(re.sub(r"\D", "", text)) for name, text in named.items() if text is not None}
    unnumbered = Refusal(wording.fault, wording.unit)
    limit, output = numbers.get("limit"), numbers.get("output", 0)
    amount = numbers.get("amount", numbers.get("least"))
    if amount is None and "total" in numbers:
        # What is counted with the prompt and not named is what the request asked for.
        output = numbers.get("output", output_tokens)
        amount = max(0, numbers["total"] - output)
    elif amount is not None:
        amount += numbers.get("also", 0)
    largest = LARGEST_TOKENS if wording.unit is Unit.TOKENS else LARGEST
    if limit is None or not 0 < limit <= largest or (amount is not None and not 0 < amount <= largest):
        return unnumbered
    if wording.unit in {Unit.BYTES, Unit.CHARACTERS} and limit < LEAST_BYTES:
        return unnumbered._replace(fault=Fault.OTHER)
    is_named = "output" in numbers or "total" in numbers
    if wording.unit is Unit.TOKENS and not is_named:
        # What a smaller request leaves free is for the answer, which many models count in.
        reserved = limit - reserved_output(output_tokens, limit, 0)
    else:
        reserved = limit - output if output < limit else limit
    if amount is None:
        return unnumbered._replace(limit=reserved)
    if amount <= limit and amount < output:
        return unnumbered._replace(fault=Fault.OUTPUT)
    if amount <= (reserved if is_named else limit):
        return unnumbered._replace(fault=Fault.OTHER)
    return unnumbered._replace(amount=None if "least" in numbers else amount, limit=reserved)


def _flatten(error: str) -> str:
    """Return an error's text in one line, as JSON within JSON reads."""
    text = error[:MAX_CHARS]
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return " ".join(text.replace("\\", "").split())


@cache
def _pattern(wording: Wording) -> re.Pattern[str]:
    """Return the expression that finds a wording; see `Wording.says`."""
    parts: list[str] = []
    end = 0
    for match in _PART.finditer(wording.says):
        parts.append(re.escape(wording.says[end : match.start()]))
        name, gap = match.groups()
        if gap is not None:
            parts.append(_GAPS[gap])
        elif "|" in name:
            parts.append(f"(?:{'|'.join(map(re.escape, name.split('|')))})")
        else:
            parts.append(f"(?P<{name}>{_NUMBER})" if name else _NUMBER)
        end = match.end()
    parts.append(re.escape(wording.says[end:]))
    return re.compile("".join(parts), re.IGNORECASE)
