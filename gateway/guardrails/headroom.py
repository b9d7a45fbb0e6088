"""Headroom's calls, for whoever has a proxy that makes them: rows in, as many out, and originals by their names.

Nothing says whose rows they are, and calls and answers are not among them. So nothing but results gets shorter, and
originals are stored as messages of a conversation of their own, which is read, exported and erased as every other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar
from urllib.parse import parse_qs

import msgspec
import structlog

from actions.input.turn_bodies import read_turn
from compaction.messages import blocks
from compaction.shorten.named_results import NAME_DIGITS, NamedResult, named_results, whole_text
from compaction.tokens import CHARS_PER_TOKEN, content_tokens
from gateway.body_limits import OverLimitsError, read_body_aside
from gateway.conversations.histories import NotJsonError, refuse_unreadable
from gateway.conversations.meaning import UNREADABLE
from gateway.conversations.turns import TURN_ROWS, LostTurnError, store_rows
from gateway.doors import RETRIEVE, DoorError
from gateway.guardrails.answering import AnsweredRequest, Reply
from gateway.guardrails.passages import passages
from gateway.request.prepare import count_failed_open
from gateway.timeouts import AwayError
from runtime import ids
from runtime.errors import RequestError
from runtime.threads import run_aside
from store.conversations import conversations
from store.gateway import histories as stored
from store.gateway import originals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from actions.caller import Caller
    from compaction.policy import Policy

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger()

SECONDS: Final = 2.0
"""Seconds for originals to be stored, or read; nothing can be cut whose original cannot be had back."""
POLICY: Final = {
    "input_token_budget": 0,
    "compaction_enabled": False,
    "compaction_threshold_tokens": 100_000_000,
    "max_context_bytes": 1_000_000_000,
}
"""Of a conversation of originals: nobody is served its context, so nothing is done to it."""
_MOST_QUERY_CHARS: Final = 2_000
_NAME: Final = re.compile(rf"[0-9a-f]{{{NAME_DIGITS}}}\Z")
_encode: Final = msgspec.json.Encoder().encode
_value: Final = msgspec.json.Decoder().decode


class _Asked(msgspec.Struct):
    messages: list[Any]


class _AskedUnread(msgspec.Struct):
    messages: msgspec.Raw


_read_raw: Final = msgspec.json.Decoder(_AskedUnread).decode
_read: Final = msgspec.json.Decoder(_Asked).decode


class CutRows(NamedTuple):
    """Rows, and those of them that can be shorter, by their index."""

    rows: list[Any]
    results: dict[int, NamedResult]

    def with_originals(self, names: frozenset[str]) -> list[Any]:
        """Return the rows, those shorter whose originals are stored."""
        shorter = {at: result.row for at, result in self.results.items() if result.name in names}
        return [shorter.get(at, row) for at, row in enumerate(self.rows)]


class CompressRequest(AnsweredRequest):
    """Rows that are to be shorter."""

    async def reply(self, body: bytes) -> Reply:
        """Return as many rows, and what was saved. Rows come back as they are while originals cannot be stored."""
        try:
            if self._caller is None:
                cut, outcome = CutRows((await self._read_aside(body, _asked, body)).messages, {}), "failed_open"
                count_failed_open(self._services, "key")
            else:
                cut = await self._read_aside(body, _cut, body, self._caller.principal.policy)
                outcome = "compacted" if cut.results else "unchanged"
        except OverLimitsError:
            count_failed_open(self._services, "limits")
            return Reply(await run_aside(len(body), _unread, body), "failed_open")
        names: frozenset[str] = frozenset()
        if cut.results and self._caller is not None:
            try:
                names = await self._services.deadline.within(
                    _keep(self._caller, cut), tenant_id=self._caller.tenant_id, seconds=SECONDS
                )
            except (AwayError, LostTurnError):
                outcome = "failed_open"
                count_failed_open(self._services, "database")
        if outcome != "failed_open":
            self._services.core.gateway_outcomes.add(is_open=False)
        rows = cut.with_originals(names)
        before, after = _tokens(cut.rows), _tokens(rows)
        answer = {
            "messages": rows,
            "tokens_before": before,
            "tokens_after": after,
            "tokens_saved": before - after,
            "compression_ratio": after / before if before else 1.0,
            "ccr_hashes": sorted(names),
        }
        return Reply(_encode(answer), outcome, None, before - after)

    async def _read_aside(self, body: bytes, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await read_body_aside(self._services, self._caller, body, read, *args, **kwargs)


class RetrieveRequest(AnsweredRequest):
    """An original by its name. It does not expire."""

    async def reply(self, body: bytes) -> Reply:  # noqa: ARG002 - the base class's
        """Return the original, or what of it a query asks for. Raises DoorError where there is none of the tenant's."""
        name = self._door.end.removeprefix(RETRIEVE)
        content = None
        if _NAME.match(name):
            try:
                content = await self._services.deadline.within(self._content(bytes.fromhex(name)), seconds=SECONDS)
            except AwayError:
                raise DoorError(503, "Originals can't be read just now.", retry_after=1) from None
        if content is None:
            raise DoorError(404, "There is no original of this hash.", code="not_found")
        results = [block for block in blocks(_value(content)) if block.get("type") == "tool_result"]
        text = "".join(whole_text(block.get("content")) for block in results)
        passage = await run_aside(len(text), passages, text, self._asked_for())
        answer = {"hash": name, "original_content": passage, "original_tokens": content_tokens(text)}
        return Reply(_encode(answer), "unchanged")

    def _asked_for(self) -> str:
        """Return the words that are asked for, empty for the whole."""
        words = parse_qs(self._query.decode("latin-1")).get("query", [""])[-1]
        return words[:_MOST_QUERY_CHARS]

    async def _content(self, key: bytes) -> str | None:
        if self._caller is None:
            raise AwayError
        return await self._caller.run(originals.content_of, key)


def _asked(body: bytes) -> _Asked:
    """Return what is asked. Raises DoorError."""
    try:
        return _read(body)
    except UNREADABLE as error:
        try:
            refuse_unreadable(body)
        except NotJsonError as unreadable:
            raise DoorError(400, f"The body is no JSON: {unreadable}") from None
        raise DoorError(400, f"Expected `messages`: a list of messages of Chat Completions ({error}).") from None


def _unread(body: bytes) -> bytes:
    """Return the answer with the rows as they came, which nobody has looked into. Raises DoorError."""
    try:
        rows = _read_raw(body).messages
    except UNREADABLE as error:
        raise DoorError(400, f"Expected `messages`: a list of messages of Chat Completions ({error}).") from None
    tokens = len(bytes(rows)) // CHARS_PER_TOKEN
    counts = {"tokens_before": tokens, "tokens_after": tokens, "tokens_saved": 0, "compression_ratio": 1.0}
    return _encode({"messages": rows, **counts, "ccr_hashes": []})


def _cut(body: bytes, policy: Policy) -> CutRows:
    rows = _asked(body).messages
    return CutRows(rows, named_results(rows, policy.tool_preview_head_chars, policy.tool_preview_tail_chars))


def _tokens(rows: Sequence[Any]) -> int:
    return sum(content_tokens(row.get("content")) for row in rows if isinstance(row, dict))


async def _keep(caller: Caller, cut: CutRows) -> frozenset[str]:
    """Store the originals that are not; return the names of those that are now. Raises LostTurnError."""
    rows = {result.name: _encode(cut.rows[at]) for at, result in cut.results.items()}
    kept = await caller.run(originals.kept, [bytes.fromhex(name) for name in rows])
    names = {name: row for name, row in rows.items() if bytes.fromhex(name) not in kept.keys}
    new = await run_aside(sum(map(len, names.values())), _storable, caller, names)
    conversation_id = kept.conversation_id
    for number, start in enumerate(range(0, len(new), TURN_ROWS)):
        part = list(new.items())[start : start + TURN_ROWS]
        conversation_id = conversation_id or await _begin(caller)
        name = f"gateway {ids.external('req', caller.request_id)} originals {number}"
        appended = await store_rows(caller, conversation_id, "chat", [row for _, row in part], name=name)
        seqs = range(appended.first_seq, appended.last_seq + 1)
        keys = [bytes.fromhex(each) for each, _ in part]
        await stored.name(caller.services.pool, caller.tenant_id, conversation_id, list(seqs), keys)
    return frozenset(name for name in rows if name in new or name not in names)


def _storable(caller: Caller, rows: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the rows that a turn may have: NUL, for one, no message has."""
    storable = {}
    for name, row in rows.items():
        try:
            read_turn(_encode({"shape": "chat", "messages": [msgspec.Raw(row)]}), strict=caller.services.strict)
        except RequestError as error:
            log.info("gateway.not_storable", detail=error.detail)
        else:
            storable[name] = row
    return storable


async def _begin(caller: Caller) -> UUID:
    about = {"gateway": {"client": "headroom", "shape": "chat"}}
    row, _ = await caller.run(conversations.create, {"policy": POLICY, "metadata": about})
    conversation_id: UUID = row.id
    return conversation_id
