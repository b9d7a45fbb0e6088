"""The history in a request: its rows as they came, and the keys that its beginnings are recognized by.

A row counts as the same if it means the same (`meaning.py`): clients rewrite what they resend. System prompts at the
beginning of a list are the request's, as they are in the Messages API: they are no rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

import msgspec

from compaction.shapes.acceptance import is_accepted, repair_message
from gateway.conversations.meaning import UNREADABLE, can_be_read, row_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compaction.shapes.inner import Shape

T = TypeVar("T")
_RowName = tuple[int, int, bytes]
"""What a row is remembered by: its hash, its length, its last bytes."""
KEY_BYTES: Final = 16
REMEMBERED_ROWS: Final = 100_000
"""Rows whose digest a process remembers, at some hundred bytes each."""
MOST_CHECKED_BYTES: Final = 1_000_000
"""Bytes of a row in which keys are compared, some milliseconds of work; a longer one is media or a file."""
LISTS: Final[Mapping[Shape, str]] = {"messages": "messages", "chat": "messages", "responses": "input"}
"""What the list of rows is called."""
_INSTRUCTS: Final = ("system", "developer")
"""Compared one by one, as what follows: any JSON value may stand in their place, and a set would ask for its hash."""
_END_BYTES: Final = 24
_OUTPUT_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_STORED_ELSEWHERE: Final = ("previous_response_id", "conversation")
_COMPACTS: Final = re.compile(rb'"type"\s*:\s*"compaction_trigger"')
_NUL: Final = b"\\u0000"
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_rows: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_value: Final = msgspec.json.Decoder().decode
_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_encode: Final = msgspec.json.Encoder().encode


class NotJsonError(Exception):
    """A body that no provider could read."""


class OpaqueHistoryError(Exception):
    """A body that others may read, and this service cannot."""


class ResentHistory(NamedTuple):
    """A request with its rows apart."""

    shape: Shape
    fields: dict[str, msgspec.Raw]
    """Of the body, in their order."""
    lead: list[bytes]
    """System prompts that stand before the first row."""
    rows: Sequence[bytes]
    malformed: tuple[int, ...] = ()
    """Places of rows that every provider refuses, with arguments that are no JSON object for example."""

    replaced: int = 0
    """Halves of surrogate pairs in its texts that were replaced."""
    opaque: int = 0
    """Rows that cannot be read, or that readers understand differently because a key is given twice."""

    @property
    def repairs(self) -> int:
        """How many rows and texts of it went on repaired."""
        return len(self.malformed) + self.replaced

    @property
    def requested_output(self) -> int | None:
        """The tokens of output that the request asks for at most, None if it does not say."""
        for name in _OUTPUT_FIELDS:
            with suppress(*UNREADABLE):
                value = _value(self.fields.get(name, b"null"))
                if isinstance(value, int) and value > 0:
                    return value
        return None

    def repair_rows(self) -> ResentHistory:
        """Return the history with its malformed rows as the API of its shape accepts them."""
        if not self.malformed:
            return self
        rows = list(self.rows)
        declared = bytes(self.fields.get("tools", b"")).decode()
        for place in self.malformed:
            rows[place] = _encode(repair_message(self.shape, _value(rows[place]), declared=declared))
        return self._replace(rows=rows, malformed=())

    def with_rows(self, rows: Sequence[bytes]) -> bytes:
        """Return the request with other rows: everything else as it came, byte for byte."""
        name = LISTS[self.shape]
        every = b"[" + b",".join([*self.lead, *rows]) + b"]"
        parts = [_encode(key) + b":" + (every if key == name else value) for key, value in self.fields.items()]
        return b"{" + b",".join(parts) + b"}"


def read_history(shape: Shape, body: bytes) -> ResentHistory | None:
    """Return the history in a body, None where it has none that could be stored: it goes on as it came.

    Raises NotJsonError for what is no JSON, and OpaqueHistoryError for JSON that cannot be read here.
    """
    try:
        fields = _fields(body)
        listed = fields.get(LISTS[shape])
        if listed is None or is_passed_on(shape, fields, bytes(listed)):
            return None
        if (text := bytes(listed)).startswith(b'"'):
            if shape != "responses":
                return None
            every = [b'{"role":"user","content":' + text + b"}"]
        else:
            every = [bytes(row) for row in _rows(listed)]
        said = (at for at, row in enumerate(every) if not _instructs(row))
        lead = 0 if shape == "messages" else next(said, len(every))
    except msgspec.ValidationError:
        # It is no request of that API.
        return None
    except UNREADABLE as error:
        refuse_unreadable(body)
        raise OpaqueHistoryError(str(error)) from None
    rows = every[lead:]
    return ResentHistory(shape, fields, every[:lead], rows) if rows else None


def refuse_unreadable(body: bytes) -> None:
    """Raise NotJsonError unless somebody else may read a body: lone surrogates, for one."""
    try:
        # Numbers that Python takes for too long are JSON.
        json.loads(body, parse_int=str)
    except RecursionError:
        return
    except ValueError as error:
        raise NotJsonError(str(error)) from None


def is_passed_on(shape: Shape, fields: Mapping[str, msgspec.Raw], text: bytes) -> bool:
    """Return whether a request passes as it came; `text` has its rows.

    Either it goes on from what its provider stores, or it asks the provider to compact what the client sends.
    """
    if shape == "responses" and (b'"item_reference"' in text or _COMPACTS.search(text)):
        return True
    return any(_is_set(fields.get(name)) for name in _STORED_ELSEWHERE)


def _is_set(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw) != b"null"


def _instructs(row: bytes) -> bool:
    if b"system" not in row and b"developer" not in row:
        return False
    value = _value(row)
    return isinstance(value, dict) and value.get("role") in _INSTRUCTS


def scope_key(shape: Shape, *, session: str | None, user: str | None) -> bytes:
    """Return what stands for the conversations that may be taken for each other."""
    return hashlib.sha256(_sorted([shape, session, user])).digest()


def replace_nul(row: bytes) -> bytes:
    """Return a row with U+FFFD in the place of NUL characters, which no text has that is stored; tools return them."""
    if _NUL not in row:
        return row
    value = _value(row)
    stored = _without_nul(value)
    return row if stored == value else _encode(stored)


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(each) for name, each in value.items()}
    return [_without_nul(each) for each in value] if isinstance(value, list) else value


class RowDigests:
    """Digests of rows; those of rows that were seen lately are remembered, as clients resend nearly all of theirs."""

    def __init__(self) -> None:
        self._known: OrderedDict[_RowName, bytes] = OrderedDict()
        self._malformed: OrderedDict[_RowName, None] = OrderedDict()
        self._opaque: OrderedDict[_RowName, None] = OrderedDict()

    def digest_of(self, row: bytes, shape: Shape) -> bytes:
        """Return the digest of what a row means."""
        remembered = _row_name(row, shape)
        digest = self._known.get(remembered)
        if digest is None:
            digest = self._compute_digest(row, shape, remembered)
            _remember(self._known, remembered, digest)
        return digest

    def _compute_digest(self, row: bytes, shape: Shape, remembered: _RowName) -> bytes:
        """Return the digest of a row that is new here. A row that cannot be read means its own bytes."""
        try:
            value = _value(row)
        except (msgspec.DecodeError, RecursionError):
            # What is no UTF-8 is no JSON: that is the whole request's fault.
            _remember(self._opaque, remembered, None)
            return hashlib.sha256(row).digest()
        if isinstance(value, dict) and not is_accepted(shape, value):
            _remember(self._malformed, remembered, None)
        elif not can_be_read(shape, value) or has_repeated_keys(row):
            _remember(self._opaque, remembered, None)
        return row_digest(shape, value)

    def find_malformed(self, rows: Sequence[bytes], shape: Shape) -> tuple[int, ...]:
        """Return the places of malformed rows. It costs nothing as long as the process has met none."""
        if not self._malformed:
            return ()
        return tuple(place for place, row in enumerate(rows) if _row_name(row, shape) in self._malformed)

    def count_opaque(self, rows: Sequence[bytes], shape: Shape) -> int:
        """Return how many rows are opaque. It costs nothing as long as the process has met none."""
        return sum(_row_name(row, shape) in self._opaque for row in rows) if self._opaque else 0


def has_repeated_keys(row: bytes) -> bool:
    """Return whether an object in a row has a key twice. Rows over MOST_CHECKED_BYTES are not looked at."""
    if len(row) > MOST_CHECKED_BYTES:
        return False
    try:
        _pairs(row.decode())
    except _RepeatedKeyError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


class _RepeatedKeyError(ValueError):
    """An object has a key twice."""


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len(dict(pairs)) != len(pairs):
        raise _RepeatedKeyError


_pairs: Final = json.JSONDecoder(object_pairs_hook=_refuse_repeated_keys, parse_int=len, parse_float=len).decode


def _remember(remembered: OrderedDict[_RowName, T], name: _RowName, value: T) -> None:
    remembered[name] = value
    if len(remembered) > REMEMBERED_ROWS:
        remembered.popitem(last=False)


def _row_name(row: bytes, shape: Shape) -> _RowName:
    # By Python's hash, whose salt is the process's own: nobody can look for two rows that share it.
    return hash((shape, row)), len(row), row[-_END_BYTES:]


def chain_digests(
    rows: Sequence[bytes], digests: RowDigests, shape: Shape, *, after: Sequence[bytes] = ()
) -> list[bytes]:
    """Return what stands for each beginning of a history, the shortest first; `after` for those before these rows."""
    links = list(after)
    link = links[-1] if links else b""
    for row in rows:
        link = hashlib.sha256(link + digests.digest_of(row, shape)).digest()
        links.append(link)
    return links


class BeginningKeys(Sequence[bytes]):
    """The keys of beginnings within a circle, worked out as they are asked for: of a long history few are."""

    def __init__(self, circle: bytes, links: Sequence[bytes]) -> None:
        self._circle = circle
        self._links = links

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...

    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self._key(link) for link in self._links[place]]
        return self._key(self._links[place])

    def __len__(self) -> int:
        return len(self._links)

    def _key(self, link: bytes) -> bytes:
        return hashlib.sha256(self._circle + link).digest()[:KEY_BYTES]
