"""The view: the messages a model would be sent, each tied to the original it stands for."""

from __future__ import annotations

import re
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.messages import THINKING, Block, Content, blocks, has_thinking, is_signed_summary, result_text_chars
from compaction.recall.handles import ABOUT, WHERE
from compaction.tokens import content_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from compaction.recall.handles import Handles

WRITTEN: Final = -1
"""The seq of a view message that compaction wrote and no client sent."""
MARKER: Final = "[truncated for context management]"
"""Ends every tool result that compaction cut (requirement T6)."""
OUT_OF_PLACE: Final = "(Of a message that has no place where it was sent;"
"""Begins the text that stands for a newest message whose blocks the API would refuse there."""
OPENING: Final = "(The conversation begins with the assistant's message.)"
ACKNOWLEDGEMENT: Final = "Understood. I have the summary and will continue from here."

_CAP_NOTE: Final = "\n[{about}{hidden:,} more characters of this result are stored but not shown{where}]"
_CUT_NOTE: Final = "\n[{about}{hidden:,} more characters{where}]"
_FIGURE: Final = r"[0-9][0-9,]{0,14}"
"""As many digits as a text can have characters: what a tool returned may look like a note."""
_NOTE: Final = re.compile(
    rf"(?:\n\[{ABOUT}(?P<capped>{_FIGURE}) more characters of this result are stored but not shown(?:{WHERE})?\]"
    rf"|(?:\n\[{ABOUT}(?P<cut>{_FIGURE}) more characters{WHERE}\])?{re.escape(MARKER)})\Z"
)
"""What cutting or capping put at the end of a result."""
_NOTE_CHARS: Final = 300
"""Characters; no note is longer."""


class _LazyTokens:
    """Counts a message when it is first asked for, and leaves the figure in its dict, where it is found from then on.

    `functools.cached_property` does so under a lock (before Python 3.12), which costs as much as the count.
    """

    def __get__(self, message: ViewMessage, owner: type[ViewMessage] | None = None) -> int:
        message.__dict__["tokens"] = tokens = content_tokens(message.content)
        return tokens


class ViewMessage(msgspec.Struct, frozen=True, dict=True):
    """One message of the view; `seq` is its original's, or WRITTEN.

    Its content is never changed in place: what was once counted of it holds.
    """

    role: str
    content: Content
    seq: int = WRITTEN

    tokens = _LazyTokens()
    """Estimated tokens; counted once, because every step asks for them several times."""

    def with_content(self, content: Content) -> ViewMessage:
        """Return the message with another content in its place."""
        return ViewMessage(self.role, content, self.seq)

    def as_message(self) -> dict[str, Any]:
        """Return the message as the Messages API takes it."""
        return {"role": self.role, "content": self.content}


View = tuple[ViewMessage, ...]
_TOKENS: Final = attrgetter("tokens")


def view_tokens(view: Iterable[ViewMessage]) -> int:
    """Return the estimated tokens of a view."""
    return sum(map(_TOKENS, view))


def signed_summary(view: Sequence[ViewMessage]) -> Block | None:
    """Return the summary signed by the API that a view begins with, None where it begins with anything else."""
    first = blocks(view[0].content)[:1] if view else []
    return first[0] if first and is_signed_summary(first[0]) else None


def truncate_result(
    block: dict[str, Any], limit: int, note: Callable[[int], str], read: Callable[[str], str] | None = None
) -> dict[str, Any] | None:
    """Return a tool result whose text is its first `limit` characters and a note, or None if that is no shorter.

    Text blocks count as one text; other blocks (images) stay as they are and count nothing, and neither does the note
    of an earlier truncation. `note` is given the number of characters that are left out. `read` returns what is kept of
    a text in place of its first characters.
    """
    content = block.get("content", "")
    if isinstance(content, str):
        hidden = len(content) - limit
        if hidden <= 0 or (content.endswith("]") and hidden <= _noted_chars(content)):
            return None
        kept_text = _apply_reader(content, read)[:limit]
        truncated = kept_text + note(len(content) - len(kept_text))
        return block | {"content": truncated} if len(truncated) < len(content) else None
    if not isinstance(content, list):
        return None
    texts = [_text(part) for part in content]
    total = sum(map(len, texts))
    if total <= limit + _noted_chars(result_tail(block)) or total <= limit + len(note(total - limit)):
        return None
    shown = texts if read is None else [text and _apply_reader(text, read) for text in texts]
    note_text = note(total - min(limit, sum(map(len, shown))))
    last = max(index for index, text in enumerate(texts) if text)
    kept: list[Any] = []
    room = limit
    noted = False
    for index, (part, text) in enumerate(zip(content, shown, strict=True)):
        if not _is_text(part):
            kept.append(part)
        elif not noted and len(text) < room and index != last:
            kept.append(part if text == texts[index] else {**part, "text": text})
            room -= len(text)
        elif not noted:
            kept.append({**part, "text": text[:room] + note_text})
            noted = True
    return {**block, "content": kept}


def _apply_reader(text: str, read: Callable[[str], str] | None) -> str:
    """Return what `read` makes of a text without the note of an earlier truncation."""
    return text if read is None else read(text[: len(text) - _noted_chars(text)])


def _noted_chars(text: str) -> int:
    """Return how many characters at the end of `text` say that it was cut before."""
    noted = _note(text)
    return len(noted[0]) if noted else 0


def _note(text: str) -> re.Match[str] | None:
    """Return what at the end of `text` says that it was cut before; only two places are tried, not every one."""
    if not text.endswith("]"):
        return None
    start = text.rfind("\n[", -_NOTE_CHARS)
    noted = _NOTE.match(text, start) if start >= 0 else None
    return noted or (_NOTE.match(text, len(text) - len(MARKER)) if text.endswith(MARKER) else None)


def shorten_result(
    block: dict[str, Any],
    limit: int,
    handles: Handles | None,
    *,
    capped: bool = False,
    read: Callable[[str], str] | None = None,
) -> dict[str, Any] | None:
    """Return a tool result cut to its first `limit` characters with the cap's note or a cut's, None if not shorter.

    `read` returns what is kept of a text in place of its first characters. With `handles` the note says what
    was cut and how to have it back. The marker of a cut stays last.
    """
    about, where = ("", "") if handles is None else handles.handle_of(block)
    # What an earlier note says is missing is missing still; without handles it counts as the text that it is.
    earlier = _earlier_hidden(block) if where else 0

    def note(hidden: int) -> str:
        if not capped and not where:
            return MARKER
        said = (_CAP_NOTE if capped else _CUT_NOTE).format(about=about, hidden=hidden + earlier, where=where)
        return said if capped else said + MARKER

    shorter = truncate_result(block, limit, note, read)
    if shorter is not None and handles is not None:
        handles.copy_handle(shorter, block)
    return shorter


def _earlier_hidden(block: dict[str, Any]) -> int:
    """Return the characters that the note at the end of a result says are missing, less its own."""
    noted = _note(result_tail(block))
    figure = noted and (noted["capped"] or noted["cut"])
    return int(figure.replace(",", "")) - len(noted[0]) if noted and figure else 0


class WholeResults:
    """The tool results that the cap of a view has cut, as they were before, by the very block that stands for each."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def keep(self, capped: dict[str, Any], whole: dict[str, Any]) -> None:
        """Remember the whole of a result."""
        self._known[id(capped)] = (capped, whole)

    def whole_of(self, block: dict[str, Any]) -> dict[str, Any]:
        """Return the whole of a result, or the block itself if it was not capped."""
        known = self._known.get(id(block))
        return known[1] if known else block


def cap_results(
    view: Sequence[ViewMessage], cap: int, handles: Handles | None = None, whole: WholeResults | None = None
) -> View:
    """Return `view` with every tool result over `cap` characters cut to them (requirement S15).

    What they were before is kept in `whole`.
    """

    def capped(block: dict[str, Any]) -> dict[str, Any]:
        if block.get("type") != "tool_result":
            return block
        shorter = shorten_result(block, cap, handles, capped=True)
        if shorter is not None and whole is not None:
            whole.keep(shorter, block)
        return shorter or block

    after = list(view)
    for index, message in enumerate(view):
        if message.role != "user" or isinstance(message.content, str):
            continue
        for block in message.content:
            if isinstance(block, dict) and block.get("type") == "tool_result":
                inner = block.get("content", "")
                # Nearly all are texts, which need no call.
                if (len(inner) if isinstance(inner, str) else result_text_chars(block)) > cap:
                    after[index] = map_blocks(message, capped)
                    break
    return tuple(after)


def strip_thinking(view: Sequence[ViewMessage], through_seq: int, *, from_index: int = 0) -> View:
    """Return `view` without the signed thinking of assistant messages up to `through_seq`.

    Thinking is only valid while everything before it is unchanged; `from_index` is where the change begins.
    Messages that held nothing else are left out.
    """
    if through_seq < 0:
        return tuple(view)
    kept = list(view[:from_index])
    for message in view[from_index:]:
        content = message.content
        # The cheapest question comes first: half of all are the user's.
        if (
            message.role == "user"
            or message.seq > through_seq
            or isinstance(content, str)
            or not has_thinking(message.role, content)
        ):
            kept.append(message)
        elif rest := [block for block in content if block.get("type") not in THINKING]:
            kept.append(message.with_content(rest))
    return tuple(kept)


def cut_seqs(before: View, after: View) -> list[int]:
    """Return the seqs of messages that lost something other than signed thinking."""
    old = {message.seq: message for message in before if message.seq != WRITTEN}
    return [
        new.seq
        for new in after
        if (was := old.get(new.seq)) is not None and new is not was and (new,) != strip_thinking((was,), was.seq)
    ]


def with_own_tail(before: Sequence[ViewMessage], after: View) -> View:
    """Return `after` with the messages at its end as they were where they lost signed thinking and nothing else.

    So they stay in the tail, from which it is left out with a warning when the context is read.
    """
    own: list[ViewMessage] = []
    left = len(after)
    for was in reversed(before):
        new = after[left - 1] if left else None
        stripped = (was,) if new is was else strip_thinking((was,), was.seq)
        if new is not None and new.seq == was.seq and (new,) == stripped:
            left -= 1
        elif stripped or not (own and own[-1].role == was.role):
            break
        own.append(was)
    return (*after[:left], *reversed(own))


def map_blocks(message: ViewMessage, change: Callable[[dict[str, Any]], dict[str, Any]]) -> ViewMessage:
    """Return `message` with every block changed; the same object when nothing was."""
    content = message.content
    if isinstance(content, str):
        return message
    changed = list(map(change, content))
    return message if all(map(is_, changed, content)) else message.with_content(changed)


def result_tail(block: dict[str, Any], chars: int = _NOTE_CHARS) -> str:
    """Return the last characters of a tool result's text."""
    content = block.get("content", "")
    if isinstance(content, str):
        return content[-chars:]
    texts = [_text(part) for part in blocks(content) if _is_text(part)]
    return texts[-1][-chars:] if texts else ""


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _text(part: Any) -> str:
    return str(part.get("text") or "") if _is_text(part) else ""
