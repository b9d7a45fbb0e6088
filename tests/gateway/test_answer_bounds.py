"""Work and memory that a hostile provider's answer takes: in proportion to its bytes, whatever they are."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
from typing import TYPE_CHECKING, Any, Final

import pytest

from compaction.recall.tool import NAME
from gateway.answers.events import MOST_LINES, EventSplitter, TooManyLinesError
from gateway.answers.reading import MOST_BYTES, AnswerReader
from gateway.recalls.recalling import RecallingAnswer
from tests.gateway.recalls.given_answer import GivenAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from compaction.shapes.inner import Shape
    from gateway.doors import Headers

STREAM: Final = [(b"content-type", b"text/event-stream")]
GZIP: Final = [*STREAM, (b"content-encoding", b"gzip")]
MANY_LINES: Final = b":\n" * (MOST_BYTES // 4)
GROWTH: Final = 8
"""Times the processor time that four times the events may take: 4 is linear, 16 is quadratic."""


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


BLOCK: Final = event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}})
GROWING: Final[dict[str, tuple[Shape, bytes, Callable[[int], Any]]]] = {
    "citations": (
        "messages",
        BLOCK,
        lambda _: {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {}}},
    ),
    "usage": ("messages", BLOCK, lambda number: {"type": "message_delta", "usage": {f"count_{number}": 1}}),
    "reasoning": ("chat", b"", lambda _: {"choices": [{"index": 0, "delta": {"reasoning_details": [1]}}]}),
}


async def never(_: Any) -> Any:
    raise AssertionError("nothing is asked")


def shown(shape: Shape, *pieces: bytes, headers: Headers = STREAM) -> bytes:
    """Return what the client of an answer gets in which the model may recall."""
    answer = RecallingAnswer(shape, b'{"messages":[{"role":"user","content":"a"}]}', never, never, as_thinking=False)

    async def read() -> bytes:
        return b"".join([piece async for piece in answer.stream(GivenAnswer(headers, *pieces))])

    return asyncio.run(read())


@pytest.mark.parametrize("name", GROWING)
def test_reading_an_answer_takes_time_in_proportion_to_it(name: str) -> None:
    shape, first, value = GROWING[name]
    seconds = []
    for count in (15_000, 60_000):
        body = first + b"".join(event(value(number)) for number in range(count))
        reader = AnswerReader(shape, dict(STREAM))
        began = time.process_time()
        for start in range(0, len(body), 65_536):
            reader.take(body[start : start + 65_536])
        seconds.append(time.process_time() - began)
        assert reader.is_readable
    assert seconds[1] < GROWTH * seconds[0]


def test_citations_are_in_the_row_that_is_stored() -> None:
    reader = AnswerReader("messages", dict(STREAM))
    cited = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"n": n}}}
        for n in (1, 2)
    ]
    reader.take(BLOCK + b"".join(map(event, [*cited, {"type": "message_stop"}])))
    answered = reader.end()
    assert answered is not None
    assert json.loads(answered.rows[0])["content"] == [{"type": "text", "text": "a", "citations": [{"n": 1}, {"n": 2}]}]


def test_a_small_piece_with_millions_of_lines_is_not_read() -> None:
    bomb = gzip.compress(MANY_LINES)
    assert len(bomb) < 65_536
    reader = AnswerReader("messages", dict(GZIP))
    tracemalloc.start()
    reader.take(bomb)
    passed = shown("messages", bomb, headers=GZIP)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not reader.is_readable
    assert passed == MANY_LINES
    assert most < 8 * len(MANY_LINES)  # a list of its lines would be 20 times as large


def test_a_splitter_keeps_lines_as_bytes_and_what_it_refuses() -> None:
    events = EventSplitter()
    tracemalloc.start()
    for _ in range(64):
        assert not events.take(b":\n" * 30_000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * 1024 * 1024
    with pytest.raises(TooManyLinesError):
        events.take(b"\n" * (MOST_LINES + 1))
    assert len(events.end()) == 64 * 60_000 + MOST_LINES + 1


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000 + b"]" * 100_000, b'{"type":"\xff"}', b'{"type":"\\ud83d"}', b"no JSON"],
    ids=["deep", "no UTF-8", "surrogate", "none"],
)
@pytest.mark.parametrize("shape", ["messages", "chat", "responses"])
def test_an_event_that_cannot_be_read_passes_where_the_model_may_recall(shape: Shape, data: bytes) -> None:
    raw = b"data: " + data + b"\n\n"
    assert shown(shape, raw, raw[:7], raw[7:]) == raw * 2


def test_the_head_of_an_answer_is_not_repeated_for_good() -> None:
    first = {"id": "x" * 1_000_000, "choices": [{"index": 0, "delta": {"role": "assistant"}}]}

    def call(index: int, name: str) -> bytes:
        called = {"index": index, "id": "c", "function": {"name": name, "arguments": ""}}
        return event({"choices": [{"index": 0, "delta": {"tool_calls": [called]}}]})

    others = [call(1 + number, "look") for number in range(100)]
    assert len(shown("chat", event(first) + call(0, NAME), *others)) < 2 * MOST_BYTES


def test_a_length_of_thousands_of_digits_is_none() -> None:
    reader = AnswerReader("messages", {b"content-length": b"0" * 5_000 + b"5"})
    reader.take(b"12345")
    assert not reader.is_complete


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_events_are_the_same_in_whatever_pieces_they_come(ending: bytes, size: int) -> None:
    lines = [
        b": ping",
        b"",
        b"event: a",
        b'data: {"a":',
        b"data:1}",
        b"",
        b"id: 3",
        b'data: "no object"',
        b"",
        b"data: [DONE]",
        b"",
        b"",
    ]
    body = ending.join(lines)
    events = EventSplitter()
    split = [each for start in range(0, len(body), size) for each in events.take(body[start : start + size])]
    assert b"".join(each.raw for each in split) + events.end() == body
    assert [each.value for each in split] == [None, {"a": 1}, None, None]
    assert [each.is_done for each in split] == [False, False, False, True]
