"""Repair of single values that every provider refuses: tool arguments, tool names, media types, media without data.

Each function returns the object that it was given if nothing is wrong with it. What is stored is never changed.
"""

from __future__ import annotations

import ast
import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

MEDIA: Final = frozenset({"image", "document"})
NO_MEDIA: Final = "(An image or a file without readable data stood here.)"
"""Text in the place of media that no provider can read."""
UNREAD_KEY: Final = "arguments"
"""Key under which text that is no JSON object stands in one."""
_MOST_LITERAL_CHARS: Final = 20_000
"""Characters of a Python literal that is parsed."""
_MOST_BRACKETS: Final = 200
"""Opening brackets of repaired arguments; more may be nested too deeply for other readers."""
_MOST_ENCODINGS: Final = 3
"""How many times an object may be encoded as a string."""
_DATA_URL: Final = re.compile(r"data:(?P<type>[^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_SNIFFED_CHARS: Final = 16
_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ALIASES: Final[Mapping[str, str]] = {
    "image/jpg": "image/jpeg",
    "image/jpe": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-jpeg": "image/jpeg",
    "image/x-png": "image/png",
    "image/apng": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "webp": "image/webp",
    "application/x-pdf": "application/pdf",
    "pdf": "application/pdf",
}
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def is_json_object(text: str) -> bool:
    """Return whether `text` is a JSON object by the letter: no NaN, no text around it."""
    try:
        return isinstance(_decode(text), dict)
    except (ValueError, RecursionError):
        return False


def read_arguments(given: Any) -> dict[str, Any]:
    """Return the arguments of a tool call as an object.

    An object that was encoded twice, written as a Python literal, or that holds NaN or raw control characters is read
    as what it means. No arguments and `null` are an empty object. Any other value stands under the key `arguments`.
    """
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        return {} if given is None else {UNREAD_KEY: _encode(given).decode()}
    value: Any = given
    for _ in range(_MOST_ENCODINGS):
        value = _read_object(value.strip())
        if not isinstance(value, str):
            break
    if isinstance(value, dict):
        return value
    return {} if value is None or value == "" else {UNREAD_KEY: given}


def _read_object(text: str) -> Any:
    """Return an object, the string that encodes one, or None for nothing; `_UNREADABLE` for any other text."""
    if not text:
        return None
    if "\\u0000" in text or text.count("{") + text.count("[") > _MOST_BRACKETS:
        return _UNREADABLE
    try:
        value = json.loads(text, strict=False, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        value = _read_literal(text)
    if value is None or isinstance(value, str):
        return value
    try:
        return _decode(_encode(value)) if isinstance(value, dict) else _UNREADABLE
    except (ValueError, TypeError, RecursionError):
        return _UNREADABLE


def _read_literal(text: str) -> Any:
    """Return an object that was written as a Python literal; `_UNREADABLE` for anything else."""
    if text.startswith("{") and len(text) <= _MOST_LITERAL_CHARS:
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    return _UNREADABLE


_UNREADABLE: Final = 0
"""Stands for text that is neither an object nor nothing."""


def tool_name(name: Any, most: int = 128) -> str:
    """Return a tool's name with the characters that the APIs take, `most` at the most; `tool` for a blank one."""
    return _NOT_IN_A_NAME.sub("_", name.strip() if isinstance(name, str) else "")[:most] or "tool"


def repair_media(block: dict[str, Any]) -> dict[str, Any]:
    """Return an `image` or `document` block with a media type that fits its data; a text if it has no data.

    A block of another type is returned as it is.
    """
    source = block.get("source")
    if str(block.get("type")) not in MEDIA or not isinstance(source, Mapping):
        return block
    match source.get("type"):
        case "base64":
            fixed = _repair_base64(source, block["type"])
        case "url":
            url = source.get("url")
            fixed = source if isinstance(url, str) and url.strip() else None
        case _:
            return block
    if fixed is source:
        return block
    return {"type": "text", "text": NO_MEDIA} if fixed is None else {**block, "source": fixed}


def _repair_base64(source: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    data = source.get("data")
    if not isinstance(data, str) or not data.strip():
        return None
    named = source.get("media_type")
    if match := _DATA_URL.match(data):
        named, data = match["type"], data[match.end() :]
        if not data.strip():
            return None
    media_type = _media_type(named, data)
    if kind == "image" and not (media_type.startswith("image/") and media_type != "image/svg+xml"):
        return None
    if media_type == source.get("media_type") and data == source["data"]:
        return source
    return {**source, "media_type": media_type, "data": data}


def repair_data_url(url: Any) -> str | None:
    """Return the URL of an image or a file with a media type that fits its data; None if it has no data."""
    if not isinstance(url, str) or not url.strip():
        return None
    match = _DATA_URL.match(url)
    if match is None:
        return url
    data = url[match.end() :]
    if not data.strip():
        return None
    media_type = _media_type(match["type"], data)
    return url if media_type == match["type"] else f"data:{media_type};base64,{data}"


def _media_type(named: Any, data: str) -> str:
    """Return the media type of base64 data by its first bytes, else the ordinary name of the one that was named."""
    name = named.split(";", 1)[0].strip().lower() if isinstance(named, str) else ""
    try:
        start = base64.b64decode(data[:_SNIFFED_CHARS])
    except ValueError:
        start = b""
    is_webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    sniffed = "image/webp" if is_webp else next((kind for magic, kind in _MAGIC if start.startswith(magic)), None)
    if sniffed is not None and (not name or name.startswith("image/") or name in _ALIASES):
        return sniffed
    return _ALIASES.get(name, name)
