"""Media: what files state of themselves, what they cost, and the limits of providers on them."""

from __future__ import annotations

import base64
import struct
import time
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.media.files import (
    AUDIO_TOKENS_PER_SECOND,
    DOCUMENT_TOKENS,
    IMAGE_TOKENS,
    PAGE_TOKENS,
    ImageSize,
    audio_seconds,
    audio_tokens,
    count_pages,
    image_size,
    media_facts,
)
from compaction.media.limits import MediaLimits, MediaLoad, limits_of, media_load
from compaction.overrides import in_force
from compaction.shapes import codecs, inner
from compaction.tokens import content_tokens
from tests.support.blocks import pdf, pdf_block, png

SECONDS_MOST = 3.0
"""Seconds that a hostile file may take on a busy machine."""


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def image(data: str, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def jpeg(width: int, height: int, before: int = 0) -> str:
    """Return a JPEG whose frame header comes after `before` bytes of other segments."""
    others = b""
    while before > 0:
        part = min(before, 60_000)
        others += b"\xff\xe1" + struct.pack(">H", part + 2) + b"\0" * part
        before -= part
    return encoded(b"\xff\xd8" + others + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\0" * 20)


WEBP = b"RIFF\0\0\0\0WEBP"
SIZED = [
    pytest.param(png(1_200, 800), id="PNG"),
    pytest.param(jpeg(1_200, 800), id="JPEG"),
    pytest.param(jpeg(1_200, 800, 200_000), id="JPEG behind a preview"),
    pytest.param(encoded(b"GIF89a" + struct.pack("<HH", 1_200, 800) + b"\0\0\0"), id="GIF"),
    pytest.param(encoded(WEBP + b"VP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 1_200, 800)), id="WebP"),
    pytest.param(
        encoded(WEBP + b"VP8L\0\0\0\0\x2f" + struct.pack("<I", 1_199 | 799 << 14) + b"\0" * 8), id="WebP lossless"
    ),
    pytest.param(
        encoded(WEBP + b"VP8X\x0a\0\0\0\0\0\0\0" + (1_199).to_bytes(3, "little") + (799).to_bytes(3, "little")),
        id="WebP extended",
    ),
]


@pytest.mark.parametrize("data", SIZED)
def test_an_image_costs_its_pixels(data: str) -> None:
    assert image_size(data) == ImageSize(1_200, 800)
    assert content_tokens([image(data)]) == 1_200 * 800 // 750


def test_large_images_cost_what_the_api_keeps_of_them_and_unknown_ones_the_same() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://a.example/x.png"}}
    by_id = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    for block in (image(png(8_000, 6_000)), by_url, by_id, image("AAAA"), image("no base64 at all!")):
        assert content_tokens([block]) == IMAGE_TOKENS
    assert content_tokens([image(png(200, 200))]) == 54
    # A strip is scaled by its longer side, and has few pixels then.
    assert content_tokens([image(png(15_680, 784))]) == 164


@pytest.mark.parametrize("pages", [1, 3, 60, 400])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_pdf_costs_its_pages(pages: int, compressed: bool) -> None:
    data = pdf(pages, 20_000, objects_compressed=compressed)
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    assert count_pages(data) == pages
    assert content_tokens([block]) == pages * PAGE_TOKENS
    assert content_tokens([{"type": "tool_result", "tool_use_id": "t", "content": [block]}]) == pages * PAGE_TOKENS


def test_pages_that_a_later_version_of_a_file_replaces_count_once() -> None:
    update = b"4 0 obj << /Type /Page /Parent 2 0 R /Rotate 90 >> endobj"
    assert count_pages(encoded(base64.b64decode(pdf(5)) + update)) == 5
    # And a page tree may state anything.
    assert count_pages(encoded(b"%PDF-1.4\n<< /Type /Pages /Count 999999999 >>\n<< /Type /Page >>")) == 1


def test_a_file_that_shows_no_pages_costs_by_its_bytes_and_at_least_the_stated_figure() -> None:
    def cost(data: str) -> int:
        source = {"type": "base64", "media_type": "application/pdf", "data": data}
        return content_tokens([{"type": "document", "source": source}])

    assert cost("A" * 1_000) == DOCUMENT_TOKENS
    assert cost("A" * 4_000_000) == 60 * PAGE_TOKENS
    assert content_tokens([{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]) == DOCUMENT_TOKENS


BOMB = zlib.compress(b"\0" * 50_000_000)
HOSTILE = [
    pytest.param(b"%PDF-1.4\n" + b"/Type/Pages" * 2_000_000, id="nodes of a page tree"),
    pytest.param(b"%PDF-1.4\n" + b"/Type/Page " * 2_000_000, id="pages"),
    pytest.param(b"%PDF-1.4\n" + (b"/Type/ObjStm>>stream\n" + BOMB) * 100, id="streams that swell"),
    pytest.param(b"%PDF-1.4\n" + b"/Type/ObjStm" * 2_000_000, id="streams without end"),
    pytest.param(b"%PDF-1.4\n" + b"/Type" + b" " * 20_000_000, id="space"),
]


@pytest.mark.parametrize("data", HOSTILE)
def test_hostile_files_are_counted_in_bounded_time(data: bytes) -> None:
    text = encoded(data)
    begun = time.process_time()
    assert 0 <= count_pages(text) <= 100_000
    assert time.process_time() - begun < SECONDS_MOST


@given(
    st.sampled_from(
        [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", WEBP, b"%PDF-1.4 ", b"ID3", b"RIFFxxxxWAVE"]
    ),
    st.binary(max_size=300),
    st.integers(0, 3),
)
def test_whatever_the_bytes_are_there_is_a_count(head: bytes, rest: bytes, cut: int) -> None:
    text = encoded(head + rest)
    text = text[: len(text) - cut]
    for kind in ("image", "document"):
        facts = media_facts({"type": kind, "source": {"type": "base64", "media_type": "a/b", "data": text}})
        assert facts is not None
        assert facts.tokens > 0
    assert audio_tokens(text, "mp3") >= 1


def wav(seconds: float, rate: int = 16_000) -> bytes:
    data = b"\0\0" * int(rate * seconds)
    fmt = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVE" + fmt + b"data" + struct.pack("<I", len(data)) + data


def test_audio_costs_its_seconds() -> None:
    assert audio_seconds(encoded(wav(12))) == pytest.approx(12, abs=0.1)
    assert audio_tokens(encoded(wav(12)), "wav") == pytest.approx(12 * AUDIO_TOKENS_PER_SECOND, abs=1)
    # An MPEG 1 layer 3 frame of 128 kbit a second, behind a tag of 200 bytes.
    mp3 = b"ID3\x04\x00\x00\x00\x00\x01\x48" + b"\0" * 200 + b"\xff\xfb\x90\x00" + b"\0" * 159_786
    assert audio_seconds(encoded(mp3)) == pytest.approx(10, abs=0.1)
    assert audio_seconds(encoded(b"\0" * 96_000), "pcm16") == 2


@pytest.mark.parametrize(
    ("model", "limits"),
    [
        (None, MediaLimits(100, 2_000, 0, 100, 30_000_000)),
        ("claude-sonnet-4-5", MediaLimits(100, 2_000, 0, 100, 30_000_000)),
        ("anthropic/claude-opus-4.6", MediaLimits(600, 2_000, 0, 600, 30_000_000)),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", MediaLimits(20, 2_000, 5, 100, 19_000_000)),
        ("bedrock/amazon.nova-pro-v1:0", MediaLimits(20, 2_000, 5, 100, 19_000_000)),
        ("gpt-5.4-mini", MediaLimits(500, 0, 0, 0, 48_000_000)),
        ("azure/gpt-4o", MediaLimits(50, 0, 0, 0, 48_000_000)),
        ("gemini/gemini-2.5-flash", MediaLimits(3_600, 0, 0, 1_000, 19_000_000)),
        ("pixtral-large-latest", MediaLimits(8, 0, 0, 0, 0)),
        ("mistral-medium-3.1", MediaLimits(8, 0, 0, 0, 0)),
        ("groq/meta-llama/llama-4-scout-17b-16e-instruct", MediaLimits(5, 0, 0, 0, 3_800_000)),
        ("meta-llama/llama-4-maverick-17b-128e-instruct", MediaLimits(5, 0, 0, 0, 3_800_000)),
    ],
)
def test_limits_are_the_models_unless_somebody_states_them(model: str | None, limits: MediaLimits) -> None:
    assert limits_of(in_force(model=model).policy) == limits
    # As of a vLLM that was started with --limit-mm-per-prompt.
    stated = in_force({"max_context_images": 2, "max_context_media_bytes": 0}, {}, model=model)
    assert limits_of(stated.policy) == limits._replace(images=2, media_bytes=0)


def test_a_load_is_held_against_every_limit() -> None:
    limits = MediaLimits(100, 2_000, 3, 100, 1_000)
    within = MediaLoad(20, 8_000, 3, 80, 1_000)
    assert not within.exceeds(limits)
    assert not MediaLoad(100, 2_000).exceeds(limits)
    for over in (
        within._replace(images=21),
        within._replace(documents=4),
        within._replace(bytes=1_001),
        MediaLoad(images=101),
        MediaLoad(document_pages=101),
        MediaLoad(images=60, document_pages=41),
    ):
        assert over.exceeds(limits)
        assert not over.exceeds(MediaLimits())


def test_the_load_of_messages_has_what_is_in_results_too() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [image(png(900, 2_400)), {"type": "text", "text": "x"}],
    }
    load = media_load([[result, pdf_block(7, 3_000)], "words", [image(png(10, 10))]])
    assert load[:4] == (2, 2_400, 1, 7)
    assert load.bytes > 3_000


@pytest.mark.parametrize("shape", ["chat", "responses"])
def test_recordings_and_files_of_other_shapes_cost_what_they_are(shape: inner.Shape) -> None:
    def cost(part: dict[str, Any]) -> int:
        return content_tokens(codecs.decode(shape, {"role": "user", "content": [part]}).content)

    audio = {"type": "input_audio", "input_audio": {"data": encoded(wav(60)), "format": "wav"}}
    assert cost(audio) == pytest.approx(60 * AUDIO_TOKENS_PER_SECOND, abs=2)
    table = f"data:text/csv;base64,{encoded(b'a;b' * 4_000)}"
    sheet = f"data:application/vnd.ms-excel;base64,{encoded(b'x' * 90_000)}"
    letter = f"data:application/pdf;base64,{pdf(12)}"
    for data, tokens in ((table, 3_000), (sheet, DOCUMENT_TOKENS), (letter, 12 * PAGE_TOKENS)):
        given = {"filename": "x", "file_data": data}
        assert cost({"type": "file", "file": given} if shape == "chat" else {"type": "input_file", **given}) == tokens


def test_a_video_in_a_request_does_not_cost_its_base64() -> None:
    url = f"data:video/mp4;base64,{encoded(bytes(4_000_000))}"
    part = {"type": "video_url", "video_url": {"url": url}}
    decoded = codecs.decode("chat", {"role": "user", "content": [part]}).content
    assert content_tokens(decoded) == 5_000
    assert media_load([decoded]).bytes > 5_000_000


def test_what_was_stored_with_another_count_is_the_same() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": encoded(wav(60)), "format": "wav"}}
    now = codecs.decode("chat", {"role": "user", "content": [audio]}).content
    assert inner.is_same(now, [{"type": "opaque", "of": "input_audio", "text": "", "size": 4_000}])
    assert not inner.is_same(now, [{"type": "opaque", "of": "file", "text": "", "size": 4_000}])
