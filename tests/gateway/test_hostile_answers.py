"""What no provider that means well sends: encodings that are none, or hold more than anybody reads."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from gateway.answers.events import EventSplitter
from gateway.answers.reading import MOST_BYTES, AnswerReader, decompressor
from gateway.providers.answers import CutOffError, read_within
from gateway.recalls.recalling import RecallingAnswer
from tests.gateway.recalls.given_answer import GivenAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

GZIP: Final = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]
BOMB: Final = zlib.compress(b"data: " + bytes(12 * MOST_BYTES))
REQUEST: Final = json.dumps({"messages": [{"role": "user", "content": "a question"}]}).encode()


async def none(_: Any) -> Any:
    raise AssertionError("nothing is asked")


def recalling() -> RecallingAnswer:
    return RecallingAnswer("messages", REQUEST, none, none, as_thinking=False)


def test_answer_that_is_longer_than_it_seems_takes_no_memory() -> None:
    reader = AnswerReader("messages", dict(GZIP))
    tracemalloc.start()
    reader.take(BOMB)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * MOST_BYTES
    assert not reader.is_readable
    assert reader.end() is None


@pytest.mark.parametrize(
    "take", [AnswerReader("messages", {b"content-type": b"text/event-stream"}).take, EventSplitter().take]
)
def test_a_long_line_is_not_read_again_with_each_piece_of_it(take: Callable[[bytes], object]) -> None:
    take(b"data: " + bytes(MOST_BYTES // 2))
    take(b"x")  # makes room for more than it brings
    tracemalloc.start()
    take(b"x")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MOST_BYTES // 100  # a copy of the line so far would be half of MOST_BYTES


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_pieces_that_are_read_are_bounded(encoding: bytes) -> None:
    read = decompressor(encoding)
    assert read is not None
    assert read(zlib.compress(b"a" * 1_000)) == b"a" * 1_000
    again = decompressor(encoding)
    assert again is not None
    with pytest.raises(zlib.error):
        again(BOMB)


@pytest.mark.parametrize("body", [b"no gzip", BOMB], ids=["none", "bomb"])
def test_what_is_not_in_its_encoding_passes_where_the_model_may_recall(body: bytes) -> None:
    answer = recalling()
    last, other = asyncio.run(answer.whole(GivenAnswer(GZIP, body)))
    assert (last.body, other) == (body, None)
    assert answer.end() is None


def test_answer_that_is_too_long_to_be_read_passes_where_the_model_may_recall() -> None:
    piece = bytes(MOST_BYTES // 2)
    given = GivenAnswer([], piece, piece, b"more", piece)

    async def passed() -> tuple[int, int, bool]:
        answer = recalling()
        last, other = await answer.whole(given)
        assert (other, answer.end()) == (None, None)
        assert not given.is_closed
        return len(last.body), sum([len(each) async for each in last.pieces()]), last.is_whole

    assert asyncio.run(passed()) == (2 * len(piece) + 4, 3 * len(piece) + 4, False)


def test_what_is_read_whole_is_closed() -> None:
    given = GivenAnswer([], b"a", b"b")
    read = asyncio.run(read_within(given, 2))
    assert (read.body, read.is_whole, given.is_closed) == (b"ab", True, True)


@pytest.mark.parametrize("body", [b"no gzip", BOMB], ids=["none", "bomb"])
def test_stream_that_is_not_in_its_encoding_is_cut_off_where_the_model_may_recall(body: bytes) -> None:
    async def read() -> list[bytes]:
        return [piece async for piece in recalling().stream(GivenAnswer(GZIP, body))]

    with pytest.raises(CutOffError):
        asyncio.run(read())
