"""Fields of recorded JSON: kept as text, named by their path when they do not fit."""

from __future__ import annotations

from typing import Final

import msgspec

ABSENT: Final = msgspec.Raw()
"""Default of a field that is kept as JSON text: in a union with None msgspec would decode None alone."""


class FieldError(ValueError):
    """A field that does not fit: the message's (or tool's) index, the path under it, and why."""

    def __init__(self, index: int, field: str, detail: str) -> None:
        super().__init__(detail)
        self.index = index
        self.field = field
        self.detail = detail


def field_error(index: int, error: msgspec.ValidationError) -> FieldError:
    """Return msgspec's complaint with the path that it found apart from the reason that it gave."""
    detail, _, path = str(error).partition(" - at `$")
    return FieldError(index, path.rstrip("`").removeprefix("."), detail)


def join_path(at: str, field: str) -> str:
    """Return the JSONPath of `field` under `at`; either may be empty."""
    return f"{at}{'.' if at and field and not field.startswith('[') else ''}{field}"


def present(value: msgspec.Raw) -> msgspec.Raw | None:
    """Return a field's JSON text, None where it is absent or null."""
    return None if bytes(value) in {b"", b"null"} else value
