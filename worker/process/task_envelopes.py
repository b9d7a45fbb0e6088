"""Messages of the broker, read strictly and written anew.

Whoever can write to Redis can put anything into a message, and Celery believes it: time limits, dates, other tasks as
callbacks, bodies that unpack to a thousand times their size. So nothing of a message is passed on but what the product
itself puts into one: which task, and ids.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from runtime.broker import CHECK_TASK, DELIVER_TASK, RUN_TASK
from runtime.queues import Queue
from runtime.tracing import HEADER

if TYPE_CHECKING:
    from worker.metrics import Refusal

BODY_CHARS: Final = 262_144
"""Most characters of a body: thirty times those of a full batch."""
IDS: Final = 1_000
"""Most ids of a message: ten times those of a full batch."""

_Tenants = tuple[UUID, UUID]
_ARGUMENTS: Final[dict[str, Any]] = {
    CHECK_TASK: tuple[Annotated[list[UUID], Meta(max_length=IDS)]],
    RUN_TASK: _Tenants,
    DELIVER_TASK: _Tenants,
}
_BODIES: Final = {name: msgspec.json.Decoder(tuple[of, Any, Any]) for name, of in _ARGUMENTS.items()}  # type: ignore[valid-type] # made at run time
_Place = Annotated[str, Meta(max_length=100)]


class NotAMessageError(ValueError):
    """What came from the broker is no message of the product's; `reason` is what is wrong with it."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason)
        self.reason = reason


class _Delivery(Struct):
    routing_key: Queue


class _Properties(Struct):
    delivery_tag: UUID
    delivery_info: _Delivery
    body_encoding: Literal["base64"]
    priority: Annotated[int, Meta(ge=0, le=9)] = 0


class _Headers(Struct, rename={"places": HEADER}):
    id: UUID
    task: Annotated[str, Meta(max_length=100)]
    places: Annotated[dict[_Place, _Place], Meta(max_length=IDS)] = {}


class _Envelope(Struct, rename="kebab"):
    body: Annotated[str, Meta(max_length=BODY_CHARS)]
    content_type: Literal["application/json"]
    content_encoding: Literal["utf-8"]
    headers: _Headers
    properties: _Properties


def written_anew(given: Any) -> dict[str, Any]:
    """Return a message of kombu's Redis transport with what the product put into it; raises NotAMessageError."""
    try:
        envelope = msgspec.convert(given, _Envelope)
    except (msgspec.ValidationError, UnicodeError) as error:  # of half a character, which JSON can spell
        raise NotAMessageError("misshapen") from error
    headers, properties = envelope.headers, envelope.properties
    if headers.task not in _BODIES:
        raise NotAMessageError("unknown_task")
    try:
        arguments, _, _ = _BODIES[headers.task].decode(base64.b64decode(envelope.body, validate=True))
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise NotAMessageError("unreadable") from error
    identifier = str(headers.id)
    return {
        "body": base64.b64encode(msgspec.json.encode((arguments, {}, {}))).decode(),
        "content-type": envelope.content_type,
        "content-encoding": envelope.content_encoding,
        "headers": {
            "lang": "py",
            "task": headers.task,
            "id": identifier,
            "root_id": identifier,
            "argsrepr": "…",
            "kwargsrepr": "{}",
            HEADER: headers.places,
        },
        "properties": {
            "correlation_id": identifier,
            "delivery_tag": str(properties.delivery_tag),
            "delivery_info": {"exchange": "", "routing_key": properties.delivery_info.routing_key},
            "body_encoding": "base64",
            "priority": properties.priority,
        },
    }


def taken_before(kept: bytes) -> tuple[dict[str, Any], str]:
    """Return a message that kombu keeps while a worker is at it, and its queue; raises NotAMessageError."""
    try:
        message, _, _ = msgspec.json.decode(kept, type=tuple[Any, Any, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotAMessageError("bookkeeping") from error
    rewritten = written_anew(message)
    return rewritten, rewritten["properties"]["delivery_info"]["routing_key"]
