"""The two calls around a model call, and what happens while the service is away."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from palimpsest_client.calls import (
    Caller,
    as_documented,
    decode,
    encode,
    given,
    is_in_a_header,
    is_passing,
    path_of,
    plain,
)
from palimpsest_client.errors import (
    ApiError,
    OutboxFullError,
    OverflowExhaustedError,
    PalimpsestError,
    PermissionDeniedError,
    UnexpectedSeqError,
    UnreachableError,
)
from palimpsest_client.outbox import Outbox, log
from palimpsest_client.refusals import is_too_long
from palimpsest_client.remembered import ContextMemory, Remembered
from palimpsest_client.results import Context, KeptTurn, ModelCall, Turn
from palimpsest_client.steps import Acquire, Answer, Ask, Flow, Request

if TYPE_CHECKING:
    from palimpsest_client.answers import Message, Shape
    from palimpsest_client.remembered import Place

R = TypeVar("R")
Messages = Sequence[Mapping[str, Any]]
Times = str | datetime | Sequence[str | datetime | None] | None
Fallback = Callable[[], "Messages | Awaitable[Messages]"]
"""Returns the caller's own history; the asynchronous client also takes a coroutine function."""

CONTEXT_SECONDS: Final = 2.0
"""What a person who waits for a reply is made to wait for the context at the most, retries included."""
APPEND_SECONDS: Final = 5.0
"""What a turn is waited for; by then the reply has been shown."""
CALL_SECONDS: Final = 30.0
"""What every other call may take."""
FAIR_SECONDS: Final = 1.0
"""With less time, or less than half of what there was, no further turn is begun: the service would not be at fault."""
OVERTAKEN: Final = 10
"""Times a turn that others overtake is sent again at once."""
REMEMBERED_BYTES: Final = 32 * 1024 * 1024
NOTED_CONVERSATIONS: Final = 10_000
"""Conversations of which the next seq is known, so that a turn that waits finds its place."""
TIMELINE: Final = "palimpsest-timeline"
"""The header that says of which timeline of the service's database an answer is."""
OVERFLOWS: Final = 3
"""The service makes a context smaller so often before it wants to see a turn."""


class Flows:
    """The core of a client: every call as a flow, and what is remembered between calls."""

    def __init__(self, outbox: Outbox | None = None, remembered_bytes: int = REMEMBERED_BYTES) -> None:
        self.outbox = Outbox() if outbox is None else outbox
        self._caller = Caller()
        self._memory = ContextMemory(remembered_bytes)
        self._next_seqs: dict[str, int] = {}

    def call(
        self,
        method: str,
        path: str,
        _answer: type[R],
        *,
        query: Mapping[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        safe: bool = True,
        deadline: float = CALL_SECONDS,
    ) -> Flow[R]:
        """Send a request and return what the answer says."""
        texts = {name: str(value) for name, value in (query or {}).items() if value is not None}
        request = Request(method, path, texts, body=body, deadline=deadline)
        return cast("R", decode((yield from self._caller.send(request, safe=safe))))

    def context(
        self,
        conversation_id: str,
        *,
        fallback: Fallback | None = None,
        shape: Shape | None = None,
        timeout: float = CONTEXT_SECONDS,
        cache_breakpoints: int | None = None,
    ) -> Flow[Context]:
        """Return what to send to the model as `messages`, or as `input`.

        fallback: called for the caller's own history when the service does not answer as it should, whatever the
            reason; `is_fallback` is set then. Without it, and when it fails, errors are raised.
        shape: the one to serve, in which the caller's own history is as well. None: that of the conversation.
        timeout: seconds in all: for turns that wait to be sent, retries included.
        cache_breakpoints: how many marks for the prompt cache `Context.marked` may set: four, less those that your
            system prompt and tools have. None: what is stored keeps the marks that it came with.
        """
        try:
            can_do_without, place = fallback is not None, (conversation_id, shape, cache_breakpoints)

            def read(seconds: float) -> Flow[Context]:
                return self._read_context(place, seconds, can_do_without=can_do_without)

            return (yield from self._with_what_waits(conversation_id, timeout, read, can_do_without=can_do_without))
        except PalimpsestError as error:
            if fallback is None:
                raise
            log.warning("the caller's own history stands in for the context of %s: %s", conversation_id, error)
            own: Messages = yield Ask(fallback)
            return Context([dict(message) for message in own], is_fallback=True, error=error, shape=shape)

    def append(
        self,
        conversation_id: str,
        messages: Messages,
        *,
        usage: Any = None,
        snapshot_version: int | None = None,
        context: Messages | None = None,
        expected_next_seq: int | None = None,
        replace_from: int | None = None,
        created_at: Times = None,
        max_output_tokens: int | None = None,
        shape: Shape | None = None,
        idempotency_key: str | None = None,
        timeout: float = APPEND_SECONDS,
    ) -> Flow[Turn]:
        """Store the messages of a turn, or raise. Repeated with the same key, so that it is stored once.

        messages: those of the turn, or its items; mappings, or what the APIs' SDKs answer with.
        usage: what the API counted for the turn's last model call, a mapping or the object of its SDK; or a list of
            one for each call in order. Never a sum over several calls.
        snapshot_version: the `version` of the context that the model call was made with.
        context: blocks of context for this turn: `source`, `text`, `title`.
        expected_next_seq: the seq that the first message has to get; another raises UnexpectedSeqError.
        replace_from: the seq from which on messages are replaced: an edit, or a regenerated answer.
        created_at: when they were said, one time for all or a list with one for each, None where nobody knows; RFC
            3339, or datetimes with a time zone. None: now.
        max_output_tokens: the output limit of the turn's model call, which later contexts leave room for.
        shape: the one that the messages have; None: what they can only be, or the Messages API's.
        idempotency_key: 1 to 255 characters of ASCII; raises ValueError for another, and for what is no JSON.
        """
        body = _body(
            messages,
            usage,
            snapshot_version,
            context,
            expected_next_seq,
            replace_from,
            created_at,
            max_output_tokens,
            shape,
        )
        return self._append(conversation_id, body, _key(idempotency_key), timeout)

    def deliver(
        self,
        conversation_id: str,
        messages: Messages,
        *,
        usage: Any = None,
        snapshot_version: int | None = None,
        context: Messages | None = None,
        expected_next_seq: int | None = None,
        replace_from: int | None = None,
        created_at: Times = None,
        max_output_tokens: int | None = None,
        shape: Shape | None = None,
        idempotency_key: str | None = None,
        timeout: float = APPEND_SECONDS,
    ) -> Flow[Turn | None]:
        """Append a turn as `append` does, or keep it in the outbox until it can be; None means that it is kept.

        Turns that wait already go first. They are sent again before the next context or turn of their conversation,
        and by `flush`. A turn that the service refuses for good raises. idempotency_key: the same one again, with the
        same turn, returns what was stored the first time, with `replayed`.
        """
        body = _body(
            messages,
            usage,
            snapshot_version,
            context,
            expected_next_seq,
            replace_from,
            created_at,
            max_output_tokens,
            shape,
        )
        key = _key(idempotency_key)
        # Under a key of the caller's own it may have been sent before: nothing may be added to it.
        begun = idempotency_key is not None
        turn = KeptTurn(conversation_id, key, body, begun=begun, pinned=expected_next_seq is not None)
        return self._send_line_locked(conversation_id, timeout, turn)

    def flush(self, *, timeout: float = CALL_SECONDS) -> Flow[int]:
        """Send the turns that wait, and return how many still do. timeout: seconds for one conversation's.

        Those are among them that the service was seen to have lost after it had acknowledged them, as far as the outbox
        still holds them: its database may have failed over to a standby that did not have them yet.
        """
        for conversation_id in self.outbox.conversations():
            yield from self._send_line_locked(conversation_id, timeout)
        return len(self.outbox)

    def overflow(
        self,
        conversation_id: str,
        *,
        snapshot_version: int | None = None,
        error: str | dict[str, Any] | None = None,
        shape: Shape | None = None,
    ) -> Flow[Context]:
        """Say that a model refused the context as too long, and return a smaller one, with the turns that wait.

        snapshot_version: the `version` of the context that was refused. error: what the model's API answered.
        shape: the one to serve; None: that of the conversation.
        """
        body = given(snapshot_version=snapshot_version, error=error, shape=shape)
        path = path_of("conversations", conversation_id, "overflow")

        def read(seconds: float) -> Flow[Context]:
            request = Request("POST", path, body=body, deadline=seconds)
            acknowledged = self._next_seqs.get(conversation_id, 0)
            answer = yield from self._caller.send(request, safe=False)
            return self._context_of(conversation_id, answer.body, shape, acknowledged)

        return self._with_what_waits(conversation_id, CALL_SECONDS, read, can_do_without=False)

    def call_model(
        self,
        conversation_id: str,
        call: Callable[[Context], R | Awaitable[R]],
        *,
        fallback: Fallback | None = None,
        shape: Shape | None = None,
        is_overflow: Callable[[Exception], bool] = is_too_long,
    ) -> Flow[ModelCall[R]]:
        """Call a model with the context, and again with a smaller one when it refuses the prompt as too long."""
        context = yield from self.context(conversation_id, fallback=fallback, shape=shape)
        for left in range(OVERFLOWS, -1, -1):
            try:
                result = yield Ask(lambda context=context: call(context))  # type: ignore[misc]
                return ModelCall(result, context)
            except Exception as error:
                if not left or context.is_fallback or not is_overflow(error):
                    raise
                refused = error
            try:
                context = yield from self.overflow(
                    conversation_id, snapshot_version=context.version, error=str(refused), shape=shape
                )
            except OverflowExhaustedError as none:
                if none.code != "not_the_history":
                    raise
                raise refused from none
        raise AssertionError  # pragma: no cover - the last round returns or raises

    def forget(self, conversation_id: str) -> None:
        """Keep nothing of an erased conversation."""
        self._memory.forget(conversation_id)
        self._next_seqs.pop(conversation_id, None)
        self.outbox.forget(conversation_id)

    def _note_last(self, conversation_id: str, last_seq: int) -> None:
        self._next_seqs[conversation_id] = last_seq + 1
        if len(self._next_seqs) > NOTED_CONVERSATIONS:
            self._next_seqs.pop(next(iter(self._next_seqs)), None)

    def _note_lost(self, conversation_id: str, next_seq: int, acknowledged: int) -> None:
        if next_seq < acknowledged:
            self.outbox.lose(conversation_id, next_seq, acknowledged)

    def _with_what_waits(
        self, conversation_id: str, timeout: float, read: Callable[[float], Flow[Context]], *, can_do_without: bool
    ) -> Flow[Context]:
        """Send what waits, and return the context with what still does; meanwhile nobody else sends it.

        Half of the time may pass until nobody else does, and half of the rest with sending: some is left to read.
        """
        if not self.outbox.waiting(conversation_id):
            return (yield from read(timeout))
        ends = self._caller.ends_in(timeout)
        if can_do_without:
            self._caller.check()
        lock = yield Acquire(conversation_id, timeout / 2)
        try:
            yield from self._send_line(conversation_id, self._caller.left(ends) / 2)
            context = yield from read(self._caller.left(ends))
            return self._with_kept(context, conversation_id)
        finally:
            lock.release()

    def _read_context(self, place: Place, timeout: float, *, can_do_without: bool) -> Flow[Context]:
        if can_do_without:
            self._caller.check()
        conversation_id, shape, cache_breakpoints = place
        known = self._memory.get(place)
        headers = {"if-none-match": known.etag} if known else {}
        path = path_of("conversations", conversation_id, "context")
        room = None if cache_breakpoints is None else str(cache_breakpoints)
        query = given(shape=shape, cache_breakpoints=room)
        request = Request("GET", path, query, headers, deadline=timeout)
        # Before it is asked: what is acknowledged meanwhile, the answer need not have.
        acknowledged = self._next_seqs.get(conversation_id, 0)
        answer: Answer = yield from self._caller.send(request)
        self.outbox.note_timeline(answer.headers.get(TIMELINE))
        if answer.status == HTTPStatus.NOT_MODIFIED and known:
            # As it was remembered, and turns may have been acknowledged since: then they are lost.
            return self._context_of(conversation_id, known.body, shape, acknowledged)
        context = self._context_of(conversation_id, answer.body, shape, acknowledged)
        if etag := answer.headers.get("etag"):
            self._memory.put(place, Remembered(etag, answer.body))
        return context

    def _context_of(self, conversation_id: str, body: bytes, shape: Shape | None, acknowledged: int) -> Context:
        """Return the context of an answer; note as lost what it has not, acknowledged before it was asked for."""
        with as_documented():
            found = decode(Answer(HTTPStatus.OK, {}, body))
            head = found["snapshot"] or {"version": 0, "covers_through": None}
            self._note_last(conversation_id, found["last_seq"])
            self._note_lost(conversation_id, found["last_seq"] + 1, acknowledged)
            return Context(
                [dict(message) for message in found["items" if "items" in found else "messages"]],
                head["version"],
                head["covers_through"],
                found["last_seq"],
                found["tokens"],
                found["warnings"],
                cache_breakpoints=found.get("cache_breakpoints"),
                shape="responses" if "items" in found else shape,
            )

    def _with_kept(self, context: Context, conversation_id: str) -> Context:
        """Return a context with the turns that the service does not know yet."""
        messages: list[Message] = []
        for turn in self.outbox.waiting(conversation_id):
            if "replace_from" in turn.body:
                raise UnreachableError("an edit waits to be sent, so that the service's context is an old one")
            if (turn.body.get("shape") or context.shape or "messages") != (context.shape or "messages"):
                raise UnreachableError("a turn of another shape waits to be sent, which only the service can convert")
            if not (turn.begun and _shows(context, turn)):
                messages += turn.body["messages"]
        return replace(context, messages=[*context.messages, *messages], kept=len(messages))

    def _append(self, conversation_id: str, body: dict[str, Any], key: str, timeout: float) -> Flow[Turn]:
        path = path_of("conversations", conversation_id, "turns")
        request = Request("POST", path, {}, {"idempotency-key": key}, body, timeout)
        # Before it is sent: what others learn meanwhile, this answer need not have.
        acknowledged = self._next_seqs.get(conversation_id, 0)
        answer: Answer = yield from self._caller.send(request)
        self.outbox.note_timeline(answer.headers.get(TIMELINE))
        replayed = answer.headers.get("idempotency-replayed") == "true"
        with as_documented():
            found = decode(answer)
            if replayed:
                # As it was answered the first time: it says nothing of what came since.
                self._note_last(conversation_id, max(found["last_seq"], acknowledged - 1))
            else:
                self._note_last(conversation_id, found["last_seq"])
                self._note_lost(conversation_id, found["first_seq"], acknowledged)
            return Turn(found["first_seq"], found["last_seq"], found["context_tokens"], found["check"], replayed)

    def _send_line_locked(self, conversation_id: str, timeout: float, own: KeptTurn | None = None) -> Flow[Turn | None]:
        try:
            lock = yield Acquire(conversation_id)
        except BaseException:
            # Cut off before it had its turn: it goes out behind those that it waited for.
            if own is not None:
                self._leave(own)
            raise
        try:
            if own is not None:
                self.outbox.add(own)
            return (yield from self._send_line(conversation_id, timeout, own))
        finally:
            lock.release()

    def _leave(self, turn: KeptTurn) -> None:
        try:
            self.outbox.add(turn)
        except OutboxFullError as error:
            log.error("a turn of %s is lost: %s", turn.conversation_id, error)
        else:
            self.outbox.keep(turn, None)

    def _send_line(self, conversation_id: str, timeout: float, own: KeptTurn | None = None) -> Flow[Turn | None]:
        """Send the turns of a conversation in order; return what became of the caller's own, None if it stays."""
        ends = self._caller.ends_in(timeout)
        done: Turn | None = None
        while True:
            self.outbox.put_again(conversation_id)
            turns = self.outbox.waiting(conversation_id)
            if not turns:
                return done
            turn = turns[0]
            # Known by its messages, as its key may change. Once stored, it may be put again with what was lost.
            is_own = own is not None and done is None and turn.body["messages"] is own.body["messages"]
            try:
                self._caller.check()
                self._caller.left(ends, min(timeout / 2, FAIR_SECONDS))
                sent = yield from self._send_kept(turn, ends)
            except PalimpsestError as error:
                if isinstance(error, ApiError) and not is_passing(error):
                    self.outbox.refuse(self.outbox.waiting(conversation_id)[0], error, told=is_own)
                    if is_own:
                        raise
                    continue
                for each in self.outbox.waiting(conversation_id):
                    self.outbox.keep(each, error)
                return done
            except BaseException:
                # Cut off: nobody knows whether it arrived, and its key makes it safe to ask.
                self.outbox.keep(self.outbox.waiting(conversation_id)[0], None)
                raise
            if sent is not None:
                done = sent if is_own else done
                self.outbox.sent(self.outbox.waiting(conversation_id)[0], sent.first_seq)

    def _send_kept(self, turn: KeptTurn, ends: float) -> Flow[Turn | None]:
        """Send the first turn of a line; None where others turned out to be lost, which go before it."""
        for _ in range(OVERTAKEN):
            was_begun = turn.begun
            if not was_begun:
                expected = given(expected_next_seq=self._next_seqs.get(turn.conversation_id))
                turn = replace(turn, begun=True, body={**expected, **turn.body})
                self.outbox.change(turn)
            seconds = self._caller.left(ends)
            # Before it is sent: what others learn meanwhile, this answer need not have.
            acknowledged = self._next_seqs.get(turn.conversation_id, 0)
            try:
                return (yield from self._append(turn.conversation_id, turn.body, turn.idempotency_key, seconds))
            except UnexpectedSeqError as error:
                # What was not begun before can't stand there: the same words would be another's.
                stored = (yield from self._find(turn, ends)) if was_begun else None
                if stored is not None:
                    return stored
                if error.next_seq < acknowledged:
                    self._note_last(turn.conversation_id, error.next_seq - 1)
                    self.outbox.lose(turn.conversation_id, error.next_seq, acknowledged)
                    return None
                if turn.pinned:
                    raise
                # It could be stored at the expected seq alone, and is not: others have written meanwhile.
                self._note_last(turn.conversation_id, error.next_seq - 1)
                body = {name: value for name, value in turn.body.items() if name != "expected_next_seq"}
                turn = replace(turn, begun=False, idempotency_key=uuid.uuid4().hex, body=body)
                self.outbox.change(turn)
        raise UnreachableError("others wrote to the conversation each time that the turn was sent")

    def _find(self, turn: KeptTurn, ends: float) -> Flow[Turn | None]:
        """Return where a turn stands that was stored so long ago that its key has been forgotten."""
        first, messages = turn.body["expected_next_seq"], turn.body["messages"]
        path = path_of("conversations", turn.conversation_id)
        query = {"after": first - 1, "limit": len(messages)}
        try:
            page = yield from self.call("GET", f"{path}/messages", dict, query=query, deadline=self._caller.left(ends))
        except PermissionDeniedError:
            # A key for chats alone may not read originals, and the turn must not wait for ever.
            return None
        with as_documented():
            found = page["data"]
            if len(found) != len(messages) or not all(map(_is_original, found, messages)):
                return None
        now = yield from self.call("GET", path, dict, deadline=self._caller.left(ends))
        with as_documented():
            self._note_last(turn.conversation_id, now["last_seq"])
            return Turn(first, first + len(messages) - 1, now["context_tokens"], "coalesced", replayed=True)


def _shows(context: Context, turn: KeptTurn) -> bool:
    """Tell whether a turn stands in a context where it was to be stored: then its answer was lost."""
    messages: list[Message] = turn.body["messages"]
    next_seq = 0 if context.last_seq is None else context.last_seq + 1
    # Compaction leaves the end of a context as it was stored. Sent without a seq, the turn would be the last one.
    back = next_seq - turn.body.get("expected_next_seq", next_seq - len(messages))
    start = len(context.messages) - back
    return start >= 0 and context.messages[start : start + len(messages)] == messages


def _is_original(stored: Mapping[str, Any], message: Message) -> bool:
    """Tell whether a stored message is the one that was sent."""
    if "original" in stored:
        return bool(stored["original"] == message)
    return (stored["role"], stored["content"]) == (message.get("role"), message.get("content"))


def _key(given_key: str | None) -> str:
    """Return the key of a turn, a new one where none is given; raise ValueError for one that no header may have."""
    if given_key and not is_in_a_header(given_key):
        raise ValueError("an idempotency key has characters of ASCII, and none that is not printed")
    return given_key or uuid.uuid4().hex


def _time(time: str | datetime | None) -> str | None:
    return time.isoformat() if isinstance(time, datetime) else time


def _times(times: Times) -> str | list[str | None] | None:
    if times is None or isinstance(times, (str, datetime)):
        return _time(times)
    return [*map(_time, times)]


def _body(
    messages: Messages,
    usage: Any,
    snapshot_version: int | None,
    context: Messages | None,
    expected_next_seq: int | None,
    replace_from: int | None,
    created_at: Times,
    max_output_tokens: int | None,
    shape: Shape | None,
) -> dict[str, Any]:
    body = given(
        messages=[plain(message) for message in messages],
        usage=plain(usage),
        snapshot_version=snapshot_version,
        context=[dict(block) for block in context] if context is not None else None,
        expected_next_seq=expected_next_seq,
        replace_from=replace_from,
        created_at=_times(created_at),
        max_output_tokens=max_output_tokens,
        shape=shape,
    )
    encode(body)  # what is no JSON is its sender's fault, and must not stand at the head of a line
    return body
