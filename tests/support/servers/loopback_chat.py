"""Chat Completions, as `LoopbackModel` speaks them beside the Messages API: the same steps, answered in their shape.

Written from the API reference ("Create chat completion", "Error codes") and apart from the product.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.support.servers.loopback_faults import Fault
from tests.support.servers.loopback_steps import ERROR_TYPES, Step, status, strings
from tests.support.shapes.chat_api import problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.servers.loopback_http import Answering, Received

CHAT: Final = "/v1/chat/completions"

_FINISHED: Final[Mapping[Any, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "stop",
    "model_context_window_exceeded": "model_length",
}
"""Finish reasons by the stop reasons that steps name; another one stands as it is."""
_TYPES: Final = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
REFUSED: Final = "I'm sorry, I can't assist with that."
LIMITS: Final = ("max_tokens", "max_completion_tokens")


class Dialect(NamedTuple):
    """What a server knows of a request; each is refused as its kind does."""

    limits: frozenset[str] = frozenset(LIMITS)
    """Names of the answer's limit that it knows."""
    temperature: bool = True
    system: bool = True
    """Whether its template knows the role `system`."""


def is_chat(received: Received) -> bool:
    return received.path == CHAT


def completion(message: Mapping[str, Any], request: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return what the Messages API would answer as a completion; what a step has added stays."""
    text = "".join(strings(message["content"]))
    stop, usage = message["stop_reason"], message["usage"]
    answered: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
    if stop == "refusal":
        answered |= {"content": None, "refusal": text or REFUSED}
    thought = "".join(block["thinking"] for block in message["content"] if block.get("type") == "thinking")
    if thought:
        answered["reasoning_content"] = thought
    calls = [_call(block) for block in message["content"] if block.get("type") == "tool_use"]
    if calls:
        answered["tool_calls"] = calls
    finished = _FINISHED.get(stop, stop) if isinstance(stop, str) else stop
    own = {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "stop_details", "usage"}
    return {
        "id": f"chatcmpl-loopback-{index:06d}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": request.get("model", "unnamed"),
        "choices": [{"index": 0, "message": answered, "logprobs": None, "finish_reason": finished}],
        "usage": _usage(usage),
    } | {name: value for name, value in message.items() if name not in own}


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": json.dumps(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


def _usage(told: Any) -> Any:
    """Return the Messages API's counts as Chat Completions count: what was cached is a part of the prompt."""
    if not isinstance(told, dict) or "prompt_tokens" in told:
        return told
    read, written = (told.get(f"cache_{kind}_input_tokens") or 0 for kind in ("read", "creation"))
    counted = {
        "prompt_tokens": told.get("input_tokens"),
        "completion_tokens": told.get("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    if isinstance(counted["prompt_tokens"], int) and isinstance(counted["completion_tokens"], int):
        counted["prompt_tokens"] += read + written
        counted["total_tokens"] = counted["prompt_tokens"] + counted["completion_tokens"]
    return counted


def error_body(code: int, text: str, error_type: str | None) -> dict[str, Any]:
    """Return an error in OpenAI's shape; its code is the type that a step names."""
    kind = _TYPES.get(code, ERROR_TYPES.get(code, "api_error"))
    return {"error": {"message": text, "type": kind, "param": None, "code": error_type}}


def refused(received: Received, dialect: Dialect) -> Step | None:
    """Return the refusal of a request that the API, or a server of that dialect, does not take; None for any other."""
    body = received.body
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return status(400, "you must provide a messages parameter")
    given = [name for name in LIMITS if name in body]
    (wanted, *_) = dialect.limits
    unknown = [name for name in given if name not in dialect.limits]
    has_system = any(message.get("role") == "system" for message in body["messages"])
    rules = (
        (len(given) > 1, "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."),
        (
            bool(unknown),
            f"Unsupported parameter: '{unknown}' is not supported with this model. Use '{wanted}' instead.",
        ),
        (
            not dialect.temperature and body.get("temperature") not in {None, 1},
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported.",
        ),
        (has_system and not dialect.system, "System role not supported"),
        (not body.get("model"), "you must provide a model parameter"),
    )
    reason = next((text for is_broken, text in rules if is_broken), None)
    reason = reason or next(iter(problems(body["messages"])), None)
    return None if reason is None else status(400, reason, error_type="invalid_request_error")


def too_long(tokens: int, limit: int) -> Step:
    """Answer with OpenAI's 400 for a prompt over the window."""
    return status(
        400,
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages.",
        error_type="context_length_exceeded",
    )


def choice(message: Mapping[str, Any], finish_reason: Any = "stop", **fields: Any) -> Step:
    """Answer with one choice as it is given; `fields` replace those of the completion."""

    def step(answering: Answering) -> None:
        answer = completion(answering.message([], "end_turn"), answering.received.body, answering.received.index)
        answer["choices"] = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}]
        answering.json(200, answer | fields)

    return step


def raw(code: int, payload: Any) -> Step:
    """Answer with JSON of one's own."""
    return lambda answering: answering.whole(code, json.dumps(payload).encode())


CHAT_FAULTS: Final[dict[str, Fault]] = {
    "429 quota": Fault(
        lambda: status(
            429,
            "You exceeded your current quota, please check your plan and billing details.",
            error_type="insufficient_quota",
        ),
        "model_billing",
    ),
    "429 larger than a minute allows": Fault(
        lambda: status(
            429,
            "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 10000, Requested 12000.",
            error_type="rate_limit_exceeded",
        ),
        "prompt_too_long",
    ),
    "429 of a minute": Fault(
        lambda: status(
            429,
            "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 12000.",
            error_type="rate_limit_exceeded",
            retry_after=0,
        ),
        "model_rate_limited",
        again=True,
    ),
    "403 for this model": Fault(
        lambda: status(403, "Project `org-x` does not have access to model `gpt-4o`", error_type="model_not_found"),
        "model_rejected",
    ),
    "401 of LiteLLM for this model": Fault(
        lambda: status(
            401,
            "key not allowed to access model. This key can only access models=['ours']. Tried to access gpt-4o",
            error_type="key_model_access_denied",
        ),
        "model_rejected",
    ),
    "400 context_length_exceeded": Fault(lambda: too_long(140_000, 128_000), "prompt_too_long"),
    "400 of the Responses API": Fault(
        lambda: status(
            400, "Your input exceeds the context window of this model.", error_type="context_length_exceeded"
        ),
        "prompt_too_long",
    ),
    "404 model": Fault(
        lambda: status(
            404, "The model `gpt-9` does not exist or you do not have access.", error_type="model_not_found"
        ),
        "model_rejected",
    ),
    "400 prompt filtered": Fault(
        lambda: status(400, "The response was filtered due to the prompt.", error_type="content_filter"),
        "model_refused",
    ),
    "402 of DeepSeek": Fault(lambda: status(402, "Insufficient Balance"), "model_billing"),
    "answer filtered": Fault(lambda: choice({"content": "half"}, "content_filter"), "model_refused"),
    "no choice": Fault(lambda: choice({}, choices=[]), "model_garbage"),
    "an error with 200": Fault(
        lambda: raw(200, {"id": "x", "choices": [], "error": {"code": 502, "message": "Provider returned error"}}),
        "model_error",
    ),
    "thoughts alone": Fault(
        lambda: choice({"content": None, "reasoning_content": "What would they want?"}), "empty_summary"
    ),
    "thoughts in the text alone": Fault(lambda: choice({"content": "<think>hm, hm"}), "empty_summary"),
    "thoughts that took all of the room": Fault(
        lambda: choice({"content": "", "reasoning_content": "hm"}, "length"),
    ),
    "interrupted": Fault(lambda: choice({"content": "half"}, "insufficient_system_resource"), "model_overloaded"),
    "failed on the way": Fault(lambda: choice({"content": "half"}, "error"), "model_error"),
    "content of another type": Fault(lambda: choice({"content": 7}), "model_garbage"),
    "no message": Fault(lambda: choice({}, choices=[{"index": 0, "finish_reason": "stop"}]), "model_garbage"),
}
"""Ways in which servers of Chat Completions go wrong beside those of all."""
