"""Compaction on demand, as `LoopbackModel` speaks it: what it refuses, and the signed blocks it answers with.

Written from the documentation ("Compaction on demand", "Errors") and apart from the product.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from tests.support.messages_api import begins_with_summary, open_calls
from tests.support.servers.loopback_steps import CHARS_PER_TOKEN, ok, strings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.servers.loopback_http import Answering, Received
    from tests.support.servers.loopback_steps import Step

BETA: Final = "compact-2026-09-04"
INSTRUCTIONS_CHARS: Final = 16_384
SUMMARY_CHARS: Final = 400


def signature(content: str) -> str:
    """Return the signature of a summary; the next requests are held to it."""
    return "sig+" + hashlib.sha256(f"compaction:{content}".encode()).hexdigest()


def signed_block(content: str, **fields: Any) -> dict[str, Any]:
    """Return the block that the server gives out for a summary; `fields` come last."""
    return {"type": "compaction", "content": content, "signature": signature(content), **fields}


def is_compaction(received: Received) -> bool:
    return isinstance(received.body, dict) and received.body.get("compaction") is not None


def refused(received: Received) -> str | None:
    """Return why the API refuses a request that asks for a compaction or carries its block; None for any other."""
    body, has_header = received.body, BETA in received.headers.get("anthropic-beta", "")
    if begins_with_summary(body["messages"]):
        block = next(iter(body["messages"][0]["content"]))
        if not has_header:
            return "messages.0.content.0: Input tag 'compaction' found using 'type' does not match any expected tag"
        if block["signature"] != signature(block["content"]):
            return "compaction_content_mismatch: content differs from the text its signature recorded"
    if not is_compaction(received):
        return None
    return _asked_wrongly(body, has_header=has_header)


def _asked_wrongly(body: Mapping[str, Any], *, has_header: bool) -> str | None:
    calls = open_calls(body["messages"])
    rules = (
        (not has_header, f"compaction: requires anthropic-beta: {BETA}"),
        (body["compaction"].get("type") != "summarize", "compaction.type: Input should be 'summarize'"),
        (
            len(body["compaction"].get("instructions") or "") > INSTRUCTIONS_CHARS,
            f"compaction.instructions: String should have at most {INSTRUCTIONS_CHARS} characters",
        ),
        *(
            (body.get(name) is not None, f"{name}: cannot be combined with compaction")
            for name in ("context_management", "stop_sequences")
        ),
        (
            (body.get("tool_choice") or {}).get("type") in {"any", "tool"},
            "tool_choice: cannot be combined with compaction",
        ),
        (
            (body.get("output_config") or {}).get("format") is not None,
            "output_config.format: cannot be combined with compaction",
        ),
        (bool(calls), f"compaction_incomplete_turn: {', '.join(calls)} has no result"),
    )
    return next((reason for is_broken, reason in rules if is_broken), None)


def compacted(content: str | None = None, **fields: Any) -> Step:
    """Answer with a signed block: `content`, or what the conversation begins and ends with; `fields` go into it."""

    def step(answering: Answering) -> None:
        texts = [text for message in answering.received.body["messages"] for text in strings(message["content"])]
        parts = [text.strip()[:SUMMARY_CHARS] for text in (texts[:1] + texts[-1:]) if text.strip()]
        text = content or "\n".join(["Summary of the conversation.", *parts])
        _answer(answering, "compaction", [signed_block(text, **fields)], len(text))

    return step


def not_compacted(stop_reason: str, *, blocks: list[dict[str, Any]] | None = None) -> Step:
    """Answer without a summary, as the API does with a 200: no block, or `blocks`; the call is billed."""
    return lambda answering: _answer(answering, stop_reason, blocks or [], 40)


def _answer(answering: Answering, stop_reason: str, content: list[dict[str, Any]], chars: int) -> None:
    entry = {
        "type": "compaction",
        "input_tokens": answering.received.input_tokens,
        "output_tokens": chars // CHARS_PER_TOKEN,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    usage = {"input_tokens": 0, "output_tokens": 0, "iterations": [entry]}
    ok("", stop_reason=stop_reason, content=content, usage=usage)(answering)


def dumped(block: Mapping[str, Any]) -> str:
    """Return a block as the compact JSON that is held against what is stored."""
    return json.dumps(block, ensure_ascii=False, separators=(",", ":"))
