"""The calls of every chat turn, on a bare asyncpg pool: one database function each, one round trip each."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import asyncpg
import msgspec

from compaction.frames.codes import frame_code
from compaction.media.limits import NO_MEDIA
from compaction.payload.stored_context import MESSAGES_ALONE, ContextShapes, StoredContext
from compaction.shorten.fitting import LEAST_CHARS
from compaction.tokens import CHARS_PER_TOKEN
from runtime import ids
from store.bytes_held import MOST_READ_BYTES, UNASKED_BYTES
from store.engine import server_settings
from store.hosts import are_asked, asyncpg_connector
from store.hot_pool import HotPool
from store.turn_context import TurnContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from compaction.messages import TurnFacts
    from compaction.pins.ledger import TurnEntry
    from compaction.policy import Policy
    from runtime.settings import Settings

_REPLICATED = "select pg_logical_emit_message(true, 'palimpsest', '')"
"""Writes to the log and nowhere else, so that its commit waits for whatever commits wait for."""
_FIND_KEY = "select * from key_in_force($1)"
_FIND_TENANT = "select * from tenant_of_token($1, $2)"


ACQUIRE_SECONDS: Final = 1.0
"""Seconds that a call waits for a connection, opening one included; then the database counts as away."""
COMMAND_SECONDS: Final = 5.0
"""Seconds that a call may take; each is one statement of some milliseconds."""
MESSAGE_OVERHEAD: Final = 30
"""Bytes of a serialized message besides its content: braces, keys, role, comma."""


MOST_AROUND_BYTES: Final = 500
"""Bytes of what is stored around a content, as JSON; the database function `as_sent` takes nothing larger for that."""


class Pool(Protocol):
    """Where the calls are made: `HotPool`."""

    async def fetchrow(self, query: str, *arguments: Any) -> Any:
        """Return the first row of a query's answer, None for none."""

    async def read_together(self, row: UUID, query: str, *arguments: Any) -> Any:
        """Do the same in one statement with others of the same query; `row` is the id of the one that it reads."""

    async def write(self, query: str, *arguments: Any) -> Any:
        """Do the same with a query that writes."""

    async def write_together(self, locked: UUID, query: str, *arguments: Any) -> Any:
        """Do the same in one transaction with others of the same query; `locked` is the id of the row that it locks."""


class Usage(NamedTuple):
    """Token counts of the model call that a turn came from; `version` is the snapshot it was made with."""

    input_tokens: int | None
    output_tokens: int
    version: int | None


class SentTurn(NamedTuple):
    """What came in another shape than that of the Messages API."""

    shape: str
    messages: Sequence[str]
    """The JSON text of each, as it came."""


class _Messages(NamedTuple):
    roles: Sequence[str]
    contents: Sequence[str]
    tokens: Sequence[int]
    hidden: Sequence[int] | None
    bytes: Sequence[int]
    result_chars: Sequence[str | None]
    requests: Sequence[bool]
    thinking: Sequence[bool]


class _Facts(NamedTuple):
    total_tokens: int
    newer_tokens: int
    seen_tokens: int
    total_bytes: int
    longest_result: int
    newest_result: int
    after_answer: int
    sound: bool
    leading_results: Sequence[str]
    trailing_calls: Sequence[str]
    exchanges: int
    last_request: int
    has_request: bool
    ends_in_loop: bool
    thinking_in_loop: bool
    requested_output: int | None


class _Limits(NamedTuple):
    result_cap: int
    total_token_budget: int | None
    reserved_output_tokens: int | None


GROUPS: Final[Mapping[str, type[NamedTuple]]] = {
    "turn_messages": _Messages,
    "turn_facts": _Facts,
    "turn_usage": Usage,
    "turn_context": TurnContext,
    "context_limits": _Limits,
}
"""Composite types of the database, whose fields are the same in the same order."""
_NO_CONTEXT: Final = TurnContext(None, None, None)


def _call(function: str, **arguments: str | None) -> str:
    """Return a call by named arguments; one with a type in GROUPS is made of as many values as that has fields."""
    places, number = [], count(1)
    for name, group in arguments.items():
        if group is None:
            value = f"${next(number)}"
        else:
            value = f"row({', '.join(f'${next(number)}' for _ in GROUPS[group]._fields)})::{group}"
        places.append(f"p_{name} => {value}")
    return f"select * from {function}({', '.join(places)})"  # noqa: S608 - constants


_TURN: Final[Mapping[str, str | None]] = {
    "tenant": None,
    "conversation": None,
    "request": None,
    "key": None,
    "body_hash": None,
    "expected_seq": None,
    "replace_from": None,
    "messages": "turn_messages",
    "facts": "turn_facts",
    "usage": "turn_usage",
    "context": "turn_context",
    "limits": "context_limits",
    "shape": None,
    "sent": None,
    "entries": None,
    "times": None,
    "media": None,
}
_APPEND: Final = _call("append_turn", **_TURN)
_BESIDE: Final = _call("read_beside_context", tenant=None, conversation=None)
_READ: Final = _call(
    "read_context",
    tenant=None,
    conversation=None,
    etag=None,
    limits="context_limits",
    policy=None,
    inline_tags=None,
    room=None,
    least_tokens=None,
    read_bytes=None,
    most_bytes=None,
    shape=None,
)


class Appended(NamedTuple):
    """What became of an append; see the database function for `outcome`."""

    outcome: str
    first_seq: int
    last_seq: int
    context_tokens: int
    queued: bool


_SHAPES: Final = msgspec.json.Decoder(ContextShapes)
_any: Final = msgspec.json.Decoder().decode


class BesideContext(NamedTuple):
    """What of a conversation's row a payload is made from besides its context."""

    id: UUID
    system: Any
    tools: Any
    policy: str
    """The conversation's overrides, as JSON text."""
    model: str | None
    shape: str | None
    last_request: int
    in_loop: bool
    loop_has_thinking: bool
    fixed_tokens: int
    unstored_tokens: int
    carried_tokens: int
    turn_context_tokens: int


class KeyRow(NamedTuple):
    """A key in force and its tenant."""

    tenant_id: UUID
    secret_hash: bytes
    scopes: Sequence[str]
    policy: str
    seconds_left: float | None
    """Until it expires; None = never."""


class TenantRow(NamedTuple):
    """A tenant and the JSON text of its policy overrides."""

    id: UUID
    policy: str


async def open_pool(settings: Settings, *, size: int | None = None) -> HotPool:
    """Return a pool for the hot calls, of `database_pool_size` connections at most; they open as they are needed."""
    connect = asyncpg_connector(
        settings,
        timeout=ACQUIRE_SECONDS,
        command_timeout=COMMAND_SECONDS,
        server_settings=server_settings(settings, "api-hot"),
    )
    return HotPool(
        connect, size=size or settings.database_pool_size, patience=ACQUIRE_SECONDS, of_primary=are_asked(settings)
    )


async def append_turn(
    pool: Pool,
    *,
    tenant_id: UUID,
    conversation_id: UUID,
    request_id: UUID,
    contents: Sequence[str],
    facts: TurnFacts,
    usage: Usage,
    result_cap: int,
    expected_seq: int | None,
    replace_from: int | None = None,
    idempotency_key: str | None,
    body_hash: bytes | None,
    hidden: Sequence[int] | None = None,
    context: TurnContext | None = None,
    policy: Policy | None = None,
    sent: SentTurn | None = None,
    entries: Sequence[TurnEntry] = (),
    times: Sequence[datetime | None] = (),
    requested_output: int | None = None,
) -> Appended:
    """Append a turn; `contents` are the messages' contents as the JSON text that came in.

    What came in another shape is in the inner form in `contents`, and in `sent` as it came.

    `hidden` has the tokens of each message that inline tool results hide in the view. `policy` is the tenant's: by its
    budget, or the conversation's own, what the model saw had been fitted before; None = never. `entries` are what the
    turn adds to the ledger of rules. `times` tell when each message was said, None where nobody knows; empty = now.
    `requested_output` are the tokens of output that its request asked for at most, None if that is not known.
    """
    messages = facts.messages
    view_tokens = [message.tokens for message in messages]
    if hidden is not None:
        view_tokens = [tokens - less for tokens, less in zip(view_tokens, hidden, strict=True)]
    sizes = [(len(content) if content.isascii() else len(content.encode())) + MESSAGE_OVERHEAD for content in contents]
    arguments: tuple[Any, ...] = (
        tenant_id,
        conversation_id,
        request_id,
        idempotency_key,
        body_hash,
        expected_seq,
        replace_from,
        *_Messages(
            roles=[message.role for message in messages],
            contents=contents,
            tokens=[message.tokens for message in messages],
            hidden=hidden,
            bytes=sizes,
            result_chars=[_array(message.result_chars) for message in messages],
            requests=[message.is_request for message in messages],
            thinking=[message.has_thinking for message in messages],
        ),
        *_Facts(
            total_tokens=sum(view_tokens),
            newer_tokens=sum(view_tokens[facts.after_answer :]),
            seen_tokens=sum(view_tokens[: max(0, facts.after_answer - 1)]),
            total_bytes=sum(sizes),
            longest_result=max((chars for message in messages for chars in message.result_chars), default=0),
            newest_result=facts.newest_result,
            after_answer=facts.after_answer,
            sound=facts.sound,
            leading_results=facts.leading_results,
            trailing_calls=facts.trailing_calls,
            exchanges=facts.exchanges,
            last_request=facts.last_request,
            has_request=facts.has_request,
            ends_in_loop=facts.ends_in_loop,
            thinking_in_loop=facts.thinking_in_loop,
            requested_output=requested_output,
        ),
        *usage,
        *(context or _NO_CONTEXT),
        *_Limits(
            result_cap=result_cap,
            total_token_budget=policy.total_token_budget if policy else None,
            reserved_output_tokens=policy.reserved_output_tokens if policy else None,
        ),
        *((sent.shape, _beside_contents(sent, facts, contents)) if sent else (None, None)),
        _entries(entries) if entries else None,
        times or None,
        _loads(facts),
    )
    append = partial(pool.write_together, conversation_id, _APPEND, *arguments)
    try:
        done = Appended(*await append())
    except asyncpg.UniqueViolationError:
        may_be_stored = True
    else:
        may_be_stored = idempotency_key is not None and done.outcome == "out_of_order"
    if may_be_stored:
        # A request with the same idempotency key may have committed in between: this time its answer is found.
        done = Appended(*await append())
    if done.outcome == "replayed":
        # What gave up waiting for a synchronous standby is here, and may not be there: this waits for it again.
        await pool.write(_REPLICATED)
    return done


async def read_context(
    pool: Pool,
    *,
    tenant_id: UUID,
    conversation_id: UUID,
    etag: str | None,
    policy: Policy,
    room: int | None = None,
    policy_digest: str = "",
    take: Callable[[int], None] | None = None,
    shape: str | None = None,
) -> StoredContext | None:
    """Read what the context is made of, None for no such conversation; of messages the newest MOST_READ_BYTES.

    `policy` is the tenant's and `policy_digest` represents it in the ETag; the conversation's own overrides are
    applied there. `room` tokens are left for history; None = what the policy leaves besides the stored system
    prompt and tools. `take` is called with the bytes of a large context before they are read; it raises what is too
    much. `shape` is what is served; None = the conversation's own.
    """
    arguments = (
        tenant_id,
        conversation_id,
        etag,
        *_Limits(policy.max_tool_result_chars, policy.total_token_budget, policy.reserved_output_tokens),
        policy_digest,
        bool(policy.inline_tool_tags),
        room,
        LEAST_CHARS // CHARS_PER_TOKEN,
        MOST_READ_BYTES,
    )
    most = None if take is None else UNASKED_BYTES
    row = await pool.read_together(conversation_id, _READ, *arguments, most, shape)
    if take is not None and row["withheld"]:
        take(min(row["context_bytes"], MOST_READ_BYTES))
        row = await pool.fetchrow(_READ, *arguments, None, shape)
    if row["etag"] is None:
        return None
    *read, shapes = row
    of_shape = _SHAPES.decode(shapes) if shapes else MESSAGES_ALONE
    return StoredContext._make([*read, of_shape, frame_code(tenant_id, conversation_id)])


async def read_beside_context(pool: Pool, *, tenant_id: UUID, conversation_id: UUID) -> BesideContext | None:
    """Read what a payload is made from besides the context, None for no such conversation."""
    row = await pool.read_together(conversation_id, _BESIDE, tenant_id, conversation_id)
    if row["id"] is None:
        return None
    beside = BesideContext._make(row)
    return beside._replace(system=beside.system and _any(beside.system), tools=beside.tools and _any(beside.tools))


async def probe(pool: Pool) -> None:
    """Ask for nothing; raise what keeps the database from answering."""
    await pool.fetchrow("select")


async def find_api_key(pool: Pool, key_id: UUID) -> KeyRow | None:
    """Return the key of that id if it is in force."""
    row = await pool.fetchrow(_FIND_KEY, key_id)
    return KeyRow(*row) if row else None


async def find_tenant(pool: Pool, *, tenant_id: UUID | None, name: str | None) -> TenantRow | None:
    """Return the tenant of that id or, where it is None, of that name."""
    row = await pool.fetchrow(_FIND_TENANT, tenant_id, name)
    return TenantRow(*row) if row else None


def _beside_contents(sent: SentTurn, facts: TurnFacts, contents: Sequence[str]) -> list[str | None]:
    """Return what is stored of each message as it was sent, besides its content."""
    every = zip(sent.messages, facts.messages, contents, strict=True)
    return [_beside_content(text, message.role, content) for text, message, content in every]


def _beside_content(text: str, role: str, content: str) -> str | None:
    """Return nothing for a message that is no more than its role and its content, else what is around the content.

    One whose content is not in it as it is stored is returned whole; see the database function `as_sent`.
    """
    if text == f'{{"role":"{role}","content":{content}}}':
        return None
    before, same, after = text.partition(content)
    around = msgspec.json.encode((before, after)) if same else b""
    return around.decode() if 0 < len(around) <= MOST_AROUND_BYTES else text


def _entries(entries: Sequence[TurnEntry]) -> str:
    """Return entries as the function takes them, each with the id that it gets."""
    return msgspec.json.encode([{"id": ids.new_id(), **entry._asdict()} for entry in entries]).decode()


def _loads(facts: TurnFacts) -> str | None:
    """Return what the messages of a turn have of media as the function takes it, None if they have none."""
    loads = [
        {"place": place, **message.media._asdict()}
        for place, message in enumerate(facts.messages)
        if message.media is not NO_MEDIA
    ]
    return msgspec.json.encode(loads).decode() if loads else None


def _array(values: Sequence[int]) -> str | None:
    return "{" + ",".join(map(str, values)) + "}" if values else None
