"""Fields that may have one of a few values: which these are, for who named another."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INVALID = "Invalid enum value "
"""How msgspec says that a value is none of those that there are, of which it names none."""


def with_choices(detail: str, kind: Any, path: Iterable[str]) -> str:
    """Return what msgspec says of the value at `path` in a `kind`, with the values that there are.

    Steps are names of fields and, in lists and maps, anything.
    """
    if not detail.startswith(_INVALID):
        return detail
    types = list(_plain(inspect.type_info(kind)))
    for step in path:
        types = [found for each in types for inner in _inside(each, step) for found in _plain(inner)]
    values = dict.fromkeys(value for each in types for value in _values(each))
    return f"Expected one of {', '.join(map(str, values))}." if values else detail


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """Return what is said of a name that there is not; with the one that was meant, where one is much like it."""
    (*meant,) = difflib.get_close_matches(name, names, 1)
    return f"unknown {what} {name!r}" + "".join(f"; did you mean {each}?" for each in meant)


def _plain(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield what a value may be, without what is said about it."""
    match kind:
        case inspect.Metadata():
            yield from _plain(kind.type)
        case inspect.UnionType():
            for each in kind.types:
                yield from _plain(each)
        case _:
            yield kind


def _inside(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType():
            yield from (field.type for field in kind.fields if field.encode_name == step)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            yield kind.item_type
        case inspect.DictType():
            yield kind.value_type


def _values(kind: inspect.Type) -> Iterator[Any]:
    match kind:
        case inspect.LiteralType():
            yield from kind.values
        case inspect.EnumType():
            yield from (member.value for member in kind.cls)
