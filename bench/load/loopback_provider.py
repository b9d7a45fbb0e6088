"""A provider on loopback that answers at once: `python loopback_provider.py PORT`.

Every answer is the same stream of the Messages API; after the header `x-hold` its end is kept back. Only the
end of a request's head is looked for, nothing is parsed, so that what is measured is what stands before it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

_BEGINS: Final = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":1}}}'
    b"\n\n"
)
_GOES_ON: Final = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"An answer of some words."}}\n\n'
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
    b'"usage":{"output_tokens":6}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_HELD: Final = b"x-hold:"
_MOST_HEAD_BYTES: Final = 64 * 1024
HELD_SECONDS: Final = 60.0
"""Seconds for which a held stream waits at most."""


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, _, rest = head.partition(b"content-length:")
            await reader.readexactly(int(rest.split(b"\r\n")[0]))
            writer.write(_HEAD + _chunk(_BEGINS))
            if _HELD in head:
                await asyncio.wait_for(reader.read(1), HELD_SECONDS)
                return
            writer.write(_chunk(_GOES_ON) + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        return
    finally:
        writer.close()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _main(port: int) -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", port, limit=_MOST_HEAD_BYTES, backlog=2_048)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
