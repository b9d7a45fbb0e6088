"""The inner form: what every shape is decoded to and served from, the Messages API's blocks and three more.

A system or developer message is an `instruction` block, what no other shape has is `opaque`, and what was sent as an
item of its own says so under `item` (`compaction.messages`). A stored message is one message of its shape, or one item.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from compaction.media.files import (
    DOCUMENT_TOKENS,
    IMAGE_TOKENS,
    VIDEO_BYTES_PER_TOKEN,
    VIDEO_TOKENS,
    audio_seconds,
    audio_tokens,
    file_bytes,
)
from compaction.messages import INSTRUCTION, ITEM, OPAQUE, Content, blocks, call_id
from compaction.text.malformed import UNREAD_KEY, is_json_object, tool_name
from compaction.tokens import CHARS_PER_TOKEN, json_text

Part = dict[str, Any]
Path = tuple[str | int, ...]
Shape = Literal["messages", "chat", "responses"]
"""Messages API, Chat Completions, Responses items."""

AUDIO_CHARS: Final = 4_000
"""Characters that audio of unknown length is counted as: a thousand tokens, about a minute and a half of speech."""
IMAGE_CHARS: Final = IMAGE_TOKENS * CHARS_PER_TOKEN
"""Characters that an image is counted as."""
FILE_CHARS: Final = DOCUMENT_TOKENS * CHARS_PER_TOKEN
"""Characters that a file of unknown length is counted as."""
_DATA_URL: Final = re.compile(r"data:(?P<media>[\w.+-]+/[\w.+-]+);base64,(?P<data>.*)\Z", re.DOTALL)
_MOST_BRACKETS: Final = 200
"""Of arguments that are read as JSON; more may be nested too deeply."""


class ShapeError(Exception):
    """What an API of the shape would refuse: why, and the way to the field."""

    def __init__(self, detail: str, *path: str | int) -> None:
        super().__init__(detail)
        self.detail = detail
        self.path: Path = path


class InnerMessage(NamedTuple):
    """A message or an item in the inner form."""

    role: str
    content: Content


class LeftOut(NamedTuple):
    """What has no counterpart in the shape that is served: of which messages, and what."""

    seqs: tuple[int, ...]
    what: str


class SentMessage(NamedTuple):
    """A message as it is served in the shape it was sent in: its JSON text, and what it is in the inner form.

    The text is that which came, unless the API of the shape refuses it.
    """

    text: str
    value: Mapping[str, Any]
    decoded: InnerMessage
    is_repaired: bool = False
    """Whether it is served repaired although its inner form is as it was stored."""


def raw(sent: SentMessage) -> msgspec.Raw:
    """Return a message as it was sent, byte for byte."""
    return msgspec.Raw(sent.text.encode())


def field(given: Mapping[str, Any], name: str, kind: type, path: Path) -> Any:
    """Return a field that has to be there. Raises ShapeError."""
    value = given.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ShapeError(f"Expected `{name}`: {_NAMES[kind]}.", *path, name)
    return value


_NAMES: Final[Mapping[type, str]] = {str: "a string", dict: "an object", list: "an array"}


def words(text: str) -> Part:
    """Return a block of text."""
    return {"type": "text", "text": text}


def instruction(text: str, by: str) -> InnerMessage:
    """Return a system or developer message."""
    return InnerMessage("user", [{"type": INSTRUCTION, "text": text, "by": by}])


def opaque(of: str, text: str = "", *, size: int | None = None) -> Part:
    """Return what stands for something that only its own shape has: what it says, and the characters it counts as."""
    return {"type": OPAQUE, "of": of, "text": text, "size": len(text) if size is None else size}


def recording(given: Mapping[str, Any]) -> Part:
    """Return audio by its `data` in base64 and its `format`; it counts its seconds."""
    data, audio_format = given.get("data"), str(given.get("format") or "")
    if not isinstance(data, str) or not data:
        return opaque("input_audio", size=AUDIO_CHARS)
    part = opaque("input_audio", size=audio_tokens(data, audio_format) * CHARS_PER_TOKEN)
    seconds = round(audio_seconds(data, audio_format))
    return {**part, "bytes": file_bytes(data), "media_type": f"audio/{audio_format or 'unknown'}", "seconds": seconds}


def file(name: str, data: Any) -> Part:
    """Return a file that is no PDF by its `data:` URL, None for one by its id; text counts its characters."""
    match = _DATA_URL.match(data) if isinstance(data, str) else None
    if match is None:
        return opaque("file", name, size=FILE_CHARS)
    count = file_bytes(match["data"])
    is_text = match["media"].startswith("text/") or match["media"] in _TEXT_TYPES
    part = opaque("file", name, size=count if is_text else FILE_CHARS)
    return {**part, "bytes": count, "media_type": match["media"]}


def linked_medium(kind: str, url: str) -> Part:
    """Return a recording or a video by its URL, of which the data of a `data:` URL is not kept."""
    chars = VIDEO_TOKENS * CHARS_PER_TOKEN if kind.startswith("video") else AUDIO_CHARS
    match = _DATA_URL.match(url)
    if match is None:
        return opaque(kind, url, size=chars)
    count = file_bytes(match["data"])
    if kind.startswith("video"):
        chars = max(1, count // VIDEO_BYTES_PER_TOKEN) * CHARS_PER_TOKEN
    else:
        chars = audio_tokens(match["data"], match["media"].rpartition("/")[2]) * CHARS_PER_TOKEN
    return {**opaque(kind, size=chars), "bytes": count, "media_type": match["media"]}


_TEXT_TYPES: Final = frozenset({"application/json", "application/xml", "application/csv"})
_COUNTED: Final = frozenset({"size", "bytes", "seconds", "media_type"})
"""Keys of an opaque block that count it: what was stored before a count was known has others."""


def is_same(one: Any, other: Any) -> bool:
    """Return whether two contents or two blocks are the same, however what is opaque in them was counted."""
    return bool(one == other) or _strip_counts(one) == _strip_counts(other)


def _strip_counts(value: Any) -> Any:
    if isinstance(value, list):
        return [_strip_counts(each) for each in value]
    if isinstance(value, Mapping) and value.get("type") == OPAQUE:
        return {key: each for key, each in value.items() if key not in _COUNTED}
    return value


def reasoning_part(text: str, sealed: Any, item: str) -> Part:
    """Return reasoning; `sealed` is what only its provider can read, of which the hash is kept."""
    digest = hashlib.sha256(json_text(sealed).encode()).hexdigest()[:32]
    return {"type": "thinking", "thinking": text, "signature": digest, ITEM: item}


def call(identifier: str, name: str, given: Any, item: str | None = None) -> Part:
    """Return a tool call."""
    block = {"type": "tool_use", "id": call_id(identifier), "name": tool_name(name), "input": given}
    return block if item is None else {**block, ITEM: item}


def result(identifier: str, content: Any, item: str | None = None) -> Part:
    """Return a tool's result."""
    block = {"type": "tool_result", "tool_use_id": call_id(identifier), "content": content}
    return block if item is None else {**block, ITEM: item}


def arguments(text: str) -> Part | str:
    """Return a call's arguments as an object; text that is no JSON object stays text, which `acceptable` repairs.

    An object that may be nested too deeply for other readers stands as text in an object.
    """
    plain = text.count("{") + text.count("[") <= _MOST_BRACKETS and "\\u0000" not in text
    if not plain and is_json_object(text):
        return {UNREAD_KEY: text}
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def image(url: str) -> Part:
    """Return an image by its URL; data in a `data:` URL stays encoded."""
    if match := _DATA_URL.match(url):
        return {"type": "image", "source": {"type": "base64", "media_type": match["media"], "data": match["data"]}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def document(name: str, data: str) -> Part | None:
    """Return a PDF by its `data:` URL, None for a file of another kind."""
    match = _DATA_URL.match(data)
    if match is None or match["media"] != "application/pdf":
        return None
    source = {"type": "base64", "media_type": match["media"], "data": match["data"]}
    return {"type": "document", "source": source, **({"title": name} if name else {})}


def url_of(source: Any) -> str | None:
    """Return the URL that an image or a document can be sent by, None where it has none."""
    if not isinstance(source, Mapping):
        return None
    match source.get("type"):
        case "base64":
            return f"data:{source.get('media_type')};base64,{source.get('data')}"
        case "url" if isinstance(source.get("url"), str):
            return str(source["url"])
        case _:
            return None


def answered_calls(view: Iterable[Any]) -> frozenset[str]:
    """Return the inner ids of the calls whose results are in a view; the ids of others are for a client to name."""
    every = (block for message in view for block in blocks(message.content))
    return frozenset(str(block["tool_use_id"]) for block in every if block.get("type") == "tool_result")


def simplest(parts: Sequence[Part]) -> Content:
    """Return content: one text as a string, anything else as its blocks; nothing said is an opaque block of no size."""
    said = [part for part in parts if part["type"] != "text" or part["text"].strip()]
    if len(said) == 1 and set(said[0]) == {"type", "text"} and said[0]["type"] == "text":
        return str(said[0]["text"])
    return said or [opaque("nothing")]
