"""What a model asked of recall, answered from the store: whatever goes wrong is a result that says so."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from actions.errors import InvalidError
from actions.input.checks import read
from actions.recall import look_up, reference_of
from actions.types.recall import RecallIn
from compaction.recall.framing import frame_passages, frame_passages_with_past
from compaction.recall.references import of_range
from gateway.recalls.calls import AnsweredCall
from gateway.recalls.lineage import past_of
from runtime import ids
from runtime.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actions.caller import Caller
    from actions.recall import Recalled
    from gateway.recalls.calls import RecallCall
    from gateway.recalls.lineage import Asker, Past

log = structlog.get_logger()

MOST_CALLS: Final = 16
"""Calls that are looked up of those that a model makes side by side; what they bring back is sent to the provider."""
SECONDS: Final = 5.0
"""Seconds for one call; a pattern takes two at most."""
_IN_VIEW: Final = "Nothing of this conversation is out of view."
_AWAY: Final = "Recall can't be had just now. Answer with what you have."
TOO_MANY: Final = "That was asked often enough within one answer. Answer with what you have."
BROKEN_OFF: Final = "The answer was broken off before this was looked up."
_ELSEWHERE: Final = re.compile(r"\s*\[?(?P<conversation>conv_\w+)\s?[:/]\s?(?P<place>.*)", re.DOTALL)


async def answer(caller: Caller, asker: Asker, calls: Sequence[RecallCall]) -> list[AnsweredCall]:
    """Answer calls of the tool, one after the other, the first MOST_CALLS by what is looked up. It never raises."""
    looked_up = [await _answer(caller, asker, call) for call in calls[:MOST_CALLS]]
    return [*looked_up, *answer_without(calls[MOST_CALLS:], TOO_MANY)]


def answer_without(calls: Sequence[RecallCall], why: str) -> list[AnsweredCall]:
    """Answer calls of the tool with why they are not looked up."""
    return [AnsweredCall(call.id, why, is_error=True) for call in calls]


async def _answer(caller: Caller, asker: Asker, call: RecallCall) -> AnsweredCall:
    # By way of JSON, so that it is held to what the body of a recall request is held to.
    body = msgspec.json.encode(call.asked)
    try:
        async with asyncio.timeout(SECONDS):
            wanted = read(body, RecallIn, caller.services.strict)
            past = await past_of(caller, asker)
            text = await _recalled(caller, asker, past, wanted)
    except RequestError as problem:
        at = f" (at {problem.pointer})" if problem.pointer else ""
        return AnsweredCall(call.id, f"{problem.detail}{at}", is_error=True)
    except Exception as error:  # noqa: BLE001 - the database is away, or whatever else: the request is not held up by it
        log.warning("gateway.not_recalled", why=type(error).__name__)
        return AnsweredCall(call.id, _AWAY, is_error=True)
    return AnsweredCall(call.id, text, is_error=False)


async def _recalled(caller: Caller, asker: Asker, past: Sequence[Past], wanted: RecallIn) -> str:
    """Return what is recalled of a conversation and of what it went on from. Raises RequestError."""
    if wanted.ref is not None:
        return await _of_place(caller, asker, past, wanted, wanted.ref)
    share = msgspec.structs.replace(wanted, max_tokens=max(1, wanted.max_tokens // (1 + len(past))))
    own = await _own(caller, asker, msgspec.structs.replace(share, through_seq=max(0, asker.through_seq)))
    if not past:
        return frame_passages(own.packed) if own is not None else _IN_VIEW
    earlier = []
    for conversation, through in past:
        before = await look_up(
            caller, conversation, msgspec.structs.replace(share, through_seq=through), for_model=True
        )
        if before is not None:
            earlier.append((ids.external("conv", conversation), before.packed))
    return frame_passages_with_past(own.packed if own is not None else None, earlier)


async def _own(caller: Caller, asker: Asker, wanted: RecallIn) -> Recalled | None:
    """Return what is recalled of the conversation itself, None where nothing of it is stored."""
    return await look_up(caller, asker.conversation_id, wanted, for_model=True) if asker.through_seq >= 0 else None


async def _of_place(caller: Caller, asker: Asker, past: Sequence[Past], wanted: RecallIn, ref: str) -> str:
    """Return a place: the conversation's own, else one that stands in what it went on from."""
    elsewhere = _ELSEWHERE.fullmatch(ref)
    named = ids.parse("conv", elsewhere["conversation"]) if elsewhere is not None else None
    place = elsewhere["place"] if elsewhere is not None else ref
    wanted = msgspec.structs.replace(wanted, ref=place)
    nothing = InvalidError("There is nothing of this reference to be recalled.", "/ref")
    problem: RequestError = nothing
    reference = reference_of(place)
    if elsewhere is None or named == asker.conversation_id:
        try:
            if reference.first > asker.through_seq >= 0:
                raise nothing
            last = min(reference.last, asker.through_seq)
            within = of_range(reference.first, last) if last < reference.last else place
            own = await _own(caller, asker, msgspec.structs.replace(wanted, ref=within))
        except RequestError as error:
            problem = error
        else:
            if own is not None or not past:
                return frame_passages(own.packed) if own is not None else _IN_VIEW
    for conversation, through in past:
        if reference.last <= through and (elsewhere is None or named == conversation):
            before = await look_up(caller, conversation, wanted, for_model=True)
            if before is not None:
                return frame_passages_with_past(None, [(ids.external("conv", conversation), before.packed)])
    raise problem
