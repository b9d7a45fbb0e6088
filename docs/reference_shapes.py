#!/usr/bin/env python3
"""Prints docs/reference-shapes.md: every kind of block and item through the codecs; `make docs` writes the file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.policy import Policy
from compaction.shapes import codecs
from compaction.shapes.inner import InnerMessage, SentMessage
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.tokens import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.shapes.inner import Shape

HEADER: Final = """\
# What becomes of each block and item

Each row was sent in the shape of its table, and is shown as it is served in the two others; in its own shape it is
served byte for byte as it came. A user's `?` before an answer, and an answer `!` after an item, are left out. What is
*left out* is named in the answer's `warnings`, with the messages that it is of. `make docs` writes this page from the
codecs themselves.
"""
NAMES: Final[Mapping[Shape, str]] = {"messages": "Messages", "chat": "Chat Completions", "responses": "Responses"}
ENDS: Final = ("!", [{"type": "text", "text": "!"}])
ASKED: Final = {"role": "user", "content": "?"}
PNG: Final = "data:image/png;base64,iVBORw0K"
PDF: Final = "data:application/pdf;base64,JVBERi0x"
CALL: Final = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":"x"}'}}
ITEM_CALL: Final = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q":"x"}'}


def user(*blocks: Any) -> dict[str, Any]:
    """Return a message of the user's."""
    return {"role": "user", "content": list(blocks)}


def answer(*blocks: Any) -> dict[str, Any]:
    """Return a message of the model's."""
    return {"role": "assistant", "content": list(blocks)}


USED: Final = answer({"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "x"}})
BLOCKS: Final[Sequence[tuple[str, list[Any]]]] = (
    ("`text`", [user({"type": "text", "text": "Hi"})]),
    (
        "`image`, encoded",
        [user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}})],
    ),
    ("`image` at a URL", [user({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}})]),
    ("`image` by file id", [user({"type": "image", "source": {"type": "file", "file_id": "file_1"}})]),
    (
        "`document`, PDF",
        [user({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"}})],
    ),
    (
        "`document`, text",
        [user({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Hi"}})],
    ),
    (
        "`search_result`",
        [user({"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "Hi"}]})],
    ),
    (
        "`thinking`",
        [answer({"type": "thinking", "thinking": "Hm", "signature": "c2ln"}, {"type": "text", "text": "Hi"})],
    ),
    ("`redacted_thinking`", [answer({"type": "redacted_thinking", "data": "c2ln"}, {"type": "text", "text": "Hi"})]),
    ("`tool_use`, `tool_result`", [USED, user({"type": "tool_result", "tool_use_id": "c1", "content": "1"})]),
    (
        "`tool_result`, an error",
        [USED, user({"type": "tool_result", "tool_use_id": "c1", "content": "1", "is_error": True})],
    ),
    (
        "`tool_result` with an image",
        [
            USED,
            user(
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}],
                }
            ),
        ],
    ),
    (
        "`server_tool_use` and its result",
        [
            answer(
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": [
                        {
                            "type": "web_search_result",
                            "url": "https://example.com",
                            "title": "T",
                            "encrypted_content": "e",
                        }
                    ],
                },
                {"type": "text", "text": "Hi"},
            )
        ],
    ),
    ("`compaction`", [answer({"type": "compaction", "content": "So far."}, {"type": "text", "text": "Hi"})]),
    ("a type that is not known", [user({"type": "text", "text": "Hi"}, {"type": "x_future", "data": "1"})]),
)
CHAT: Final[Sequence[tuple[str, list[Any]]]] = (
    ("`system`, `developer`", [{"role": "developer", "content": "Be brief."}, ASKED]),
    ("part `text`", [user({"type": "text", "text": "Hi"})]),
    ("part `image_url`", [user({"type": "image_url", "image_url": {"url": PNG}})]),
    (
        "part `input_audio`",
        [
            user(
                {"type": "text", "text": "Hi"},
                {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
            )
        ],
    ),
    ("part `file`, a PDF", [user({"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}})]),
    ("part `file`, by id", [user({"type": "text", "text": "Hi"}, {"type": "file", "file": {"file_id": "file-1"}})]),
    (
        "`tool_calls` and `tool`",
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
        ],
    ),
    (
        "a call of a custom tool",
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
        ],
    ),
    (
        "`function_call` and `function`",
        [
            {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": "{}"}},
            {"role": "function", "name": "find", "content": "1"},
        ],
    ),
    ("`refusal`", [{"role": "assistant", "content": None, "refusal": "No."}]),
    ("`audio` of an answer", [{"role": "assistant", "content": None, "audio": {"id": "audio_1", "transcript": "Hi"}}]),
    (
        "`reasoning_content`, `reasoning`, `reasoning_details`, `thinking_blocks`",
        [{"role": "assistant", "content": "Hi", "reasoning_content": "Hm"}],
    ),
    ("a part that is not known", [user({"type": "text", "text": "Hi"}, {"type": "x_future", "data": "1"})]),
)
ITEMS: Final[Sequence[tuple[str, list[Any]]]] = (
    ("`message` of `system`, `developer`", [{"role": "developer", "content": "Be brief."}, ASKED]),
    ("parts `input_text`, `output_text`", [user({"type": "input_text", "text": "Hi"})]),
    ("part `input_image`", [user({"type": "input_image", "detail": "auto", "image_url": PNG})]),
    ("part `input_file`, a PDF", [user({"type": "input_file", "filename": "a.pdf", "file_data": PDF})]),
    (
        "part `input_file`, by id",
        [user({"type": "input_text", "text": "Hi"}, {"type": "input_file", "file_id": "file-1"})],
    ),
    (
        "part `input_audio`",
        [
            user(
                {"type": "input_text", "text": "Hi"},
                {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
            )
        ],
    ),
    ("part `refusal`", [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}]),
    (
        "`reasoning`, `compaction`",
        [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gA"},
            {"role": "assistant", "content": "!"},
        ],
    ),
    (
        "`function_call`, `function_call_output`",
        [ITEM_CALL, {"type": "function_call_output", "call_id": "c1", "output": "1"}],
    ),
    (
        "`custom_tool_call`, `custom_tool_call_output`",
        [
            {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "select 1"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"},
        ],
    ),
    (
        "`computer_call`, `computer_call_output`",
        [
            {
                "type": "computer_call",
                "id": "cu_1",
                "call_id": "c1",
                "action": {"type": "screenshot"},
                "pending_safety_checks": [],
                "status": "completed",
            },
            {
                "type": "computer_call_output",
                "call_id": "c1",
                "output": {"type": "computer_screenshot", "image_url": PNG},
            },
        ],
    ),
    (
        "`local_shell_call`, `local_shell_call_output`",
        [
            {
                "type": "local_shell_call",
                "id": "c1",
                "call_id": "c1",
                "action": {"type": "exec", "command": ["ls"]},
                "status": "completed",
            },
            {"type": "local_shell_call_output", "id": "c1", "output": "1"},
        ],
    ),
    (
        "`shell_call`, `shell_call_output`",
        [
            {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
            {
                "type": "shell_call_output",
                "call_id": "c1",
                "output": [{"stdout": "1", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
            },
        ],
    ),
    (
        "`apply_patch_call`, `apply_patch_call_output`",
        [
            {
                "type": "apply_patch_call",
                "call_id": "c1",
                "operation": {"type": "delete_file", "path": "a"},
                "status": "completed",
            },
            {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed"},
        ],
    ),
    (
        "`mcp_approval_request`, `mcp_approval_response`",
        [
            {"type": "mcp_approval_request", "id": "c1", "name": "find", "server_label": "s", "arguments": "{}"},
            {"type": "mcp_approval_response", "approval_request_id": "c1", "approve": True},
        ],
    ),
    (
        "`web_search_call`",
        [{"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}],
    ),
    (
        "`file_search_call`",
        [
            {
                "type": "file_search_call",
                "id": "fs_1",
                "status": "completed",
                "queries": ["x"],
                "results": [{"filename": "a.md", "text": "Hi"}],
            }
        ],
    ),
    (
        "`code_interpreter_call`",
        [
            {
                "type": "code_interpreter_call",
                "id": "ci_1",
                "status": "completed",
                "container_id": "k",
                "code": "1+1",
                "outputs": [{"type": "logs", "logs": "2"}],
            }
        ],
    ),
    (
        "`image_generation_call`",
        [
            {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0K"},
            {"role": "assistant", "content": "!"},
        ],
    ),
    (
        "`mcp_call`, `mcp_list_tools`",
        [{"type": "mcp_call", "id": "mcp_1", "name": "find", "server_label": "s", "arguments": "{}", "output": "1"}],
    ),
    ("a type that is not known", [{"type": "x_future", "id": "x_1"}, {"role": "assistant", "content": "!"}]),
)
TABLES: Final[Mapping[Shape, Sequence[tuple[str, list[Any]]]]] = {"messages": BLOCKS, "chat": CHAT, "responses": ITEMS}


def page() -> str:
    """Return the page."""
    return HEADER + "".join(_table(shape, rows) for shape, rows in TABLES.items())


def _table(shape: Shape, rows: Sequence[tuple[str, list[Any]]]) -> str:
    others = [each for each in NAMES if each != shape]
    head = f"\n## Sent as {NAMES[shape]}\n\n| sent | " + " | ".join(f"as {NAMES[each]}" for each in others) + " |\n"
    lines = [f"| {name} | " + " | ".join(_served(shape, sent, each) for each in others) + " |\n" for name, sent in rows]
    return head + "|---|" + "---|" * len(others) + "\n" + "".join(lines)


def _served(shape: Shape, sent: list[Any], target: Shape) -> str:
    is_answer = _decoded(shape, sent[0]).role == "assistant"
    given = [ASKED, *sent] if is_answer else sent
    rows = [Original(at, *_row(_decoded(shape, each))) for at, each in enumerate(given)]
    texts = {at: SentMessage(json_text(each), each, _decoded(shape, each)) for at, each in enumerate(given)}
    view = build(Snapshot(), rows, Policy()).view
    encoded = codecs.encode(target, view, texts if shape == target else {})
    served: list[Any] = msgspec.json.decode(msgspec.json.encode(encoded.messages))
    cells = [_cell(each) for each in served[int(is_answer) :] if each.get("content") not in ENDS]
    left = [f"*left out: {each.what}*" for each in encoded.left_out]
    return " ".join([*cells, *left]) or "nothing"


def _decoded(shape: Shape, message: Any) -> InnerMessage:
    return InnerMessage(message["role"], message["content"]) if shape == "messages" else codecs.decode(shape, message)


def _row(decoded: InnerMessage) -> tuple[str, str]:
    return decoded.role, json_text(decoded.content)


def _cell(message: Any) -> str:
    return f"`{json_text(message)}`".replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
