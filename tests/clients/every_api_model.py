"""A model on the loopback interface that speaks the Messages API, Chat Completions and Responses, and refuses as they.

It thinks where it may, signed or encrypted: what it thought is refused when it comes back changed, in another place, to
an API that did not make it, or not at all within the loop it belongs to. Asked for "N rounds" it calls the first tool N
times, "at once" twice a round; asked for the garage's code it calls `recall`; else it answers.
"""

from __future__ import annotations

import json
import re
import threading
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from tests.support import messages_api
from tests.support.servers.loopback_steps import strings
from tests.support.shapes import chat_api, responses_api
from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PATHS: Final = {"/v1/messages": "messages", "/v1/chat/completions": "chat", "/v1/responses": "responses"}
CODE: Final = re.compile(r"\b\d{4}-[A-Z]\b")
_ROUNDS: Final = re.compile(r"(\d+) rounds?")
_OWN_MARK: Final = '"ai_sdk'
"""Begins what an adapter stores beside a message for itself: no API has such a field or type."""


class Request(NamedTuple):
    """What arrived, and what the API would refuse of it."""

    shape: str
    body: dict[str, Any]
    problems: list[str]
    query: str = ""
    answered: bytes = b""


class EveryApiModel:
    """The server; a context manager.

    check: does what is due for the conversation whose id is posted to `/check`.
    context_chars: characters of a body over which a prompt is too long.
    """

    def __init__(self, check: Callable[[str], None], *, context_chars: int = 60_000) -> None:
        self.requests: list[Request] = []
        self._check = check
        self.context_chars = context_chars
        self._ids = count(1)
        self._sealed: dict[str, str] = {}
        self._after_reasoning: set[str] = set()
        self._lock = threading.Lock()
        outer = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                listed = {"object": "list", "data": [{"id": "gpt-5.6", "object": "model", "owned_by": "openai"}]}
                self._send(200, "application/json", json.dumps(listed).encode())

            def do_POST(self) -> None:
                body = json.loads(self.read_body())
                path, _, query = self.path.partition("?")
                self._send(*outer.answer(path, body, query))

            def _send(self, status: int, kind: str, answer: bytes) -> None:
                self.answer(status, answer, {"content-type": kind})

        self._server = ThreadedServer(Handler)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def answer(self, path: str, body: dict[str, Any], query: str = "") -> tuple[int, str, bytes]:
        """Return the status, type and bytes of the answer to a request."""
        if path == "/check":
            self._check(body["conversation"])
            return 200, "application/json", b"{}"
        shape = PATHS[path]
        with self._lock:
            size = len(json.dumps(body, ensure_ascii=False))
            if size > self.context_chars:
                return _refused(shape, size // 4, self.context_chars // 4)
            wrong = [*getattr(self, f"_problems_{shape}")(body), *_own_marks(body)]
            if wrong:
                answer = json.dumps({"error": {"message": "; ".join(wrong)}}).encode()
                self.requests.append(Request(shape, body, wrong, query, answer))
                return 400, "application/json", answer
            whole = self._whole_answer(shape, body)
            answer = ("".join(_EVENTS[shape](whole)) if body.get("stream") else json.dumps(whole)).encode()
            self.requests.append(Request(shape, body, wrong, query, answer))
        return 200, "text/event-stream" if body.get("stream") else "application/json", answer

    def _whole_answer(self, shape: str, body: dict[str, Any]) -> dict[str, Any]:
        whole: dict[str, Any] = getattr(self, f"_{shape}")(body, list(self._wanted(shape, body)))
        return whole

    def _wanted(self, shape: str, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]] | str]:
        """Yield the calls to make, or else the text to say."""
        said, results = newest(shape, body)
        names = [tool.get("name") or tool["function"]["name"] for tool in body.get("tools") or ()]
        codes = CODE.findall(json.dumps([body.get("messages"), body.get("input")]))
        wanted = int(found[1]) if (found := _ROUNDS.search(said)) else 0
        if "garage" in said:
            yield f"It opens with {codes[0]}." if codes else ("recall", {"query": "garage"})
        elif results < wanted * (2 if "at once" in said else 1) and names:
            for _ in range(2 if "at once" in said else 1):
                yield names[0], {"key": f"k{results}"}
        else:
            yield f"Done after {results}."

    def _problems_messages(self, body: dict[str, Any]) -> list[str]:
        ledger = messages_api.ThinkingLedger(body.get("system"), body.get("tools"))
        wrong = messages_api.problems(body["messages"], tools=body.get("tools") or [], ledger=ledger)
        if _is_thinking(body) and not _thinks_in_loop(body["messages"]):
            wrong.append("the loop's thinking is not there")
        return wrong

    def _problems_chat(self, body: dict[str, Any]) -> list[str]:
        return chat_api.problems(body["messages"])

    def _problems_responses(self, body: dict[str, Any]) -> list[str]:
        items = body["input"]
        wrong = responses_api.problems(items, after_reasoning=frozenset(self._after_reasoning))
        thought = [item for item in items if item.get("type") == "reasoning"]
        wrong += [
            f"{item} is none of mine"
            for item in thought
            if self._sealed.get(str(item.get("id"))) != item.get("encrypted_content")
        ]
        if body.get("store") is not False or "reasoning.encrypted_content" not in (body.get("include") or ()):
            wrong.append("what is not stored has to be encrypted")
        return wrong

    def _messages(self, body: dict[str, Any], wanted: Sequence[Any]) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if _is_thinking(body):
            ledger = messages_api.ThinkingLedger(body.get("system"), body.get("tools"))
            content.append({"type": "thinking", "thinking": "Hm.", "signature": ledger.sign(body["messages"])})
        for each in wanted:
            if isinstance(each, str):
                content.append({"type": "text", "text": each})
            else:
                called = {"type": "tool_use", "id": f"toolu_{next(self._ids)}", "name": each[0], "input": each[1]}
                content.append(called)
        reason = "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"
        return {
            "id": f"msg_{next(self._ids)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": _tokens(body), "output_tokens": 9},
        }

    def _chat(self, body: dict[str, Any], wanted: Sequence[Any]) -> dict[str, Any]:
        calls = [
            {
                "id": f"call_{next(self._ids)}",
                "type": "function",
                "function": {"name": each[0], "arguments": json.dumps(each[1])},
            }
            for each in wanted
            if not isinstance(each, str)
        ]
        said = [each for each in wanted if isinstance(each, str)]
        message = {"role": "assistant", "content": said[0] if said else None, "refusal": None}
        choice = {"index": 0, "message": {**message, **({"tool_calls": calls} if calls else {})}}
        usage = {"prompt_tokens": _tokens(body), "completion_tokens": 9, "total_tokens": _tokens(body) + 9}
        return {
            "id": f"chatcmpl-{next(self._ids)}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{**choice, "finish_reason": "tool_calls" if calls else "stop"}],
            "usage": usage,
        }

    def _responses(self, body: dict[str, Any], wanted: Sequence[Any]) -> dict[str, Any]:
        number = next(self._ids)
        self._sealed[f"rs_{number}"] = f"gAAA-{number}"
        thought = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"gAAA-{number}"}
        output: list[dict[str, Any]] = [thought]
        for each in wanted:
            own = {"id": f"it_{next(self._ids)}", "status": "completed"}
            if isinstance(each, str):
                text = {"type": "output_text", "text": each, "annotations": []}
                output.append({"type": "message", **own, "role": "assistant", "content": [text]})
            else:
                called = {"call_id": f"call_{next(self._ids)}", "name": each[0], "arguments": json.dumps(each[1])}
                output.append({"type": "function_call", **own, **called})
        self._after_reasoning.add(output[1]["id"])
        tokens = _tokens(body)
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "model": body["model"],
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 9,
                "output_tokens_details": {"reasoning_tokens": 4},
                "total_tokens": tokens + 9,
            },
        }


def _own_marks(body: dict[str, Any]) -> list[str]:
    return ["a field of the adapter's own"] if _OWN_MARK in json.dumps(body) else []


def _tokens(body: dict[str, Any]) -> int:
    return max(1, len(json.dumps(body, ensure_ascii=False)) // 4)


def _refused(shape: str, tokens: int, limit: int) -> tuple[int, str, bytes]:
    if shape == "messages":
        error = {"type": "invalid_request_error", "message": f"prompt is too long: {tokens} tokens > {limit} maximum"}
        return 400, "application/json", json.dumps({"type": "error", "error": error}).encode()
    said = f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens."
    error = {"message": said, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
    return 400, "application/json", json.dumps({"error": error}).encode()


def newest(shape: str, body: dict[str, Any]) -> tuple[str, int]:
    """Return the newest request's text, and how many results came since."""
    said, results = "", 0
    for message in body["input" if shape == "responses" else "messages"]:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if message.get("role") == "tool" or message.get("type") == "function_call_output":
            results += 1
        elif message.get("role") == "user":
            answered = sum(part.get("type") == "tool_result" for part in parts)
            results += answered
            if len(parts) > answered or isinstance(content, str):
                said, results = "\n".join(strings(content)), 0
    return said, results


def _is_thinking(body: dict[str, Any]) -> bool:
    """Return whether a request to the Messages API asks for thinking."""
    return bool(body.get("thinking")) and body["thinking"]["type"] != "disabled"


def _thinks_in_loop(messages: Sequence[dict[str, Any]]) -> bool:
    """Tell whether the answer that the last results are for begins with what was thought, if this API gave it."""
    last = messages[-1]["content"]
    if not isinstance(last, list) or last[0].get("type") != "tool_result" or "toolu" not in last[0]["tool_use_id"]:
        return True
    return bool(messages[-2]["content"][0]["type"] == "thinking")


def _event(value: dict[str, Any]) -> str:
    return f"event: {value.get('type', 'message')}\ndata: {json.dumps(value)}\n\n"


def _messages_events(whole: dict[str, Any]) -> Iterator[str]:
    yield _event({"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}})
    for index, block in enumerate(whole["content"]):
        at = {"index": index}
        start: dict[str, Any]
        deltas: list[tuple[str, str]]
        if block["type"] == "thinking":
            start = {"thinking": "", "signature": ""}
            deltas = [("thinking", "thinking"), ("signature", "signature")]
        elif block["type"] == "text":
            start, deltas = {"text": ""}, [("text", "text")]
        else:
            start, deltas = {"input": {}}, []
        yield _event({"type": "content_block_start", **at, "content_block": {**block, **start}})
        for name, key in deltas:
            yield _event({"type": "content_block_delta", **at, "delta": {"type": f"{name}_delta", key: block[key]}})
        if block["type"] == "tool_use":
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield _event({"type": "content_block_delta", **at, "delta": delta})
        yield _event({"type": "content_block_stop", **at})
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": ending, "usage": whole["usage"]})
    yield _event({"type": "message_stop"})


def _chat_events(whole: dict[str, Any]) -> Iterator[str]:
    own: dict[str, Any] = {
        **{name: whole[name] for name in ("id", "created", "model")},
        "object": "chat.completion.chunk",
    }
    (choice,) = whole["choices"]
    message = choice["message"]
    calls = [{"index": index, **each} for index, each in enumerate(message.get("tool_calls") or ())]
    delta: dict[str, Any] = {
        "role": "assistant",
        "content": message["content"],
        **({"tool_calls": calls} if calls else {}),
    }
    ends: list[tuple[dict[str, Any], Any]] = [(delta, None), ({}, choice["finish_reason"])]
    for part, reason in ends:
        yield f"data: {json.dumps({**own, 'choices': [{'index': 0, 'delta': part, 'finish_reason': reason}]})}\n\n"
    yield f"data: {json.dumps({**own, 'choices': [], 'usage': whole['usage']})}\n\ndata: [DONE]\n\n"


def _responses_events(whole: dict[str, Any]) -> Iterator[str]:
    number = count()

    def event(kind: str, **fields: Any) -> str:
        return _event({"type": f"response.{kind}", "sequence_number": next(number), **fields})

    begun = {**whole, "output": [], "status": "in_progress", "usage": None}
    yield event("created", response=begun)
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index}
        empty: dict[str, Any] = {"reasoning": {}, "message": {"content": []}, "function_call": {"arguments": ""}}
        yield event("output_item.added", **at, item={**item, **empty[item["type"]]})
        own = {**at, "item_id": item["id"]}
        if item["type"] == "message":
            (part,) = item["content"]
            yield event("content_part.added", **own, content_index=0, part={**part, "text": ""})
            yield event("output_text.delta", **own, content_index=0, delta=part["text"], logprobs=[])
            yield event("output_text.done", **own, content_index=0, text=part["text"], logprobs=[])
            yield event("content_part.done", **own, content_index=0, part=part)
        elif item["type"] == "function_call":
            yield event("function_call_arguments.delta", **own, delta=item["arguments"])
            yield event("function_call_arguments.done", **own, arguments=item["arguments"], name=item["name"])
        yield event("output_item.done", **at, item=item)
    yield event("completed", response=whole)


_EVENTS: Final = {"messages": _messages_events, "chat": _chat_events, "responses": _responses_events}
