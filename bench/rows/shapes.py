"""Rows of shapes: turns and contexts of Chat Completions and Responses against the same said in the Messages API's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench import data
from bench.load.http_load import load, store_turn
from bench.measure import Row, interleave, pair
from bench.rows.http import append_request, context_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measure import Sample
    from bench.plan import Plan

CALLS: Final = 12
CHARS: Final = 1_000
"""Characters of each text and tool result in the conversations whose contexts are read."""
SHAPES: Final = ("messages", "chat", "responses")


def shapes(plan: Plan) -> list[Row]:
    """POST a turn and GET a context in each other shape, served as it came, against the Messages API's."""
    return [*_appends(plan), *_contexts(plan)]


def _appends(plan: Plan) -> list[Row]:
    servers, api = plan.servers, plan.servers.api()
    each = plan.conversations // 10
    groups = {shape: data.Group(data.SHAPES + 1_000_000 * number, each) for number, shape in enumerate(SHAPES)}
    with servers.connect() as connection:
        for group in groups.values():
            data.add_conversations(connection, servers.tenant_id, group)
    request, answer = data.prose(400), data.prose(950)
    bodies = {
        "messages": [_said("user", request), {"role": "assistant", "content": [{"type": "text", "text": answer}]}],
        "chat": [_said("user", request), _said("assistant", answer)],
        "responses": [_item("user", "input_text", request), _item("assistant", "output_text", answer)],
    }

    def side(shape: str) -> Sample:
        body = data.json_text({"shape": shape, "messages": bodies[shape]})
        return load(servers, api, append_request(body), groups[shape], plan.seconds)

    with servers.checks_cleared():
        return _rows(plan, "append", "POST …/turns, 2 messages", side)


def _contexts(plan: Plan) -> list[Row]:
    servers, api = plan.servers, plan.servers.api()
    each = plan.conversations // 100
    groups = {shape: data.Group(data.SHAPES + 1_000_000 * number, each) for number, shape in enumerate(SHAPES, 3)}
    with servers.connect() as connection:
        for group in groups.values():
            data.add_conversations(connection, servers.tenant_id, group)
    texts = [data.prose(CHARS) for _ in range(CALLS + 2)]
    for shape, messages in (("messages", _messages), ("chat", _chat), ("responses", _responses)):
        store_turn(api, groups[shape], data.json_text({"shape": shape, "messages": messages(texts)}))

    def side(shape: str) -> Sample:
        return load(servers, api, context_request(), groups[shape], plan.seconds)

    return _rows(plan, "context", f"GET …/context, {CALLS} tool results", side)


def _rows(plan: Plan, name: str, what: str, side: Callable[[str], Sample]) -> list[Row]:
    sides = {shape: partial(side, shape) for shape in SHAPES}
    samples = interleave(sides, plan.rounds, warmed=plan.servers.analyze)
    return [
        Row(
            name=f"{name}-{shape}",
            what=what,
            measured=shape,
            reference="messages",
            unit="/s",
            samples=pair(samples, shape, "messages"),
        )
        for shape in SHAPES[1:]
    ]


def _messages(texts: list[str]) -> list[dict[str, Any]]:
    messages = [_said("user", texts[0])]
    for number, text in enumerate(texts[1:-1]):
        call = {"type": "tool_use", "id": f"t{number}", "name": "search", "input": {"query": "words"}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return [*messages, _said("assistant", texts[-1])]


def _chat(texts: list[str]) -> list[dict[str, Any]]:
    messages = [_said("user", texts[0])]
    for number, text in enumerate(texts[1:-1]):
        function = {"name": "search", "arguments": '{"query":"words"}'}
        call = {"id": f"t{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"t{number}", "content": text},
        ]
    return [*messages, _said("assistant", texts[-1])]


def _responses(texts: list[str]) -> list[dict[str, Any]]:
    items = [_item("user", "input_text", texts[0])]
    for number, text in enumerate(texts[1:-1]):
        items += [
            {"type": "function_call", "call_id": f"t{number}", "name": "search", "arguments": '{"query":"words"}'},
            {"type": "function_call_output", "call_id": f"t{number}", "output": text},
        ]
    return [*items, _item("assistant", "output_text", texts[-1])]


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _item(role: str, part: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}
