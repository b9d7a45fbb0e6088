"""History for agents of Pydantic AI: the compacted context before each request to the model, the turn after it.

Needs `pydantic-ai-slim`, the extra `pydantic-ai` of this package.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_ai import RunContext  # noqa: TC002 - Pydantic AI reads the annotations of a history processor
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelContextWindowExceededError, RetryModelRequest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from palimpsest_client.calls import storable
from palimpsest_client.errors import PalimpsestError
from palimpsest_client.flows import OVERFLOWS
from palimpsest_client.outbox import log
from palimpsest_client.pydantic_ai_messages import from_served, to_sent
from palimpsest_client.refusals import is_too_long

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.settings import ModelSettings

    from palimpsest_client.answers import Message, Shape
    from palimpsest_client.clients import AsyncClient
    from palimpsest_client.results import Context

LOOK_UP_SECONDS: Final = 2.0
"""What a run waits for the name of its conversation, once."""
NOTED_CONVERSATIONS: Final = 10_000
STORED: Final = "palimpsest"
"""In a message's metadata, which no model is sent: the conversation that it is stored in."""
ANSWERED: Final = "palimpsest_answered"
"""The same of its answer: of one that is streamed the run's history has another object."""
NO_RESULT: Final = "No result was recorded for this tool call."
_SHAPES: Final[dict[str, Shape]] = {"AnthropicModel": "messages", "OpenAIResponsesModel": "responses"}


class PalimpsestHistory(AbstractCapability[Any]):
    """A capability: `Agent(model, capabilities=[PalimpsestHistory(client)])`.

    A run's messages stay as they are, with a mark on those that are stored; the model is sent the context and what is
    new. Hand the agent its `message_history`, which keeps every message whole, or only what is new: then the history
    is the service's. While the service is away the run's own messages are sent, and turns wait in the outbox.

    conversation: returns the conversation's id for a run. By default it is the conversation whose `external_id` is the
        run's `conversation_id`, made when there is none.
    shape: the one that messages are stored in and served; by default that of the model's API.
    fields: what a conversation is made with then: policy, model, tools, user_ref.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        conversation: Callable[[RunContext[Any]], str] | None = None,
        shape: Shape | None = None,
        **fields: Any,
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._shape = shape
        self._fields = fields
        self._ids: dict[str, str] = {}
        self._context: Context | None = None
        self._smaller: Context | None = None
        self._refused = 0
        self._results: list[ModelMessage] = []

    async def for_run(self, ctx: RunContext[Any]) -> PalimpsestHistory:  # noqa: ARG002 - Pydantic AI's interface
        """Return what keeps the state of one run."""
        return copy.copy(self)

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Put the context in the place of the messages that are stored."""
        self._context, smaller, self._smaller = None, self._smaller, None
        self._results = []
        try:
            identifier = await self._identifier(ctx)
        except PalimpsestError as error:
            # What the run has is not stored yet, and is when the service is back.
            log.warning("the run's own messages stand in for the context: %s", error)
            return request_context
        shape = self._shape or shape_of(request_context.model)
        self._context = context = smaller or await self._client.context(identifier, shape=shape, fallback=list)
        if context.is_fallback:
            return request_context
        prompt, known = _split(request_context.messages)
        served = _restored(context.messages, known, shape, request_context.model.system)
        new = _new_of(known, identifier)
        self._results = _unanswered(served, new)
        # What is thought of it is signed for what is sent, which is what is stored.
        messages = _behind(prompt, [*served, *self._results, *map(_as_stored, new)])
        request = replace(request_context, messages=messages)
        return _without_thinking(request) if shape == "messages" and _lacks_loop_thinking(messages) else request

    async def on_model_request_error(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,  # noqa: ARG002 - Pydantic AI's interface
        error: Exception,
    ) -> ModelResponse:
        """Ask for a smaller context when the model refuses the request as too long, and try again."""
        context = self._context
        is_overflow = isinstance(error, ModelContextWindowExceededError) or is_too_long(error)
        if not is_overflow or context is None or context.is_fallback or self._refused == OVERFLOWS:
            raise error
        self._refused += 1
        self._smaller = await self._client.overflow(
            await self._identifier(ctx), snapshot_version=context.version, error=str(error), shape=context.shape
        )
        raise RetryModelRequest from error

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Store what is new, with the model's answer and what it counted."""
        context, self._refused = self._context, 0
        if context is None:
            return response
        identifier = await self._identifier(ctx)
        version = None if context.is_fallback else context.version
        shape = self._shape or shape_of(request_context.model)
        usage = _usage(response, shape)
        try:
            await self._store(identifier, ctx.messages, shape, response, usage=usage, snapshot_version=version)
        except (PalimpsestError, ValueError) as error:
            # What the run's history has of it is stored with the next request.
            log.error("a turn of %s is not stored yet: %s", identifier, error)
            return response
        _mark(ctx.messages[-1], identifier, ANSWERED)
        return response

    async def process(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> list[ModelMessage]:
        """Return the context in the place of messages: a history processor, for `ProcessHistory(history.process)`.

        A processor sees no answer before the next request: the last one of a run is stored with the next run, from its
        `message_history`. Without that need use the capability itself.
        """
        shape = self._shape or shape_of(ctx.model)
        try:
            identifier = await self._identifier(ctx)
        except PalimpsestError as error:
            log.warning("the run's own messages stand in for the context: %s", error)
            return messages
        prompt, known = _split(messages)
        await self._store(identifier, messages, shape)
        context = await self._client.context(identifier, shape=shape, fallback=list)
        if context.is_fallback:
            return messages
        served = _restored(context.messages, known, shape, ctx.model.system)
        for message in served:
            _mark(message, identifier, STORED)
        return _behind(prompt, served)

    async def _identifier(self, ctx: RunContext[Any]) -> str:
        if self._conversation is not None:
            return self._conversation(ctx)
        name = ctx.conversation_id or ctx.run_id
        if name not in self._ids:
            made = await self._client.create_conversation(**self._fields, external_id=name, timeout=LOOK_UP_SECONDS)
            self._ids[str(name)] = made["id"]
            if len(self._ids) > NOTED_CONVERSATIONS:
                self._ids.pop(next(iter(self._ids)), None)
        return self._ids[str(name)]

    async def _store(
        self, identifier: str, messages: Sequence[ModelMessage], shape: Shape, *answer: ModelResponse, **counted: Any
    ) -> None:
        """Store what is not stored yet, with the answer if there is one, and mark it."""
        new = _new_of(messages, identifier)
        if sent := storable(to_sent([*self._results, *new, *answer], shape)):
            await self._client.deliver(identifier, sent, shape=shape, **counted)
        for message in new:
            _mark(message, identifier, STORED)


def shape_of(model: Any) -> Shape:
    """Return the shape of a model's API: most speak Chat Completions."""
    inner = model
    while hasattr(inner, "wrapped"):
        inner = inner.wrapped
    names = [base.__name__ for base in type(inner).__mro__]
    return next((shape for name, shape in _SHAPES.items() if name in names), "chat")


def _lacks_loop_thinking(messages: Sequence[ModelMessage]) -> bool:
    """Return whether messages end within a tool loop in which nothing is there of what was thought."""
    if not any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return False
    for message in reversed(messages):
        if any(isinstance(part, ThinkingPart) for part in message.parts):
            return False
        if any(isinstance(part, UserPromptPart) for part in message.parts):
            break
    return True


def _without_thinking(request: ModelRequestContext) -> ModelRequestContext:
    """Return a request of the Messages API's with thinking disabled if it has a budget for it.

    The API takes a loop without its thinking, which a change of what stands before it makes invalid, only so.
    """
    settings: dict[str, Any] = {**(request.model_settings or {})}
    own = settings.get("anthropic_thinking") or {}
    has_budget = own.get("type") == "enabled"
    if not own and request.model_request_parameters.thinking:
        has_budget = not request.model.profile.get("anthropic_supports_adaptive_thinking", False)
    if not has_budget:
        return request
    settings["anthropic_thinking"] = {"type": "disabled"}
    return replace(request, model_settings=cast("ModelSettings", settings))


def _new_of(messages: Sequence[ModelMessage], identifier: str) -> list[ModelMessage]:
    """Return the messages that are not stored in a conversation. An answer's request may say that it is."""
    new: list[ModelMessage] = []
    is_answered = False
    for message in messages:
        marks = message.metadata or {}
        if marks.get(STORED) != identifier and not (is_answered and isinstance(message, ModelResponse)):
            new.append(message)
        is_answered = marks.get(ANSWERED) == identifier
    return new


def _unanswered(served: Sequence[ModelMessage], new: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return an error as the result of each call that a context ends with and what is new does not answer.

    A tool that raised leaves such calls behind, and so does a run that was stopped; no API takes another message next.
    """
    asked = [any(isinstance(part, UserPromptPart) for part in message.parts) for message in served]
    newest = served[len(asked) - asked[::-1].index(True) :] if True in asked else served
    parts = [part for message in newest for part in message.parts]
    answered = {
        part.tool_call_id
        for part in [*parts, *(part for message in new for part in message.parts)]
        if isinstance(part, ToolReturnPart)
    }
    calls = [part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id not in answered]
    results = [ToolReturnPart(call.tool_name, NO_RESULT, call.tool_call_id, outcome="failed") for call in calls]
    return [ModelRequest(parts=results)] if results and new else []


def _as_stored(message: ModelMessage) -> ModelMessage:
    if not isinstance(message, ModelRequest):
        return message
    every: Sequence[Any] = message.parts
    return replace(
        message, parts=[replace(each, content=storable(each.content)) if _has_text(each) else each for each in every]
    )


def _has_text(part: Any) -> bool:
    return isinstance(getattr(part, "content", None), (str, list))


def _mark(message: ModelMessage, identifier: str, mark: str) -> None:
    message.metadata = {**(message.metadata or {}), mark: identifier}


def _split(known: Sequence[ModelMessage]) -> tuple[list[SystemPromptPart], list[ModelMessage]]:
    """Return the system prompt that a history begins with, which stands in front of every context, and the rest."""
    first = known[0] if known else None
    if not isinstance(first, ModelRequest):
        return [], list(known)
    prompt = [part for part in first.parts if isinstance(part, SystemPromptPart)]
    rest = [part for part in first.parts if not isinstance(part, SystemPromptPart)]
    if not prompt:
        return [], list(known)
    return prompt, [*([replace(first, parts=rest)] if rest else []), *known[1:]]


def _behind(prompt: Sequence[SystemPromptPart], messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return messages behind a system prompt, which is a part of the first of them."""
    first = messages[0] if messages else None
    if not prompt or not isinstance(first, ModelRequest):
        return [*([ModelRequest(parts=prompt)] if prompt else []), *messages]
    return [replace(first, parts=[*prompt, *first.parts]), *messages[1:]]


def _restored(
    served: Sequence[Message], known: Sequence[ModelMessage], shape: Shape, system: str
) -> list[ModelMessage]:
    """Return a context as messages: those that the run has, where they are served as they were stored."""
    of_first: dict[str, list[tuple[list[Message], ModelMessage]]] = {}
    for message in known:
        if sent := to_sent([message], shape):
            of_first.setdefault(_key(sent[0]), []).append((sent, message))
    found: list[ModelMessage] = []
    changed: list[Message] = []
    at = 0
    while at < len(served):
        same = next(
            (
                (sent, message)
                for sent, message in of_first.get(_key(served[at]), ())
                if list(served[at : at + len(sent)]) == sent
            ),
            None,
        )
        if same is None:
            changed.append(served[at])
            at += 1
            continue
        found += from_served(changed, shape, system) if changed else []
        changed = []
        found.append(same[1])
        at += len(same[0])
    return [*found, *(from_served(changed, shape, system) if changed else [])]


def _key(message: Message) -> str:
    return json.dumps(message, sort_keys=True, ensure_ascii=False)


def _usage(response: ModelResponse, shape: Shape) -> dict[str, Any] | None:
    """Return what the model counted as the API of the shape says it; Pydantic AI's input has what was cached in it."""
    usage = response.usage
    if not usage.input_tokens:
        return None
    if shape == "messages":
        # It has 0 as well where the provider says nothing.
        counts = (
            ("cache_read_input_tokens", usage.cache_read_tokens),
            ("cache_creation_input_tokens", usage.cache_write_tokens),
        )
        cached = {name: count for name, count in counts if count}
        rest = max(usage.input_tokens - sum(cached.values()), 0)
        return {"input_tokens": rest, **cached, "output_tokens": usage.output_tokens}
    thought = {"reasoning_tokens": int(usage.details.get("reasoning_tokens", 0))}
    if shape == "chat":
        names = ("prompt_tokens", "completion_tokens", "completion_tokens_details")
    else:
        names = ("input_tokens", "output_tokens", "output_tokens_details")
    return dict(zip(names, (usage.input_tokens, usage.output_tokens, thought), strict=True))
