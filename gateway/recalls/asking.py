"""What a model asked of recall, answered from the store: whatever goes wrong is a result that says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from api.actions.recall import recall
from api.http.bodies import read
from api.http.problems import ProblemError
from api.schema.recall import RecallIn
from gateway.recalls.calls import AnsweredCall

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from api.actions.caller import Caller
    from gateway.recalls.calls import RecallCall

log = structlog.get_logger()

SECONDS: Final = 5.0
"""Seconds for one call; a pattern takes two at most."""
_IN_VIEW: Final = "Nothing of this conversation is out of view."
_AWAY: Final = "Recall can't be had just now. Answer with what you have."
TOO_MANY: Final = "That was asked often enough within one answer. Answer with what you have."
BROKEN_OFF: Final = "The answer was broken off before this was looked up."


async def answer(caller: Caller, conversation_id: UUID, calls: Sequence[RecallCall]) -> list[AnsweredCall]:
    """Answer calls of the tool, one after the other. It never raises."""
    return [await _answer(caller, conversation_id, call) for call in calls]


def answer_without(calls: Sequence[RecallCall], why: str) -> list[AnsweredCall]:
    """Answer calls of the tool with why they are not looked up."""
    return [AnsweredCall(call.id, why, is_error=True) for call in calls]


async def _answer(caller: Caller, conversation_id: UUID, call: RecallCall) -> AnsweredCall:
    # By way of JSON, so that it is held to what the body of a recall request is held to.
    body = msgspec.json.encode({**call.asked, "framed": True})
    try:
        async with asyncio.timeout(SECONDS):
            recalled = await recall(caller, conversation_id, read(body, RecallIn, caller.services.strict))
    except ProblemError as problem:
        at = f" (at {problem.pointer})" if problem.pointer else ""
        return AnsweredCall(call.id, f"{problem.detail}{at}", is_error=True)
    except Exception as error:  # noqa: BLE001 - the database is away, or whatever else: the request is not held up by it
        log.warning("gateway.not_recalled", why=type(error).__name__)
        return AnsweredCall(call.id, _AWAY, is_error=True)
    return AnsweredCall(call.id, _IN_VIEW if recalled is None else str(recalled.framed), is_error=False)
