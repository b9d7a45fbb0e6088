"""Pins: rules and facts that stay in the context word for word, however often it is compacted.

A pin needs no repeating while its own message is shown. Those whose message is gone are in a frame in the first user
message, before the summary. The frame is taken away before a step changes a view and put back after it, so that no
step has to know of it:

    bare = without_pins(view, framed)
    pinned = pin(rebuild(bare, ...), pins, max_tokens=...)

`framed` are the pins that the frame in `view` holds; they are stored with the view, as its summary is.
"""

from __future__ import annotations

import re
from itertools import count, zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from compaction.credentials.marks import has_mark
from compaction.credentials.masking import mask_text
from compaction.frames.codes import CODE
from compaction.frames.phrases import PHRASES, PIN_UNITS, speaker_in
from compaction.frames.wordings import WORDINGS, FrameWording
from compaction.messages import INSTRUCTION, blocks, is_request
from compaction.pins.left_out import note_at, with_note, without_note
from compaction.pins.own_words import own_words
from compaction.pins.requests import only_thanks
from compaction.pins.standing import standing_instructions
from compaction.summary.zone import (
    CLOSES,
    OPENS,
    frames_index,
    is_signed_alone,
    opening_length,
    preamble_length,
)
from compaction.text.names import speaker_of, stated_name
from compaction.tokens import CHARS_PER_TOKEN, text_weight
from compaction.view import OUT_OF_PLACE, WRITTEN, View, ViewMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from compaction.policy import Policy

PinSource = Literal["pinned", "standing_instruction", "latest_request", "left_out"]
"""`left_out` is the note of the messages that are not shown, which has a place of its own: see `left_out.py`."""

IN_LEDGER: Final[Mapping[str, PinSource]] = {"pinned": "pinned", "detected": "standing_instruction"}
"""What entries of the ledger that stay word for word are, by their source there."""
_PRIORITY: Final[dict[PinSource, int]] = {"pinned": 0, "standing_instruction": 1, "latest_request": 2, "left_out": 3}
_JOINT: Final = "\n\n"
_TAG: Final = rf"(?P<tag>(?::{CODE})?(?::\d{{1,9}})?)"
_OPENING: Final = re.compile(rf"\[PINNED{_TAG}\]\n[^\n]*\n")
_UNITS: Final = "|".join(map(re.escape, PIN_UNITS))
_ITEM: Final = re.compile(rf"\[PIN{_TAG} \d+[^\n\]]*[^\d\n\]](?P<chars>\d{{1,12}})(?:{_UNITS})\]\n")
_MARK: Final = re.compile(rf"\[\s*(?:END\s+)?PIN(?:NED)?\b(?::{CODE}\b)?(?::(\d{{1,9}}))?", re.IGNORECASE)


class Pin(NamedTuple):
    """A text that has to stay in the context byte for byte."""

    id: str
    seq: int
    """Of the message that it is in."""
    text: str
    """The span that was pinned, or all the text of its message."""
    source: PinSource = "pinned"
    speaker: str = ""
    """Who said it, as `names.speaker_of` shows it; "" if that is not known."""
    is_answered: bool = False
    """Of the latest request: whether the assistant has answered it."""


class PinnedView(NamedTuple):
    """A view with its pins in place."""

    view: View
    framed: tuple[Pin, ...]
    """Those that the frame holds, because their messages are not shown any more. `without_pins` is given these."""
    dropped: tuple[Pin, ...]
    """Those that found no room, to be reported."""


def standing_pins(text: str, seq: int) -> tuple[Pin, ...]:
    """Return the standing instructions in the text of message `seq` as pins."""
    speaker = speaker_of("user", stated_name(text).name)
    return tuple(
        Pin(f"standing-{seq}-{number}", seq, rule, "standing_instruction", speaker)
        for number, rule in enumerate(standing_instructions(text, own_words(text)), 1)
    )


def latest_request_pin(view: Sequence[ViewMessage]) -> Pin | None:
    """Return what the user asked last as a pin, None if only the first message of the view asks anything.

    A message that only thanks is skipped.
    """
    for message in reversed(view[preamble_length(view) + 1 :]):
        if message.seq != WRITTEN and is_request(message.role, message.content):
            said = "\n".join(_texts(message.content, "text"))
            if said.strip() and not said.startswith(OUT_OF_PLACE) and not only_thanks(said):
                speaker = speaker_of("user", stated_name(said).name)
                return Pin(f"request-{message.seq}", message.seq, said, "latest_request", speaker)
    return None


def message_text(content: Any) -> str:
    """Return the text of a message that a pin can hold: its texts and tool results, a line break between."""
    return "\n".join(_texts(content, "text", "tool_result", INSTRUCTION))


def masked_pins(pins: Iterable[Pin], policy: Policy) -> tuple[Pin, ...]:
    """Return pins as a frame shows them: with their credentials masked, unless the policy keeps these."""
    if policy.secrets == "keep":
        return tuple(pins)
    return tuple(pin._replace(text=mask_text(pin.text, pin.seq)) for pin in pins)


def pin(
    view: Sequence[ViewMessage], pins: Sequence[Pin], *, max_tokens: int, language: str = "english", code: str = ""
) -> PinnedView:
    """Return `view`, which holds no frame, with a frame of the pins whose messages it does not show.

    The frame is worded in `language`, has the conversation's `code` and costs at most `max_tokens` estimated tokens.
    """
    framed, dropped = fit_pins(missing_pins(view, pins, code), max_tokens=max_tokens, language=language, code=code)
    return PinnedView(with_pins(view, framed, language, code), framed, dropped)


def with_left_out(pinned: PinnedView, note: str, last: int) -> PinnedView:
    """Return a view with its pins and the note of what it leaves out, up to seq `last`; unchanged for no note."""
    if not note or not pinned.view:
        return pinned
    noted = Pin("left-out", last, note, "left_out")
    return pinned._replace(view=with_note(pinned.view, note), framed=(*pinned.framed, noted))


def fit_pins(
    pins: Sequence[Pin], *, max_tokens: int, language: str = "english", code: str = ""
) -> tuple[tuple[Pin, ...], tuple[Pin, ...]]:
    """Return the pins whose frame costs at most `max_tokens` estimated tokens, and those that found no room.

    What people pinned goes before standing instructions, and these before the latest request. Of what was pinned the
    newest goes first. Of standing instructions each speaker's newest goes first, then each speaker's second, so that
    no speaker takes the room of all. A text that does not fit leaves room for shorter ones after it. A text that is
    pinned twice is kept once. Kept pins come in the order of their messages.
    """
    tag = _tag(pins, code)
    room = max_tokens * CHARS_PER_TOKEN - text_weight(_frame((), tag, language)) - text_weight(_JOINT)
    kept: dict[str, int] = {}
    dropped: list[Pin] = []
    ranks = _ranks(pins)
    for index in sorted(range(len(pins)), key=ranks.__getitem__):
        if pins[index].text in kept:
            continue
        cost = text_weight(_item(pins[index], tag, len(pins), len(pins), language))
        if cost > room:
            dropped.append(pins[index])
            continue
        room -= cost
        kept[pins[index].text] = index
    chosen = sorted(kept.values(), key=lambda index: (pins[index].seq, index))
    return tuple(pins[index] for index in chosen), tuple(dropped)


def _ranks(pins: Sequence[Pin]) -> list[tuple[int, int, int, int]]:
    """Return what pins are sorted by: kind, number among the speaker's own from the newest on, message, index."""
    ranks = [
        (_PRIORITY[pin.source], 0, -pin.seq, -index if pin.source == "pinned" else index)
        for index, pin in enumerate(pins)
    ]
    said: dict[str, int] = {}
    for index in sorted(range(len(pins)), key=ranks.__getitem__):
        if pins[index].source == "standing_instruction":
            number = said[pins[index].speaker] = said.get(pins[index].speaker, -1) + 1
            ranks[index] = (_PRIORITY["standing_instruction"], number, -pins[index].seq, index)
    return ranks


def missing_pins(view: Sequence[ViewMessage], pins: Sequence[Pin], code: str = "") -> tuple[Pin, ...]:
    """Return the pins whose text is neither in their own message, as `view` shows it, nor in a frame in it.

    The same words in another message do not count: there they may mean something else. Nor does a frame with another
    code than the conversation's, where that is given.
    """
    if not pins:
        return ()
    wanted = {pin.seq for pin in pins} - {WRITTEN}
    texts = {message.seq: message_text(message.content) for message in view if message.seq in wanted}
    host = frames_index(view)
    # Behind a summary that the API signed a note of what is left out may stand before the frame.
    hosts = () if host is None else view[host : host + 1 + is_signed_alone(view)]
    framed = {text for each in hosts for text in _texts_in_frame(each.content, pins, code)}
    return tuple(pin for pin in pins if pin.text not in framed and not _says(texts.get(pin.seq, ""), pin))


def _says(text: str, pin: Pin) -> bool:
    """Return whether the text of a pin's own message has the pin, whose credentials may be masked."""
    return pin.text in text or (has_mark(pin.text) and pin.text in mask_text(text, pin.seq))


def rules_in(pins: Iterable[Pin]) -> set[tuple[int, str, str]]:
    """Return the rules among pins by what they say and where: a fork has them under other ids."""
    return {(pin.seq, pin.text, pin.source) for pin in pins if pin.source in IN_LEDGER.values()}


def render_pins(pins: Sequence[Pin], language: str = "english", code: str = "") -> str:
    """Return the frame of `pins` in the wording of a language, "" for none.

    Every text is in it as it is, after a line with its length in characters. Its markers have the conversation's
    `code`. Where a text holds a marker of a frame, they are numbered so that no text has the same.
    """
    tag = _tag(pins, code)
    items = [_item(pin, tag, number, len(pins), language) for number, pin in enumerate(pins, 1)]
    return _frame(items, tag, language) if items else ""


def with_pins(view: Sequence[ViewMessage], pins: Sequence[Pin], language: str = "english", code: str = "") -> View:
    """Return `view` with the frame of `pins` in its first user message, before the summary.

    Unchanged for no pins, and where that very frame is there already. Another frame has to be taken away first. A
    view without a user message gets one, unless it is empty; so does one that begins with a summary the API signed.
    """
    if not pins or not view or _stands_in(view, pins, code):
        return tuple(view)
    framed, note = _split_note(pins)
    view = _with_frame(view, framed, language, code) if framed else view
    return with_note(view, note) if note else tuple(view)


def _split_note(pins: Sequence[Pin]) -> tuple[Sequence[Pin], str]:
    """Return those that a frame holds, and the note of what is left out, "" for none."""
    note = next((pin.text for pin in pins if pin.source == "left_out"), "")
    return [pin for pin in pins if pin.source != "left_out"] if note else pins, note


def _with_frame(view: Sequence[ViewMessage], pins: Sequence[Pin], language: str, code: str) -> View:
    frame = render_pins(pins, language, code)
    host = frames_index(view)
    at = opening_length(view)
    if host is None or is_signed_alone(view):
        # After a summary that the API signed the first user message may hold tool results, which have to come first.
        return (*view[:at], ViewMessage("user", frame), *view[at:])
    content = view[host].content
    if isinstance(content, str):
        at = _summary_at(content)
        return _replace_content(view, host, f"{content[:at]}{_JOINT}{frame}{content[at:]}")
    at = _summary_block(content)
    return _replace_content(view, host, [*content[:at], {"type": "text", "text": frame}, *content[at:]])


def without_pins(view: Sequence[ViewMessage], pins: Sequence[Pin], code: str = "") -> View:
    """Return `view` as it was before `with_pins` put the frame of `pins` into it.

    Unchanged where that frame is not there: what a client sent is never taken for one. How the frame is worded does
    not matter, only which texts it holds and that it has the conversation's code, where that is given.
    """
    pins, note = _split_note(pins)
    if note:
        view = without_note(view, note)
    host = frames_index(view)
    if not pins or host is None:
        return tuple(view)
    texts = tuple(pin.text for pin in pins)
    content = view[host].content
    if isinstance(content, str):
        if view[host].seq == WRITTEN and framed_texts(content, code) == texts:
            return (*view[:host], *view[host + 1 :])
        end = _summary_at(content)
        reader = _FrameReader(content, end, code)
        starts = (start for start, tag, at in reader.starts() if _are(content, reader.spans(tag, at), texts))
        start = next(starts, None)
        return tuple(view) if start is None else _replace_content(view, host, content[:start] + content[end:])
    at = _summary_block(content) - 1
    if at < 0 or framed_texts(_block_text(content[at]), code) != texts:
        return tuple(view)
    return _replace_content(view, host, [*content[:at], *content[at + 1 :]])


def only_frames(first: ViewMessage) -> ViewMessage | None:
    """Return a first user message with a summary as the frames in it, the summary's and the pins'; None for no others.

    So does the note of what is left out. The break before them stays, as it is what frames are found again by.
    """
    content = first.content
    if isinstance(content, str):
        at = _summary_at(content[: note_at(content)])
        rest: Any = content[next((start for start, _, _ in _FrameReader(content, at).starts()), at) :]
    else:
        noted = bool(content) and note_at(_block_text(content[-1])) == 0 < len(_block_text(content[-1]))
        at = _summary_block(content[:-1] if noted else content)
        rest = content[at - (at > 0 and framed_texts(_block_text(content[at - 1])) is not None) :]
    return ViewMessage(first.role, rest) if rest and len(rest) < len(content) else None


def _stands_in(view: Sequence[ViewMessage], pins: Sequence[Pin], code: str) -> bool:
    return without_pins(view, pins, code) != tuple(view)


def _replace_content(view: Sequence[ViewMessage], index: int, content: Any) -> View:
    return (*view[:index], view[index].with_content(content), *view[index + 1 :])


def _texts_in_frame(content: Any, wanted: Sequence[Pin], code: str) -> set[str]:
    """Return the texts of the frame in a first user message's content, those of `wanted` among them."""
    if isinstance(content, str):
        texts = _texts_of_frames(content, _summary_at(content), wanted, code)
        return {*texts, *(framed_texts(content, code) or ())}
    at = _summary_block(content) - 1
    return set(framed_texts(_block_text(content[at]), code) or ()) if at >= 0 else set()


def _texts_of_frames(text: str, end: int, wanted: Iterable[Pin], code: str) -> Iterator[str]:
    lengths = {len(pin.text) for pin in wanted}
    reader = _FrameReader(text, end, code)
    seen: set[tuple[str, int]] = set()
    for _, tag, first in reader.starts():
        for at, begin, stop in reader.spans(tag, first):
            if (tag, at) in seen:
                break
            seen.add((tag, at))
            if stop - begin in lengths:
                yield text[begin:stop]


def _are(content: str, spans: Iterable[tuple[int, int, int]], texts: Sequence[str]) -> bool:
    """Return whether the texts of items are `texts`, read no further than they agree."""
    for span, text in zip_longest(spans, texts):
        if span is None or text is None or span[2] - span[1] != len(text) or not content.startswith(text, span[1]):
            return False
    return True


def _summary_at(text: str) -> int:
    """Return where the summary begins that ends `text`, its length for none. No summary holds its own marker."""
    at = text.rfind(f"{_JOINT}{OPENS}\n") if text.endswith(CLOSES) else -1
    return at if at >= 0 else len(text)


def _summary_block(content: Sequence[Any]) -> int:
    last = _block_text(content[-1]) if content else ""
    return len(content) - (last.startswith(f"{OPENS}\n") and last.endswith(CLOSES))


def _block_text(block: Any) -> str:
    return str(block.get("text") or "") if isinstance(block, dict) and block.get("type") == "text" else ""


class _FrameReader:
    """Reads the frames that end at one place of a text, in time linear in the text.

    What a text forges may have many openings that lead to the same items: every item is read once.
    """

    def __init__(self, text: str, end: int, code: str = "") -> None:
        self._text = text
        self._end = end
        self._code = f":{code}" if code else ""
        """What the tags of frames begin with that count."""
        self._items: dict[tuple[str, int], tuple[int, int] | None] = {}
        """By tag and place: where the text of the item there begins, and where the next item does; None for no item."""
        self._is_whole: dict[tuple[str, int], bool] = {}
        """By tag and place: whether items go on from there to the closing marker at the end."""

    def starts(self) -> Iterator[tuple[int, str, int]]:
        """Yield where frames begin, the break before them included, with the tag and place of their first items."""
        start = self._text.find(f"{_JOINT}[PINNED", 0, self._end)
        while start >= 0:
            first = self.first_item(start + len(_JOINT))
            if first is not None:
                yield start, *first
            start = self._text.find(f"{_JOINT}[PINNED", start + 1, self._end)

    def first_item(self, at: int) -> tuple[str, int] | None:
        """Return the tag and the place of the first item of the frame that begins at `at`, None if none does."""
        opening = _OPENING.match(self._text, at, self._end)
        if opening is None or not self._text.endswith(f"[END PINNED{opening['tag']}]", at, self._end):
            return None
        tag, at = opening["tag"], opening.end()
        if not tag.startswith(self._code):
            return None
        return (tag, at) if self._item(tag, at) is not None and self._reaches_end(tag, at) else None

    def spans(self, tag: str, at: int) -> Iterator[tuple[int, int, int]]:
        """Yield the places of the items from a place on, and where their texts begin and end."""
        while (item := self._item(tag, at)) is not None:
            yield at, item[0], item[1] - 1
            at = item[1]

    def _reaches_end(self, tag: str, at: int) -> bool:
        passed: list[int] = []
        while (tag, at) not in self._is_whole and (item := self._item(tag, at)) is not None:
            passed.append(at)
            at = item[1]
        closing = f"[END PINNED{tag}]"
        known = self._is_whole.get((tag, at))
        is_whole = at + len(closing) == self._end and self._text.startswith(closing, at) if known is None else known
        self._is_whole.update({(tag, place): is_whole for place in passed})
        return is_whole

    def _item(self, tag: str, at: int) -> tuple[int, int] | None:
        if (tag, at) not in self._items:
            item = _ITEM.match(self._text, at, self._end)
            after = -1 if item is None or item["tag"] != tag else item.end() + int(item["chars"]) + 1
            is_item = item is not None and 0 < after <= self._end and self._text[after - 1] == "\n"
            self._items[tag, at] = (item.end(), after) if item is not None and is_item else None
        return self._items[tag, at]


def framed_texts(text: str, code: str = "") -> tuple[str, ...] | None:
    """Return the texts of the frame that a text is, None if it is none, or has another code than is given."""
    reader = _FrameReader(text, len(text), code)
    first = reader.first_item(0)
    return None if first is None else tuple(text[begin:end] for _, begin, end in reader.spans(*first))


def _tag(pins: Sequence[Pin], code: str) -> str:
    """Return what markers end with: the code, and a number if a text holds a marker, so that it has not the same."""
    coded = f":{code}" if code else ""
    marks = [number for pin in pins for number in _MARK.findall(pin.text)]
    used = {int(number) for number in marks if number}
    return f"{coded}:{next(number for number in count(1) if number not in used)}" if marks else coded


def _frame(items: Sequence[str], tag: str, language: str) -> str:
    return f"[PINNED{tag}]\n{WORDINGS[language].pins}\n{''.join(items)}[END PINNED{tag}]"


def _item(pin: Pin, tag: str, number: int, total: int, language: str) -> str:
    label = _label(pin, WORDINGS[language])
    phrases = PHRASES[language]
    by = phrases.by.format(who=speaker_in(pin.speaker, language)) if pin.speaker else ""
    head = phrases.pin.format(number=number, total=total, label=label, by=by, seq=pin.seq, chars=len(pin.text))
    return f"[PIN{tag} {head}]\n{pin.text}\n"


def _label(pin: Pin, wording: FrameWording) -> str:
    match pin.source:
        case "latest_request":
            return wording.answered_request if pin.is_answered else wording.open_request
        case "standing_instruction":
            return wording.standing
        case _:
            return wording.pinned


def _texts(content: Any, *kinds: str) -> Iterator[str]:
    for block in blocks(content):
        if block.get("type") not in kinds:
            continue
        if block.get("type") in {"text", INSTRUCTION}:
            yield str(block.get("text") or "")
        else:
            yield from _texts(block.get("content", ""), "text")
