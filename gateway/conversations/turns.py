"""What is learned of a request: its new rows and its answer as a turn, and by what it is recognized the next time."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from actions.append_turn import note_usage, store_turn, wake_up
from actions.conversations import change_conversation
from actions.errors import InvalidError
from actions.input.turn_bodies import read_turn
from actions.types.core import MOST_OUTPUT_TOKENS, ConversationPatch
from compaction.messages import disarm_inner_blocks
from compaction.recall.tool import NAME, is_declared
from compaction.shapes.acceptance import repair_message
from compaction.shapes.inner import ShapeError
from compaction.shapes.usage import UsageError, read_usage
from gateway.conversations.carried_over import with_stored_ids
from gateway.conversations.histories import KEY_BYTES, replace_nul
from gateway.conversations.meaning import UNREADABLE, UNREADABLE_ROW, decode_row, system_row_as_user
from gateway.conversations.put_back import with_results
from gateway.conversations.recognition import may_go_on, recognize
from runtime import ids
from runtime.errors import RequestError
from runtime.threads import run_aside
from store.gateway import histories as stored
from store.gateway.histories import AnsweredRecall, Begun, Noted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from actions.caller import Caller
    from actions.input.strict_json import StrictJson
    from actions.input.turn_bodies import Turn
    from compaction.policy import Policy
    from compaction.shapes.inner import Shape
    from gateway.answers.reading import ReceivedAnswer
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.recognition import RecognizedPlace
    from gateway.conversations.rewritten import AlignmentScope
    from gateway.conversations.sessions import Session
    from store.hot_path import Appended

TURN_ROWS: Final = 500
"""Rows of one turn; a long history that is new comes in several."""
TURN_BYTES: Final = 128 * 1024
"""Bytes of one, so that reading it keeps no other request waiting for more than some milliseconds."""
_HANDLES: Final = "recall_handles"
ROW_BYTES: Final = 4_096
"""Bytes of a body that take as long to read as a row of no length."""
REST: Final = 3
"""Times as long as one part of a long history took to store until the next begins: other requests go on meanwhile."""
OVERTAKEN: Final = 3
"""Times that a turn is tried again after another one of its conversation came first."""
log = structlog.get_logger()
_encode: Final = msgspec.json.Encoder().encode
_value: Final = msgspec.json.Decoder().decode
_message: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_INNER: Final = re.compile(rb'"(?:instruction|opaque|item)"')
"""Words that a row with blocks of the inner form has; one that spells them otherwise is read as any unreadable row."""


class LostTurnError(Exception):
    """A turn that could not be stored: the client's next request has it."""


class StoredExchange(NamedTuple):
    """Where a turn was stored."""

    conversation_id: UUID
    last_seq: int


class PendingExchange(NamedTuple):
    """What is kept of a request until its answer has come."""

    shape: Shape
    history: ResentHistory
    """Its rows, those before `first` empty: a long history is not kept in memory while it is answered."""
    first: int
    keys: Sequence[bytes]
    place: RecognizedPlace
    circle: bytes
    session: Session
    named: UUID | None
    external_id: str | None
    model: str | None
    outcome: str
    saved_tokens: int
    version: int
    retried: bool = False
    scope: AlignmentScope | None = None
    """Where the conversation is looked for if its client has rewritten its history; None for nowhere."""
    requested_output: int | None = None
    """Tokens of output that the request asks for at most."""
    rules: str = ""
    """The hash over the rules that stand in what was compacted; "" where nothing was."""

    @property
    def has_sent_what_is_stored(self) -> bool:
        """Whether the request had all that is stored: what a provider counts for less says nothing of the rest."""
        covered = self.place.head.covers_through if self.place.head is not None and self.version else -1
        return max(self.place.lacking_through, self.place.cleared_through) <= covered

    @property
    def in_session(self) -> bool:
        """Whether the client says which conversation it is, by a name of its own or its session's."""
        return self.named is not None or self.external_id is not None or self.session.name is not None


async def store_exchange(
    caller: Caller,
    learned: PendingExchange,
    answered: ReceivedAnswer | None,
    begun: Callable[[PendingExchange], None] = lambda _: None,
) -> StoredExchange:
    """Store what is new of a request, and its answer; return where. Raises LostTurnError if it cannot be.

    `begun` is told the place in a conversation that was begun for it, from which it may be tried again.
    """
    if learned.place.is_pending:
        learned = await _relocate(caller, learned)
    elif learned.place.is_new and may_go_on(learned.history, in_session=learned.in_session):
        learned = await _match_existing(caller, learned)
    for _ in range(OVERTAKEN):
        was_there = learned.place.is_empty or not learned.place.is_new
        if learned.place.is_new:
            learned = await _create_conversation(caller, learned)
            begun(learned)
        if was_there and learned.model not in {None, learned.place.model}:
            await _switch_model(caller, learned)
        seqs = await _store(caller, learned, answered)
        if seqs is not None:
            await _record_place(caller, learned, seqs, answered)
            return StoredExchange(learned.place.conversation_id, seqs[-1] if seqs else learned.place.last_seq)
        # Another turn came first. What now stands there may be what this one was going to bring.
        learned = await _relocate(caller, learned)
    raise LostTurnError("overtaken again and again")


async def is_stored(caller: Caller, learned: PendingExchange) -> bool:
    """Return whether the rows of a request are stored, with this request or with a later one of its client."""
    key = learned.keys[-1]
    pool, tenant_id = caller.services.pool, caller.tenant_id
    return await stored.is_noted(pool, tenant_id, [key, _key_of_rewritten(key)])


async def _relocate(caller: Caller, learned: PendingExchange) -> PendingExchange:
    """Return a request with its place as it is now. Raises LostTurnError where it goes on from nothing any more."""
    # A name tells only before anything is stored of it.
    named = (learned.named, learned.external_id) if learned.place.is_pending and not learned.first else (None, None)
    place = await recognize(
        caller.services.pool,
        caller.tenant_id,
        learned.history,
        learned.keys,
        only=named[0],
        external_id=named[1],
        can_wait=True,
        scope=learned.scope,
        meanings=learned.place.meanings,
    )
    if learned.place.is_pending and not learned.first and learned.scope is not None:
        # Nothing was known of it yet.
        return learned._replace(place=place)
    if place.is_new and named != (None, None):
        return learned._replace(place=place)
    if place.is_new or place.is_edit or place.matched < learned.first:
        # It is something else: two went on from the same place. The client's next request is a branch.
        raise LostTurnError("overtaken")
    return learned._replace(place=place)


async def _match_existing(caller: Caller, learned: PendingExchange) -> PendingExchange:
    """Return a request that went on from nothing, with the place that it has where the same came at once.

    Raises LostTurnError where that is stored with its answer.
    """
    pool, rows = caller.services.pool, len(learned.history.rows)
    place = await recognize(pool, caller.tenant_id, learned.history, learned.keys, can_wait=True, scope=learned.scope)
    if place.is_new or (place.is_edit and place.matched < rows):
        return learned
    if place.is_edit:
        raise LostTurnError("the same came at once")
    return learned._replace(place=place)


async def _create_conversation(caller: Caller, learned: PendingExchange) -> PendingExchange:
    """Make the conversation of a history that is new."""
    session, place = learned.session, learned.place
    about = {"client": session.client, "session": session.name, "shape": learned.shape}
    conversation_id = await stored.begin(
        caller.services.pool,
        caller.tenant_id,
        Begun(
            # Where somebody else begins the one that is named meanwhile, this is a branch of it.
            ids.new_id() if place.is_empty else place.conversation_id,
            learned.named,
            learned.external_id,
            session.user,
            learned.model,
            {"gateway": {name: value for name, value in about.items() if value is not None}},
            learned.circle,
            session.name is not None or learned.external_id is not None,
            place.branch_of,
        ),
    )
    if not place.is_empty and is_declared(_tools_of(learned.history)) and _HANDLES not in caller.principal.overrides:
        with suppress(RequestError):
            await change_conversation(caller, conversation_id, ConversationPatch(policy={_HANDLES: True}))
    return learned._replace(place=place._replace(conversation_id=conversation_id, is_new=False))


def _tools_of(history: ResentHistory) -> Any:
    """Return the tools that a request declares, None if they cannot be read."""
    sent = bytes(history.fields.get("tools", b"null"))
    # Nearly all tools are others, and need no parsing.
    if NAME.encode() not in sent:
        return None
    with suppress(*UNREADABLE):
        return _value(sent)
    return None


async def _switch_model(caller: Caller, learned: PendingExchange) -> None:
    """Have a conversation go on with the model that it is sent to now, whose window and prices are others."""
    try:
        await change_conversation(caller, learned.place.conversation_id, ConversationPatch(model=learned.model))
    except RequestError as error:
        log.info("gateway.model_not_taken", conversation=str(learned.place.conversation_id), error=error.detail)


async def store_rows(
    caller: Caller, conversation_id: UUID, shape: Shape, rows: Sequence[bytes], *, name: str, at: int | None = None
) -> Appended:
    """Store rows at the end of a conversation, once under a name; `at` is the seq that has to be the next one there.

    Raises RequestError for what cannot be stored, and LostTurnError where there is no such conversation.
    """
    fields: dict[str, Any] = {"shape": shape} | ({} if at is None else {"expected_next_seq": at})
    appended = await _append(caller, conversation_id, fields, rows, name)
    if appended.outcome == "appended":
        wake_up(caller, conversation_id, queued=appended.queued)
    return appended


async def _store(caller: Caller, learned: PendingExchange, answered: ReceivedAnswer | None) -> list[int] | None:
    """Store what is new; return its seqs, those of the answer last, None where another turn came first."""
    place = learned.place
    new = ROW_BYTES * (len(learned.history.rows) - place.matched)
    rows = await run_aside(new, _rows_to_store, learned)
    rows[:1] = [every for row in rows[:1] for every in with_results(learned.shape, row, place.results)]
    every = [*rows, *(answered.rows if answered is not None else ())]
    parts = _split_rows(every)
    if not parts and place.replace_from is None:
        return []
    undated = (
        await run_aside(new, _count_older_rows, learned.shape, rows) if not place.matched and not place.next_seq else 0
    )
    now = datetime.now(UTC)
    seqs: list[int] = []
    expected, replace_from = place.next_seq, place.replace_from
    usage = answered.usage if answered is not None and learned.has_sent_what_is_stored else None
    usage = usage if _is_usage(learned.shape, usage) else None
    appended: Appended | None = None
    began = time.monotonic()
    for number, part in enumerate(parts):
        if number:
            await asyncio.sleep(REST * (time.monotonic() - began))
            began = time.monotonic()
        fields: dict[str, Any] = {"shape": learned.shape, "expected_next_seq": expected}
        if learned.requested_output is not None:
            fields["max_output_tokens"] = min(learned.requested_output, MOST_OUTPUT_TOKENS)
        if number == len(parts) - 1 and usage is not None:
            fields |= {"usage": usage, "snapshot_version": learned.version}
        if replace_from is not None:
            fields["replace_from"] = replace_from
        start = sum(map(len, parts[:number]))
        if start < undated:
            # Said before the gateway met them, nobody knows when.
            fields["created_at"] = [None if start + at < undated else now for at in range(len(part))]
        appended = await _append(
            caller,
            place.conversation_id,
            fields,
            part,
            f"gateway {ids.external('req', caller.request_id)} {expected}",
            is_edit=place.replace_from is not None,
        )
        if appended.outcome == "out_of_order":
            return None
        seqs += range(appended.first_seq, appended.last_seq + 1)
        expected, replace_from = appended.last_seq + 1, None
    if appended is not None:
        wake_up(caller, place.conversation_id, queued=appended.queued)
    return seqs


def _rows_to_store(learned: PendingExchange) -> list[bytes]:
    place = learned.place
    return [with_stored_ids(row, place.stored_ids) for row in learned.history.rows[place.matched :]]


def _count_older_rows(shape: Shape, rows: Sequence[bytes]) -> int:
    """Return how many rows of a history that is stored for the first time were said before its newest request."""
    for place in range(len(rows) - 1, -1, -1):
        with suppress(ShapeError, *UNREADABLE):
            if decode_row(shape, _value(rows[place])).role == "assistant":
                return place + 1
    return 0


def _is_usage(shape: Shape, usage: Any) -> bool:
    """Return whether counts can be read: a turn is not lost for what a server calls so."""
    try:
        read_usage(shape, usage)
    except UsageError:
        return False
    return bool(usage)


def _split_rows(rows: Sequence[bytes]) -> list[list[bytes]]:
    """Return rows in turns of TURN_ROWS and TURN_BYTES at most, a larger row in one of its own."""
    parts: list[list[bytes]] = []
    size = 0
    for row in rows:
        if not parts or len(parts[-1]) == TURN_ROWS or size + len(row) > TURN_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += len(row)
    return parts


async def _append(
    caller: Caller,
    conversation_id: UUID,
    fields: dict[str, Any],
    rows: Sequence[bytes],
    idempotency_key: str,
    *,
    is_edit: bool = False,
) -> Appended:
    services = caller.services
    policy = caller.principal.policy
    try:
        size = sum(map(len, rows)) + ROW_BYTES * len(rows)
        body, turn = await run_aside(size, _read_rows, fields, rows, policy, services.strict)
    except RequestError as problem:
        readable = await run_aside(size, _readable_rows, fields["shape"], rows, policy, services.strict)
        if readable.unreadable == len(rows):
            raise
        log.warning(
            "gateway.rows_unreadable",
            count=readable.unreadable,
            ambiguous=readable.ambiguous,
            detail=problem.detail,
            conversation=str(conversation_id),
        )
        services.metrics.unreadable_rows.inc(readable.unreadable)
        services.metrics.ambiguous_rows.inc(readable.ambiguous)
        body = _encode({**fields, "messages": [msgspec.Raw(row) for row in readable.rows]})
        turn = await run_aside(size, read_turn, body, policy, services.strict)
    appended = await store_turn(caller, conversation_id, turn, idempotency_key=idempotency_key, body=body)
    if appended.outcome not in {"appended", "replayed", "out_of_order"}:
        raise LostTurnError(appended.outcome)
    if appended.outcome != "out_of_order":
        services.metrics.took(replayed=appended.outcome == "replayed", messages=len(rows), size=len(body))
        note_usage(caller, conversation_id, turn, appended, is_edit=is_edit)
    return appended


def _read_rows(fields: dict[str, Any], rows: Sequence[bytes], policy: Policy, strict: StrictJson) -> tuple[bytes, Turn]:
    """Return the body of a turn with rows, and the turn in it. Raises RequestError for what cannot be stored."""
    messages = [_stored_form(fields["shape"], replace_nul(row)) for row in rows]
    body = _encode({**fields, "messages": [msgspec.Raw(row) for row in messages]})
    return body, read_turn(body, policy, strict)


class _ReadableRows(NamedTuple):
    """Rows as they can be stored."""

    rows: list[bytes]
    unreadable: int
    """Rows that have a remark in their place."""
    ambiguous: int
    """Rows with a key given twice, of which the last value is stored."""


def _readable_rows(shape: Shape, rows: Sequence[bytes], policy: Policy, strict: StrictJson) -> _ReadableRows:
    """Return rows as they can be stored. Of a key that is given twice the last value counts, as for most readers."""
    every: list[bytes] = []
    unreadable = ambiguous = 0
    for row in rows:
        is_ambiguous = False
        try:
            stored_row = _stored_form(shape, replace_nul(row))
            if not _can_be_read(shape, stored_row, policy, strict):
                is_ambiguous = True
                stored_row = _stored_form(shape, replace_nul(_encode(_value(row))))
            is_readable = _can_be_read(shape, stored_row, policy, strict)
        except (RequestError, ShapeError, *UNREADABLE):
            is_readable = False
        unreadable += not is_readable
        ambiguous += is_readable and is_ambiguous
        every.append(stored_row if is_readable else _placeholder_message(row))
    return _ReadableRows(every, unreadable, ambiguous)


def _can_be_read(shape: Shape, row: bytes, policy: Policy, strict: StrictJson) -> bool:
    try:
        read_turn(_encode({"shape": shape, "messages": [msgspec.Raw(row)]}), policy, strict)
    except RequestError:
        return False
    return True


def _placeholder_message(row: bytes) -> bytes:
    """Return the message that is stored in the place of a row that cannot be read."""
    try:
        value = _value(row)
    except UNREADABLE:
        value = None
    role = value.get("role") if isinstance(value, dict) else None
    return _encode({"role": "assistant" if role == "assistant" else "user", "content": UNREADABLE_ROW})


def _stored_form(shape: Shape, row: bytes) -> bytes:
    """Return a row as a turn has it: of the Messages API's what is said, without fields that are about the request."""
    if shape != "messages":
        return row
    if b'"system"' in row and (value := _value(row)) != (said := system_row_as_user(value)):
        return _encode(said)
    try:
        message = _message(row)
    except msgspec.DecodeError:
        raise InvalidError("A message is an object.", "/messages") from None
    if "content" in message and _INNER.search(row):
        content = _value(message["content"])
        if (disarmed := disarm_inner_blocks(content)) is not content:
            row = _encode({**message, "content": disarmed})
            message = _message(row)
    if b'"tool_use"' in row and (repaired := _with_whole_calls(_value(row))) is not None:
        return _encode({"role": repaired.get("role"), "content": repaired["content"]})
    return _encode({name: message[name] for name in ("role", "content") if name in message})


def _with_whole_calls(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return a message whose calls have a name and an object as input, None if they have: no other can be stored."""
    content = message.get("content")
    calls = [block for block in content if _is_call(block)] if isinstance(content, list) else []
    if all(block.get("name") and isinstance(block.get("input"), dict) for block in calls):
        return None
    return repair_message("messages", message)


def _is_call(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_use"


async def _record_place(
    caller: Caller, learned: PendingExchange, seqs: Sequence[int], answered: ReceivedAnswer | None
) -> None:
    place, new = learned.place, len(learned.history.rows) - learned.place.matched
    before = len(place.results) if learned.shape != "messages" and new else 0
    own, said = seqs[before : before + new], seqs[before + new :]
    ends = [*place.equal, *zip(own, range(place.matched + 1, place.matched + new + 1), strict=True)]
    noted = Noted(
        learned.outcome,
        learned.saved_tokens,
        learned.version,
        learned.retried,
        answered is not None and not answered.is_whole,
    )
    equal = {seq for seq, _ in place.equal}
    recalls = [each for each in place.recalls if each.through_seq in equal or not each.resent]
    response_ids = None
    if before:
        recalls.append(AnsweredRecall(seqs[0], seqs[before - 1], 0, [], []))
    if answered is not None and answered.shown is not None and said:
        visible = [_value(row) for row in answered.shown]
        recalls.append(AnsweredRecall(said[0], said[-1], None, visible, answered.results))
        response_ids = answered.response_ids
    await stored.note(
        caller.services.pool,
        caller.tenant_id,
        place.conversation_id,
        [seq for seq, _ in ends],
        await run_aside(ROW_BYTES * len(ends), lambda: [_noted_key(place, learned.keys[end - 1]) for _, end in ends]),
        last_seq=ends[-1][0] if ends else place.last_seq,
        noted=noted,
        recalls=recalls,
        response_ids=response_ids,
    )


def _noted_key(place: RecognizedPlace, key: bytes) -> bytes:
    """Return the key that a message is noted by.

    Keys of a history that its client has rewritten stand for other words than are stored: by them nothing is found.
    """
    return _key_of_rewritten(key) if place.seqs else key


def _key_of_rewritten(key: bytes) -> bytes:
    return hashlib.sha256(b"rewritten " + key).digest()[:KEY_BYTES]
