"""Messages API content blocks for tests, and messages of one, a constructor each."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Message: TypeAlias = dict[str, Any]
Block: TypeAlias = dict[str, Any]

PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def image_block() -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL * 40}}


def document_block() -> Block:
    source = {"type": "text", "media_type": "text/plain", "data": "Annual report. " * 200}
    return {"type": "document", "source": source, "title": "report.txt"}


def unknown_block() -> Block:
    return {"type": "hologram", "payload": {"depth": [1, 2, 3], "label": "future block"}}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": [text_block(text)]}


def call(use_id: str, name: str, **arguments: Any) -> Message:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": use_id, "name": name, "input": arguments}]}


def result(use_id: str, content: Any, **more: Any) -> Message:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use_id, "content": content, **more}]}
