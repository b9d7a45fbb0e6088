"""Reading a request: its history, and the digests that its beginnings are known by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from compaction.text.surrogates import replace_lone_surrogates
from gateway.body_limits import read_body_aside
from gateway.conversations.histories import (
    LISTS,
    NotJsonError,
    OpaqueHistoryError,
    read_history,
    refuse_unreadable,
)
from gateway.conversations.meaning import UNREADABLE
from gateway.doors import DoorError
from gateway.recalls.thoughts import has_thoughts, strip_thoughts
from gateway.request.values import ParsedRequest

if TYPE_CHECKING:
    from actions.caller import Caller
    from gateway.doors import Door
    from gateway.services import GatewayServices

log = structlog.get_logger()


async def parse(services: GatewayServices, caller: Caller | None, door: Door, body: bytes) -> ParsedRequest | None:
    """Return a request with its history; None for one without a history that can be stored.

    Raises DoorError for a body that is no JSON, OpaqueHistoryError for one that only others can read, and
    OverLimitsError for one that is over the limits.
    """
    try:
        return await read_body_aside(services, caller, body, _parse, services, door, body)
    except NotJsonError as error:
        raise DoorError(400, f"The body is no JSON: {error}") from None


def _parse(services: GatewayServices, door: Door, body: bytes) -> ParsedRequest | None:
    clean, replaced = replace_lone_surrogates(body)
    parsed = _parse_clean(services, door, clean)
    if parsed is None or not replaced:
        return parsed
    history = parsed.history
    if any(bytes(value) not in body for name, value in history.fields.items() if name != LISTS[history.shape]):
        # Beside the rows it is the provider's to refuse.
        return None
    log.info("gateway.text_repaired", count=replaced, shape=history.shape)
    return parsed._replace(history=history._replace(replaced=replaced))


def _parse_clean(services: GatewayServices, door: Door, body: bytes) -> ParsedRequest | None:
    if (known := services.seen.find_history(door.shape, body)) is not None:
        return _repair_rows(services, ParsedRequest(body, *known))
    history = read_history(door.shape, body)
    if history is None:
        return None
    has_own = has_thoughts(body)
    try:
        if has_own:
            history = history._replace(rows=strip_thoughts(history.rows))
        links = services.seen.links(door.shape, history.rows)
    except UNREADABLE as error:
        refuse_unreadable(body)
        raise OpaqueHistoryError(str(error)) from None
    if has_own:
        body = history.with_rows(history.rows)
    else:
        services.seen.remember(body, history, links)
    return _repair_rows(services, ParsedRequest(body, history, links))


def _repair_rows(services: GatewayServices, parsed: ParsedRequest) -> ParsedRequest:
    """Return a request whose malformed rows are repaired in its body; the originals are stored."""
    history = parsed.history
    if opaque := services.seen.count_opaque(history.shape, history.rows):
        log.info("gateway.rows_opaque", count=opaque, shape=history.shape)
        history = history._replace(opaque=opaque)
        parsed = parsed._replace(history=history)
    malformed = services.seen.find_malformed(history.shape, history.rows)
    if not malformed:
        return parsed
    history = history._replace(malformed=malformed)
    log.info("gateway.rows_repaired", count=len(malformed), shape=history.shape)
    return parsed._replace(body=history.with_rows(history.repair_rows().rows), history=history)
