"""Text cut into clauses that can be kept one by one: sentences, list items, the fields of JSON objects, HTML's text."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from compaction.text.salience import BOUND_WORDS, clean, content_words

READ_CHARS: Final = 4_000_000
"""Characters of a zone that are read for its values and clauses, a second a million; the longest blocks give way."""
CLAUSE_CHARS: Final = 220
"""Characters; longer sentences are cut between words, so that one value does not cost a paragraph."""
GAP: Final = " \u2026 "
"""Stands where text was left out."""
FIELD_JOINT: Final = ", "
ROW_JOINT: Final = "; "
_UNNAMED_CHARS: Final = 40
"""Characters of rows without names of fields after one that has them: further on nobody sees what a value is."""
_SHORT_LINE: Final = 40
_JOINED_LINES: Final = 90
_CHUNK_CHARS: Final = 20
_WHOLE_CHARS: Final = 67
"""Characters; a record no longer than this is one clause."""
_INLINE_CHARS: Final = 60
_KEY_CHARS: Final = 160
"""Characters; a longer key is data: it is read once, and only its beginning comes before what it leads to."""
_PREVIEW_CHARS: Final = 60
"""Characters at either end of a long string that represent it among the other fields."""
_TELLING_CHARS: Final = 4
"""Characters; a shorter value stands at the beginning of a key by chance."""
_MAX_DEPTH: Final = 40
_MAX_DIGITS: Final = 1_000
_HTML_SNIFF_CHARS: Final = 5_000
_HTML_TAGS: Final = 3

_SENTENCE: Final = re.compile(
    r"(?<=[.!?\u0964\u061f\u06d4])(?<!\b\d[.])(?<!\b\d\d[.])(?<!\b[DMS][rst]\.)(?<!\bM[rs]s\.)(?<!\bProf\.)\s+|(?<=[\u3002\uff01\uff1f\uff1b])|\s+(?=\u2026\s)"
)
"""Between sentences, also of Hindi and its kin, Arabic, Urdu, Chinese and Japanese."""
_FIRST_WORD: Final = re.compile(r"^\S*\s+")
_LAST_WORD: Final = re.compile(r"\s+\S*$")
_LIST_MARK: Final = re.compile(r"^(?:[-*\u2022]\s+|#{1,6}\s+|>\s+)+")
_HTML: Final = re.compile(
    r"<(?:!doctype|/?(?:html|body|div|p|table|tr|td|ul|li|span|h[1-6]|a|br|section)\b)[^<>]*>", re.IGNORECASE
)
_TAG: Final = re.compile(r"<([^<>]*)>")
_BLOCK_NAMES: Final = "p div br li tr h1 h2 h3 h4 h5 h6 table ul ol section article header footer dt dd"
_BLOCK_TAGS: Final = frozenset(_BLOCK_NAMES.split())
_HREF: Final = re.compile(r"""\bhref\s*=\s*["']?([^"'\s>]+)""", re.IGNORECASE)


@dataclass(slots=True)
class Record:
    """Clauses that need the same words before them to be understood, such as the fields of one JSON object."""

    lead: str = ""
    clauses: list[str] = field(default_factory=list)
    joint: str = FIELD_JOINT
    label: str = ""
    """How `lead` begins where it names the list or the field that the record is in."""


def one_line(text: str) -> str:
    """Return `text` with every run of white space as one space."""
    return " ".join(text.split())


def chars_in(value: Any, depth: int = 0) -> int:
    """Return the characters of text in a JSON value, keys included and encoded data left out."""
    if isinstance(value, str):
        return len(value)
    if depth > _MAX_DEPTH:
        return 0
    if isinstance(value, list):
        return sum(chars_in(item, depth + 1) for item in value)
    if not isinstance(value, Mapping) or value.get("type") == "base64":
        return 0
    return sum(len(str(key)) + chars_in(item, depth + 1) for key, item in value.items())


def clip_text(text: str, most: int) -> str:
    """Return `text`, of one longer than `most` characters its head and its tail."""
    return text if len(text) <= most else f"{text[: most - most // 2]}{GAP}{text[len(text) - most // 2 :]}"


def pieces(text: str) -> Iterator[str]:
    """Cut `text` between words into pieces of at most `CLAUSE_CHARS` characters."""
    start = 0
    while len(text) - start > CLAUSE_CHARS:
        cut = text.rfind(" ", start + CLAUSE_CHARS // 2, start + CLAUSE_CHARS)
        cut = cut if cut > 0 else start + CLAUSE_CHARS
        if piece := text[start:cut].strip():
            yield piece
        start = cut
    if piece := text[start:].strip():
        yield piece


def prose(text: str) -> list[Record]:
    """Split running text into clauses: sentences, lines, list items; short lines join the one before."""
    clauses: list[str] = []
    for raw in text.split("\n"):
        line = _LIST_MARK.sub("", one_line(raw)).replace("**", "")
        if not line or not any(char.isalnum() for char in line):
            continue
        if clauses and _belongs(clauses[-1], line):
            clauses[-1] += (" " if clauses[-1][-1] in ".:;!?," else "; ") + line
            continue
        for sentence in _SENTENCE.split(line):
            clauses.extend(pieces(sentence))
    return [Record(clauses=clauses, joint=" ")] if clauses else []


def _belongs(before: str, line: str) -> bool:
    together = len(before) + len(line)
    if len(line) <= _SHORT_LINE and together < _JOINED_LINES:
        return True
    return together < _JOINED_LINES + _SHORT_LINE and content_words(before) < BOUND_WORDS


def split_records(text: str) -> list[Record]:
    """Split a tool's output into records: JSON by object, HTML by its visible text, the rest as prose."""
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        try:
            return list(json_records(json.loads(stripped)))
        except (ValueError, RecursionError):
            pass  # text that only begins like JSON reads as prose
    if len(_HTML.findall(text[:_HTML_SNIFF_CHARS])) >= _HTML_TAGS:
        text = _visible_text(text)
    return prose(text)


def _visible_text(text: str) -> str:
    out: list[str] = []
    hidden = ""
    link = ""
    for index, part in enumerate(_TAG.split(text)):
        if index % 2 == 0:
            if not hidden:
                out.append(html.unescape(part))
            continue
        closing = part.startswith("/")
        tag = (part.strip("/ ").split(maxsplit=1) or [""])[0].lower()
        if tag in {"script", "style"}:
            hidden = "" if closing else tag
        elif tag == "a":
            if closing and link:
                out.append(f" ({link})")
            match = None if closing else _HREF.search(part)
            link = match.group(1) if match else ""
        else:
            out.append("\n" if tag in _BLOCK_TAGS else " ")
    return "".join(out)


def json_records(value: Any, label: str = "", depth: int = 0) -> Iterator[Record]:
    """Yield the objects in `value` as records of "key: value" clauses, nested ones under their own key."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        yield from _object(value, label, depth)
    elif isinstance(value, list):
        if not any(isinstance(item, (Mapping, list)) for item in value):
            yield from _fill_clauses(label, [_scalar(item) for item in value])
        else:
            yield from _in_rows(record for item in value for record in json_records(item, label, depth + 1))
    else:
        yield from _text(label, _scalar(value))


def _in_rows(records: Iterable[Record]) -> Iterator[Record]:
    """Yield records, those with the same fields that are one clause each and stand in a row as the rows of one."""
    rows: Record | None = None
    keys: tuple[str, ...] = ()
    room = 0
    for record in records:
        text = record.lead.removeprefix(record.label) + record.clauses[0]
        row = row_of(text) if len(record.clauses) == 1 else None
        room -= len(row.bare) + len(ROW_JOINT) if row else 0
        if rows and row and row.keys == keys and rows.label == record.label and room >= 0:
            # One alone stays as it was.
            if rows.joint != ROW_JOINT:
                first = rows.lead.removeprefix(rows.label) + rows.clauses[0]
                rows = Record(rows.label, [first], ROW_JOINT, rows.label)
            rows.clauses.append(text)
            continue
        if rows:
            yield rows
        rows, keys, room = record, row.keys if row else (), _UNNAMED_CHARS
    if rows:
        yield rows


class Row(NamedTuple):
    """The fields of a record that can be told by their order alone, and their values."""

    keys: tuple[str, ...]
    bare: str


def row_of(text: str) -> Row | None:
    """Return the fields in `text`, None where it has anything else or a value of which the end could not be told."""
    if "{" in text or ROW_JOINT in text or len(text) > CLAUSE_CHARS:
        return None
    pairs = [part.partition(": ") for part in text.split(FIELD_JOINT)]
    if len(pairs) == 1 or not all(key and value for key, _, value in pairs):
        return None
    return Row(tuple(key for key, _, _ in pairs), FIELD_JOINT.join(value for _, _, value in pairs))


def name_fields(text: str, before: str) -> str | None:
    """Return the row `text` with the names of its fields, by the row `before` that has them; None where it is none."""
    row = row_of(before)
    items = text.split(FIELD_JOINT)
    if row is None or len(items) != len(row.keys) or ": " in text:
        return None
    return FIELD_JOINT.join(f"{key}: {item}" for key, item in zip(row.keys, items, strict=True))


def first_records(value: Any, most: int, label: str = "") -> Iterator[Record]:
    """Yield records of a JSON value until they have `most` characters."""
    for record in json_records(value, label):
        yield record
        most -= len(record.lead) + sum(map(len, record.clauses))
        if most <= 0:
            return


def _object(value: Mapping[Any, Any], label: str, depth: int) -> Iterator[Record]:
    owner = label.rsplit(" ", 1)[-1]
    pairs: list[str] = []
    nested: list[tuple[str, Any]] = []
    for raw, item in value.items():
        whole = one_line(str(raw))
        key = whole[:_KEY_CHARS]
        if len(whole) > _KEY_CHARS:
            nested.append(("", whole))
        inline = _inline(item, key)
        if inline is None:
            nested.append((key, item))
        elif len(inline) > CLAUSE_CHARS:
            preview, rest = _preview(inline)
            pairs.append(f"{key}: {preview}")
            nested.append((key, rest))
        elif inline and inline != owner:
            pairs.append(f"{key}: {inline}")
    yield from _fill_clauses(label, pairs)
    for key, item in nested:
        yield from json_records(item, f"{owner} {key}".strip(), depth + 1)


def _text(label: str, text: str) -> Iterator[Record]:
    if len(text) <= CLAUSE_CHARS:
        if text:
            yield Record(_lead(label), [text], label=_lead(label))
        return
    for record in prose(text):
        yield Record(_lead(label) + record.lead, record.clauses, record.joint, _lead(label))


def _fill_clauses(label: str, parts: Iterable[str]) -> Iterator[Record]:
    """Yield one record of `parts`, led by the first of them when they do not fit into one clause."""
    parts = [part for part in parts if part]
    if not parts:
        return
    whole = ", ".join(parts)
    if len(whole) <= _WHOLE_CHARS or len(parts) == 1:
        yield Record(_lead(label), [whole], label=_lead(label))
        return
    chunks: list[str] = []
    for part in parts[1:]:
        before = chunks[-1] if len(chunks) > 1 else f"{parts[0]} {chunks[0]}" if chunks else ""
        full = bool(chunks) and len(chunks[-1]) + len(part) >= _CHUNK_CHARS
        if chunks and len(chunks[-1]) < CLAUSE_CHARS and (not full or content_words(before) < BOUND_WORDS):
            chunks[-1] += ", " + part
        else:
            chunks.append(part)
    if len(chunks) > 1 and len(chunks[-2]) < CLAUSE_CHARS and content_words(chunks[-1]) < BOUND_WORDS:
        last = chunks.pop()
        chunks[-1] += ", " + last
    yield Record(f"{_lead(label)}{parts[0]}{FIELD_JOINT}", chunks, label=_lead(label))


def _lead(label: str) -> str:
    return f"{label}: " if label else ""


def _preview(text: str) -> tuple[str, str]:
    """Return a long string's first and last words, and what follows the first words."""
    head = _LAST_WORD.sub("", text[:_PREVIEW_CHARS]) or text[:_PREVIEW_CHARS]
    tail = _FIRST_WORD.sub("", text[-_PREVIEW_CHARS:]) or text[-_PREVIEW_CHARS:]
    return f"{one_line(head)}{GAP}{one_line(tail)}", text[len(head) :]


def _inline(item: Any, owner: str) -> str | None:
    """Return `item` as the text of a pair with the key `owner`.

    "" stands for nothing, None for what must become records of its own. Fields that say what the key says are left out.
    """
    if isinstance(item, Mapping):
        if any(isinstance(part, (Mapping, list)) for part in item.values()):
            return None
        fields = ((one_line(str(key)), _scalar(part)) for key, part in item.items())
        text = FIELD_JOINT.join(f"{key}: {part}" for key, part in fields if not _says(owner, part))
        return (f"{{{text}}}" if text else "") if len(text) <= _INLINE_CHARS else None
    if isinstance(item, list):
        if any(isinstance(part, (Mapping, list)) for part in item):
            return None
        text = ", ".join(map(_scalar, item))
        return text if len(text) <= _INLINE_CHARS else None
    return _scalar(item)


def _says(key: str, value: str) -> bool:
    """Return whether a key says a value of one of its fields, as `card_4421` says `card`."""
    if key == value:
        return True
    is_beginning = key.startswith(value) and not key[len(value)].isalnum()
    return is_beginning and len(value) >= _TELLING_CHARS and value[0].isalpha()


def _scalar(item: Any) -> str:
    if isinstance(item, str):
        return clean(item) if len(item) > CLAUSE_CHARS else one_line(clean(item))
    if item is None or isinstance(item, bool):
        return "" if item is None else str(item).lower()
    if isinstance(item, int) and item.bit_length() > _MAX_DIGITS:
        return "(a number too long to write out)"
    return str(item)
