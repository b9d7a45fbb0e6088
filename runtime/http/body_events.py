"""Bodies as they come and go: their bytes are taken while they are in memory, and large answers go in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from runtime.http.pace import BodyPace

if TYPE_CHECKING:
    from litestar.types import Message, Receive, Send

    from runtime.held_bytes import HeldBytes

PIECE_BYTES: Final = 256 * 1024
"""Bytes of an answer that are written at a time; the next ones wait until the client has read most of them."""


async def next_of_body(receive: Receive, hold: HeldBytes, pace: BodyPace) -> Any:
    """Return the next event of a request whose body has not ended, and take its bytes; raise the problem of either."""
    event = await pace.receive(receive)
    if event["type"] == "http.request":
        hold.take(len(event["body"]))
        if event["more_body"]:
            hold.begin_body()
        else:
            hold.end_body()
    return event


def counted(receive: Receive, hold: HeldBytes) -> Receive:
    """Return what receives the events of a request and takes what they have of its body."""
    more, pace = True, BodyPace()

    async def receive_and_take() -> Any:
        nonlocal more
        if not more:
            # After a body there is only its client's end to wait for, however long that takes.
            return await receive()
        event = await next_of_body(receive, hold, pace)
        more = event.get("more_body", False)
        return event

    return receive_and_take


def in_pieces(send: Send) -> Send:
    """Return what sends a large body in pieces: until its client has read most of it, its request is under way."""

    async def send_pieces(message: Message) -> None:
        if message["type"] != "http.response.body" or len(message["body"]) <= PIECE_BYTES:
            return await send(message)
        body, more = message["body"], message["more_body"]
        for start in range(0, len(body), PIECE_BYTES):
            end = start + PIECE_BYTES
            piece = body[start:end]
            await send({"type": "http.response.body", "body": piece, "more_body": more or end < len(body)})
        return None

    return send_pieces
