"""Examples of the OpenAPI document: bodies that the service takes, and answers as it gives them."""

from __future__ import annotations

import hashlib
from typing import Any, Final

_CONVERSATION_ID: Final = "conv_0197f0c2a1b37c5d8e4f60718293a4b5"
_RUN_ID: Final = "run_0197f0c2a1b37c5d8e4f60718293a4b5"
_QUESTION: Final[dict[str, Any]] = {"role": "user", "content": "Find me a flight to Lisbon on 4 May."}
_SEARCH: Final[dict[str, Any]] = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "toolu_1", "name": "flights", "input": {"to": "LIS", "day": "2026-05-04"}}],
}
_FOUND: Final[dict[str, Any]] = {
    "role": "user",
    "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "TP 1363, 07:05, 142 EUR"}],
}
_ANSWER: Final[dict[str, Any]] = {"role": "assistant", "content": "TP 1363 leaves at 07:05, for €142."}

CONVERSATION_IN: Final[dict[str, Any]] = {
    "external_id": "chat-1",
    "user_ref": "user-7",
    "model": "claude-sonnet-5-5",
    "system": "You book flights.",
    "policy": {"input_token_budget": 20_000},
}
CONVERSATION: Final[dict[str, Any]] = {
    "id": _CONVERSATION_ID,
    "external_id": "chat-1",
    "user_ref": "user-7",
    "model": "claude-sonnet-5-5",
    "policy": {"input_token_budget": 20_000, "compaction_threshold_tokens": 80_000},
    "policy_overrides": {"input_token_budget": 20_000},
    "warnings": [],
    "metadata": {},
    "created_at": "2026-05-01T09:30:00Z",
    "last_seq": -1,
    "head_version": 0,
    "pending_version": None,
    "context_tokens": 0,
    "context_messages": 0,
    "check_due_at": None,
    "system": "You book flights.",
    "tools": None,
}
CONVERSATION_PATCH: Final[dict[str, Any]] = {"policy": {"compaction_threshold_tokens": 60_000}}
TURN_IN: Final[dict[str, Any]] = {
    "messages": [_QUESTION, _SEARCH, _FOUND, _ANSWER],
    "usage": {"input_tokens": 612, "output_tokens": 41, "cache_read_input_tokens": 0},
    "snapshot_version": 0,
}
TURN: Final[dict[str, Any]] = {"first_seq": 0, "last_seq": 3, "context_tokens": 653, "check": "queued"}
_NO_RULES: Final[dict[str, Any]] = {"ids": [], "sha256": hashlib.sha256(b"").hexdigest()}
CONTEXT: Final[dict[str, Any]] = {
    "messages": [_QUESTION, _SEARCH, _FOUND, _ANSWER],
    "snapshot": None,
    "last_seq": 3,
    "tokens": {"context": 653, "measured": 612, "budget": 128_000},
    "rules": _NO_RULES,
    "warnings": [],
}
PAYLOAD_IN: Final[dict[str, Any]] = {
    "turn_context": [{"source": "profile", "title": "Seats", "text": "Prefers an aisle seat."}],
    "user_message": "Book it.",
    "max_output_tokens": 4_096,
}
PAYLOAD: Final[dict[str, Any]] = {
    "system": "You book flights.",
    "messages": [
        _QUESTION,
        _SEARCH,
        _FOUND,
        _ANSWER,
        {"role": "user", "content": [{"type": "text", "text": "Book it."}]},
    ],
    "layers": {"system": 5, "prior_context": 0, "turn_context": 14, "history": 653, "user_message": 3},
    "budget": 128_000,
    "reserved_output": 4_096,
    "total": 675,
    "history": {"exchanges_total": 1, "exchanges_kept": 1, "exchanges_dropped": 0, "responses_truncated": 0},
    "rules": _NO_RULES,
    "warnings": [],
}
OVERFLOW_IN: Final[dict[str, Any]] = {
    "snapshot_version": 0,
    "error": "prompt is too long: 204018 tokens > 200000 maximum",
}
COMPACTION_IN: Final[dict[str, Any]] = {"strategy": "auto", "instructions": "Keep every flight number."}
COMPACTION: Final[dict[str, Any]] = {"run_id": _RUN_ID}
COMPARISON_IN: Final[dict[str, Any]] = {"versions": [0, 0], "seq": 0}
BISECT_IN: Final[dict[str, Any]] = {"text": "Lisbon on 4 May"}
RULE_CHANGE: Final[dict[str, Any]] = {"in_force": False}
PIN_IN: Final[dict[str, Any]] = {"seq": 0, "text": "Lisbon on 4 May"}
RESTORE_IN: Final[dict[str, Any]] = {"version": 0}
FORK_IN: Final[dict[str, Any]] = {"through_seq": 0, "external_id": "chat-1-again"}
RETRY_IN: Final[dict[str, Any]] = {"state": "dead", "limit": 20}
WEBHOOK_IN: Final[dict[str, Any]] = {"url": "https://chat.example/hooks", "events": ["compaction.completed"]}
KEY_IN: Final[dict[str, Any]] = {"name": "chat backend", "scopes": ["turns:write", "context:read"]}
ROTATION_IN: Final[dict[str, Any]] = {"overlap_seconds": 3_600}
TENANT_PATCH: Final[dict[str, Any]] = {"policy": {"compaction_threshold_tokens": 60_000}}
RECALL_IN: Final[dict[str, Any]] = {"query": "lisbon flights in May", "max_tokens": 500}
RECALL: Final[dict[str, Any]] = {
    "passages": [
        {
            "ref": "m1-m2",
            "first_seq": 1,
            "last_seq": 2,
            "score": 4.1,
            "in_context": False,
            "parts": [
                {
                    "ref": "m1.0",
                    "seq": 1,
                    "role": "assistant",
                    "kind": "tool_use",
                    "tool": "flights",
                    "created_at": "2026-05-01T09:30:00Z",
                    "text": 'flights {"to":"LIS","day":"2026-05-04"}',
                    "offset": 0,
                    "characters": 39,
                },
                {
                    "ref": "m2.0",
                    "seq": 2,
                    "role": "user",
                    "kind": "tool_result",
                    "tool": "flights",
                    "created_at": "2026-05-01T09:30:00Z",
                    "text": "TP 1363, 07:05, 142 EUR",
                    "offset": 0,
                    "characters": 23,
                },
            ],
        }
    ],
    "tokens": 16,
    "searched": 4,
    "more": False,
}
_IN_OTHER_CHAT: Final = "conv_0197f2c08d1e7b1fa3c5d2e4f6a80911"
USER_RECALL: Final[dict[str, Any]] = {
    **RECALL,
    "passages": [
        {
            **passage,
            "ref": f"{_IN_OTHER_CHAT}:{passage['ref']}",
            "parts": [{**part, "ref": f"{_IN_OTHER_CHAT}:{part['ref']}"} for part in passage["parts"]],
            "conversation_id": _IN_OTHER_CHAT,
        }
        for passage in RECALL["passages"]
    ],
    "conversations": 4,
}
