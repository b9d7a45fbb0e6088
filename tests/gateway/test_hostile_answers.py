"""What no provider that means well sends: encodings that are none, or hold more than anybody reads."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
import zlib
from typing import Any, Final

import pytest

from gateway.answers.reading import MOST_BYTES, AnswerReader, decompressor
from gateway.providers.answers import CutOffError, ReadAnswer
from gateway.recalls.recalling import RecallingAnswer

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
    response = ReadAnswer(200, GZIP, body)
    assert asyncio.run(answer.whole(response)) == (response, body, False)
    assert answer.end() is None


@pytest.mark.parametrize("body", [b"no gzip", BOMB], ids=["none", "bomb"])
def test_stream_that_is_not_in_its_encoding_is_cut_off_where_the_model_may_recall(body: bytes) -> None:
    async def read() -> list[bytes]:
        return [piece async for piece in recalling().stream(ReadAnswer(200, GZIP, body))]

    with pytest.raises(CutOffError):
        asyncio.run(read())
