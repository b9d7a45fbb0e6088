"""The rows of an export, as they are read back: what each column of the tables takes, and nothing else."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta
from sqlalchemy import ARRAY, BigInteger, Boolean, DateTime, Integer, LargeBinary, Numeric, Text, Uuid
from sqlalchemy.dialects.postgresql import REAL

from compaction.claims.packing import PackedClaim
from compaction.coverage import Coverage
from compaction.pins.ledger import EntrySource
from compaction.pins.pinned import Pin
from compaction.steps.runs import RunKind, RunState, RunTrigger, StepState
from runtime.queues import Queue
from store.tables import (
    JSONText,
    context_blocks,
    conversations,
    messages,
    pins,
    run_steps,
    runs,
    snapshots,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Column, Table
    from sqlalchemy.types import TypeEngine

TABLES: Final[Mapping[str, Table]] = {
    "conversation": conversations,
    "message": messages,
    "snapshot": snapshots,
    "context_block": context_blocks,
    "pin": pins,
    "run": runs,
    "run_step": run_steps,
}
"""The kinds of rows in an export, and where each is from."""
_IS_COUNT: Final = Meta(ge=0, le=500_000_000)
"""Tokens or bytes of one thing, over what a usage may say: sums of them have to fit their columns for good."""
_IS_RATIO: Final = Meta(ge=0.5, le=2)
_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "conversation": (
        *("fixed_tokens", "unstored_tokens", "carried_tokens", "turn_context_tokens"),
        *("measured_tokens", "measured_input_tokens", "requested_output"),
    ),
    "message": ("tokens", "view_tokens", "bytes"),
    "snapshot": ("tokens", "bytes"),
    "context_block": ("tokens", "outline_tokens"),
}
_GIVEN_ANEW: Final = frozenset({"tenant_id", "lease_token", "lease_expires_at", "worker", "process_id", "rules"})
"""Columns that no export has."""
_Object = dict[str, Any]
_NARROWER: Final[Mapping[tuple[str, str], Any]] = {
    ("conversation", "policy"): _Object,
    ("conversation", "metadata"): _Object,
    ("run", "policy"): _Object,
    ("conversation", "shape"): Literal["chat", "responses"],
    ("conversation", "token_ratio"): Annotated[float, _IS_RATIO],
    ("conversation", "ratio_samples"): list[Annotated[float, _IS_RATIO]],
    ("conversation", "last_count"): list[Annotated[int, _IS_COUNT]],
    ("message", "result_chars"): list[Annotated[int, _IS_COUNT]],
    **{(kind, name): Annotated[int, _IS_COUNT] for kind, names in _COUNTS.items() for name in names},
    ("pin", "source"): EntrySource,
    ("message", "role"): Literal["user", "assistant"],
    ("message", "shape"): Literal["chat", "responses"],
    ("run", "state"): RunState,
    ("run", "queue"): Queue,
    ("run", "kind"): RunKind,
    ("run", "trigger"): RunTrigger,
    ("run_step", "state"): StepState,
    ("snapshot", "coverage"): Coverage,
    ("snapshot", "pins"): tuple[Pin, ...],
    ("snapshot", "claims"): tuple[PackedClaim, ...],
    ("snapshot", "media"): Annotated[list[Annotated[int, _IS_COUNT]], Meta(min_length=5, max_length=5)],
}
"""Columns that take less than their type says."""
_ID: Final = Annotated[str, Meta(pattern=r"^(?:[a-z]+_)?[0-9a-f]{32}$")]
_BYTES: Final = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{2})*$")]
_INTEGER: Final = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_TIME: Final = Annotated[datetime, Meta(tz=True)]
_TAKEN: Final[tuple[tuple[type[TypeEngine[Any]], Any], ...]] = (
    (Uuid, _ID),
    (LargeBinary, _BYTES),
    (BigInteger, int),
    (Integer, _INTEGER),
    (Boolean, bool),
    (REAL, float),
    (Numeric, Decimal),
    (DateTime, _TIME),
    (JSONText, msgspec.Raw),
    (Text, str),
)
"""What a value of each type is in JSON; a type comes before those that it is made from. Others take anything."""


def read_row(kind: str, line: bytes) -> dict[str, Any]:
    """Return a line of an export as the values of its columns; JSON is text again, and ids are those of the export.

    A column that the export's schema did not have yet is left to its default. Raises msgspec.ValidationError.
    """
    read = msgspec.json.decode(line, type=_ROWS[kind])
    table = TABLES[kind]
    values: dict[str, Any] = {}
    for name in read.__struct_fields__:
        value = getattr(read, name)
        if value is UNSET or name not in table.c:
            continue
        values[name] = _value(table.c[name], value, getattr(read, f"{name}_text", None))
    return values


def _value(column: Column[Any], value: Any, exact: str | None) -> Any:
    match column.type:
        case _ if value is None:
            return None
        case Uuid():
            return UUID(hex=value.rpartition("_")[2])
        case LargeBinary():
            return bytes.fromhex(value)
        case JSONText():
            if column.nullable and bytes(value) == b"null":
                return None
            return _same(exact, bytes(value)) if exact is not None else bytes(value).decode()
        case _:
            return msgspec.to_builtins(value) if column.name in {"coverage", "pins", "claims"} else value


def _same(exact: str, served: bytes) -> str:
    """Return the text of a JSON value as it came, if it is the one that is shown."""
    if exact.replace("\r", " ").replace("\n", " ").encode() != served:
        raise msgspec.ValidationError("the exact text is not that of the value beside it")
    return exact


def _struct(kind: str, table: Table) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for column in table.c:
        if column.name in _GIVEN_ANEW or column.computed is not None:
            continue
        taken = _NARROWER.get((kind, column.name)) or _taken(column.type)
        if column.nullable and taken is not msgspec.Raw:  # which takes null as it is, and stands in no union with it
            taken |= None
        name = str.__str__(column.name)  # SQLAlchemy has names of a class of its own
        optional = column.nullable or column.server_default is not None
        fields.append((name, taken | msgspec.UnsetType, UNSET) if optional else (name, taken))
        if isinstance(column.type, JSONText):
            fields.append((f"{name}_text", str | None, None))
    return msgspec.defstruct(f"Exported_{kind}", fields, kw_only=True)


def _taken(kind: TypeEngine[Any]) -> Any:
    """Return what a value of a column's type is in JSON."""
    if isinstance(kind, ARRAY):
        return list[_taken(kind.item_type)]  # type: ignore[misc] # a type made when the module is loaded
    return next((taken for of, taken in _TAKEN if isinstance(kind, of)), Any)


_ROWS: Final = {kind: _struct(kind, table) for kind, table in TABLES.items()}
