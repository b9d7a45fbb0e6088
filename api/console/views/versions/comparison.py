"""Two versions of a context compared: which messages went, came or changed."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from api.console.views.content import as_text, preview
from api.console.views.versions.text_diff import Piece, compare
from compaction.tokens import content_tokens
from compaction.view import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["same", "gone", "new", "changed"]


class Shown(NamedTuple):
    """A message of a version; `content` is None where it was not read: it is its original."""

    seq: int
    role: str
    tokens: int
    content: Any = None
    beginning: str = ""


class Section(NamedTuple):
    """Neighbouring messages that have one thing in common; a changed one is alone, with its pieces."""

    kind: Kind
    first: int | None
    """Seq; None for messages that compaction wrote."""
    last: int | None
    messages: int
    tokens_before: int
    tokens_after: int
    role: str | None = None
    pieces: Sequence[Piece] = ()
    beginnings: Sequence[tuple[int | None, str, str]] = ()
    """Seq, role and beginning of some of the messages."""


class Comparison(NamedTuple):
    """What two versions have in common and what not."""

    sections: Sequence[Section]
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int


_LISTED_AT_MOST = 5


def compared(before: Sequence[Shown], after: Sequence[Shown]) -> Comparison:
    """Return the sections that lead from one version to the other."""
    matcher = SequenceMatcher(None, _keys(before), _keys(after), autojunk=False)
    sections: list[Section] = []
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            for old, new in zip(before[start:end], after[new_start:new_end], strict=True):
                _add(sections, _pair(old, new))
        else:
            for old in before[start:end]:
                _add(sections, _single("gone", old))
            for new in after[new_start:new_end]:
                _add(sections, _single("new", new))
    return Comparison(
        sections,
        len(before),
        len(after),
        sum(each.tokens for each in before),
        sum(each.tokens for each in after),
    )


def _keys(side: Sequence[Shown]) -> list[tuple[int, int]]:
    """Return what tells messages apart: originals by seq, written ones by their order."""
    written = 0
    keys: list[tuple[int, int]] = []
    for each in side:
        if each.seq == WRITTEN:
            written += 1
        keys.append((each.seq, written if each.seq == WRITTEN else 0))
    return keys


def _pair(old: Shown, new: Shown) -> Section:
    seq = None if new.seq == WRITTEN else new.seq
    if old.content is None or new.content is None or old.content == new.content:
        return Section("same", seq, seq, 1, old.tokens, new.tokens)
    pieces = compare(as_text(old.content), as_text(new.content))
    return Section("changed", seq, seq, 1, old.tokens, new.tokens, new.role, pieces)


def _single(kind: Literal["gone", "new"], each: Shown) -> Section:
    seq = None if each.seq == WRITTEN else each.seq
    tokens = (each.tokens, 0) if kind == "gone" else (0, each.tokens)
    if seq is None:
        text = as_text(each.content)
        return Section(kind, None, None, 1, *tokens, each.role, [Piece("out" if kind == "gone" else "in", text)])
    return Section(kind, seq, seq, 1, *tokens, None, (), [(seq, each.role, _beginning(each))])


def _beginning(each: Shown) -> str:
    return each.beginning if each.content is None else preview(each.content)


def _add(sections: list[Section], new: Section) -> None:
    """Put a section behind the others, or into the last one where that is of its kind."""
    last = sections[-1] if sections else None
    if last is None or last.kind != new.kind or new.kind == "changed" or None in {new.first, last.first}:
        sections.append(new)
        return
    sections[-1] = last._replace(
        last=new.last,
        messages=last.messages + 1,
        tokens_before=last.tokens_before + new.tokens_before,
        tokens_after=last.tokens_after + new.tokens_after,
        beginnings=[*last.beginnings, *new.beginnings][:_LISTED_AT_MOST],
    )


def original(seq: int, role: str, tokens: int, beginning: str) -> Shown:
    """Return a message that is shown as it was stored."""
    return Shown(seq, role, tokens, None, beginning)


def viewed(seq: int, role: str, content: Any) -> Shown:
    """Return a message that a snapshot holds."""
    return Shown(seq, role, content_tokens(content), content)
