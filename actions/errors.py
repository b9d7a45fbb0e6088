"""Errors of use cases. The API answers them as problem documents, the gateway in the words of each provider."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from compaction.choices import with_choices
from runtime import ids
from runtime.errors import RequestError

if TYPE_CHECKING:
    from uuid import UUID

    import msgspec

T = TypeVar("T")

_PLACE: Final = re.compile(r"(?P<detail>.*) - at (?:`key` in )?`\$(?P<path>[^`]*)`\Z", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<index>\d+)\]")
_FIELD: Final = re.compile(r"Object (?:contains unknown|missing required) field `(?P<field>.*)`\Z", re.DOTALL)


class NotFoundError(RequestError):
    """A resource that does not exist, or that belongs to another tenant; `pointer` leads to its name in the body."""

    def __init__(self, pointer: str | None = None, detail: str = "There is no such resource.") -> None:
        super().__init__("not_found", detail, pointer=pointer)


class InvalidError(RequestError):
    """A value that cannot be taken; `pointer` is a JSON pointer into the body, or the name of a query parameter."""

    def __init__(self, detail: str, pointer: str) -> None:
        super().__init__("invalid", detail, pointer=pointer)


class ConflictError(RequestError):
    """A request that the present state of a resource excludes."""


class UnexpectedSeqError(ConflictError):
    """A turn that is not the next one of its conversation."""

    def __init__(self, next_seq: int) -> None:
        detail = f"The next seq of this conversation is {next_seq}."
        super().__init__("unexpected_seq", detail, pointer="/expected_next_seq", next_seq=next_seq)


def or_not_found(row: T | None, pointer: str | None = None) -> T:
    """Return a row. Raises NotFoundError for None."""
    if row is None:
        raise NotFoundError(pointer)
    return row


def id_or_not_found(prefix: ids.Prefix, text: str) -> UUID:
    """Return the id in a text. Raises NotFoundError for a text that no id has."""
    return or_not_found(ids.parse(prefix, text))


def step_into(pointer: str, *names: str | int) -> str:
    """Return a JSON pointer (RFC 6901) to what `names` lead to from `pointer`."""
    return pointer + "".join("/" + str(name).replace("~", "~0").replace("/", "~1") for name in names)


def from_msgspec(error: msgspec.ValidationError, kind: Any) -> InvalidError:
    """Return the error of a body that is no `kind`, with a pointer to the field.

    msgspec does not name the key of a map (`[...]`): there the pointer ends at the map.
    """
    place = _PLACE.match(str(error))
    detail = place["detail"] if place else str(error)
    path = place["path"].partition("[...]")[0] if place else ""
    steps = [step["field"] or step["index"] for step in _STEP.finditer(path)]
    detail = with_choices(detail, kind, steps)
    pointer = step_into("", *steps)
    if field := _FIELD.match(detail):
        pointer = step_into(pointer, field["field"])
    return InvalidError(detail, pointer)
