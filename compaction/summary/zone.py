"""Summaries: which messages one replaces, and how the view is rebuilt around it (requirements S4, S5, S9)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.frames.codes import code_line, code_line_end
from compaction.frames.wordings import ENGLISH, OWN_LINES, in_english, translated
from compaction.media.shedding import without_media
from compaction.messages import CALLS, THINKING, blocks, is_instruction, is_of_other_shape, is_server_result
from compaction.pieces import beginnings, count_messages
from compaction.summary.frames import visible
from compaction.view import ACKNOWLEDGEMENT, OPENING, WRITTEN, View, ViewMessage, signed_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OPENS: Final = "[CONTEXT SUMMARY]"
CLOSES: Final = "[END CONTEXT SUMMARY]"
REFERENCE: Final = ENGLISH.reference
NOTHING_NOTED: Final = ENGLISH.nothing
SAYS_NOTHING: Final = frozenset({"none", "none.", "n/a", "- none", "- none."}) | OWN_LINES
"""Lines of summaries, in lower case, that say nothing of the conversation."""
MEDIA: Final = ENGLISH.media
MOST_MEDIA: Final = 20
"""Media that the list names, the newest; the others are counted."""
NOTE: Final = "Note: "
PARTIAL: Final = "partial: "
SIDE_BY_SIDE: Final = "its parts stand side by side"
"""Begin a summary's notes, and those that tell how it was made itself."""
MINIMUM_ZONE: Final = 2
"""Messages; a smaller zone is not worth a model call (requirement S3)."""


class Zone(NamedTuple):
    """The messages that a summary would replace: `start` inclusive, `stop` exclusive indices of the view."""

    start: int
    stop: int


def find_zone(view: Sequence[ViewMessage], protected_tail: int, *, in_pieces: bool = False) -> Zone | None:
    """Return the zone between the first message and the protected tail of stored messages, or None if it is too small.

    The end is pulled back until no tool call is parted from its result. Messages that compaction wrote itself do not
    count towards the minimum. A summary that the API signed stays where it is, as the first message does, and the
    instructions before it.
    """
    return _zone(view, zone_start(view), protected_tail, in_pieces=in_pieces)


def zone_start(view: Sequence[ViewMessage]) -> int:
    """Return the index that a summary's zone begins at: after the user's first message, where one opens the view."""
    preamble = preamble_length(view)
    opens = preamble == len(view) or view[preamble].role == "user"
    return max(preamble + opens, opening_length(view))


def preamble_length(view: Sequence[ViewMessage]) -> int:
    """Return how many messages at the beginning are the system's or the developer's instructions."""
    return next(
        (index for index, message in enumerate(view) if not is_instruction(message.role, message.content)), len(view)
    )


def find_prefix(view: Sequence[ViewMessage], protected_tail: int, *, in_pieces: bool = False) -> Zone | None:
    """Return the zone from the very first message to the protected tail of stored ones, or None if it is too small.

    It ends as that of `find_zone` does, so with no tool call open, and not with thinking: the API is sent these
    messages by themselves, and refuses thinking as the last block; and None where any was sent in another shape, since
    the API that signs takes its own alone.
    """
    if any(is_of_other_shape(block) for message in view for block in blocks(message.content)):
        return None
    return _zone(view, 0, protected_tail, in_pieces=in_pieces, ends_well=lambda message: not _ends_in_thinking(message))


def first_of_user(view: Sequence[ViewMessage]) -> int | None:
    """Return the index of the first message of the user that is no instruction, None for none."""
    users = (index for index in range(preamble_length(view), len(view)) if view[index].role == "user")
    return next(users, None)


def opening_length(view: Sequence[ViewMessage], *, carries_summary: bool = False) -> int:
    """Return how many messages at the beginning hold what came before the others, and are never dropped.

    These are instructions and after them a first message that carries a summary, or a signed summary and what was
    summarized by text after it.
    """
    if signed_summary(view) is None:
        preamble = preamble_length(view)
        return min(preamble + carries_summary, len(view))
    return 2 if len(view) > 1 and (_is_summary(view[1]) or is_media_list(view[1])) else 1


def is_signed_alone(view: Sequence[ViewMessage]) -> bool:
    """Return whether a view begins with a summary that the API signed, and none by text comes after it."""
    return signed_summary(view) is not None and not (len(view) > 1 and _is_summary(view[1]))


def frames_index(view: Sequence[ViewMessage]) -> int | None:
    """Return the index of the user's message that frames of pins and notes stand in, None for none.

    After a summary that the API signed they have a message of their own, behind the list of media.
    """
    if not is_signed_alone(view):
        return first_of_user(view)
    index = opening_length(view)
    return index if index < len(view) and view[index].role == "user" else None


def is_media_list(message: ViewMessage) -> bool:
    """Return whether a message is the list of media that left, beside a summary that the API signed."""
    return (
        message.seq == WRITTEN
        and message.role == "user"
        and isinstance(message.content, str)
        and in_english(message.content).startswith(f"{MEDIA}\n- ")
    )


def earlier_media(view: Sequence[ViewMessage]) -> str | None:
    """Return the text that ends with the list of media beside a signed summary, in English; None for no list."""
    if signed_summary(view) is None or opening_length(view) == 1:
        return None
    text = in_english(str(view[1].content))
    return f"\n{text}" if is_media_list(view[1]) else text


def _is_summary(message: ViewMessage) -> bool:
    return (
        message.seq == WRITTEN
        and message.role == "user"
        and isinstance(message.content, str)
        and message.content.startswith(f"{OPENS}\n")
    )


def _ends_in_thinking(message: ViewMessage) -> bool:
    return message.role == "assistant" and any(block.get("type") in THINKING for block in blocks(message.content)[-1:])


def _zone(
    view: Sequence[ViewMessage],
    start: int,
    protected_tail: int,
    *,
    in_pieces: bool,
    ends_well: Callable[[ViewMessage], bool] = lambda _: True,
) -> Zone | None:
    stop = max(start, len(view) - max(1, protected_tail))
    opened_at = call_positions(view)
    begins = beginnings(view, in_pieces=in_pieces)
    while stop > start:
        # The pieces of one answer stay together: reasoning is refused without what it led to.
        if stop < len(view) and not begins[stop]:
            stop -= 1
            continue
        # Wherever a result from `stop` on answers a call before it, the call has to stay too.
        parted = [position for index, position in opened_at if position < stop <= index]
        if not parted and ends_well(view[stop - 1]):
            break
        stop = min(parted, default=stop - 1)
    zone = Zone(start, max(start, stop))
    real = [message for message in view[zone.start : zone.stop] if message.seq != WRITTEN]
    return zone if count_messages(real, in_pieces=in_pieces) >= MINIMUM_ZONE else None


def call_positions(view: Sequence[ViewMessage]) -> list[tuple[int, int]]:
    """Return (index of the result, index of its call) for every call of a repaired view.

    A result that is still to come counts as after the end.
    """
    waiting: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    for index, message in enumerate(view):
        for block in blocks(message.content):
            if block.get("type") in CALLS:
                waiting[str(block.get("id"))] = index
            elif block.get("type") == "tool_result" or is_server_result(block):
                asked = waiting.pop(str(block.get("tool_use_id")), None)
                if asked is not None:
                    pairs.append((index, asked))
    return [*pairs, *((len(view), asked) for asked in waiting.values())]


def neutralize(summary: str) -> str:
    """Return a summary that cannot open or close its own frame, nor seem to: look-alikes and hidden characters too."""
    return visible(summary).strip()


def without_reference(summary: str) -> str:
    """Return a summary without the line that marks it as one."""
    return summary.removeprefix(REFERENCE).lstrip("\n")


def carried_over(summary: str) -> str:
    """Return a summary as the next one takes it over: without what marks it as one, and what tells how it was made."""
    made = (f"{NOTE}{PARTIAL}", f"{NOTE}{SIDE_BY_SIDE}")
    said = without_reference(summary).partition(f"\n{MEDIA}\n")[0]
    return "\n".join(line for line in said.split("\n") if not line.startswith(made)).rstrip("\n")


def with_media_list(summary: str, notes: Sequence[str], previous: str | None) -> str:
    """Return a summary that ends with a list of the media that left the context, those of the previous one included."""
    _, _, earlier = (previous or "").partition(f"\n{MEDIA}\n")
    lines = [line.removeprefix("- ") for line in earlier.split("\n") if line.startswith("- ")]
    counted = _OLDER.fullmatch(lines[0]) if lines else None
    older = int(counted[1].replace(",", "")) if counted else 0
    every = [*dict.fromkeys([*lines[bool(counted) :], *notes])]
    older += max(0, len(every) - MOST_MEDIA)
    listed = [*([f"{older:,} older"] if older else []), *every[-MOST_MEDIA:]]
    return f"{summary}\n\n{MEDIA}\n" + "\n".join(f"- {line}" for line in listed) if listed else summary


_OLDER: Final = re.compile(r"(\d{1,3}(?:,\d{3}){0,3}) older")


def framed(summary: str, code: str = "", language: str = "english") -> str:
    """Return a summary between its markers, with the code of the conversation's frames."""
    return f"{OPENS}\n{code_line(code, language)}{neutralize(summary)}\n{CLOSES}"


def with_summary(first: ViewMessage, summary: str, code: str = "", language: str = "english") -> ViewMessage:
    """Return the first user message with the summary merged into it."""
    frame = framed(summary, code, language)
    if isinstance(first.content, str):
        return first.with_content(f"{first.content}\n\n{frame}")
    return first.with_content([*first.content, {"type": "text", "text": frame}])


def without_summary(first: ViewMessage, summary: str) -> ViewMessage:
    """Return the first user message as it was before `with_summary` put `summary` into it, with whichever code."""
    if isinstance(first.content, str):
        at = _frame_at(first.content, summary)
        is_merged = at is not None and first.content.endswith("\n\n", 0, at)
        return first.with_content(first.content[: at - 2]) if at is not None and is_merged else first
    if first.content and _frame_at(str(first.content[-1].get("text") or ""), summary) == 0:
        return first.with_content(first.content[:-1])
    return first


def _frame_at(text: str, summary: str) -> int | None:
    """Return where the frame of `summary` begins that ends `text`, None for none. No summary holds its own marker."""
    at = text.rfind(f"{OPENS}\n")
    begins = code_line_end(text, at + len(OPENS) + 1)
    return at if at >= 0 and text[begins:] == f"{neutralize(summary)}\n{CLOSES}" else None


def around(view: Sequence[ViewMessage], zone: Zone, previous: str | None) -> tuple[View, View]:
    """Return the messages that stay before a summary of the zone, and those after it.

    They are without the text of `previous`, the summary that it takes the place of, and the first message of the user
    keeps its words alone: its media go as those of the zone do. There is always one before it.
    """
    tail = tuple(view[zone.stop :])
    if signed_summary(view) is not None:
        return (view[0],), tail
    preamble = preamble_length(view)
    first = view[preamble] if preamble < zone.start else ViewMessage("user", OPENING)
    if previous is not None:
        first = without_summary(first, previous)
    return (*view[:preamble], without_media(first)), tail


def rebuild(
    view: Sequence[ViewMessage],
    zone: Zone,
    summary: str,
    *,
    previous: str | None = None,
    code: str = "",
    language: str = "english",
) -> View:
    """Return the view with the zone replaced by `summary`, whose frame has the conversation's `code`.

    An acknowledgement follows the summary only where two user messages would meet; the rest is unchanged. After a
    summary that the API signed it is in a message of its own: that block may not be touched.
    """
    before, tail = around(view, zone, previous)
    bridge = (ViewMessage("assistant", ACKNOWLEDGEMENT),) if not tail or tail[0].role == "user" else ()
    if signed_summary(view) is not None:
        return (*before, ViewMessage("user", framed(summary, code, language)), *bridge, *tail)
    return (*before[:-1], with_summary(before[-1], summary, code, language), *bridge, *tail)


def replace_prefix(
    view: Sequence[ViewMessage],
    zone: Zone,
    block: dict[str, Any],
    media: Sequence[str] = (),
    language: str = "english",
) -> View:
    """Return the view with the API's own summary in the place of exactly the messages it was made from.

    It comes first, as an assistant message of its own; the rest is unchanged, whichever role comes next (Claude docs,
    "Compaction on demand", continue from the summary). The block may not be touched: a message behind it names the
    `media` that left, and those that left before.
    """
    listed = with_media_list("", media, earlier_media(view)).lstrip("\n")
    beside = (ViewMessage("user", translated(listed, language)),) if listed else ()
    return (ViewMessage("assistant", [block]), *beside, *view[zone.stop :])
