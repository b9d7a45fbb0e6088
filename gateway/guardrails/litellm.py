"""LiteLLM's Generic Guardrail API: its proxy shows a request's history before the call, and the answer after it.

The contract is LiteLLM's "Generic Guardrail API". Rows come as messages of Chat Completions whatever the client speaks,
and fewer rows in the answer take the place of the whole history.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from compaction.text.surrogates import replace_lone_surrogates
from gateway.body_limits import OverLimitsError, read_body_aside
from gateway.conversations.histories import KEY_BYTES, NotJsonError, refuse_unreadable
from gateway.conversations.meaning import UNREADABLE
from gateway.conversations.turns import LostTurnError, store_rows
from gateway.doors import CHAT, DoorError
from gateway.guardrails.answering import AnsweredRequest, Reply
from gateway.headers import BYPASS, CONVERSATION
from gateway.request.prepare import count_failed_open, prepare
from gateway.request.store import store
from runtime.errors import RequestError
from store.gateway import histories as stored
from store.gateway import originals

if TYPE_CHECKING:
    from actions.caller import Caller
    from gateway.conversations.turns import PendingExchange
    from gateway.request.relay import AnswerWriter

log = structlog.get_logger()

_NOTHING: Final = b'{"action":"NONE"}'
_KEPT_STATUSES: Final = frozenset({400, 401, 403})
"""Errors of whoever set LiteLLM up."""
_AWAY: Final = 503
_PRESENT: Final = "[present]"
"""What LiteLLM shows of a header whose value it does not pass on."""
_SESSION: Final = re.compile(r"x-litellm-trace-id|(?:x-(?:.+-)?)?session[-_]id|thread-id|conversation_id")
"""Headers that LiteLLM takes a trace's id from; without any it makes one up for each call."""
_OWNERS: Final = ("user_api_key_end_user_id", "user_api_key_user_id", "user_api_key_hash")
"""Whose a request is, the most telling first."""
_TRIES: Final = 4
_RETRY_SECONDS: Final = 0.5
"""Seconds between looks for the request of an answer, which another process may just be storing."""
_encode: Final = msgspec.json.Encoder().encode


class _Asked(msgspec.Struct):
    """What LiteLLM sends, as far as it is read; it may have any JSON value anywhere."""

    input_type: str = ""
    litellm_call_id: Any = None
    litellm_trace_id: Any = None
    structured_messages: msgspec.Raw = msgspec.Raw(b"null")
    texts: Any = None
    tool_calls: Any = None
    model: Any = None
    request_data: Any = None
    request_headers: Any = None

    @property
    def owners(self) -> dict[str, Any]:
        """Whose request it is, by LiteLLM."""
        return self.request_data if isinstance(self.request_data, dict) else {}

    @property
    def client_headers(self) -> dict[str, str]:
        """The headers of the client's request whose values are passed on."""
        headers = self.request_headers if isinstance(self.request_headers, dict) else {}
        return {name.lower(): value for name, value in headers.items() if isinstance(value, str) and value != _PRESENT}

    @property
    def is_in_session(self) -> bool:
        """Whether the trace is more than this call."""
        if not isinstance(self.request_headers, dict):
            return True
        sessions = [value for name, value in self.client_headers.items() if _SESSION.fullmatch(name)]
        if sessions:
            # LiteLLM takes no name that is short or has spaces in it.
            return self.litellm_trace_id in sessions
        return any(_SESSION.fullmatch(name.lower()) for name in self.request_headers)


_read: Final = msgspec.json.Decoder(_Asked).decode
_messages: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class GuardrailRequest(AnsweredRequest):
    """A request of LiteLLM's before a call or after it."""

    async def reply(self, body: bytes) -> Reply:
        """Return the shorter history, before a call where there is one, or that nothing is to be changed."""
        try:
            asked = await read_body_aside(self._services, self._caller, body, _asked, body)
        except OverLimitsError:
            count_failed_open(self._services, "limits")
            return Reply(_NOTHING, "failed_open")
        if asked is None:
            count_failed_open(self._services, "opaque")
            return Reply(_NOTHING, "failed_open")
        if asked.input_type == "response":
            self._keep_answer(asked)
            return Reply(_NOTHING, "unchanged")
        chat = _as_chat(asked)
        if chat is None:
            return Reply(_NOTHING, "unchanged")
        prepared = await prepare(self._services, self._caller, CHAT, self._headers_of(asked), chat)
        if prepared.learned is not None and self._caller is not None:
            storing = self._keep(self._caller, prepared.learned, asked)
            self._services.learning.begin_turn(self._caller.tenant_id, prepared.learned, storing)
        answer = _NOTHING
        if prepared.outcome == "compacted":
            rows = _messages(prepared.body)["messages"]
            answer = _encode({"action": "GUARDRAIL_INTERVENED", "structured_messages": rows})
        return Reply(answer, prepared.outcome, prepared.conversation, prepared.saved_tokens, prepared.rules)

    async def _refuse(self, error: DoorError, writer: AnswerWriter) -> None:
        """Answer with an error: LiteLLM lets a request through at one of 502 to 504, and fails it at any other."""
        if error.status not in _KEPT_STATUSES:
            error = DoorError(_AWAY, error.detail, code=error.code, retry_after=error.retry_after)
        await super()._refuse(error, writer)

    def _headers_of(self, asked: _Asked) -> dict[bytes, bytes]:
        """Return the headers of the client's request as far as they say whose history it is."""
        client_headers = asked.client_headers
        headers: dict[bytes, bytes] = {
            name: self._named[name] for name in (CONVERSATION, BYPASS) if name in self._named
        }
        headers |= {
            name: client_headers[name.decode()].encode()
            for name in (CONVERSATION, BYPASS)
            if name.decode() in client_headers
        }
        headers[b"user-agent"] = client_headers.get("user-agent", "").encode() or b"litellm"
        if isinstance(asked.litellm_trace_id, str) and asked.is_in_session:
            headers[b"x-litellm-trace-id"] = asked.litellm_trace_id.encode(errors="replace")
        return headers

    async def _keep(self, caller: Caller, learned: PendingExchange, asked: _Asked) -> None:
        """Store what was asked, and what the answer to it will be known by."""
        kept = await store(self._services, caller, learned, None)
        key = _key_of_call(asked)
        if kept is not None and key is not None:
            pool = self._services.core.pool
            await stored.name(pool, caller.tenant_id, kept.conversation_id, [kept.last_seq + 1], [key])

    def _keep_answer(self, asked: _Asked) -> None:
        row, key = _answer(asked), _key_of_call(asked)
        if self._caller is not None and row is not None and key is not None:
            self._services.learning.begin(self._store_answer(self._caller, row, key))

    async def _store_answer(self, caller: Caller, row: bytes, key: bytes) -> None:
        """Store an answer behind the request that it answers, unless the client's next request has brought it."""
        turns = self._services.metrics.turns
        for tried in range(_TRIES):
            try:
                place = await caller.run(originals.place_of, key)
                if place is not None:
                    name = f"gateway litellm {key.hex()}"
                    where = place.conversation_id
                    appended = await store_rows(caller, where, "chat", [row], name=name, at=place.seq)
                    turns["resent" if appended.outcome == "out_of_order" else "stored"].inc()
                    return
            except RequestError as error:
                turns["not_storable"].inc()
                log.info("gateway.not_storable", detail=error.detail)
                return
            except LostTurnError as error:
                log.info("gateway.turn_deferred", why=str(error))
                break
            except Exception as error:  # noqa: BLE001 - the database is away, or whatever else keeps it from being stored
                log.warning("gateway.turn_deferred", why=type(error).__name__)
            if tried < _TRIES - 1:
                await asyncio.sleep(_RETRY_SECONDS)
        self._services.unstored.add(partial(caller.run, originals.is_answered, key))


def _asked(body: bytes) -> _Asked | None:
    """Return what is asked, None for what only others can read. Raises DoorError for anything else."""
    body, _ = replace_lone_surrogates(body)
    try:
        asked = _read(body)
    except UNREADABLE as error:
        try:
            refuse_unreadable(body)
        except NotJsonError as unreadable:
            raise DoorError(400, f"The body is no JSON: {unreadable}") from None
        if isinstance(error, msgspec.ValidationError):
            raise DoorError(400, f"This is no request of LiteLLM's Generic Guardrail API: {error}") from None
        return None
    if asked.input_type not in {"request", "response"}:
        raise DoorError(400, "Expected `input_type`: `request` or `response`.")
    return asked


def _as_chat(asked: _Asked) -> bytes | None:
    """Return the request as one of Chat Completions; None where it shows no history."""
    if not bytes(asked.structured_messages).startswith(b"["):
        return None
    owner = next((name for key in _OWNERS if isinstance(name := asked.owners.get(key), str) and name), None)
    beside = {"metadata": {"user_id": owner}} if owner else {}
    return _encode({"model": asked.model, "messages": asked.structured_messages, **beside})


def _key_of_call(asked: _Asked) -> bytes | None:
    """Return what the answer of a call is known by; None where nothing tells calls apart."""
    if not isinstance(asked.litellm_call_id, str) or not asked.litellm_call_id:
        return None
    of = _encode(["litellm", asked.owners.get("user_api_key_hash"), asked.litellm_call_id])
    return hashlib.sha256(of).digest()[:KEY_BYTES]


def _answer(asked: _Asked) -> bytes | None:
    """Return an answer as a message, None for none that can be told from what LiteLLM shows."""
    texts = [text for text in asked.texts if isinstance(text, str)] if isinstance(asked.texts, list) else []
    listed = asked.tool_calls if isinstance(asked.tool_calls, list) else []
    calls = [
        {name: call[name] for name in ("id", "type", "function") if name in call}
        for call in listed
        if isinstance(call, dict)
    ]
    said = "".join(texts)
    if not said.strip() and not calls:
        return None
    return _encode({"role": "assistant", "content": said or None, **({"tool_calls": calls} if calls else {})})
