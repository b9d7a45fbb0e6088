"""The ledger of rules: what a turn adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from compaction.messages import blocks, is_instruction, is_request
from compaction.pins.pinned import message_text
from compaction.pins.standing import (
    RULES_CHARS,
    SaidText,
    ends_of,
    lasting_rules,
    standing_instructions,
    stated_in,
    withdrawals,
)
from compaction.text.names import name_in, speaker_of, stated_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


EntrySource = Literal["pinned", "detected", "withdrawal"]
"""Of an entry: pinned by hand, detected in what was said, or what a user said to have a rule forgotten."""


class TurnEntry(NamedTuple):
    """What a message of a turn adds to the ledger."""

    place: int
    """Of the message in its turn."""
    text: str
    source: EntrySource
    if_first: bool | None = None
    """True: counts only if no message but instructions comes before; False: only if one does; None: either way."""
    speaker: str = ""
    """Who said it; a full ledger keeps the newest of each speaker."""


def turn_entries(messages: Sequence[tuple[str, Any]], *, may_be_first: bool = True) -> list[TurnEntry]:
    """Return what a turn, roles and contents, adds to the ledger. It may begin the conversation if `may_be_first`.

    Of the conversation's first message every standing instruction counts, of later ones of users what says that it
    holds from now on; of a long text what is at its ends (the rest of a first message is looked at when it is
    compacted). What the system or the developer says after the beginning is a rule as a whole. Nobody else states
    rules: what tools return, or models answer, never counts.
    """
    entries: list[TurnEntry] = []
    begun = False
    for place, (role, content) in enumerate(messages):
        if is_instruction(role, content):
            text = message_text(content)
            if text.strip() and len(text) <= RULES_CHARS:
                entries.append(TurnEntry(place, text, "detected", None if begun else False))
            continue
        if is_request(role, content):
            entries += _of_request(place, content, may_be_first=may_be_first and not begun, is_later=begun)
        begun = True
    return [entry for entry in entries if _is_storable(entry.text)]


def with_speakers(
    entries: Sequence[TurnEntry], messages: Sequence[tuple[str, Any]], sent: Sequence[str] | None
) -> list[TurnEntry]:
    """Return what a turn adds to the ledger with who said it; `sent` are the messages of a chat as they came."""

    def speaker(entry: TurnEntry) -> str:
        role, content = messages[entry.place]
        if is_instruction(role, content):
            return "system"
        name = name_in(sent[entry.place]) if sent is not None and entry.place < len(sent) else ""
        return speaker_of(role, name or stated_name(message_text(content)).name)

    return [entry._replace(speaker=speaker(entry)) for entry in entries]


def _of_request(place: int, content: Any, *, may_be_first: bool, is_later: bool) -> Iterator[TurnEntry]:
    for part in (part for text in _texts(content) for part in ends_of(text)):
        if may_be_first:
            yield from (TurnEntry(place, rule, "detected", if_first=True) for rule in standing_instructions(*part))
        later = None if is_later else False
        yield from (TurnEntry(place, rule, "detected", later) for rule in lasting_rules(*part))
        yield from (TurnEntry(place, asked, "withdrawal", later) for asked in withdrawals(*part))


def _texts(content: Any) -> Iterator[SaidText]:
    """Yield the texts of a request one by one: a rule stands within one, but a text may introduce the next."""
    texts = [str(block.get("text") or "") for block in blocks(content) if block.get("type") == "text"]
    whole = stated_in("\n\n".join(texts))
    if whole is None:
        return
    at = 0
    for text in texts:
        yield SaidText(text, whole.own[at : at + len(text)])
        at += len(text) + len("\n\n")


def _is_storable(text: str) -> bool:
    """Return whether Postgres takes a text: not if it has a NUL, or half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
