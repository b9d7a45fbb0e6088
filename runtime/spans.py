"""What a span is, whoever makes it: its kind, what it may tell, and the ids of a request's first one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from uuid import UUID

Kind = Literal["server", "client", "producer", "consumer", "internal"]
Attribute = str | int | float | bool


class TracedSpan(Protocol):
    """Something that takes time."""

    def set(self, **attributes: Attribute | None) -> None:
        """Tell more of it; None is left out. Names get the prefix `palimpsest.` where they have no dot."""


def ids_of(request_id: UUID) -> tuple[int, int]:
    """Return the ids of the trace and the span of a request.

    Hashed: samplers look at a trace id's last bits, and those of a UUID are not spread over their whole range.
    """
    digest = hashlib.sha256(request_id.bytes).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1
