"""Media in messages: pixels, pages, seconds and bytes, as files state them, and the tokens that they cost.

Nothing here decodes a picture or parses a file. Every look is bounded, and what cannot be read counts by a stated
figure.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

CHARS_PER_TOKEN: Final = 4
IMAGE_TOKENS: Final = 1_600
"""Tokens of an image whose size is not known: what the largest that the API keeps costs (Claude docs, "Vision")."""
PIXELS_PER_TOKEN: Final = 750
"""Width x height / 750 are an image's tokens (the same page)."""
LONGEST_SIDE: Final = 1_568
"""Pixels to which the API scales the longer side of an image before it counts (the same page)."""
PAGE_TOKENS: Final = 1_800
"""Tokens of a page of a PDF, text and picture: 1,500 to 3,000 by Claude docs, "PDF support"; plain pages have fewer."""
DOCUMENT_TOKENS: Final = 4_000
"""Tokens of a file of which neither pages nor bytes are known."""
PAGE_BYTES: Final = 50_000
"""Bytes that are taken for a page where a PDF does not show its pages."""
AUDIO_TOKENS_PER_SECOND: Final = 10
"""Tokens of a second of audio (OpenAI docs, "Audio": one for 100 ms)."""
AUDIO_TOKENS: Final = 1_000
"""Tokens of audio of unknown length: about a minute and a half of speech."""
VIDEO_TOKENS: Final = 8_000
"""Tokens of a video of unknown length: about half a minute (Gemini docs, "Video understanding": some 300 a second)."""
VIDEO_BYTES_PER_TOKEN: Final = 800
"""Bytes of a video that count as a token: 300 tokens a second at about two megabits a second."""

_AUDIO_BYTES_PER_SECOND: Final = {"pcm16": 48_000, "g711_ulaw": 8_000, "g711_alaw": 8_000}
"""Of raw formats; compressed ones are taken for speech at 32 kbit a second."""
_SPEECH_BYTES_PER_SECOND: Final = 4_000
_HEADER_BYTES: Final = 64
_JPEG_BYTES: Final = 512 * 1024
"""Bytes of a JPEG in which its size is looked for: previews and profiles may come first."""
_MOST_SIDE: Final = 1_000_000
_MOST_PAGES: Final = 100_000
_MOST_PDF_CHARS: Final = 64_000_000
"""Characters of base64 in which pages are looked for; longer files count by their bytes."""
_MOST_INFLATED: Final = 16_000_000
_MOST_STREAMS: Final = 2_000
"""Object streams of a PDF that are inflated, and the bytes that they may have together."""
_MOST_NODES: Final = 2_000
"""Nodes of a page tree that are looked at."""
_REMEMBERED: Final = 1_024
"""Files whose pages are remembered."""

_PAGE: Final = re.compile(rb"/Type\s{0,8}/Page(?![A-Za-z])")
_PAGES: Final = re.compile(rb"/Type\s{0,8}/Pages\b")
_COUNT: Final = re.compile(rb"/Count\s{1,8}(\d{1,9})")
_OBJECT_STREAM: Final = re.compile(rb"/Type\s{0,8}/ObjStm")
_COUNT_REACH: Final = 4_000
"""Bytes around the type of a page tree's node in which its count is looked for."""
_FRAME_HEADERS: Final = frozenset(bytes([marker]) for marker in range(0xC0, 0xD0)) - {b"\xc4", b"\xc8", b"\xcc"}
"""Markers of a JPEG's segments that state its size."""
_MPEG_1: Final = 3
_FRAME_SYNC: Final = 0xE0
_FRAME_RATES: Final = {
    _MPEG_1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
"""Kilobits a second of MP3 frames by version and index."""


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


class MediaFacts(NamedTuple):
    """What is known of one image, document, recording or other file.

    `size` is None, and `pages` and `seconds` are 0, where they do not apply or are not known; `bytes` are those of the
    file where it is in the request, else 0.
    """

    kind: str
    """`image`, `document`, `audio` or `video`."""
    media_type: str = ""
    bytes: int = 0
    size: ImageSize | None = None
    pages: int = 0
    seconds: float = 0
    tokens: int = 0
    are_pages_known: bool = True
    """Whether `pages` were counted, not told from the bytes."""

    @property
    def encoded_bytes(self) -> int:
        """Bytes that it takes in a request: base64 has four for three."""
        return -(-self.bytes * 4 // 3)


OPAQUE_KINDS: Final = {
    "image": "image",
    "file": "document",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "input_video": "video",
}
"""Kinds of media that stand as opaque blocks, by what they are called in their own shape."""


def media_facts(block: Mapping[str, Any]) -> MediaFacts | None:
    """Return what is known of a block in the inner form, None for a block that is no medium.

    A document that is text is none: it is words.
    """
    kind = block.get("type")
    if kind == "image":
        return _of_source("image", block.get("source"))
    if kind == "document":
        source = block.get("source")
        is_text = isinstance(source, Mapping) and source.get("type") in {"text", "content"}
        return None if is_text else _of_source("document", source)
    if kind == "container_upload":
        return MediaFacts("document", tokens=DOCUMENT_TOKENS)
    if kind == "opaque" and (known := OPAQUE_KINDS.get(str(block.get("of")))) is not None:
        size, count, seconds = block.get("size"), block.get("bytes"), block.get("seconds")
        return MediaFacts(
            known,
            str(block.get("media_type") or ""),
            count if isinstance(count, int) else 0,
            seconds=seconds if isinstance(seconds, int) else 0,
            tokens=-(-size // CHARS_PER_TOKEN) if isinstance(size, int) else 0,
        )
    return None


def _of_source(kind: str, source: Any) -> MediaFacts:
    stated = MediaFacts(kind, tokens=IMAGE_TOKENS if kind == "image" else DOCUMENT_TOKENS, pages=int(kind != "image"))
    if not isinstance(source, Mapping):
        return stated
    media_type = source.get("media_type")
    media_type = media_type if isinstance(media_type, str) else ""
    data = source.get("data")
    if source.get("type") != "base64" or not isinstance(data, str):
        return stated._replace(media_type=media_type)
    count = file_bytes(data)
    if kind == "image":
        size = image_size(data)
        return MediaFacts(kind, media_type, count, size, tokens=IMAGE_TOKENS if size is None else image_tokens(size))
    if pages := count_pages(data):
        return MediaFacts(kind, media_type, count, pages=pages, tokens=pages * PAGE_TOKENS)
    pages = max(1, count // PAGE_BYTES)
    tokens = max(DOCUMENT_TOKENS, pages * PAGE_TOKENS)
    return MediaFacts(kind, media_type, count, pages=pages, tokens=tokens, are_pages_known=False)


def file_bytes(data: str) -> int:
    """Return how many bytes base64 text stands for."""
    return len(data) * 3 // 4 - data.count("=", -2)


def image_tokens(size: ImageSize) -> int:
    """Return the tokens of an image: its pixels once it is scaled to what the API keeps, IMAGE_TOKENS at most."""
    scale = min(1.0, LONGEST_SIDE / max(size))
    return max(1, min(IMAGE_TOKENS, math.ceil(size.width * scale * size.height * scale / PIXELS_PER_TOKEN)))


def image_size(data: str) -> ImageSize | None:
    """Return the size that the header of a PNG, JPEG, GIF or WebP file in base64 states, None for any other."""
    head = _decode_base64(data, _HEADER_BYTES)
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
            return _sane(*struct.unpack(">II", head[16:24]))
        if head.startswith((b"GIF87a", b"GIF89a")):
            return _sane(*struct.unpack("<HH", head[6:10]))
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return _webp_size(head)
        return _jpeg_size(_decode_base64(data, _JPEG_BYTES)) if head.startswith(b"\xff\xd8") else None
    except struct.error:
        # The file ends before its header does.
        return None


def _webp_size(head: bytes) -> ImageSize | None:
    match head[12:16]:
        case b"VP8X":
            return _sane(*(1 + int.from_bytes(head[at : at + 3], "little") for at in (24, 27)))
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return _sane(1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
        case b"VP8 ":
            width, height = struct.unpack("<HH", head[26:30])
            return _sane(width & 0x3FFF, height & 0x3FFF)
    return None


def _jpeg_size(head: bytes) -> ImageSize | None:
    """Return the size in a JPEG's frame header; each segment before it says how long it is."""
    at = 2
    while at + 2 <= len(head) and head[at : at + 1] == b"\xff":
        marker = head[at + 1 : at + 2]
        if marker == b"\xff":
            at += 1
        elif marker in _FRAME_HEADERS:
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return _sane(width, height)
        else:
            # A length counts itself: one under two would lead nowhere.
            at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4], "big"))
    return None


def _sane(width: int, height: int) -> ImageSize | None:
    return ImageSize(width, height) if 0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE else None


def count_pages(data: str) -> int:
    """Return the pages of a PDF in base64, 0 where it does not show them.

    The figure of a file is remembered by its length and hash: steps ask for it again and again.
    """
    key = (len(data), hash(data))
    if (known := _pages_known.get(key)) is not None:
        return known
    pages = _pages_of(data)
    while len(_pages_known) >= _REMEMBERED:
        _pages_known.pop(next(iter(_pages_known)), None)
    _pages_known[key] = pages
    return pages


_pages_known: Final[dict[tuple[int, int], int]] = {}


def _pages_of(data: str) -> int:
    """Return the pages that a PDF's page objects and page tree agree on, 0 where neither can be seen.

    Page objects that an incremental update replaced are there twice, and a count may be anything: the smaller holds.
    """
    if len(data) > _MOST_PDF_CHARS:
        return 0
    raw = _decode_base64(data, len(data))
    if b"%PDF-" not in raw[:1_024]:
        return 0
    texts = [raw, *_object_streams(raw)]
    objects = min(sum(len(_PAGE.findall(text)) for text in texts), _MOST_PAGES)
    counts = [count for text in texts for count in _tree_counts(text)]
    stated = min(max(counts, default=0), _MOST_PAGES)
    return min(objects, stated) if objects and stated else objects or stated


def _tree_counts(text: bytes) -> list[int]:
    """Return the counts in the nodes of a page tree; the root's is the largest."""
    counts = []
    for node, _ in zip(_PAGES.finditer(text), range(_MOST_NODES), strict=False):
        after = text[node.end() : node.end() + _COUNT_REACH]
        before = text[max(0, node.start() - _COUNT_REACH) : node.start()]
        # The node ends where the next object names its type, and begins after the one before it has.
        found = _COUNT.search(after.partition(b"/Type")[0]) or _COUNT.search(before.rpartition(b"/Type")[2])
        if found:
            counts.append(int(found[1]))
    return counts


def _object_streams(raw: bytes) -> list[bytes]:
    """Return what is in the object streams of a PDF, which hold its page objects from version 1.5 on."""
    inflated: list[bytes] = []
    room = _MOST_INFLATED
    for found, _ in zip(_OBJECT_STREAM.finditer(raw), range(_MOST_STREAMS), strict=False):
        begins = raw.find(b"stream", found.end(), found.end() + 1_000)
        if begins < 0 or room <= 0:
            continue
        begins += len(b"stream")
        begins += 2 if raw[begins : begins + 2] == b"\r\n" else 1
        try:
            text = zlib.decompressobj().decompress(raw[begins : begins + room], room)
        except zlib.error:
            continue
        room -= len(text)
        inflated.append(text)
    return inflated


def audio_seconds(data: str, audio_format: str = "") -> float:
    """Return how long a recording in base64 is, by its header, else by its bytes."""
    count = file_bytes(data)
    head = _decode_base64(data, 4_096)
    rate = 0
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        at = head.find(b"fmt ")
        rate = int.from_bytes(head[at + 16 : at + 20], "little") if at >= 0 else 0
    elif head.startswith(b"ID3") or head[:1] == b"\xff" or audio_format == "mp3":
        rate = _mp3_rate(data, head)
    return count / (rate or _AUDIO_BYTES_PER_SECOND.get(audio_format, _SPEECH_BYTES_PER_SECOND))


def _mp3_rate(data: str, head: bytes) -> int:
    """Return the bytes a second that the first frame of an MP3 states, 0 where none is found."""
    start = 0
    if head.startswith(b"ID3"):
        # What comes before the first frame may have pictures in it.
        start = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=False))
    head = _decode_base64(data, start + 4_096) if start + 4 > len(head) else head
    at = head.find(b"\xff", start)
    while 0 <= at < len(head) - 2:
        version, layer = head[at + 1] >> 3 & 3, head[at + 1] >> 1 & 3
        if head[at + 1] & _FRAME_SYNC == _FRAME_SYNC and version != 1 and layer == 1:
            return _FRAME_RATES[_MPEG_1 if version == _MPEG_1 else 2][head[at + 2] >> 4] * 125
        at = head.find(b"\xff", at + 1)
    return 0


def audio_tokens(data: str, audio_format: str = "") -> int:
    """Return the tokens of a recording in base64."""
    return max(1, math.ceil(audio_seconds(data, audio_format) * AUDIO_TOKENS_PER_SECOND))


def _decode_base64(data: str, count: int) -> bytes:
    """Return at most the first `count` bytes of base64 text, b"" for what is none."""
    part = data[: -(-count // 3) * 4]
    try:
        return binascii.a2b_base64(part)[:count]
    except (binascii.Error, ValueError):
        # Cut short, or not ASCII: without what does not make four.
        try:
            return binascii.a2b_base64(part[: len(part) // 4 * 4])[:count]
        except (binascii.Error, ValueError):
            return b""
