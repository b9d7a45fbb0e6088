"""A row of an export as one line of JSON: ids with the prefixes that the API gives them, stored JSON as it came."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from runtime import ids

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN: Final[Mapping[str, ids.Prefix]] = {"conversation": "conv", "pin": "pin", "run": "run", "recall": "rcl"}
_NAMED: Final[Mapping[str, ids.Prefix]] = {
    "conversation_id": "conv",
    "run_id": "run",
    "request_id": "req",
    "check_request_id": "req",
    "key_id": "key",
    "left_in": "run",
}
_BREAK: Final = re.compile(r"[\r\n]")
_RAW: Final = {
    *(("message", "content"), ("message", "sent"), ("snapshot", "messages")),
    *(("gateway_recall", "shown"), ("gateway_recall", "results")),
}
"""Columns that hold JSON as the text it came as."""


def line(kind: str, row: Mapping[str, Any]) -> bytes:
    """Return a row as one line; stored JSON keeps its bytes, but for line breaks between its tokens.

    Where it has some, the text as it came is put next to it, as a string.
    """
    fields = {name: _as_json(kind, name, value) for name, value in row.items()}
    for name, value in row.items():
        if (kind, name) in _RAW and value is not None and _BREAK.search(value):
            fields[f"{name}_text"] = value
    return msgspec.json.encode({"type": kind, **fields}) + b"\n"


def _as_json(kind: str, name: str, value: Any) -> Any:
    if (kind, name) in _RAW and value is not None:
        # Within JSON's strings line breaks are escaped: these are between tokens and mean nothing.
        return msgspec.Raw(value.replace("\r", " ").replace("\n", " ").encode())
    if isinstance(value, list):
        return [_as_json(kind, name, each) for each in value]
    if isinstance(value, UUID):
        prefix = _OWN.get(kind) if name == "id" else _NAMED.get(name)
        return ids.external(prefix, value) if prefix else value.hex
    return value.hex() if isinstance(value, bytes) else value
