"""The Python client in the shapes of the model APIs: what it sends and is served, also while the service is away."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from palimpsest_client import Client, InvalidError, Outbox, Shape, UnreachableError
from palimpsest_client.refusals import is_too_long

from tests.domain.steps.test_refusals import LIMITS, SAID, UNSAID
from tests.support.service.proxied_client import client, conversation, key, proxy

if TYPE_CHECKING:
    from palimpsest_client import KeptTurn, Message

    from tests.support.servers.faulty_proxy import FaultyProxy

__all__ = ["client", "conversation", "key", "proxy"]

CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{ }"}}
TALK: Final[dict[Shape, list[Message]]] = {
    "messages": [
        {"role": "user", "content": "Lisbon?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "TP 1363"}]},
        {"role": "assistant", "content": "TP 1363."},
    ],
    "chat": [
        {"role": "user", "content": "Lisbon?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "A flight."},
        {"role": "tool", "tool_call_id": "call_1", "content": "TP 1363"},
        {"role": "assistant", "content": "TP 1363."},
    ],
    "responses": [
        {"role": "user", "content": "Lisbon?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA=="},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "search", "arguments": "{ }"},
        {"type": "function_call_output", "call_id": "call_1", "output": "TP 1363"},
        {"role": "assistant", "content": "TP 1363."},
    ],
}
USAGE: Final[dict[Shape, dict[str, Any]]] = {
    "messages": {"input_tokens": 400, "cache_read_input_tokens": 500, "output_tokens": 7},
    "chat": {"prompt_tokens": 900, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 500}},
    "responses": {"input_tokens": 900, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 500}},
}
each_shape = pytest.mark.parametrize("shape", sorted(TALK))


@each_shape
def test_what_was_sent_is_served(client: Client, conversation: str, shape: Shape) -> None:
    client.append(conversation, TALK[shape], shape=shape, usage=USAGE[shape])
    for asked in (shape, None):
        context = client.context(conversation, shape=asked)
        assert (context.messages, context.warnings) == (TALK[shape], [])
        assert context.tokens is not None
        assert context.tokens["measured"] == 900
    assert context.shape == ("responses" if shape == "responses" else None)
    stored = client.list_messages(conversation).data
    assert [each.get("original", {name: each.get(name) for name in ("role", "content")}) for each in stored] == TALK[
        shape
    ]
    assert client.get_conversation(conversation)["shape"] == shape


def test_each_shape_is_remembered_by_itself(client: Client, conversation: str, proxy: FaultyProxy) -> None:
    client.append(conversation, TALK["responses"], shape="responses")
    first = {shape: client.context(conversation, shape=shape) for shape in TALK}
    assert len({str(each.messages) for each in first.values()}) == len(TALK)
    left_out = [each for each in first["chat"].warnings if not isinstance(each, str)]
    assert [(each["code"], each["seqs"]) for each in left_out] == [("left_out", [1])]
    before = len(proxy.seen)
    assert {shape: client.context(conversation, shape=shape) for shape in TALK} == first
    assert all("if-none-match" in each.headers for each in proxy.seen[before:])
    client.core.forget(conversation)
    client.context(conversation, shape="chat")
    assert "if-none-match" not in proxy.seen[-1].headers


@each_shape
def test_a_payload_is_of_the_shape(client: Client, conversation: str, shape: Shape) -> None:
    client.append(conversation, TALK["chat"], shape="chat")
    payload = client.payload(conversation, user_message="And back?", system="Be brief.", shape=shape)
    messages = payload["items"] if shape == "responses" else payload["messages"]
    assert "And back?" in str(messages[-1])
    assert (payload["system"] is None) == (shape != "messages")
    with pytest.raises(InvalidError):
        client.payload(conversation, user_message="And back?", shape="gemini")  # type: ignore[arg-type] # for that


@each_shape
def test_a_model_that_refuses_gets_less_in_its_shape(client: Client, conversation: str, shape: Shape) -> None:
    client.append(conversation, [*TALK["chat"], *[{"role": "user", "content": "Long. " * 4_000}] * 2], shape="chat")
    seen = []

    def call(context: Any) -> str:
        seen.append(context)
        if len(seen) == 1:
            raise RuntimeError("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}")
        return "well"

    done = client.call_model(conversation, call, shape=shape)
    assert len(str(done.context.messages)) < len(str(seen[0].messages))
    results = {"messages": "tool_use_id", "chat": "tool_call_id", "responses": "call_id"}
    assert [other for other, name in results.items() if f"'{name}'" in str(seen[0].messages)] == [shape]
    assert seen[1].shape == shape


def test_model_that_refuses_something_else_raises_its_own_error(client: Client, conversation: str) -> None:
    client.append(conversation, TALK["chat"], shape="chat")
    words = "you requested 4222 tokens (22 in the messages, 4200 in the completion)"
    text = f"This model's maximum context length is 4096 tokens. However, {words}."
    asked: list[Any] = []

    def call(context: Any) -> str:
        asked.append(context)
        raise RuntimeError(text)

    with pytest.raises(RuntimeError, match="4200 in the completion"):
        client.call_model(conversation, call)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "said", [*SAID, *LIMITS, *UNSAID, "413 Request Entity Too Large", "Too many images in request."]
)
def test_what_models_say_of_a_prompt_that_is_too_long_is_known(said: str) -> None:
    assert is_too_long(RuntimeError(said))


def test_what_models_say_of_other_faults_is_not_taken_for_that() -> None:
    for said in ("rate limit of 40000 tokens a minute: 50000 used", "overloaded_error", "maximum number of tools: 128"):
        assert not is_too_long(RuntimeError(said))


@each_shape
def test_turns_that_wait_are_shown_in_their_shape(
    client: Client, conversation: str, proxy: FaultyProxy, key: str, shape: Shape
) -> None:
    first, last = TALK[shape][:-1], TALK[shape][-1:]
    kept: list[KeptTurn] = []

    def shown(by: Client) -> tuple[list[Message], int]:
        by.core._caller._away_until = math.inf  # it is read all the same, and nothing is sent before
        context = by.context(conversation, shape=shape)
        return context.messages, context.kept

    outbox = Outbox(on_kept=lambda turn, _: kept.append(turn))
    with Client(proxy.url, key, outbox=outbox) as other:
        other.append(conversation, first, shape=shape)
        proxy.always = "lose"  # stored, and nobody learns of it
        assert other.deliver(conversation, last, shape=shape) is None
        proxy.always = None
        assert shown(other) == (TALK[shape], 0)
        other.core._caller._away_until = math.inf
        assert other.deliver(conversation, TALK[shape][:1], shape=shape) is None
        assert shown(other) == ([*TALK[shape], TALK[shape][0]], 1)
        # What waits in one shape is no message of another.
        for each in sorted(set(TALK) - {shape}):
            other.core._caller._away_until = math.inf
            with pytest.raises(UnreachableError, match="another shape"):
                other.context(conversation, shape=each)
            other.core._caller._away_until = math.inf
            own = other.context(conversation, shape=each, fallback=lambda: [{"role": "user", "content": "own"}])
            assert (own.is_fallback, own.shape) == (True, each)
    # After a restart, and after the service has forgotten the keys, each is stored once all the same.
    again = [replace(turn, idempotency_key=f"{turn.idempotency_key}-forgotten") for turn in kept[:1]]
    restored = Outbox()
    restored.restore([*again, *kept[1:]])
    with Client(proxy.url, key, outbox=restored) as later:
        assert later.flush() == 0
        assert restored.refused == []
        assert later.context(conversation, shape=shape).messages == [*TALK[shape], TALK[shape][0]]
