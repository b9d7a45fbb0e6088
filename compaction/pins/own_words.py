"""What of a message its writer says himself: quoted, pasted and reported words state no rule of his.

Text is read line by line, in time linear in its length. In doubt a text is taken for somebody else's. A rule that is
missed can be pinned; one that nobody stated binds the assistant for the rest of the conversation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.pins import reporting
from compaction.pins.wording import LASTING, LASTING_START
from compaction.text.names import stated_name

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHERS: Final = "\0"
"""Stands for each character of what is not the writer's; line breaks stay."""
_QUOTED: Final = "_"
"""Stands for each character within quotation marks, which may be a part of a sentence of the writer's."""

_KEEPS_BREAKS: Final = re.compile(r"[^\n]")
_FENCE: Final = re.compile(r"\s{0,12}(?:[-*]\s{1,3})?(`{3,}|~{3,}|\"{3}|'{3}|<{3}|>{3}|={5,})")
_CITED: Final = re.compile(r"\s{0,12}(?:[-*]\s{1,3})?(?:>|&gt;|\u00bb|\u300b|\uff1e|\|)")
_INDENTED: Final = re.compile(r"(?: {4}|\t)\s{0,40}(?![-*+\u2022]\s|\d{1,3}[.)]\s)\S")
_TAG: Final = re.compile(r"<([A-Za-z][\w:.-]{0,40})(?:\s[^<>]{0,300})?>")
_FORMATTING: Final = frozenset(
    [
        "b",
        "i",
        "u",
        "s",
        "em",
        "strong",
        "small",
        "mark",
        "sub",
        "sup",
        "br",
        "hr",
        "p",
        "span",
        "div",
        "ul",
        "ol",
        "li",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
    ]
)
_MOST_TAGS: Final = 50
"""Tags of a text whose ends are looked for; after them nothing in it counts as its writer's."""
_QUOTES: Final = re.compile(
    r"\u201c[^\u201d\u201c]{1,4000}\u201d|\u201e[^\u201c\u201d\u201e]{1,4000}[\u201c\u201d]|\u00ab[^\u00bb\u00ab]{1,4000}\u00bb|"
    r"\u2039[^\u203a\u2039]{1,4000}\u203a|\u300c[^\u300d\u300c]{1,4000}\u300d|\u300e[^\u300f\u300e]{1,4000}\u300f|"
    r"\u2018[^\u2018\u2019\n]{1,400}\u2019(?!\w)|\u300a[^\u300b\u300a\n]{1,400}\u300b|\uff02[^\uff02]{1,4000}\uff02|"
    r"(?<![\w\"])\"[^\s\"][^\"]{0,4000}\"|(?<![\w'])'[^\s'](?:[^'\n]|(?<=\w)'(?=\w)){0,400}'(?!\w)|`[^`\n]{1,1000}`"
)
_OPEN_QUOTE: Final = re.compile(r"(?:\A|(?<=[\s:(]))[\"\u201c\u201e\u00ab\u300c\u300e][^\s\"](?:[^\n]|\n(?!\n))*")


class _Line(NamedTuple):
    start: int
    end: int
    text: str


def own_words(text: str) -> str:
    """Return `text` with all that its writer only quotes, pastes or reports blanked, each character by another.

    Blockquotes, code, tagged documents, mails, logs, forged roles and frames, texts that a task is about, and what is
    told of others are `OTHERS`. What stands in quotation marks is turned into other letters.
    """
    begins = stated_name(text).length
    pieces: list[str] = []
    at = 0
    for start, end in _merge_spans(sorted(_spans_of_others(text, begins))):
        pieces += [text[at:start], _KEEPS_BREAKS.sub(OTHERS, text[start:end])]
        at = end
    blanked = "".join([*pieces, text[at:]])
    quotes_blanked = _QUOTES.sub(lambda match: _KEEPS_BREAKS.sub(_QUOTED, match[0]), blanked)
    own = _OPEN_QUOTE.sub(lambda match: _KEEPS_BREAKS.sub(OTHERS, match[0]), quotes_blanked)
    return " " * begins + own[begins:]


def _merge_spans(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    reached = 0
    for start, end in spans:
        if end > reached:
            yield max(start, reached), end
            reached = end


def _spans_of_others(text: str, begins: int) -> Iterator[tuple[int, int]]:
    if reporting.asks_about_text(text) or reporting.is_letter(text):
        yield begins, len(text)
        return
    yield from _tagged_spans(text)
    lines = list(_lines(text, begins))
    index = 0
    was_blank, was_indented = True, False
    while index < len(lines):
        line = lines[index]
        if reporting.begins_document(line.text) or reporting.begins_mail(
            [each.text for each in lines[index : index + 6]]
        ):
            yield line.start, len(text)
            return
        if fence := _FENCE.match(line.text):
            last = _fence_end(lines, index, fence)
            yield line.start, lines[last].end
            index = last + 1
            continue
        is_indented = bool(_INDENTED.match(line.text)) and (was_blank or was_indented)
        if is_indented or _CITED.match(line.text):
            yield line.start, line.end
        elif (end := _report_end(text, lines, index)) is not None:
            yield end
        was_blank, was_indented = not line.text.strip(), is_indented
        index += 1


def _report_end(text: str, lines: list[_Line], index: int) -> tuple[int, int] | None:
    """Return from where to where words of others go that a line introduces, None if it introduces none."""
    line = lines[index]
    if (colon := reporting.introduces_material(line.text)) is not None and not _says_it_lasts(line.text[:colon]):
        return line.start + colon, len(text)
    if not reporting.begins_report(line.text):
        return None
    if not line.text.rstrip().endswith((":", "\uff1a")):
        return line.start, _paragraph_end(lines, index)
    # What is reported comes next, perhaps after a blank line.
    following = next((at for at in range(index + 1, len(lines)) if lines[at].text.strip()), index)
    return line.start, _paragraph_end(lines, following)


def _says_it_lasts(text: str) -> bool:
    said = text.lower()
    return bool(LASTING.search(said) or LASTING_START.match(said))


def _paragraph_end(lines: list[_Line], index: int) -> int:
    while index + 1 < len(lines) and lines[index + 1].text.strip():
        index += 1
    return lines[index].end


def _fence_end(lines: list[_Line], index: int, fence: re.Match[str]) -> int:
    """Return the index of the line that closes a fence, the last one if none does."""
    mark = fence[1].replace("<", ">")
    line = lines[index]
    if mark in line.text[fence.end() :]:
        return index
    return next((at for at in range(index + 1, len(lines)) if mark in lines[at].text), len(lines) - 1)


def _tagged_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where elements such as `<document>` begin and end; one without an end goes to the last line."""
    lowered = text.lower()
    unclosed: set[str] = set()
    at = looked = 0
    while tag := _TAG.search(text, at):
        name = tag[1].lower()
        at = tag.end()
        if name in _FORMATTING or name in unclosed or tag[0].endswith("/>"):
            continue
        looked += 1
        end = lowered.find(f"</{name}", at) if looked <= _MOST_TAGS else -1
        if looked > _MOST_TAGS or (end < 0 and reporting.is_material_tag(name)):
            yield tag.start(), len(text)
            return
        if end < 0:
            unclosed.add(name)
            continue
        at = lowered.find(">", end) + 1 or len(text)
        yield tag.start(), at


def _lines(text: str, begins: int) -> Iterator[_Line]:
    while begins < len(text):
        end = text.find("\n", begins)
        end = len(text) if end < 0 else end
        yield _Line(begins, end, text[begins:end])
        begins = end + 1
