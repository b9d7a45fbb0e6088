"""The whole payload: system prompt, carried and new context, history and the user's message under one budget.

What the request does not say of its context layers, the conversation stores.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
from msgspec import UNSET

from actions.context_parts import RULES_HEADER, count_rule_bytes, list_breakpoints, name_rules, warn_of_left_out
from actions.errors import InvalidError, or_not_found, step_into
from actions.input.checks import check_size
from actions.input.turn_bodies import check_content, refuse_inner_blocks
from actions.types.core import PayloadHistory, PayloadLayers, PayloadOut
from compaction.cache_marks import MAX_MARKS, MarkableParts, keep_last, without_marks
from compaction.cost.breakpoints import SentMessages, payload_breakpoints
from compaction.messages import blocks, count_marks, is_blank, is_request
from compaction.payload.assembly import Assembly, Layers, UserMessageError, assemble, fixed_tokens, place_of_context
from compaction.payload.context import count_head
from compaction.payload.context_blocks import masked_outlines
from compaction.payload.history import build_history, describe_history
from compaction.shapes import codecs, serving
from compaction.shapes.inner import SentMessage, Shape, ShapeError, opaque
from compaction.text.outline import ContextBlock
from compaction.view import WRITTEN, ViewMessage
from runtime.threads import run_aside
from store import hot_path
from store.conversations import context_blocks
from store.conversations.assemblies import AssemblyRecord
from store.conversations.context_blocks import Exchange, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from msgspec import UnsetType

    from actions.caller import Caller
    from actions.input.strict_json import Limits
    from actions.types.core import CacheBreakpointOut, ContextBlockIn, PayloadIn
    from compaction.payload.stored_context import StoredContext
    from compaction.policy import Policy
    from store.hot_path import BesideContext

_SURELY_TOO_LARGE: Final = 2
"""Budgets; a block estimated at more cannot fit one, since no estimate is corrected by more than half."""
_encode: Final = msgspec.json.Encoder().encode


async def assemble_payload(
    caller: Caller, conversation_id: UUID | None, wanted: PayloadIn, body_bytes: int
) -> PayloadAnswer:
    """Return the payload; raise the problem that the request has, before that of no such conversation."""
    limits = caller.services.strict.limits
    for name, given in (("prior_context", wanted.prior_context), ("turn_context", wanted.turn_context)):
        check_size(len(given or ()), limits.context_blocks, "context blocks", f"/{name}")
    likely = wanted.shape or codecs.shape_of({"messages": [wanted.user_message]}) or "messages"
    asked = _asked(wanted.user_message, likely, limits)
    identifier = or_not_found(conversation_id)
    row = or_not_found(
        await hot_path.read_beside_context(caller.services.pool, tenant_id=caller.tenant_id, conversation_id=identifier)
    )
    shape = wanted.shape or cast("Shape", row.shape or "messages")
    asked = asked if shape == likely else _asked(wanted.user_message, shape, limits)
    policy, _, ignored = caller.principal.policy_of(row.policy, row.model)
    layers = await _layers(caller, row, wanted, asked.message, policy)
    stored = await hot_path.read_context(
        caller.services.pool,
        tenant_id=caller.tenant_id,
        conversation_id=identifier,
        etag=None,
        policy=policy,
        # What the guard will leave to history at the most; it reckons exactly.
        room=policy.total_token_budget,
        take=caller.hold.take,
        shape=shape,
    )
    stored = or_not_found(stored)
    policy = policy.reserving(stored.requested_output)
    size = body_bytes + len(stored.head or "") + len(stored.tail or "") + count_rule_bytes(stored)
    size += sum(len(block.text) for block in (*layers.prior, *layers.turn))
    unstored = _unstored(row, layers, stored.factor)
    assembly, warnings = await run_aside(size, _assemble, stored, layers, policy, wanted.max_output_tokens, unstored)
    count = len(warnings) + len(assembly.warnings)
    record = _record(caller.tenant_id, identifier, stored.head_version, assembly, count)
    caller.services.assemblies.add(record, caller.request_id)
    if wanted.cache_breakpoints is not None:
        assembly = assembly._replace(messages=await run_aside(size, without_marks, assembly.messages))
    payload = await run_aside(size, _payload, layers, assembly, shape, stored, asked.sent)
    if wanted.cache_breakpoints is not None:
        payload = _with_breakpoints(payload, layers, assembly, stored, policy, wanted.cache_breakpoints)
    return await run_aside(size, _answer, payload, assembly, stored, policy, (*warnings, *ignored))


async def _layers(
    caller: Caller, row: BesideContext, wanted: PayloadIn, user: ViewMessage | None, policy: Policy
) -> Layers:
    """Return everything but the history."""
    context = await _context_layers(caller, row, wanted, user, policy)
    return Layers(
        system=row.system if wanted.system is None else wanted.system,
        tools=row.tools,
        prior=context.prior,
        turn=context.turn,
        user_message=user,
    )


async def _context_layers(
    caller: Caller, row: BesideContext, wanted: PayloadIn, user: ViewMessage | None, policy: Policy
) -> Stored:
    """Return prior context and turn context of the payload for a conversation (`row`).

    Prior context is by default what is carried over, as outlines, without what this turn brings anew. Turn context is
    by default what came with the current exchange; a new request (`user`) begins another, which has none of its own
    yet. Its blocks come whole, with the shorter forms that are stored of them.
    """
    begins = user is not None and is_request(user.role, user.content)
    exchange = None if begins else Exchange(row.last_request, keeps_prefix=row.in_loop and row.loop_has_thinking)
    stored = Stored()
    if (row.carried_tokens or row.turn_context_tokens) and (
        wanted.prior_context is None or wanted.turn_context is None
    ):
        most = _SURELY_TOO_LARGE * policy.total_token_budget
        stored = await caller.services.run(
            caller.tenant_id,
            context_blocks.stored,
            row.id,
            exchange,
            max_tokens=most,
            handles=policy.recall_handles,
        )
    turn = stored.turn
    if wanted.turn_context is not None:
        turn = await _given(caller, row.id, exchange, wanted.turn_context, policy)
    if wanted.prior_context is not None:
        return Stored(_blocks(wanted.prior_context), turn)
    renewed = {block.source for block in turn}
    return Stored(tuple(block for block in stored.prior if block.source not in renewed), turn)


async def _given(
    caller: Caller,
    conversation_id: UUID,
    exchange: Exchange | None,
    given: Sequence[ContextBlockIn],
    policy: Policy,
) -> tuple[ContextBlock, ...]:
    """Return this turn's context as it is given, large blocks with the summaries that are stored of their texts."""
    large = [block.text for block in given if len(block.text) > policy.context_block_compact_chars]
    if not large:
        return _blocks(given)
    known = await caller.services.run(caller.tenant_id, context_blocks.summaries_of, conversation_id, exchange, large)
    return tuple(block._replace(summary=known.get(block.text)) for block in _blocks(given))


def _blocks(given: Sequence[ContextBlockIn]) -> tuple[ContextBlock, ...]:
    return tuple(ContextBlock(block.source, block.title, block.text) for block in given)


def _assemble(
    stored: StoredContext, layers: Layers, policy: Policy, reserved: int | None, unstored: int
) -> tuple[Assembly, tuple[str, ...]]:
    """Return the payload with what was read as its history, and what there is to say of that."""
    working = build_history(stored, policy)
    layers = layers._replace(history=working.view, prior=masked_outlines(layers.prior, policy))
    layers = layers._replace(turn=masked_outlines(layers.turn, policy))
    try:
        about = describe_history(stored, working, policy)._replace(unstored=unstored)
        return assemble(layers, policy, about, reserved=reserved), (*working.warnings, *warn_of_left_out(stored))
    except UserMessageError:
        detail = "Nothing of the user's message can follow the history: tool results answer calls that are still open."
        raise InvalidError(detail, "/user_message") from None


def _unstored(row: BesideContext, layers: Layers, factor: float) -> int:
    """Return the estimated tokens that were learned to come on top of what is stored, less what this request brings."""
    if not row.unstored_tokens:
        return 0
    brought = fixed_tokens(layers.system, layers.tools) - (row.fixed_tokens - row.carried_tokens)
    left: int = max(0, round(row.unstored_tokens / factor) - max(0, brought))
    return left


def _payload(
    layers: Layers, assembly: Assembly, shape: Shape, stored: StoredContext, asked: SentMessage | None
) -> _Payload:
    """Return what is sent to the model, in a shape."""
    if shape != "messages":
        view = assembly.messages
        if asked is not None and view[-1].seq == WRITTEN:
            view = (*view[:-1], ViewMessage(view[-1].role, view[-1].content, serving.ASKED))
        encoded = serving.in_shape(view, shape, stored.sent, asked)
        return _Payload(None, serving.with_system(encoded.messages, layers.system), shape, serving.warnings_of(encoded))
    view, system = assembly.messages, layers.system
    if not stored.shapes.is_whole:
        view, system = serving.system_apart(view, system)
    # Whoever reads this sends the tools too, with their marks.
    marked = keep_last(MarkableParts(None, system, view), MAX_MARKS - count_marks(layers.tools))
    if stored.shapes.is_whole:
        return _Payload(marked.system, [message.as_message() for message in marked.messages], shape, [])
    encoded = serving.in_shape(marked.messages, shape, None)
    return _Payload(marked.system, encoded.messages, shape, serving.warnings_of(encoded))


def _with_breakpoints(
    payload: _Payload, layers: Layers, assembly: Assembly, stored: StoredContext, policy: Policy, room: int
) -> _Payload:
    """Return a payload that says where breakpoints of the prompt cache belong; the messages have none."""
    if payload.shape != "messages":
        return payload._replace(breakpoints=None)
    messages = payload.messages
    sent = SentMessages([each["role"] for each in messages], lambda at: messages[at]["content"])
    fitted = assembly.fitted
    if stored.gap or assembly.exchanges_dropped or fitted.rounds_dropped or fitted.cut:
        # What had to give way changes from call to call.
        sent = sent._replace(roles=())
    elif len(messages) == len(assembly.messages):
        varying = place_of_context(assembly.messages) if assembly.prior_tokens or assembly.turn_tokens else None
        sent = sent._replace(head=count_head(fitted.view, stored), varying=varying)
    places = payload_breakpoints(sent, payload.system, layers.tools, room)
    return payload._replace(breakpoints=list_breakpoints(places, payload.shape, policy))


def _answer(
    payload: _Payload, assembly: Assembly, stored: StoredContext, policy: Policy, warnings: Sequence[str]
) -> PayloadAnswer:
    fitted = assembly.fitted
    messages = _encode(payload.messages)
    stand = name_rules(messages, stored, policy)
    body = _encode(
        PayloadOut(
            system=payload.system,
            **{serving.KEYS[payload.shape]: cast("list[Any]", msgspec.Raw(messages))},
            layers=PayloadLayers(
                assembly.system_tokens,
                assembly.prior_tokens,
                assembly.turn_tokens,
                fitted.tokens,
                assembly.user_tokens,
            ),
            budget=assembly.budget,
            reserved_output=assembly.reserved,
            total=assembly.total,
            history=PayloadHistory(
                assembly.exchanges_total,
                fitted.kept,
                assembly.exchanges_dropped,
                fitted.cut,
            ),
            rules=stand.rules,
            warnings=[*warnings, *assembly.warnings, *stand.warnings, *payload.warnings],
            cache_breakpoints=payload.breakpoints,
        )
    )
    return PayloadAnswer(body, {RULES_HEADER: stand.rules.sha256})


class PayloadAnswer(NamedTuple):
    """The payload as JSON, and what is said of it beside its body."""

    body: bytes
    headers: dict[str, str]


class _Asked(NamedTuple):
    """The user's message of a request, and that as it came in another shape than the Messages API's."""

    message: ViewMessage | None
    sent: SentMessage | None = None


class _Payload(NamedTuple):
    """What is sent to the model."""

    system: Any
    messages: list[Any]
    shape: Shape
    warnings: list[Any]
    breakpoints: list[CacheBreakpointOut] | UnsetType | None = UNSET


def _asked(given: Any, shape: Shape, limits: Limits) -> _Asked:
    """Return the user's message that a request brings in a shape."""
    if given is None or shape == "messages":
        return _Asked(_user_message(given, limits))
    try:
        sent = serving.given_message(given, shape)
    except ShapeError as error:
        path = error.path if isinstance(given, dict) else error.path[1:]
        raise InvalidError(error.detail, step_into("/user_message", *path)) from None
    content = sent.decoded.content
    check_size(len(blocks(content)), limits.message_blocks, "content parts", "/user_message")
    if all(is_blank(block) or block == opaque("nothing") for block in blocks(content)):
        raise InvalidError("The user's message is empty.", "/user_message")
    return _Asked(ViewMessage("user", content), sent)


def _user_message(given: Any, limits: Limits) -> ViewMessage | None:
    """Return the user's message from a string, a list of blocks, or a whole message."""
    if given is None:
        return None
    content, pointer = given, "/user_message"
    if isinstance(given, dict):
        if given.get("role") != "user" or set(given) != {"role", "content"}:
            raise InvalidError("Expected a message with the role user and its content.", pointer)
        content, pointer = given["content"], "/user_message/content"
    check_content(content, pointer, limits)
    refuse_inner_blocks(content, pointer)
    if all(is_blank(block) for block in blocks(content)):
        raise InvalidError("The user's message is empty.", pointer)
    return ViewMessage("user", content)


def _record(tenant_id: UUID, conversation_id: UUID, version: int, assembly: Assembly, warnings: int) -> AssemblyRecord:
    """Return what is remembered of a payload made from snapshot `version`; `warnings` is how many its answer has."""
    return AssemblyRecord(
        conversation_id=conversation_id,
        tenant_id=tenant_id,
        call="payload",
        snapshot_version=version,
        system_tokens=assembly.system_tokens,
        prior_context_tokens=assembly.prior_tokens,
        turn_context_tokens=assembly.turn_tokens,
        history_tokens=assembly.fitted.tokens,
        user_message_tokens=assembly.user_tokens,
        reserved_output_tokens=assembly.reserved,
        total_token_budget=assembly.budget,
        exchanges_total=assembly.exchanges_total,
        exchanges_kept=assembly.fitted.kept,
        rounds_dropped=assembly.fitted.rounds_dropped,
        responses_truncated=assembly.fitted.cut,
        blocks_shortened=assembly.blocks_shortened,
        warnings=warnings,
        assembled_at=datetime.now(UTC),
    )
