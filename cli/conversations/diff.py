"""`palimpsest diff`: two versions of a conversation's context compared, message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from api.console.views.versions.comparison import compared, viewed
from api.console.views.versions.text_diff import compare
from cli.client.client import ServiceClient
from cli.client.types import UNCOMPACTED
from cli.output import print_json, printable
from compaction.view import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from api.console.views.versions.comparison import Comparison, Section, Shown
    from api.console.views.versions.text_diff import Piece
    from cli.client.types import SnapshotInFull
    from cli.options import Service

_SUMMARY: Final = "[the summary, see below]"
_STYLES: Final[Mapping[str, str]] = {"same": "dim", "out": "red", "in": "green", "skip": "dim italic"}
_MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "same": (" ", "dim"),
    "gone": ("-", "red"),
    "new": ("+", "green"),
    "changed": ("~", "yellow"),
}


class Difference(NamedTuple):
    """What leads from one version to another; version 0 is no compaction."""

    start: int
    to: int
    comparison: Comparison
    summary: Sequence[Piece]
    """Empty where both have the same, or none."""
    fates: Mapping[int, str]
    """What became of originals, by the version `to`."""


def run_diff(service: Service, conversation: str, start: int, to: int | None, *, as_json: bool) -> int:
    """Print what is different between two versions; without `to`, the newer one is the head."""
    with ServiceClient(*service) as client:
        newer = client.conversation(conversation).head_version or UNCOMPACTED if to is None else to
        changes = difference(client, conversation, start, newer)
    if as_json:
        print_json(as_document(changes))
    else:
        print_difference(changes, Console())
    return 0


def difference(client: ServiceClient, conversation: str, start: int, to: int) -> Difference:
    """Read two versions and compare them. What one covers and the other does not is the other's tail."""
    old, new = (None if version == UNCOMPACTED else client.snapshot(conversation, version) for version in (start, to))
    covers = [-1 if each is None else each.covers_through for each in (old, new)]
    originals: dict[int, Shown] = {}
    for message in client.messages(conversation, after=min(covers)):
        if message.seq > max(covers):
            break
        if message.superseded_at is None:
            originals[message.seq] = viewed(message.seq, message.role, msgspec.json.decode(message.content))
    before, after = (
        [*_held(each), *(text for seq, text in originals.items() if seq > covered)]
        for each, covered in zip((old, new), covers, strict=True)
    )
    summaries = [each.summary or "" if each else "" for each in (old, new)]
    return Difference(
        start,
        to,
        compared(before, after),
        compare(*summaries) if summaries[0] != summaries[1] else (),
        {seq: span.fate for span in (new.coverage if new else ()) for seq in range(span.first_seq, span.last_seq + 1)},
    )


def as_document(changes: Difference) -> dict[str, Any]:
    """Return a difference as it is printed with --json."""
    return {
        "from": changes.start,
        "to": changes.to,
        "messages_before": changes.comparison.messages_before,
        "messages_after": changes.comparison.messages_after,
        "tokens_before": changes.comparison.tokens_before,
        "tokens_after": changes.comparison.tokens_after,
        "sections": [
            {
                "kind": each.kind,
                "first_seq": each.first,
                "last_seq": each.last,
                "messages": each.messages,
                "role": each.role,
                "fates": _fates(each, changes.fates),
                "tokens_before": each.tokens_before,
                "tokens_after": each.tokens_after,
                "pieces": [piece._asdict() for piece in each.pieces],
            }
            for each in changes.comparison.sections
        ],
        "summary": [piece._asdict() for piece in changes.summary],
    }


def print_difference(changes: Difference, console: Console) -> None:
    """Print a difference for people."""
    comparison = changes.comparison
    console.print(
        Text.assemble(
            (f"{_version(changes.start)} → {_version(changes.to)}", "bold"),
            f": {comparison.messages_before:,} → {comparison.messages_after:,} messages, "
            f"{comparison.tokens_before:,} → {comparison.tokens_after:,} tokens",
        )
    )
    for section in comparison.sections:
        for line in _lines(section, changes.fates):
            console.print(line, soft_wrap=True)
    if changes.summary:
        console.print()
        console.print("Summary", style="bold")
        console.print(_text(changes.summary, "  "), soft_wrap=True)


def _held(snapshot: SnapshotInFull | None) -> list[Shown]:
    """Return a snapshot's messages; its summary is one word in them, because it is compared by itself."""
    if snapshot is None:
        return []
    held = [
        viewed(WRITTEN if seq is None else seq, message["role"], message["content"])
        for seq, message in zip(snapshot.seqs, snapshot.messages, strict=True)
    ]
    return [each._replace(content=_without(each.content, snapshot.summary)) for each in held]


def _without(content: Any, summary: str | None) -> Any:
    if not summary:
        return content
    if isinstance(content, str):
        return content.replace(summary, _SUMMARY)
    return [
        {**block, "text": block["text"].replace(summary, _SUMMARY)} if isinstance(block.get("text"), str) else block
        for block in content
    ]


def _version(version: int) -> str:
    return "no compaction" if version == UNCOMPACTED else f"version {version}"


def _fates(section: Section, fates: Mapping[int, str]) -> list[str]:
    if section.first is None or section.last is None or section.kind == "same":
        return []
    return sorted({fates[seq] for seq in range(section.first, section.last + 1) if seq in fates} - {"kept"})


def _lines(section: Section, fates: Mapping[int, str]) -> Iterator[Text]:
    mark, style = _MARKS[section.kind]
    which = "a message of the compaction's own" if section.first is None else f"message {section.first}"
    if section.last != section.first:
        which = f"messages {section.first} to {section.last}"
    role = f", {section.role}" if section.role else ""
    tokens = {
        "same": f"{section.tokens_after:,} tokens, the same",
        "gone": f"{section.tokens_before:,} tokens, {' and '.join(_fates(section, fates)) or 'not in it'}",
        "new": f"{section.tokens_after:,} tokens, {' and '.join(['new', *_fates(section, fates)])}",
        "changed": f"{section.tokens_before:,} → {section.tokens_after:,} tokens"
        + "".join(f", {fate}" for fate in _fates(section, fates)),
    }[section.kind]
    yield Text.assemble((f"{mark} {which}{role}", style if section.kind == "same" else f"bold {style}"), f": {tokens}")
    for seq, whose, beginning in section.beginnings if section.kind != "same" else ():
        yield Text(printable(f"    {seq} {whose}: {beginning}"), style=style)
    if (left := section.messages - len(section.beginnings)) > 0 and section.beginnings and section.kind != "same":
        yield Text(f"    and {left:,} more", style="dim")
    if section.pieces:
        yield _text(section.pieces, "    ")


def _text(pieces: Sequence[Piece], indent: str) -> Text:
    """Return a text's pieces; without colours what went is in [-…-], and what came in {+…+}."""
    text = Text(indent)
    for piece in pieces:
        marked = {"out": f"[-{piece.text}-]", "in": f"{{+{piece.text}+}}", "skip": f" […{piece.text}…] "}.get(
            piece.change, piece.text
        )
        text.append(printable(marked).replace("\n", f"\n{indent}"), style=_STYLES[piece.change])
    return text
