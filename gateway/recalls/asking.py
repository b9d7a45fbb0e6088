"""Answers a model's calls of recall from the store. A failure becomes a result that explains it."""

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
from gateway.recalls.lineage import find_past
from runtime import ids
from runtime.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actions.caller import Caller
    from actions.recall import Recalled
    from gateway.recalls.calls import RecallCall
    from gateway.recalls.lineage import EarlierConversation, RecallSource

log = structlog.get_logger()

MOST_CALLS: Final = 16
"""Parallel calls of a model that are answered. Their results are sent to the provider."""
SECONDS: Final = 5.0
"""Timeout of one call, in seconds. A pattern search takes two at most."""
_IN_VIEW: Final = "Nothing of this conversation is out of view."
_AWAY: Final = "Recall can't be had just now. Answer with what you have."
TOO_MANY: Final = "That was asked often enough within one answer. Answer with what you have."
BROKEN_OFF: Final = "The answer was broken off before this was looked up."
_ELSEWHERE: Final = re.compile(r"\s*\[?(?P<conversation>conv_\w+)\s?[:/]\s?(?P<place>.*)", re.DOTALL)


async def answer_calls(caller: Caller, asker: RecallSource, calls: Sequence[RecallCall]) -> list[AnsweredCall]:
    """Answer calls of the tool in order, the first MOST_CALLS of them from the store. Never raises."""
    looked_up = [await _answer_call(caller, asker, call) for call in calls[:MOST_CALLS]]
    return [*looked_up, *answer_with_error(calls[MOST_CALLS:], TOO_MANY)]


def answer_with_error(calls: Sequence[RecallCall], why: str) -> list[AnsweredCall]:
    """Answer calls of the tool with the reason why they are not executed."""
    return [AnsweredCall(call.id, why, is_error=True) for call in calls]


async def _answer_call(caller: Caller, asker: RecallSource, call: RecallCall) -> AnsweredCall:
    # Decoded from JSON, so that the rules for the body of a recall request apply.
    body = msgspec.json.encode(call.asked)
    try:
        async with asyncio.timeout(SECONDS):
            wanted = read(body, RecallIn, caller.services.strict)
            past = await find_past(caller, asker)
            text = await _recall(caller, asker, past, wanted)
    except RequestError as problem:
        at = f" (at {problem.pointer})" if problem.pointer else ""
        return AnsweredCall(call.id, f"{problem.detail}{at}", is_error=True)
    except Exception as error:  # noqa: BLE001 - any failure, such as an unreachable database, must not fail the request
        log.warning("gateway.not_recalled", why=type(error).__name__)
        return AnsweredCall(call.id, _AWAY, is_error=True)
    return AnsweredCall(call.id, text, is_error=False)


async def _recall(caller: Caller, asker: RecallSource, past: Sequence[EarlierConversation], wanted: RecallIn) -> str:
    """Return the result for a conversation and the conversations that it continues. Raises RequestError."""
    if wanted.ref is not None:
        return await _recall_place(caller, asker, past, wanted, wanted.ref)
    share = msgspec.structs.replace(wanted, max_tokens=max(1, wanted.max_tokens // (1 + len(past))))
    own = await _recall_own(caller, asker, msgspec.structs.replace(share, through_seq=max(0, asker.through_seq)))
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


async def _recall_own(caller: Caller, asker: RecallSource, wanted: RecallIn) -> Recalled | None:
    """Return the result for the conversation itself, or None if it is not stored."""
    return await look_up(caller, asker.conversation_id, wanted, for_model=True) if asker.through_seq >= 0 else None


async def _recall_place(
    caller: Caller, asker: RecallSource, past: Sequence[EarlierConversation], wanted: RecallIn, ref: str
) -> str:
    """Return a place of the conversation, or else of a conversation that it continues."""
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
            own = await _recall_own(caller, asker, msgspec.structs.replace(wanted, ref=within))
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
