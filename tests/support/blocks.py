"""Messages API content blocks for tests, and messages of one, a constructor each."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
Block: TypeAlias = dict[str, Any]


def text_block(text: str) -> Block:
    return {"type": "text", "text": text}


def image_block() -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(1_568, 1_568)}}


def png(width: int, height: int, size: int = 2_800) -> str:
    """Return a PNG file in base64 whose header states a size; its data, of so many bytes, is noise."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    noise = hashlib.shake_128(header).digest(size)
    parts = (b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), chunk(b"IDAT", noise), chunk(b"IEND", b""))
    return base64.b64encode(b"".join(parts)).decode()


def pdf(pages: int, size: int = 0, *, objects_compressed: bool = False) -> str:
    """Return a PDF in base64 that has so many pages, and so many bytes of noise besides.

    With `objects_compressed` its page objects are in an object stream, as files of PDF 1.5 and later have them.
    """
    kids = " ".join(f"{at + 3} 0 R" for at in range(pages))
    tree = f"<< /Type /Pages /Count {pages} /Kids [{kids}] >>"
    each = "<< /Type /Page /Parent 2 0 R >>"
    noise = hashlib.shake_128(b"noise").digest(size)
    if objects_compressed:
        stream = zlib.compress(f"{tree}\n{chr(10).join([each] * pages)}".encode())
        body = (
            b"2 0 obj << /Type /ObjStm /N %d /First 0 /Filter /FlateDecode /Length %d >>\nstream\r\n%s\nendstream"
            % (
                pages + 1,
                len(stream),
                stream,
            )
        )
        return base64.b64encode(b"%PDF-1.5\n" + body + noise).decode()
    objects = [f"2 0 obj {tree} endobj", *(f"{at + 3} 0 obj {each} endobj" for at in range(pages))]
    return base64.b64encode(b"%PDF-1.4\n" + "\n".join(objects).encode() + noise).decode()


def pdf_block(pages: int, size: int = 0, title: str = "") -> Block:
    """Return a PDF as a document block."""
    source = {"type": "base64", "media_type": "application/pdf", "data": pdf(pages, size)}
    return {"type": "document", "source": source, **({"title": title} if title else {})}


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
