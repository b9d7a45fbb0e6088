"""A middleware that gives an agent's model the compacted context, and stores what is new."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ExtendedModelResponse, PrivateStateAttr
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.config import get_config
from langgraph.types import Command
from palimpsest_client import PalimpsestError, storable
from typing_extensions import NotRequired  # noqa: TC002 - LangChain reads the annotations of the state

from palimpsest_langchain.messages import from_stored, lacks_loop_thinking, shape_of, to_stored, unanswered, usage_of
from palimpsest_langchain.recalling import CONVERSATION, recall_tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langchain_core.messages import AnyMessage, ToolMessage
    from palimpsest_client import AsyncClient, Client, Context, Conversation, ModelCall, Shape

log: Final = logging.getLogger("palimpsest_langchain")
LOOK_UP_SECONDS: Final = 2.0
"""What an agent waits for the name of its conversation, once a thread."""
NOTED_THREADS: Final = 10_000


class PalimpsestState(AgentState[Any]):
    """An agent's state, how many of its messages have been handed to the service, and in which conversation."""

    palimpsest_stored: NotRequired[Annotated[int, PrivateStateAttr]]
    palimpsest_conversation: NotRequired[Annotated[str, PrivateStateAttr]]


class PalimpsestMiddleware(AgentMiddleware[PalimpsestState, Any, Any]):
    """The compacted context before each call of the model, the turn after it.

    With a checkpointer the state holds the whole conversation and knows what of it is stored. Without one, hand the
    agent what is new, and it has the history from the service. Messages that are stored are not to be changed in the
    state; `replace_from` of the client is for that.

    client, async_client: the one for `invoke`, the other for `ainvoke`.
    conversation: returns the conversation's id for a request. By default it is the conversation whose `external_id` is
        the thread's id, made when there is none.
    shape: the one that messages are stored in and served; by default that of the model's API.
    recall: whether the agent has the tool `recall`, by which its model gets originals back. For a conversation it is
        to stay as it was in the first call: tools stand before everything that a provider's prompt cache keeps.
    fields: what a conversation is made with then: policy, model, tools, user_ref.
    """

    state_schema = PalimpsestState

    def __init__(
        self,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        *,
        conversation: Callable[[ModelRequest[Any]], str] | None = None,
        shape: Shape | None = None,
        recall: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__()
        self._client = client
        self._async_client = async_client
        self._conversation = conversation
        self._shape = shape
        self._fields = fields
        self._of_threads: dict[str, str] = {}
        self.tools = [recall_tool(client, async_client)] if recall else []

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model with the compacted context, and store the turn."""
        client = self._client
        if client is None:
            raise TypeError("`invoke` needs `client`")
        try:
            identifier = self._known(request) or self._note(client.create_conversation(**self._wanted()))
        except PalimpsestError as error:
            return handler(_without_service(request, error))
        call = _Call(request, self._shape or shape_of(request.model))
        done = client.call_model(
            identifier, lambda context: handler(call.request_with(context)), fallback=list, shape=call.shape
        )
        try:
            if turn := call.turn(done):
                client.deliver(identifier, **turn)
        except (PalimpsestError, ValueError) as error:
            return call.not_stored(done.result, identifier, error)
        return call.answer(done.result, identifier)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model with the compacted context, and store the turn."""
        client = self._async_client
        if client is None:
            raise TypeError("`ainvoke` needs `async_client`")
        try:
            identifier = self._known(request) or self._note(await client.create_conversation(**self._wanted()))
        except PalimpsestError as error:
            return await handler(_without_service(request, error))
        call = _Call(request, self._shape or shape_of(request.model))

        async def with_context(context: Context) -> ModelResponse[Any]:
            return await handler(call.request_with(context))

        done = await client.call_model(identifier, with_context, fallback=list, shape=call.shape)
        try:
            if turn := call.turn(done):
                await client.deliver(identifier, **turn)
        except (PalimpsestError, ValueError) as error:
            return call.not_stored(done.result, identifier, error)
        return call.answer(done.result, identifier)

    def _known(self, request: ModelRequest[Any]) -> str | None:
        """Return the conversation of a request, None if it has to be asked for."""
        return self._conversation(request) if self._conversation else self._of_threads.get(_thread_id())

    def _wanted(self) -> dict[str, Any]:
        return {**self._fields, "external_id": _thread_id(), "timeout": LOOK_UP_SECONDS}

    def _note(self, made: Conversation) -> str:
        self._of_threads[_thread_id()] = made["id"]
        if len(self._of_threads) > NOTED_THREADS:
            self._of_threads.pop(next(iter(self._of_threads)), None)
        return made["id"]


class _Call:
    """One call of the model: what of the state is new, and what is sent for it."""

    def __init__(self, request: ModelRequest[Any], shape: Shape) -> None:
        self._request = request
        self.shape = shape
        state = cast("dict[str, Any]", request.state)
        new = request.messages[state.get("palimpsest_stored", 0) :]
        # What is thought of it is signed for what is sent, which is what is stored.
        self._new: list[AnyMessage] = [
            message.model_copy(update={"content": storable(message.content)}) for message in new
        ]
        self._results: list[ToolMessage] = []

    def request_with(self, context: Context) -> ModelRequest[Any]:
        """Return the request with the context in place of the history."""
        self._results = []
        if context.is_fallback:
            return self._request
        system = [message for message in self._request.messages if isinstance(message, SystemMessage)]
        new = [message for message in self._new if not isinstance(message, SystemMessage)]
        served = from_stored(context.messages, self.shape)
        self._results = unanswered(served, new)
        messages = [*system, *served, *self._results, *new]
        request = self._request.override(messages=messages)
        lacks_thinking = self.shape == "messages" and lacks_loop_thinking(messages)
        return _without_thinking(request) if lacks_thinking else request

    def turn(self, done: ModelCall[ModelResponse[Any]]) -> dict[str, Any]:
        """Return what is to be stored; nothing if there is nothing."""
        messages = storable(to_stored([*self._results, *self._new, *done.result.result], self.shape))
        replies = [message for message in done.result.result if isinstance(message, AIMessage)]
        usage = usage_of(replies[-1], self.shape) if replies else None
        version = None if done.context.is_fallback else done.context.version
        turn = {"messages": messages, "usage": usage, "snapshot_version": version, "shape": self.shape}
        return turn if messages else {}

    def answer(self, response: ModelResponse[Any], identifier: str) -> ExtendedModelResponse[Any]:
        """Return the model's response, and what the state has to know."""
        stored = len(self._request.messages) + len(response.result)
        update = {"palimpsest_stored": stored, CONVERSATION: identifier}
        return ExtendedModelResponse(model_response=response, command=Command(update=update))

    def not_stored(self, response: ModelResponse[Any], identifier: str, error: Exception) -> ExtendedModelResponse[Any]:
        """Return the model's response; what the state has of it is still to be stored, and is with the next call."""
        log.error("a turn of %s is not stored yet: %s", identifier, error)
        return ExtendedModelResponse(model_response=response, command=Command(update={CONVERSATION: identifier}))


def _without_thinking(request: ModelRequest[Any]) -> ModelRequest[Any]:
    """Return a request with thinking disabled if its model has a budget for it.

    The API takes a loop without its thinking, which a change of what stands before it makes invalid, only so.
    """
    thinking = getattr(request.model, "thinking", None)
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return request
    return request.override(model=request.model.model_copy(update={"thinking": {"type": "disabled"}}))


def _without_service(request: ModelRequest[Any], error: PalimpsestError) -> ModelRequest[Any]:
    """Return the request as it is: what it has is not stored yet, and is when the service is back."""
    log.warning("the state's own messages stand in for the context: %s", error)
    return request


def _thread_id() -> str:
    thread: str | None = get_config().get("configurable", {}).get("thread_id")
    if thread is None:
        raise TypeError("either the config has a thread_id or the middleware is given `conversation`")
    return thread
