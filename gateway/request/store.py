"""Store a turn beside the requests, with repeats while the database is away, and count what became of it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from gateway.conversations.turns import TURN_ROWS, LostTurnError, is_stored, store_exchange
from gateway.recalls.asking import BROKEN_OFF, answer_calls, answer_with_error
from gateway.recalls.calls import tool_results
from gateway.recalls.lineage import recall_source
from runtime import ids
from runtime.errors import RequestError

if TYPE_CHECKING:
    from actions.caller import Caller
    from gateway.answers.reading import ReceivedAnswer
    from gateway.conversations.turns import PendingExchange, StoredExchange
    from gateway.request.call import CalledRequest
    from gateway.services import GatewayServices

log = structlog.get_logger()

_TRIES: Final = 3
"""Times that a turn is tried to be stored while the database does not answer."""
_RETRY_SECONDS: Final = 0.5


async def store_answered(
    services: GatewayServices, caller: Caller, called: CalledRequest, answered: ReceivedAnswer | None
) -> None:
    """Store the turn of a request, after the smaller context that was made for it has become the head."""
    learned = called.learned
    if learned is None:
        return
    if called.committed is not None:
        version = await called.committed
        if version is None and answered is not None:
            # What was counted is the count of a context that there is not.
            answered = answered._replace(usage=None)
        learned = learned._replace(version=version or 0)
    await store(services, caller, learned, answered)


async def store(
    services: GatewayServices, caller: Caller, learned: PendingExchange, answered: ReceivedAnswer | None
) -> StoredExchange | None:
    """Store a turn and return where, None if it cannot be stored now.

    The client's next request usually has such a turn, so that it is counted once that is known.
    """
    metrics = services.metrics
    conversation = ids.external("conv", learned.place.conversation_id)
    if answered is not None:
        answered = await _with_results(caller, learned, answered)

    def begun(now: PendingExchange) -> None:
        # Tried again it is the same turn of the same conversation.
        nonlocal learned
        learned = now

    for tried in range(_TRIES):
        try:
            if len(learned.history.rows) - learned.place.matched > TURN_ROWS:
                async with services.long_turns.turn(caller.tenant_id):
                    kept = await store_exchange(caller, learned, answered, begun)
            else:
                kept = await store_exchange(caller, learned, answered, begun)
        except RequestError as error:
            metrics.turns["not_storable"].inc()
            log.info("gateway.not_storable", detail=error.detail, conversation=conversation)
            return None
        except LostTurnError as error:
            log.info("gateway.turn_deferred", why=str(error), conversation=conversation)
            break
        except Exception as error:  # noqa: BLE001 - the database is away, or whatever else keeps it from being stored
            log.warning("gateway.turn_deferred", why=type(error).__name__, conversation=conversation)
            if tried < _TRIES - 1:
                await asyncio.sleep(_RETRY_SECONDS)
        else:
            metrics.turns["stored"].inc()
            return kept
    services.unstored.add(partial(is_stored, caller, learned))
    return None


async def _with_results(caller: Caller, learned: PendingExchange, answered: ReceivedAnswer) -> ReceivedAnswer:
    """Return an answer with the results of the calls of recall that stand in it beside the client's own."""
    if not answered.calls:
        return answered
    if answered.is_whole:
        done = await answer_calls(caller, recall_source(learned), answered.calls)
    else:
        done = answer_with_error(answered.calls, BROKEN_OFF)
    return answered._replace(results=tool_results(learned.shape, done))
