"""Generated conversations of Chat Completions and Responses: what their APIs accept, in every form that they have."""

from __future__ import annotations

import json
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from random import Random

    from hypothesis.strategies import DrawFn

Message = dict[str, Any]

PNG: Final = "data:image/png;base64,iVBORw0KGgo="
PDF: Final = "data:application/pdf;base64,JVBERi0xLjQ="
SHELL: Final = {"type": "exit", "exit_code": 0}


class _Teller:
    """Draws texts that say which of them they are, so that whether one is shown can be seen."""

    def __init__(self, draw: DrawFn) -> None:
        # Of one seed: a draw for each of its choices would take most of a test's time.
        self._random: Random = draw(st.randoms(use_true_random=True))
        self._numbers = count()

    def pick(self, *options: str) -> str:
        return self._random.choice(options)

    def number(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def text(self) -> str:
        length = self._random.choice([0, 0, 3, 40, 300])
        return f"said{next(self._numbers)}x {'word ' * length}".strip()

    def id(self, *before: str) -> str:
        return f"{self.pick(*before)}{next(self._numbers)}"


@st.composite
def chat_conversations(draw: DrawFn) -> list[Message]:
    """Return a valid conversation of Chat Completions, which may end with a request, open calls or an answer."""
    teller = _Teller(draw)
    messages = [_chat_instruction(teller) for _ in range(teller.number(0, 2))]
    for _ in range(teller.number(1, 4)):
        messages.append(_chat_request(teller))
        for _ in range(teller.number(0, 3)):
            messages += _chat_round(teller)
        if teller.number(0, 5) == 0:
            messages.append(_chat_instruction(teller))
        messages.append(_chat_answer(teller))
    match teller.pick("answer", "request", "calls"):
        case "request":
            messages.append(_chat_request(teller))
        case "calls":
            messages += [_chat_request(teller), _chat_round(teller)[0]]
    return messages


def _chat_instruction(teller: _Teller) -> Message:
    content: Any = teller.text()
    if teller.pick("string", "parts") == "parts":
        content = [{"type": "text", "text": content}]
    return {"role": teller.pick("system", "developer"), "content": content}


def _chat_request(teller: _Teller) -> Message:
    part: dict[str, Any] = {
        "text": {"type": "text", "text": teller.text()},
        "image": {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        "link": {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        "audio": {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        "pdf": {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
        "file": {"type": "file", "file": {"file_id": "file-1"}},
    }
    kind = teller.pick("string", *part)
    if kind == "string":
        return {"role": "user", "content": teller.text(), **({"name": "ann"} if teller.pick("a", "b") == "a" else {})}
    return {"role": "user", "content": [{"type": "text", "text": teller.text()}, part[kind]]}


def _chat_answer(teller: _Teller) -> Message:
    message: Message = {"role": "assistant", "content": teller.text()}
    match teller.pick("plain", "parts", "refusal", "reasoning", "details", "audio", "annotations"):
        case "parts":
            message["content"] = [{"type": "text", "text": teller.text()}, {"type": "text", "text": teller.text()}]
        case "refusal":
            message |= {"content": None, "refusal": teller.text()}
        case "reasoning":
            message["reasoning_content"] = teller.text()
        case "details":
            message["reasoning_details"] = [{"type": "reasoning.encrypted", "data": "AAAA"}]
        case "audio":
            message |= {"content": None, "audio": {"id": "audio_1"}}
        case "annotations":
            message["annotations"] = [{"type": "url_citation", "url_citation": {"url": "https://example.com"}}]
    return message


def _chat_round(teller: _Teller) -> list[Message]:
    calls = []
    for _ in range(teller.number(1, 3)):
        identifier = teller.id("call_", "odd.id:", "toolu_")
        if teller.pick("function", "function", "custom") == "custom":
            calls.append({"id": identifier, "type": "custom", "custom": {"name": "shell", "input": teller.text()}})
        else:
            given = teller.pick('{"q": "x"}', "{}", '{"q": "\\u0000"}')
            calls.append({"id": identifier, "type": "function", "function": {"name": "search", "arguments": given}})
    answer: Message = {"role": "assistant", "content": None, "tool_calls": calls}
    match teller.pick("silent", "speaks", "thinks"):
        case "speaks":
            answer["content"] = teller.text()
        case "thinks":
            answer |= {"content": "", "reasoning_content": teller.text()}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": _chat_result(teller)} for call in calls]
    return [answer, *results]


def _chat_result(teller: _Teller) -> Any:
    match teller.pick("string", "empty", "parts"):
        case "empty":
            return ""
        case "parts":
            return [{"type": "text", "text": teller.text()}, {"type": "text", "text": teller.text()}]
    return teller.text()


@st.composite
def response_conversations(draw: DrawFn) -> list[Message]:
    """Return a valid conversation of Responses items, which may end with a request, open calls or an answer."""
    teller = _Teller(draw)
    items: list[Message] = [
        {"role": teller.pick("system", "developer"), "content": teller.text()} for _ in range(teller.number(0, 2))
    ]
    for _ in range(teller.number(1, 4)):
        items.append(_item_request(teller))
        for _ in range(teller.number(0, 3)):
            calls, outputs = _item_round(teller)
            items += [*calls, *outputs]
        items += _item_answer(teller)
    match teller.pick("answer", "request", "calls"):
        case "request":
            items.append(_item_request(teller))
        case "calls":
            items += [_item_request(teller), *_item_round(teller)[0]]
    return items


def _item_request(teller: _Teller) -> Message:
    part: dict[str, Any] = {
        "image": {"type": "input_image", "detail": "auto", "image_url": PNG},
        "stored": {"type": "input_image", "detail": "auto", "file_id": "file-2"},
        "pdf": {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
        "link": {"type": "input_file", "file_url": "https://example.com/a.pdf"},
    }
    kind = teller.pick("string", *part)
    if kind == "string":
        return {"role": "user", "content": teller.text()}
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": teller.text()}, part[kind]]}


def _thought(teller: _Teller) -> list[Message]:
    sealed = {"encrypted_content": "AAAA"} if teller.pick("sealed", "open") == "sealed" else {}
    summary = [{"type": "summary_text", "text": teller.text()}]
    thought = {"type": "reasoning", "id": teller.id("rs_"), "summary": summary, **sealed}
    return [thought] if teller.pick("thinks", "silent") == "thinks" else []


def _item_answer(teller: _Teller) -> list[Message]:
    used: dict[str, Message] = {
        "web": {"type": "web_search_call", "id": teller.id("ws_"), "status": "completed",
                "action": {"type": "search", "query": teller.text()}},
        "files": {"type": "file_search_call", "id": teller.id("fs_"), "status": "completed", "queries": [teller.text()],
                  "results": [{"file_id": "f", "filename": "a.md", "text": teller.text()}]},
        "code": {"type": "code_interpreter_call", "id": teller.id("ci_"), "status": "completed", "container_id": "c",
                 "code": teller.text(), "outputs": [{"type": "logs", "logs": teller.text()}]},
        "image": {"type": "image_generation_call", "id": teller.id("ig_"), "status": "completed", "result": "AAAA"},
        "mcp": {"type": "mcp_call", "id": teller.id("mcp_"), "name": "find", "server_label": "s", "arguments": "{}",
                "output": teller.text()},
    }  # fmt: skip
    kind = teller.pick("none", "none", *used)
    before = [] if kind == "none" else [used[kind]]
    if teller.pick("item", "easy") == "easy":
        return [*before, {"role": "assistant", "content": teller.text()}]
    said = {"type": "output_text", "text": teller.text(), "annotations": []}
    if teller.pick("says", "says", "refuses") == "refuses":
        said = {"type": "refusal", "refusal": teller.text()}
    message = {
        "type": "message",
        "id": teller.id("msg_"),
        "role": "assistant",
        "status": "completed",
        "content": [said],
    }
    return [*before, *_thought(teller), message]


def _item_round(teller: _Teller) -> tuple[list[Message], list[Message]]:
    calls: list[Message] = []
    outputs: list[Message] = []
    for _ in range(teller.number(1, 3)):
        calls += _thought(teller)
        tie = {"call_id": teller.id("call_", "odd.id:", f"call_{'long' * 10}")}
        match teller.pick("function", "function", "custom", "shell", "local", "patch", "computer"):
            case "function":
                given = teller.pick('{"q": "x"}', "{ }")
                calls.append(
                    {"type": "function_call", "id": teller.id("fc_"), **tie, "name": "search", "arguments": given}
                )
                image = {"type": "input_image", "detail": "auto", "image_url": PNG}
                parts = [{"type": "input_text", "text": teller.text()}, image]
                output: Any = teller.text() if teller.pick("string", "parts") == "string" else parts
                outputs.append({"type": "function_call_output", **tie, "output": output})
            case "custom":
                calls.append({"type": "custom_tool_call", **tie, "name": "code", "input": teller.text()})
                outputs.append({"type": "custom_tool_call_output", **tie, "output": teller.text()})
            case "shell":
                calls.append({"type": "shell_call", **tie, "action": {"commands": ["ls"]}})
                printed = [{"stdout": teller.text(), "stderr": "", "outcome": SHELL}]
                outputs.append({"type": "shell_call_output", **tie, "output": printed})
            case "local":
                action = {"type": "exec", "command": ["ls"], "env": {}}
                calls.append({"type": "local_shell_call", "id": tie["call_id"], **tie, "action": action,
                              "status": "completed"})  # fmt: skip
                outputs.append({"type": "local_shell_call_output", "id": tie["call_id"], "output": teller.text()})
            case "patch":
                operation = {"type": "delete_file", "path": "a"}
                calls.append({"type": "apply_patch_call", **tie, "operation": operation, "status": "completed"})
                outputs.append(
                    {"type": "apply_patch_call_output", **tie, "status": "completed", "output": teller.text()}
                )
            case "computer":
                calls.append({"type": "computer_call", "id": teller.id("cu_"), **tie, "action": {"type": "screenshot"},
                              "pending_safety_checks": [], "status": "completed"})  # fmt: skip
                screen = {"type": "computer_screenshot", "image_url": PNG}
                outputs.append({"type": "computer_call_output", **tie, "output": screen})
    return calls, outputs


def ids_after_reasoning(items: list[Message]) -> frozenset[str]:
    """Return the ids of items that were answered right after reasoning."""
    after = (item for before, item in pairwise(items) if before.get("type") == "reasoning")
    return frozenset(str(item["id"]) for item in after if "id" in item and not str(item["type"]).endswith("_output"))


def as_sent(message: Message) -> str:
    """Return a message as JSON text, spaced as no encoder here would space it."""
    return json.dumps(message, ensure_ascii=False, separators=(" , ", " :"))
