"""Whatever a model says and recalls, in whatever pieces it comes: a client sees one answer, streamed or whole."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.recall.tool import NAME
from gateway.answers.messages import MessagesAnswer
from gateway.recalls.calls import AnsweredCall
from gateway.recalls.recalling import MOST_ROUNDS, RecallingAnswer
from tests.gateway.recalls.given_answer import GivenAnswer
from tests.gateway.recalls.test_recalling import read_stream
from tests.gateway.test_compacting import PROBLEMS
from tests.support.servers.loopback_providers import SHAPES, Asked, Says

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.shapes.inner import Shape
    from gateway.answers.reading import ReceivedAnswer
    from gateway.providers.answers import ProviderAnswer
    from gateway.recalls.calls import RecallCall

PATHS: Final[dict[Shape, str]] = {
    "messages": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}
TEXTS: Final = st.sampled_from(["", "A text of some words.", "Grüße \U0001f600"])
ROUNDS: Final = st.lists(st.tuples(TEXTS, st.integers(1, 3), TEXTS), max_size=MOST_ROUNDS)
LAST: Final = st.tuples(TEXTS, st.lists(st.sampled_from([NAME, "look"]), max_size=3), TEXTS)


class _Pieces(GivenAnswer):
    def __init__(self, body: bytes, size: int) -> None:
        super().__init__([], *(body[start : start + size] for start in range(0, len(body), size)))


class _Provider:
    """Answers in turn, in pieces of a size."""

    def __init__(self, shape: Shape, script: list[Says], size: int, *, is_stream: bool) -> None:
        self._shape, self._script, self._size, self._is_stream = shape, iter(script), size, is_stream
        self.bodies: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.answered = b""

    async def ask(self, body: bytes) -> ProviderAnswer:
        self.bodies.append(json.loads(body))
        self.sizes.append(len(body))
        asked = Asked("POST", PATHS[self._shape], "", {}, body, self.bodies[-1])
        whole, events = SHAPES[PATHS[self._shape]](asked, next(self._script), len(self.bodies))
        self.answered = b"".join(events) if self._is_stream else json.dumps(whole).encode()
        return _Pieces(self.answered, self._size)


async def recall(calls: Sequence[RecallCall]) -> list[AnsweredCall]:
    return [AnsweredCall(call.id, f"given for {call.words}", is_error=False) for call in calls]


def answer_of(
    shape: Shape, script: list[Says], size: int, *, is_stream: bool
) -> tuple[_Provider, dict[str, Any], ReceivedAnswer, bytes]:
    """Return the provider, what the client reads, what is to be stored, and the bytes."""
    provider = _Provider(shape, script, size, is_stream=is_stream)
    rows = [{"role": "user", "content": "a question"}]
    fields: dict[str, Any] = {"model": "m", "stream": is_stream, "stream_options": {"include_usage": True}}
    body = json.dumps({**fields, ("input" if shape == "responses" else "messages"): rows}).encode()
    recalling = RecallingAnswer(shape, body, provider.ask, recall, as_thinking=False)

    async def run() -> bytes:
        response = await provider.ask(body)
        if not is_stream:
            last, other = await recalling.whole(response)
            return last.body if other is None else other
        return b"".join([piece async for piece in recalling.stream(response)])

    raw = asyncio.run(run())
    answered = recalling.end()
    assert answered is not None
    assert recalling.is_complete
    return provider, read_stream(shape, raw.decode()) if is_stream else json.loads(raw), answered, raw


def text_of(shape: Shape, whole: dict[str, Any]) -> str:
    match shape:
        case "messages":
            return "".join(part["text"] for part in whole["content"] if part["type"] == "text")
        case "chat":
            return (whole["choices"][0]["message"]["content"] or "").replace("\n\n", "")
    return "".join(item["content"][0]["text"] for item in whole["output"] if item["type"] == "message")


@pytest.mark.parametrize("shape", PATHS)
@given(rounds=ROUNDS, last=LAST, size=st.integers(1, 400))
def test_answers_are_one(shape: Shape, rounds: list[tuple[str, int, str]], last: Any, size: int) -> None:
    script = [
        Says(text, tuple((f"r{number}_{n}", NAME, {"query": f"q{n}"}) for n in range(calls)), thought)
        for number, (text, calls, thought) in enumerate(rounds)
    ]
    text, names, thought = last
    is_mixed = "look" in names
    own = tuple((f"l{n}", name, {"query": "q"}) for n, name in enumerate(names) if name == "look" or is_mixed)
    script.append(Says(text, own, thought))
    provider, streamed, answered, raw = answer_of(shape, script, size, is_stream=True)
    _, whole, as_whole, _ = answer_of(shape, script, size, is_stream=False)
    # The client sees every text and its own calls, and nothing of recall.
    for seen in (streamed, whole):
        assert text_of(shape, seen) == "".join(says.text for says in script)
        assert NAME not in json.dumps(seen)
        assert json.dumps(seen).count('"look"') == names.count("look")
    assert len(provider.bodies) == len(script)
    if not rounds and NAME not in names:
        assert raw == provider.answered
    # What the model is asked is what it said before, with what it was given.
    for before, after in zip(provider.bodies, provider.bodies[1:], strict=False):
        name = "input" if shape == "responses" else "messages"
        assert after[name][: len(before[name])] == before[name]
        assert {**after, name: 0} == {**before, name: 0}
        assert not PROBLEMS[shape](after[name])
    # Both are stored alike.
    stored = [json.loads(row) for row in answered.rows]
    assert len(stored) == len(as_whole.rows)
    assert len(answered.calls) == (names.count(NAME) if is_mixed else 0)
    assert answered.is_whole or not stored
    counted = (streamed["usage"] or {})["prompt_tokens" if shape == "chat" else "input_tokens"]
    assert counted == sum(size // 4 for size in provider.sizes)


def test_the_apis_own_compaction_is_read_as_it_is_streamed() -> None:
    deltas = [{"type": "compaction_delta", "content": "What was said.", "encrypted_content": "abc"}]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 9}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Yes."}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    answer = MessagesAnswer()
    for event in events:
        answer.event(event)
    assert answer.is_whole
    assert answer.rows() == [
        {
            "role": "assistant",
            "content": [
                {"type": "compaction", "content": "What was said.", "encrypted_content": "abc"},
                {"type": "text", "text": "Yes."},
            ],
        }
    ]
