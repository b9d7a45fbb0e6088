"""Files that `palimpsest export` wrote, checked from the first line to the last before anything is done with them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from actions.export_file import FORMAT, VERSION
from actions.input.strict_json import WITHOUT_SETTINGS
from actions.input.turn_bodies import check_content
from cli.client.types import UNCOMPACTED
from compaction.messages import find_inner_block, message_facts, turn_facts
from compaction.policy import FIELDS, PolicyError, merge
from compaction.shapes import codecs
from compaction.shapes.acceptance import is_accepted
from compaction.shapes.inner import InnerMessage, ShapeError
from compaction.text.malformed import is_json_object
from compaction.tokens import json_text
from runtime.errors import RequestError
from store.archive.import_rows import read_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO
    from uuid import UUID

    from compaction.messages import MessageFacts

KINDS: Final = ("message", "snapshot", "context_block", "pin", "run", "run_step")
STAYS_BEHIND: Final = frozenset({"recall", "gateway_request", "gateway_recall"})
"""The kinds of rows that are not taken over: what was asked, of recall or at a gateway, is the audit of its place."""
_ORDER: Final[Mapping[str, str]] = {"message": "seq", "snapshot": "version"}
"""What rows of a kind ascend by."""

Row = dict[str, Any]


class ExportFileError(Exception):
    """A file that is no whole export; `line` is the first that shows it."""

    def __init__(self, line: int, detail: str) -> None:
        super().__init__(f"line {line}: {detail}")
        self.line = line
        self.detail = detail


class Checked(NamedTuple):
    """What has to be known of a file before its rows can be written."""

    conversation: Row
    runs: list[Row]
    steps: list[Row]
    blocks: set[UUID]
    pins: set[UUID]
    messages: int
    snapshots: int


class _Head(msgspec.Struct):
    type: str


class _Shown(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: msgspec.Raw


class _Header(msgspec.Struct):
    format: str
    version: int


class _End(msgspec.Struct):
    lines: int
    sha256: str


def rows(file: IO[bytes]) -> Iterator[tuple[int, str, Row]]:
    """Yield line number, kind and columns of every row of a checked file, the conversation's own left out."""
    for number, line in enumerate(file, 1):
        kind = msgspec.json.decode(line, type=_Head).type
        if kind in KINDS:
            yield number, kind, read_row(kind, line)


def check(file: IO[bytes]) -> Checked:
    """Read a file and return what is in it. Raises ExportFileError."""
    reader = _Reader()
    for number, line in enumerate(file, 1):
        reader.number = number
        try:
            reader.take(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Before the end of a line: the file was cut there.
            cut = "" if line.endswith(b"\n") else "the file is cut: "
            raise ExportFileError(number, f"{cut}{error}") from None
    return reader.result()


class _Reader:
    def __init__(self) -> None:
        self.number = 0
        self._digest = hashlib.sha256()
        self._conversation: Row | None = None
        self._ended = False
        self._last: dict[str, int] = {}
        self._counts = dict.fromkeys(KINDS, 0)
        self._versions: set[int] = set()
        self._ids: dict[str, dict[UUID, Row]] = {kind: {} for kind in ("run", "context_block", "pin")}
        self._steps: list[Row] = []
        self._as_stored: set[int] = set()
        """Messages that came as messages, by seq: they have no blocks of other shapes, in a snapshot neither."""
        self._facts: list[tuple[int, MessageFacts]] = []
        """What a message is to every step, hashed, by seq."""
        self._named: list[tuple[int, str, UUID]] = []
        """References that may be to a later row: where, to what kind, and to which."""

    def take(self, line: bytes) -> None:
        """Take the next line."""
        if self._ended:
            raise self._error("nothing is expected after the end")
        kind = msgspec.json.decode(line, type=_Head).type
        if self.number == 1:
            self._header(kind, line)
        elif kind == "end":
            self._end(line)
            return
        elif self.number == 2:  # noqa: PLR2004 - the line after the header
            if kind != "conversation":
                raise self._error("a conversation is expected")
            self._conversation = read_row(kind, line)
            self._check_policy(self._conversation.get("policy", {}))
        elif kind in KINDS:
            self._row(kind, read_row(kind, line))
        elif kind not in STAYS_BEHIND:
            raise self._error(f"{kind!r} is not known here")
        if not line.endswith(b"\n"):
            raise self._error("the file is cut: the end is missing")
        self._digest.update(line)

    def result(self) -> Checked:
        """Return what was read, once it is seen to be whole."""
        if not self._ended or self._conversation is None:
            raise ExportFileError(
                self.number + 1, "the file is cut: the end is missing" if self.number else "it is empty"
            )
        for number, kind, identifier in self._named:
            if identifier not in self._ids[kind]:
                raise ExportFileError(number, f"{kind.replace('_', ' ')} {identifier.hex} is not in the file")
        # Those between may be missing: a fork is without what was replaced before it.
        last = self._last.get("message", -1)
        if last != self._conversation.get("next_seq", 0) - 1:
            raise ExportFileError(self.number, "the newest messages are missing")
        if not self._is_sound_after(self._conversation.get("broken_through", -1)):
            # Whatever the row says of it: repaired when it is read.
            self._conversation["broken_through"] = last
        if self._conversation.get("covers_through", -1) > last:
            raise ExportFileError(2, f"covers_through: there is no message {self._conversation['covers_through']}")
        for name in ("head_version", "pending_version"):
            if (version := self._conversation.get(name)) and version not in self._versions:
                raise ExportFileError(2, f"{name}: there is no snapshot {version}")
        return Checked(
            self._conversation,
            list(self._ids["run"].values()),
            self._steps,
            set(self._ids["context_block"]),
            set(self._ids["pin"]),
            self._counts["message"],
            self._counts["snapshot"],
        )

    def _header(self, kind: str, line: bytes) -> None:
        if kind != "export":
            raise self._error("this is no export of a conversation: the header is missing")
        header = msgspec.json.decode(line, type=_Header)
        if header.format != FORMAT:
            raise self._error(f"this is {header.format!r}, not {FORMAT!r}")
        if not 1 <= header.version <= VERSION:
            raise self._error(f"version {header.version} is of another release; this one reads up to {VERSION}")

    def _end(self, line: bytes) -> None:
        end = msgspec.json.decode(line, type=_End)
        if end.lines != self.number - 1:
            raise self._error(f"{end.lines:,} lines were written before this one, and {self.number - 1:,} are there")
        if end.sha256 != self._digest.hexdigest():
            raise self._error("the file was changed: its checksum is another one")
        self._ended = True

    def _check_policy(self, policy: Mapping[str, Any]) -> None:
        """Check each value by itself, which the database reads as well; a key that is not known is not in force."""
        for key in FIELDS & policy.keys():
            try:
                merge({key: policy[key]})
            except PolicyError as error:
                if len(error.fields) < 2:  # noqa: PLR2004 - not one that contradicts what stands beside it
                    raise self._error(f"policy: {error.field}: {error.detail}") from None

    def _row(self, kind: str, row: Row) -> None:
        assert self._conversation is not None  # noqa: S101 - it was the second line
        self._counts[kind] += 1
        if "conversation_id" in row and row["conversation_id"] != self._conversation["id"]:
            raise self._error("this is of another conversation")
        if by := _ORDER.get(kind):
            if row[by] <= self._last.get(kind, -1):
                raise self._error(f"{by} {row[by]} is out of order")
            self._last[kind] = row[by]
        checks: Mapping[str, Callable[[Row], None]] = {
            "message": self._message,
            "snapshot": self._snapshot,
        }
        if kind in checks:
            checks[kind](row)
        elif kind == "run_step":
            self._steps.append(row)
            if row["run_id"] not in self._ids["run"]:
                raise self._error(f"run {row['run_id'].hex} is not in the file")
        else:
            self._ids[kind][row["id"]] = row
            if row.get("block_id") is not None:
                self._named.append((self.number, "context_block", row["block_id"]))

    def _message(self, row: Row) -> None:
        if self._conversation is not None and row["seq"] >= self._conversation.get("next_seq", 0):
            raise self._error(f"seq {row['seq']} is beyond the conversation's end")
        decoded = InnerMessage(row["role"], msgspec.json.decode(row["content"]))
        if row.get("sent") is None:
            facts = self._facts_of(decoded._asdict())
            if find_inner_block(decoded.content) is not None:
                raise self._error(f"message {row['seq']} has a block of another API's shape, and `sent` is missing")
            self._as_stored.add(row["seq"])
        else:
            is_served_as_sent = self._check_sent(row, decoded)
            facts = message_facts(decoded.role, decoded.content)
            facts = facts._replace(sound=facts.sound and is_served_as_sent)
        if row.get("superseded_at") is None:
            self._facts.append((row["seq"], facts))

    def _check_sent(self, row: Row, stored: InnerMessage) -> bool:
        """Check what came in another shape: every step works on what it is. Return whether it is served as it came."""
        if row.get("shape") is None:
            raise self._error("sent: the shape is missing")
        sent = msgspec.json.decode(row["sent"])
        try:
            decoded = codecs.decode(row["shape"], sent)
        except ShapeError as error:
            raise self._error(f"sent: {error.detail}") from None
        if json_text(decoded) not in {json_text(stored), json_text(_with_text_arguments(stored))}:
            raise self._error(f"this is not message {row['seq']} as it was sent")
        return is_accepted(row["shape"], sent)

    def _is_sound_after(self, seq: int) -> bool:
        """Tell whether the messages after `seq` need no repair, and go on from those that do."""
        before = [facts for number, facts in self._facts if number <= seq]
        after = [facts for number, facts in self._facts if number > seq]
        if not after:
            return True
        goes_on = set(before[-1].calls) == set(after[0].results) if before else after[0].role == "user"
        return goes_on and turn_facts(after).sound

    def _facts_of(self, message: Any) -> MessageFacts:
        """Return the facts of a message that the API would take: what is imported is served like what came there."""
        try:
            check_content(message["content"], "", WITHOUT_SETTINGS.limits)
            return message_facts(message["role"], message["content"])
        except RequestError as error:
            raise self._error(f"content{error.pointer or ''}: {error.detail}") from None

    def _check_messages(self, row: Row) -> None:
        """Check what a snapshot shows: it is served as it is stored."""
        messages = msgspec.json.decode(row["messages"], type=list[_Shown])
        if len(messages) != len(row["seqs"]):
            raise self._error("seqs are not one for each of messages")
        decoded = [InnerMessage(each.role, msgspec.json.decode(each.content)) for each in messages]
        facts = [self._facts_of(message._asdict()) for message in decoded]
        for seq, message in zip(row["seqs"], decoded, strict=True):
            if seq in self._as_stored and find_inner_block(message.content) is not None:
                raise self._error(f"message {seq} has a block of another API's shape, and did not come in one")
        if facts and not (codecs.facts_of(decoded).sound and facts[0].role == "user" and not facts[0].results):
            raise self._error("the messages of a snapshot begin with the user and have each call's result behind it")

    def _check_seqs(self, row: Row) -> None:
        """Check that a snapshot stands for messages of the conversation alone: what it covers is not shown again."""
        assert self._conversation is not None  # noqa: S101 - it was the second line
        end = self._conversation.get("next_seq", 0)
        named = [*row["seqs"], row["covers_through"]]
        named += [seq for first, last, *_ in row.get("coverage") or () for seq in (first, last)]
        named += [seq for _, seqs, *_ in row.get("claims") or () for seq in seqs]
        if any(seq >= end for seq in named):
            raise self._error(f"the snapshot names messages beyond the conversation's end, {end - 1}")

    def _snapshot(self, row: Row) -> None:
        self._check_messages(row)
        self._check_seqs(row)
        if not UNCOMPACTED <= row["parent_version"] < row["version"]:
            raise self._error(f"parent_version {row['parent_version']} is not before version {row['version']}")
        self._versions.add(row["version"])
        if row.get("run_id") is not None:
            self._named.append((self.number, "run", row["run_id"]))

    def _error(self, detail: str) -> ExportFileError:
        return ExportFileError(self.number, detail)


def _with_text_arguments(stored: InnerMessage) -> InnerMessage:
    """Return a message with malformed arguments as text; files of earlier releases have them under `arguments`."""
    if isinstance(stored.content, str):
        return stored
    return stored._replace(content=[_with_text(block) for block in stored.content])


def _with_text(block: dict[str, Any]) -> dict[str, Any]:
    match block.get("input"):
        case {"arguments": str(text), **others} if not others and not is_json_object(text):
            return {**block, "input": text}
        case _:
            return block
