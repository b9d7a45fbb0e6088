"""A prompt that the provider refused as too long: a smaller one in its place, once, before the client sees anything."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import structlog

from api.actions.overflows import shrink_context
from api.http.problems import ProblemError
from api.schema.compactions import OverflowIn
from compaction.steps.refusals import LOOKED_AT_CHARS, is_refused_for_length
from gateway.answers.reading import Answered
from gateway.conversations.recognition import recognize
from gateway.conversations.turns import LostTurnError, learn
from gateway.preparing import with_head
from gateway.timeouts import AwayError

if TYPE_CHECKING:
    from api.actions.caller import Caller
    from gateway.preparing import PreparedRequest
    from gateway.services import GatewayServices

log = structlog.get_logger()

STATUSES: Final = frozenset({400, 404, 413, 422})
"""With which providers refuse a prompt as too long, or a tool that a model cannot be given."""
MOST_BYTES: Final = 256 * 1024
"""Bytes of a refusal that are looked at."""
SECONDS: Final = 5.0
"""Seconds for a smaller context; the client has waited for a model's answer before."""
_BYTES_TOO_MANY: Final = "request_too_large"
"""The type of the Messages API's refusal of a request with too many bytes."""


def said(body: bytes, encoding: bytes) -> str:
    """Return a refusal as text."""
    if encoding in {b"gzip", b"deflate"}:
        try:
            body = zlib.decompressobj(32 + zlib.MAX_WBITS).decompress(body, MOST_BYTES)
        except zlib.error:
            return ""
    return body[:LOOKED_AT_CHARS].decode(errors="replace")


def is_of_tools(text: str) -> bool:
    """Tell whether a refusal is about tools: there are models that take none."""
    return "tool" in text.lower()


def is_too_long(text: str) -> bool:
    """Tell whether a refusal is one of a prompt that is too long."""
    return is_refused_for_length(text) or _BYTES_TOO_MANY in text


async def smaller(
    services: GatewayServices, caller: Caller, refused: PreparedRequest, error: str
) -> PreparedRequest | None:
    """Return a request with a smaller context, None where there is none to be had."""
    if refused.learned is None or refused.history is None:
        return None
    try:
        return await services.deadline.within(_smaller(services, caller, refused, error), seconds=SECONDS)
    except (AwayError, ProblemError) as reason:
        log.info("gateway.not_smaller", reason=type(reason).__name__)
        return None


async def _smaller(
    services: GatewayServices, caller: Caller, refused: PreparedRequest, error: str
) -> PreparedRequest | None:
    learned, history = refused.learned, refused.history
    if learned is None or history is None:
        return None
    if learned.place.is_pending:
        await services.learning.settled(caller.tenant_id, learned.keys)
    # What was asked is stored first: a context is made smaller by what is known of it.
    try:
        await learn(caller, learned, Answered([], None, is_whole=True))
    except LostTurnError:
        return None
    place = await recognize(caller.services.pool, caller.tenant_id, history, learned.keys)
    if place.is_new:
        return None
    await shrink_context(caller, place.conversation_id, OverflowIn(snapshot_version=learned.version, error=error))
    place = await recognize(caller.services.pool, caller.tenant_id, history, learned.keys)
    shorter = await with_head(refused, history, place)
    if shorter.learned is None or len(shorter.body) >= len(refused.body):
        return None
    return shorter._replace(learned=shorter.learned._replace(retried=True))
