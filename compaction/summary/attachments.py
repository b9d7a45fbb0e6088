"""Content that is not plain text, as a summarizer reads it: one line that names it, and an excerpt of what it says.

Encoded bytes are never shown: they say nothing to a reader, and a size says it shorter.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.media.files import media_facts
from compaction.messages import blocks
from compaction.private_fields import without_fields, without_keys
from compaction.summary.frames import one_line, title, visible
from compaction.tokens import json_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

CITATIONS: Final = 20
"""Citations of one text that are named; the others are counted."""

_TEXT_FIELDS: Final = (
    "title",
    "url",
    "source",
    "file_id",
    "tool_name",
    "page_age",
    "retrieved_at",
    "error_code",
    "error_message",
    "return_code",
    "text",
    "stdout",
    "stderr",
    "abort_reason",
    "content",
    "tool_references",
    "lines",
)
"""What is read of the results of server tools; everything else in them is encoded, or for the API alone."""
_MAX_NESTING: Final = 8
_KILO: Final = 1_000


class ShownBlock(NamedTuple):
    """A block as the summarizer reads it: a note of one line, and the untrusted text that comes with it."""

    note: str
    text: str = ""


def attachment(block: Mapping[str, Any], fields: Collection[str] = ()) -> ShownBlock:  # noqa: PLR0911 - one for each kind
    """Return a block that is neither text, nor thinking, nor a call, nor a result; `fields` are left out of it."""
    match block.get("type"):
        case "image":
            return ShownBlock(f"{media_note(block)}, not shown")
        case "document":
            return _document(block, fields)
        case "search_result":
            text = result_text(block.get("content"), fields)
            return ShownBlock(
                f"search result{_describe_block(block)}{_format_location(block.get('source'))}, untrusted", text
            )
        case "container_upload":
            return ShownBlock(f"file in the container{_describe_block(block)}{_file(block)}")
        case "compaction":
            return ShownBlock("earlier summary made by the API", visible(_string(block.get("content"))))
        case "opaque" if media_facts(block) is not None:
            return ShownBlock(f"{media_note(block)}, not shown")
        case "opaque":
            return ShownBlock(f"{one_line(block.get('of'))}, untrusted", visible(_string(block.get("text"))))
        case "tool_reference":
            return ShownBlock(f"tool {one_line(block.get('tool_name'))}")
        case kind:
            name = one_line(kind) if isinstance(kind, str) else "block"
            where = _format_location(block.get("url")) or _format_location(block.get("uri"))
            return ShownBlock(
                f"{name}{_describe_block(block)}{where}{_file(block)}, {_size(len(json_text(block)))}, not shown"
            )


def media_note(block: Mapping[str, Any]) -> str:
    """Return what is known of an image, a document or another file, as one line: kind, name, type, size, origin.

    For example `image, image/png, 1,200 x 800 px, about 30 KB` or `document "offer.pdf", application/pdf, 12 pages`.
    """
    source = block.get("source")
    source = source if isinstance(source, Mapping) else {}
    facts = media_facts(block)
    kind = "file in the container" if block.get("type") == "container_upload" else str(block.get("of") or block["type"])
    parts = [
        f"{one_line(kind)}{_describe_block(block)}{_format_location(source.get('url'))}{_file(source)}{_file(block)}"
    ]
    if block.get("type") == "opaque" and (said := _string(block.get("text"))).strip():
        parts[0] += f" {title(said)}"
    if isinstance(media_type := source.get("media_type") or (facts and facts.media_type), str) and media_type:
        parts.append(one_line(media_type))
    if facts is not None:
        if facts.size is not None:
            parts.append(f"{facts.size.width:,} x {facts.size.height:,} px")
        if facts.bytes and facts.pages and facts.are_pages_known:
            parts.append(f"{facts.pages:,} page{'s' if facts.pages > 1 else ''}")
        if facts.seconds:
            parts.append(f"{round(facts.seconds):,} s")
        if facts.bytes:
            parts.append(_size(facts.bytes))
    return ", ".join(parts)


def citations(block: Mapping[str, Any]) -> list[str]:
    """Return the sources that a text block cites, one line each and each once; what they say is in the text."""
    given = block.get("citations")
    named = [
        f"cites {title(name)}"
        f"{_format_location(cited.get('url')) or _format_location(cited.get('source'))}{_place(cited)}"
        for cited in blocks(given if isinstance(given, list) else [])
        if (name := cited.get("document_title") or cited.get("title") or cited.get("url") or cited.get("type"))
    ]
    lines = list(dict.fromkeys(named))
    hidden = len(lines) - CITATIONS
    return [*lines[:CITATIONS], f"cites {hidden:,} more"] if hidden > 0 else lines


def result_text(content: Any, fields: Collection[str] = ()) -> str:
    """Return the text of a tool result's content, cleaned and without `fields`."""
    if isinstance(content, str):
        return without_fields(visible(content), fields)
    parts = (
        without_fields(visible(_string(part.get("text"))), fields)
        for part in blocks(content)
        if part.get("type") == "text"
    )
    return "\n".join(part for part in parts if part)


def server_result_text(content: Any, fields: Collection[str] = ()) -> str:
    """Return what the result of a server tool says: titles, addresses, output, errors, text of fetched documents."""
    if isinstance(content, str):
        return without_fields(visible(content), fields)
    return "\n".join(_texts_in(without_keys(content, fields), 0))


def _texts_in(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield visible(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)
    elif depth > _MAX_NESTING:
        return
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(_texts_in(part, depth + 1) for part in value)
    elif isinstance(value, Mapping):
        if value.get("type") in {"image", "document"}:
            attached = attachment(value)
            yield f"({attached.note})"
            yield from filter(None, [attached.text])
            return
        # A result's own name and address belong on one line.
        lead = " ".join(_lead(key, value.get(key)) for key in _TEXT_FIELDS if _is_short(value.get(key)))
        if lead.strip():
            yield lead.strip()
        for key in _TEXT_FIELDS:
            if not _is_short(value.get(key)):
                yield from _texts_in(value.get(key), depth + 1)


def _is_short(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and len(value) <= _KILO and "\n" not in value)


def _lead(key: str, value: Any) -> str:
    return f"{key}={value}" if isinstance(value, int) or key.endswith(("_code", "_id")) else visible(value)


def _document(block: Mapping[str, Any], fields: Collection[str]) -> ShownBlock:
    source = block.get("source")
    context = visible(_string(block.get("context")))
    text = ""
    if isinstance(source, Mapping) and source.get("type") == "text":
        text = without_fields(visible(_string(source.get("data"))), fields)
    elif isinstance(source, Mapping) and source.get("type") == "content":
        text = result_text(source.get("content"), fields)
    return ShownBlock(_document_note(block, source), "\n".join(part for part in (context, text) if part))


def _document_note(block: Mapping[str, Any], source: Any) -> str:
    """Return what a document is; one that is text has characters instead of pages."""
    if not isinstance(source, Mapping) or source.get("type") not in {"text", "content"}:
        return f"{media_note(block)}, not shown"
    if source["type"] == "content":
        text = result_text(source.get("content"))
        note = f"document{_describe_block(block)}, {len(text):,} characters"
    else:
        text = _string(source.get("data"))
        media = f", {one_line(source['media_type'])}" if isinstance(source.get("media_type"), str) else ""
        note = f"document{_describe_block(block)}{media}, {len(text):,} characters"
    return f"{note}, untrusted" if text else note


def _describe_block(block: Mapping[str, Any]) -> str:
    name = block.get("title") or block.get("name") or block.get("filename")
    return f" {title(name)}" if isinstance(name, str) and name.strip() else ""


def _format_location(url: Any) -> str:
    return f" at {one_line(url)}" if isinstance(url, str) and url.strip() and not url.startswith("data:") else ""


def _file(block: Mapping[str, Any]) -> str:
    name = block.get("file_id")
    return f" {one_line(name)}" if isinstance(name, str) and name else ""


def _place(cited: Mapping[str, Any]) -> str:
    page = cited.get("start_page_number")
    return f", page {page}" if isinstance(page, int) else ""


def _size(count: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < _KILO:
            return f"about {count} {unit}"
        count = round(count / _KILO)
    return f"about {count} GB"


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
