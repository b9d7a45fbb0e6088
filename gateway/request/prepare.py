"""A request on its way to the provider: parsed, recognised, rewritten. It goes on as it came where that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from compaction.media.limits import limits_of
from gateway.body_limits import OverLimitsError
from gateway.conversations.histories import OpaqueHistoryError
from gateway.conversations.increments import as_the_provider_has_it, previous_in, response_key
from gateway.headers import CODING, is_bypassed
from gateway.request.parse import parse
from gateway.request.recognise import model_of, recognise
from gateway.request.rewrite import leave_out_media, rewrite
from gateway.request.values import PreparedRequest
from gateway.timeouts import AwayError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actions.caller import Caller
    from gateway.doors import Door
    from gateway.metrics import FailedOpen
    from gateway.request.values import ParsedRequest
    from gateway.services import GatewayServices

_IDENTITY: Final = b"identity"
_OF_THE_REQUEST: Final = ("limits", "opaque")
"""Reasons to fail open that say nothing of how the gateway is."""
log = structlog.get_logger()


async def prepare(
    services: GatewayServices, caller: Caller | None, door: Door, headers: Mapping[bytes, bytes], body: bytes
) -> PreparedRequest:
    """Return the request that goes to the provider. Raises DoorError for a body that is no JSON."""
    prepared = await _prepare(services, caller, door, headers, body)
    if prepared.outcome != "failed_open":
        services.core.gateway_outcomes.add(is_open=False)
    return prepared


async def _prepare(
    services: GatewayServices, caller: Caller | None, door: Door, headers: Mapping[bytes, bytes], body: bytes
) -> PreparedRequest:
    if is_bypassed(headers):
        return PreparedRequest(body, "bypassed")
    if not body or headers.get(CODING, _IDENTITY) != _IDENTITY:
        return PreparedRequest(body, "unchanged")
    try:
        parsed = await parse(services, caller, door, body)
    except OverLimitsError:
        return _fail_open(services, body, "limits")
    except OpaqueHistoryError as error:
        log.warning("gateway.history_opaque", detail=str(error))
        return _fail_open(services, body, "opaque")
    if parsed is None:
        return PreparedRequest(await _restore_increment(services, caller, door, body), "unchanged")
    return await _recognise_and_rewrite(services, caller, headers, parsed)


async def _recognise_and_rewrite(
    services: GatewayServices, caller: Caller | None, headers: Mapping[bytes, bytes], parsed: ParsedRequest
) -> PreparedRequest:
    if caller is None:
        return _fail_open(services, parsed.body, "key")._replace(
            repaired=parsed.history.repairs, opaque=parsed.history.opaque
        )
    try:
        placed = await recognise(services, caller, headers, parsed)
    except AwayError:
        return await _fail_open_unplaced(services, caller, parsed)
    return await rewrite(placed)


def count_failed_open(services: GatewayServices, why: FailedOpen) -> None:
    """Count a request that goes on, or is answered, as it came."""
    services.metrics.failed_open[why].inc()
    services.core.gateway_outcomes.add(is_open=why not in _OF_THE_REQUEST)


def _fail_open(services: GatewayServices, body: bytes, why: FailedOpen) -> PreparedRequest:
    count_failed_open(services, why)
    return PreparedRequest(body, "failed_open")


async def _fail_open_unplaced(services: GatewayServices, caller: Caller, parsed: ParsedRequest) -> PreparedRequest:
    """Return a request whose conversation cannot be looked up now; it can be once more if its provider refuses it."""
    limits = limits_of(caller.principal.policy_of("{}", model_of(parsed.history)).policy)
    opened = _fail_open(services, await leave_out_media(parsed, limits), "database")
    return opened._replace(unplaced=parsed, repaired=parsed.history.repairs, opaque=parsed.history.opaque)


async def _restore_increment(services: GatewayServices, caller: Caller | None, door: Door, body: bytes) -> bytes:
    """Return a request whose history the provider has, with the id that the provider knows it by."""
    previous = previous_in(body) if door.shape == "responses" and caller is not None else None
    if previous is None or caller is None:
        return body

    async def look_up() -> bytes:
        await services.learning.settled(caller.tenant_id, [response_key(previous)])
        return await as_the_provider_has_it(services.core.pool, caller.tenant_id, body, previous)

    try:
        return await services.deadline.within(look_up(), tenant_id=caller.tenant_id)
    except AwayError:
        return body
