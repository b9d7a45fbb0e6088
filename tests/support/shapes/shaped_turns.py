"""A conversation whose messages came in every shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from store.hot_path import SentTurn

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.service.hot_calls import HotCalls

PLAIN: Final = '{"role":"user","content":"Caf\\u00e9?"}'
NAMED: Final = '{"role":"user", "name":"ann", "content":"Hello."}'
ITEM: Final = '{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hi."}]}'
EVERY: Final = [(0, "chat", PLAIN), (1, "chat", NAMED), (2, None, None), (3, "responses", ITEM)]
"""Seq, shape and text of each, as they were sent."""


def three_shapes(calls: HotCalls) -> UUID:
    """Return a conversation with a message of each shape, and one that is no more than role and content."""
    conversation = calls.conversation()
    for shape, sent, message in (
        ("chat", PLAIN, {"role": "user", "content": "Café?"}),
        ("chat", NAMED, {"role": "user", "content": "Hello."}),
        (None, None, {"role": "assistant", "content": "Good day."}),
        ("responses", ITEM, {"role": "assistant", "content": "Hi."}),
    ):
        turn = calls.turn(conversation, message)
        calls.at_once([{**turn, "sent": SentTurn(shape, [sent])} if shape and sent else turn])
    return conversation
