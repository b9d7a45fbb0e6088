"""Rules in a context as it is served: each stands in it word for word, or the answer names it.

A snapshot has every rule in its messages or in its frame. What the guard then leaves out to fit the budget may take a
rule of the tail with it: that comes back in a frame, for this answer alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from compaction.frames.languages import language_of_frames
from compaction.messages import is_instruction, is_request
from compaction.pins.agreement import format_names
from compaction.pins.pinned import Pin, fit_pins, message_text, missing_pins, render_pins, with_pins
from compaction.repair import repair
from compaction.text.names import speaker_of, stated_name
from compaction.tokens import content_tokens
from compaction.view import strip_thinking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from compaction.shorten.fitting import FittedHistory
    from compaction.view import ViewMessage

_TEXTS: Final = frozenset({"text", "content", "output", "refusal"})
"""Fields of messages in all shapes whose strings are texts."""
_encode: Final = msgspec.json.Encoder().encode
_ENTRY_BYTES: Final = 4_096
"""Of JSON, which take as long to read as to hold an entry of the ledger against the others."""
_CHARACTER_BYTES: Final = 8
"""Of JSON, which take as long to read as a character of an entry."""
_SEARCHED_BYTES: Final = 32
"""Of messages, in which a text is looked for in the time that it takes to read a byte of JSON."""
_ROUNDS: Final = 3
"""Times that a history is fitted anew because a larger frame took room; each has all that the one before lacked."""


class StandingRules(NamedTuple):
    """Which rules stand in what is served, and which do not."""

    standing: tuple[Pin, ...]
    absent: tuple[Pin, ...]

    @property
    def sha256(self) -> str:
        """The hash over the texts that stand, in their order, joined by line feeds."""
        return hashlib.sha256("\n".join(rule.text for rule in self.standing).encode()).hexdigest()


def reading_bytes(texts: Iterable[str], served: int = 0) -> int:
    """Return how many bytes of JSON take as long to read as entries of the ledger, each looked for in what is served.

    `served` is its size in bytes.
    """
    each = _ENTRY_BYTES + served // _SEARCHED_BYTES
    return sum(each + _CHARACTER_BYTES * len(text) for text in texts)


def check(served: bytes, rules: Sequence[Pin], shown: Sequence[Pin] = ()) -> StandingRules:
    """Look for every rule in the messages that are `served`, a JSON array, in whichever shape.

    `shown` are the rules as frames show them, with their credentials masked: either way a rule stands. They are what is
    returned.

    A text is looked for as encoders write it, which parses nothing. Only where one is not there so, pinned as a whole
    with several blocks or written with needless escapes, the messages are parsed.
    """
    forms = {rule.id: {rule.text, masked.text} for rule, masked in zip(rules, shown or rules, strict=True)}
    rules = shown or rules
    unseen = [rule for rule in rules if not any(_is_seen(served, text) for text in forms[rule.id])]
    lost = set(_lacking(json.loads(served), unseen, forms)) if unseen else set()
    return StandingRules(
        tuple(rule for rule in rules if rule not in lost), tuple(rule for rule in rules if rule in lost)
    )


def _is_seen(served: bytes, text: str) -> bool:
    return _encode(text)[1:-1] in served or _is_escaped(served, text)


def _is_escaped(served: bytes, text: str) -> bool:
    """Return whether a text is there with all that is not ASCII escaped."""
    return not text.isascii() and json.dumps(text)[1:-1].encode() in served


def _lacking(messages: Sequence[Any], rules: Sequence[Pin], forms: Mapping[str, set[str]]) -> list[Pin]:
    texts = ["\n".join(_strings(message)) for message in messages]
    return [rule for rule in rules if not any(form in text for text in texts for form in forms[rule.id])]


def _strings(value: Any, key: str = "") -> Iterator[str]:
    """Yield the texts of a message, those of its blocks in order; the names of its parts are none."""
    if isinstance(value, str):
        if key in _TEXTS:
            yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _strings(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part, key)


def warnings_of(absent: Sequence[Pin]) -> list[str]:
    """Return one warning that names the rules in force which do not stand in a context, none if all do."""
    if not absent:
        return []
    if len(absent) == 1:
        rule = absent[0]
        warning = (
            f"the rule {rule.id} of message {rule.seq} is in force and not in this context: "
            "there is no room for it (pinned_max_tokens), or a tool loop has to end first"
        )
        return [warning]
    warning = (
        f"{len(absent)} rules are in force and not in this context, {format_names(_format_rules(absent))}: "
        "there is no room for them (pinned_max_tokens), or a tool loop has to end first"
    )
    return [warning]


def _format_rules(rules: Sequence[Pin]) -> list[str]:
    return [f"{rule.id} (message {rule.seq})" for rule in rules]


def with_speakers(rules: Sequence[Pin], view: Sequence[ViewMessage], names: Mapping[int, str]) -> tuple[Pin, ...]:
    """Return rules with who stated them: by `names`, by seq, or as the messages of `view` say themselves."""
    if not rules:
        return ()
    seqs = {rule.seq for rule in rules}
    said = {message.seq: message for message in view if message.seq in seqs}
    return tuple(rule._replace(speaker=_speaker(said.get(rule.seq), names.get(rule.seq, ""))) for rule in rules)


def _speaker(message: ViewMessage | None, name: str) -> str:
    if message is None or name or is_request(message.role, message.content):
        text = "" if message is None else message_text(message.content)
        return speaker_of("user", name or stated_name(text).name)
    if message.role == "assistant":
        return message.role
    return "system" if is_instruction(message.role, message.content) else "tool"


def fit_with_rules(
    fit: Callable[[float], FittedHistory],
    room: float,
    given: Sequence[ViewMessage],
    rules: Sequence[Pin],
    *,
    factor: float,
    max_tokens: int,
    is_part: bool = False,
    frame_language: Literal["auto", "en"] = "en",
    frame_code: str = "",
) -> FittedHistory:
    """Return what `fit` makes of `given` in so much room, with the rules that it leaves out in a frame.

    The frame has its place in the room, and `max_tokens` estimated tokens at most, which `factor` corrects. What
    `given` lacks already is not put into it, unless `is_part` tells that messages were not read because they would not
    fit.
    """
    fitted = fit(room)
    if not rules or (fitted.view == tuple(given) and not is_part):
        return fitted
    lacked = set() if is_part else set(missing_pins(given, rules, frame_code))
    language = language_of_frames(frame_language, given, is_framed=True)
    framed: tuple[Pin, ...] = ()
    for _ in range(_ROUNDS):
        missing = [rule for rule in missing_pins(fitted.view, rules, frame_code) if rule not in lacked]
        wanted_rules = [rule for rule in rules if rule in framed or rule in missing]
        wanted, _ = fit_pins(wanted_rules, max_tokens=max_tokens, language=language, code=frame_code)
        if set(wanted) <= set(framed):
            break
        framed = wanted
        fitted = fit(room - _weight(framed, factor, language, frame_code))
    missing = [rule for rule in missing_pins(fitted.view, rules, frame_code) if rule not in lacked]
    framed, _ = fit_pins(missing, max_tokens=max_tokens, language=language, code=frame_code)
    if not framed:
        return fitted
    # What was thought after the frame was signed for messages without it.
    last = max(message.seq for message in (*given, *fitted.view))
    view, _ = repair(strip_thinking(with_pins(fitted.view, framed, language, frame_code), last))
    return fitted._replace(view=view, tokens=fitted.tokens + _weight(framed, factor, language, frame_code))


def _weight(pins: Sequence[Pin], factor: float, language: str, code: str) -> int:
    return math.ceil(content_tokens(render_pins(pins, language, code)) * factor) + 1
