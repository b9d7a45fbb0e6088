"""Requests of users: which messages are none, and whether the assistant has answered one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from compaction.messages import CALLS, THINKING, blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.view import ViewMessage

_MOST_CHARS: Final = 80
_THANKS: Final = re.compile(
    r"thanks|thank you|thx|ty|cheers|danke|vielen dank|merci|gracias|grazie|obrigad[oa]|bedankt|dank ?je|"
    r"\u0441\u043f\u0430\u0441\u0438\u0431\u043e|tack|dzi\u0119kuj\u0119|dzi\u0119ki|\u8c22\u8c22|\u8b1d\u8b1d|"
    r"\u591a\u8c22|\u3042\u308a\u304c\u3068\u3046|\uac10\uc0ac\ud569\ub2c8\ub2e4|\uace0\ub9c8\uc6cc",
    re.IGNORECASE,
)
_BESIDE: Final = re.compile(
    r"[^\w\s]|\b(?:so|very|much|many|a|lot|for|that|this|the|your|help|all|it|is|was|everything|great|perfect|"
    r"nice|good|"
    r"job|work|well|done|excellent|awesome|wonderful|brilliant|lovely|super|cool|ok|okay|again|dir|ihnen|"
    r"sch\u00f6n|prima|"
    r"beaucoup|muchas|mille|muito|wel|hartelijk|bardzo|s\u00e5|mycket)\b|"
    r"\u5f88|\u975e\u5e38|\u4f60|\u60a8|\u4e86|\u3054\u3056\u3044\u307e\u3059|\u3057\u305f|\uc694",
    re.IGNORECASE,
)


def only_thanks(text: str) -> bool:
    """Return whether a text thanks and says nothing else; a question never does."""
    if len(text) > _MOST_CHARS or "?" in text or not _THANKS.search(text):
        return False
    return not _BESIDE.sub("", _THANKS.sub("", text)).strip()


def is_answered(messages: Sequence[ViewMessage], seq: int) -> bool:
    """Return whether the request `seq` is answered: the assistant said something after it and called no tool.

    An agent may go on by itself after that, which takes nothing back. Words whose call comes in the next message are
    only a part of an answer: such a message begins with the call.
    """
    later = [message for message in messages if message.seq > seq and not _only_thinks(message)]
    for index, message in enumerate(later):
        if message.role != "assistant" or not _only_says(message):
            continue
        following = later[index + 1] if index + 1 < len(later) else None
        if following is None or following.role != "assistant" or not _begins_with_call(following):
            return True
    return False


def _only_thinks(message: ViewMessage) -> bool:
    return message.role == "assistant" and all(block.get("type") in THINKING for block in blocks(message.content))


def _only_says(message: ViewMessage) -> bool:
    given = blocks(message.content)
    has_words = any(block.get("type") == "text" and str(block.get("text") or "").strip() for block in given)
    return has_words and not any(block.get("type") in CALLS for block in given)


def _begins_with_call(message: ViewMessage) -> bool:
    first = next((block for block in blocks(message.content) if block.get("type") not in THINKING), None)
    return first is not None and first.get("type") in CALLS
