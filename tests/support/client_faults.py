"""The ways in which clients break conversations, each as a small change drawn by hypothesis."""

from __future__ import annotations

import copy
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from tests.support.blocks import document_block, image_block, text_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DrawFn

    from tests.support.blocks import Block, Message


class Fault(StrEnum):
    """One way in which clients break a conversation; names are stable, tests may pick a subset."""

    BLANK_CONTENT = "blank content"
    BLANK_BLOCK = "blank text block"
    DROP_MESSAGE = "message dropped"
    MISSING_RESULT = "tool result missing"
    ORPHAN_RESULT = "tool result without a call"
    DUPLICATE_RESULT = "tool result twice"
    MISPLACED_RESULT = "tool result some messages later"
    RESULT_AFTER_TEXT = "text before the tool result"
    REPEATED_ID = "one id twice in a message"
    CALL_NOT_LAST = "text after a tool call"
    STARTS_WITH_ASSISTANT = "starts with assistant"
    SWAP = "neighbours swapped"
    ERROR_WITH_IMAGE = "failed tool result with an image"
    THINKING_LAST = "thinking as last block"
    LONE_SERVER_CALL = "server tool call without result"
    LONE_SERVER_RESULT = "server tool result without call"
    WRONG_ROLE = "block in the wrong role"
    BAD_ID = "tool id outside the charset"


def inflict(fault: Fault, draw: DrawFn, messages: list[Message]) -> None:
    """Change `messages` in place; nothing happens when they hold nothing that the fault could hit."""
    _FAULTS[fault](draw, messages)


def _one(draw: DrawFn, messages: list[Message]) -> Message:
    return messages[draw(st.integers(0, len(messages) - 1))]


def _places(messages: list[Message], kind: str) -> list[tuple[int, int]]:
    return [
        (at, inner)
        for at, message in enumerate(messages)
        if isinstance(message["content"], list)
        for inner, block in enumerate(message["content"])
        if block["type"] == kind
    ]


def _block_at(draw: DrawFn, messages: list[Message], kind: str) -> tuple[int, int] | None:
    places = _places(messages, kind)
    return draw(st.sampled_from(places)) if places else None


def _blocks_of(message: Message) -> list[Block]:
    if isinstance(message["content"], str):
        message["content"] = [text_block(message["content"])]
    blocks: list[Block] = message["content"]
    return blocks


def _blank_content(draw: DrawFn, messages: list[Message]) -> None:
    blank = draw(st.sampled_from(["", "empty list", " \n\t"]))
    _one(draw, messages)["content"] = [] if blank == "empty list" else blank


def _blank_block(draw: DrawFn, messages: list[Message]) -> None:
    blocks = _blocks_of(_one(draw, messages))
    at = draw(st.integers(0, len(blocks)))
    blocks.insert(at, text_block(draw(st.sampled_from(["", "  \n"]))))


def _drop_message(draw: DrawFn, messages: list[Message]) -> None:
    if len(messages) > 1:
        del messages[draw(st.integers(0, len(messages) - 1))]


def _missing_result(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "tool_result"):
        del messages[place[0]]["content"][place[1]]


def _orphan_result(draw: DrawFn, messages: list[Message]) -> None:
    orphan = {"type": "tool_result", "tool_use_id": "toolu_nowhere", "content": "#orphan result"}
    at = draw(st.integers(0, len(messages)))
    messages.insert(at, {"role": "user", "content": [orphan]})


def _duplicate_result(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "tool_result"):
        again = copy.deepcopy(messages[place[0]]["content"][place[1]])
        if draw(st.booleans()):
            messages[place[0]]["content"].append(again)
        else:
            messages.append({"role": "user", "content": [again]})


def _misplaced_result(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "tool_result"):
        block = messages[place[0]]["content"].pop(place[1])
        if not messages[place[0]]["content"]:
            del messages[place[0]]
        at = min(len(messages), place[0] + draw(st.integers(1, 4)))
        messages.insert(at, {"role": "user", "content": [block]})


def _result_after_text(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "tool_result"):
        messages[place[0]]["content"].insert(0, text_block("#remark before the results"))


def _repeated_id(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "tool_use"):
        content = messages[place[0]]["content"]
        content.append(copy.deepcopy(content[place[1]]))


def _call_not_last(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "tool_use"):
        messages[place[0]]["content"].append(text_block("#said after the call"))


def _starts_with_assistant(draw: DrawFn, messages: list[Message]) -> None:
    messages.insert(0, {"role": "assistant", "content": draw(st.sampled_from(["#greeting: hello", ""]))})


def _swap(draw: DrawFn, messages: list[Message]) -> None:
    if len(messages) > 1:
        at = draw(st.integers(0, len(messages) - 2))
        messages[at], messages[at + 1] = messages[at + 1], messages[at]


def _error_with_image(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "tool_result"):
        block = messages[place[0]]["content"][place[1]]
        block |= {"is_error": True, "content": [text_block("#failed, see screenshot"), image_block()]}


def _thinking_last(draw: DrawFn, messages: list[Message]) -> None:
    thought = {"type": "thinking", "thinking": "#cut off by max_tokens", "signature": "sigcut"}
    answers = [message for message in messages if message["role"] == "assistant"]
    if draw(st.booleans()) and answers:
        _blocks_of(_one(draw, answers)).append(thought)
    else:
        messages.append({"role": "assistant", "content": [thought]})


def _lone_server_call(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "web_search_tool_result"):
        del messages[place[0]]["content"][place[1]]


def _lone_server_result(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "server_tool_use"):
        del messages[place[0]]["content"][place[1]]


def _wrong_role(draw: DrawFn, messages: list[Message]) -> None:
    make = (image_block, document_block, _stray_call)[draw(st.integers(0, 2))]
    block = make()
    role = "user" if block["type"] == "tool_use" else "assistant"
    messages.append({"role": role, "content": [block, text_block("#wrong role")]})


def _stray_call() -> Block:
    return {"type": "tool_use", "id": "toolu_stray", "name": "bash", "input": {}}


def _bad_id(draw: DrawFn, messages: list[Message]) -> None:
    if place := _block_at(draw, messages, "tool_use"):
        old = messages[place[0]]["content"][place[1]]["id"]
        new = draw(st.sampled_from(["functions.bash:0", "", "with space"]))
        for message in messages[place[0] : place[0] + 2]:
            for block in message["content"] if isinstance(message["content"], list) else []:
                for key in ("id", "tool_use_id"):
                    if block.get(key) == old:
                        block[key] = new


_FAULTS: Final[dict[Fault, Callable[[DrawFn, list[Message]], None]]] = {
    Fault.BLANK_CONTENT: _blank_content,
    Fault.BLANK_BLOCK: _blank_block,
    Fault.DROP_MESSAGE: _drop_message,
    Fault.MISSING_RESULT: _missing_result,
    Fault.ORPHAN_RESULT: _orphan_result,
    Fault.DUPLICATE_RESULT: _duplicate_result,
    Fault.MISPLACED_RESULT: _misplaced_result,
    Fault.RESULT_AFTER_TEXT: _result_after_text,
    Fault.REPEATED_ID: _repeated_id,
    Fault.CALL_NOT_LAST: _call_not_last,
    Fault.STARTS_WITH_ASSISTANT: _starts_with_assistant,
    Fault.SWAP: _swap,
    Fault.ERROR_WITH_IMAGE: _error_with_image,
    Fault.THINKING_LAST: _thinking_last,
    Fault.LONE_SERVER_CALL: _lone_server_call,
    Fault.LONE_SERVER_RESULT: _lone_server_result,
    Fault.WRONG_ROLE: _wrong_role,
    Fault.BAD_ID: _bad_id,
}
