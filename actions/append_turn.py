"""A turn: stored with its context blocks and the mark that a check is due, and the workers notified."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from actions.errors import ConflictError, InvalidError, NotFoundError, or_not_found
from actions.input.turn_bodies import CachedTokens, cached_of
from actions.types.core import TurnOut
from compaction.payload.context_blocks import prepare
from compaction.pins.ledger import turn_entries, with_speakers
from runtime.errors import RequestError
from runtime.fault_points import pause_for_test
from runtime.threads import run_aside
from store import hot_path
from store.conversations import conversations, repinning
from store.conversations.context_blocks import new_blocks
from store.conversations.usages import UsageRecord

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from actions.input.turn_bodies import Turn
    from store.conversations.context_blocks import NewBlocks
    from store.hot_path import Appended
    from store.turn_context import TurnContext

_MESSAGE_BYTES: Final = 1_024
"""Bytes of text that take as long to look through for rules as a message of no length."""
_MOST_BEGUN: Final = 10_000
"""Conversations that a process remembers to have begun; what it forgot is looked at as a first turn once more."""


async def append_turn(
    caller: Caller, conversation: UUID, turn: Turn, body: bytes, idempotency_key: str | None
) -> tuple[TurnOut, bool]:
    """Store the messages of a turn and have the token budget checked, in one transaction.

    Returns the answer, and whether it is that of the same turn before; raises the problem of a turn that is not taken.
    """
    services = caller.services
    blocks = await _new_blocks(caller, conversation, turn) if turn.context else None
    appended = await store_turn(
        caller, conversation, turn, blocks and blocks.context, idempotency_key=idempotency_key, body=body
    )
    pause_for_test("turn.stored")
    replayed = _refuse_or_accept(appended)
    for run_id in blocks.run_ids if blocks and not replayed else ():
        services.wakeups.add_run(caller.tenant_id, run_id)
    note_usage(caller, conversation, turn, appended)
    services.metrics.took(replayed=replayed, messages=len(turn.contents), size=len(body))
    check = wake_up(caller, conversation, queued=appended.queued)
    return TurnOut(appended.first_seq, appended.last_seq, appended.context_tokens, check), replayed


def note_usage(
    caller: Caller, conversation: UUID, turn: Turn, appended: Appended, *, is_edit: bool | None = None
) -> None:
    """Keep what the API counted for the call that a turn came from, off the request path; once, and where it did.

    `is_edit` tells whether the call took the place of others; None = as the turn says.
    """
    if appended.outcome != "appended":
        return
    last = _Counted(turn.usage.input_tokens, turn.usage.output_tokens, turn.cached)
    calls = [_Counted(each.input or None, each.output or 0, cached_of(each)) for each in turn.earlier]
    counted = [call for call in (*calls, last) if call.input is not None]
    # A row is a call's, and has the seq of one of the turn's messages.
    most = appended.last_seq - appended.first_seq + 1
    if len(counted) > most:
        counted = [reduce(_Counted.plus, counted[: 1 - most or None]), *counted[len(counted) + 1 - most :]]
    for place, call in enumerate(counted):
        record = UsageRecord(
            tenant_id=caller.tenant_id,
            conversation_id=conversation,
            seq=appended.first_seq + place,
            snapshot_version=turn.usage.version,
            input_tokens=call.input or 0,
            cached_tokens=call.cached.read,
            written_tokens=call.cached.written,
            output_tokens=call.output,
            is_edit=turn.replace_from is not None if is_edit is None else is_edit,
            answered_at=datetime.now(UTC),
        )
        caller.services.usages.add(record)


class _Counted(NamedTuple):
    """What was counted for one call, or for several."""

    input: int | None
    output: int
    cached: CachedTokens

    def plus(self, other: _Counted) -> _Counted:
        """Return the counts of both."""
        read, written = (
            None if one is None and two is None else (one or 0) + (two or 0)
            for one, two in zip(self.cached, other.cached, strict=True)
        )
        return _Counted((self.input or 0) + (other.input or 0), self.output + other.output, CachedTokens(read, written))


async def store_turn(
    caller: Caller,
    conversation: UUID,
    turn: Turn,
    context: TurnContext | None = None,
    *,
    idempotency_key: str | None = None,
    body: bytes = b"",
) -> Appended:
    """Store a turn under the tenant's policy, and the rules in it; `body` is what an idempotency key identifies."""
    policy, begun = caller.principal.policy, caller.services.begun
    look = partial(turn_entries, may_be_first=turn.replace_from is not None or conversation not in begun)
    entries = await run_aside(sum(map(len, turn.contents)) + _MESSAGE_BYTES * len(turn.contents), look, turn.said)
    if entries:
        named = turn.sent.messages if turn.sent is not None and turn.sent.shape == "chat" else None
        entries = with_speakers(entries, turn.said, named)
    appended = await hot_path.append_turn(
        caller.services.pool,
        tenant_id=caller.tenant_id,
        conversation_id=conversation,
        request_id=caller.request_id,
        contents=turn.contents,
        facts=turn.facts,
        usage=turn.usage,
        hidden=turn.hidden,
        result_cap=policy.max_tool_result_chars,
        expected_seq=turn.expected_seq,
        replace_from=turn.replace_from,
        idempotency_key=idempotency_key,
        body_hash=hashlib.sha256(body).digest() if idempotency_key else None,
        context=context,
        policy=policy,
        sent=turn.sent,
        entries=entries,
        times=turn.times,
        requested_output=turn.requested_output,
    )
    if appended.outcome not in {"appended", "replayed"}:
        return appended
    # Not before: one that is not taken is tried again as the first that it is.
    begun[conversation] = None
    if len(begun) > _MOST_BEGUN:
        del begun[next(iter(begun))]
    if turn.replace_from is not None:
        # The turn is stored whatever comes of it: the next compaction frames them, too.
        with suppress(SQLAlchemyError, TimeoutError, OSError):
            await caller.run_and_wake(_keep_up, conversation, caller)
    return appended


def _keep_up(connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller) -> None:
    """Have the rules of now in the head that an edit has gone back to."""
    if (row := conversations.get(connection, tenant_id, conversation_id)) is not None:
        policy = caller.principal.policy_for(row.policy, row.model)
        repinning.keep_up(connection, tenant_id, conversation_id, policy=policy, request_id=caller.request_id)


async def _new_blocks(caller: Caller, conversation: UUID, turn: Turn) -> NewBlocks:
    """Return what is to be stored of the turn's context under the conversation's policy."""
    row = or_not_found(await caller.run(conversations.get, conversation))
    policy = caller.principal.policy_for(row.policy, row.model)
    # Outlining megabytes takes its time: not on the thread that answers everybody.
    return await asyncio.to_thread(lambda: new_blocks(prepare(turn.context, policy), policy))


def _refuse_or_accept(appended: Appended) -> bool:
    """Return whether the answer is an earlier one's; raise if there is none to give."""
    match appended.outcome:
        case "missing":
            raise NotFoundError
        case "out_of_order":
            raise ConflictError(
                "unexpected_seq",
                f"The next seq of this conversation is {appended.first_seq}.",
                pointer="/expected_next_seq",
                next_seq=appended.first_seq,
            )
        case "beyond_end":
            raise InvalidError(f"The next seq of this conversation is {appended.first_seq}.", "/replace_from")
        case "other_body":
            raise RequestError("idempotency_key_reused", "This Idempotency-Key was used with another body.")
    return appended.outcome == "replayed"


def wake_up(caller: Caller, conversation: UUID, *, queued: bool) -> Literal["queued", "coalesced", "deferred"]:
    """Wake the workers, unless a check of this conversation is pending already."""
    wakeups = caller.services.wakeups
    if queued:
        return wakeups.add(conversation, caller.tenant_id)
    return "coalesced" if wakeups.broker_reachable else "deferred"
