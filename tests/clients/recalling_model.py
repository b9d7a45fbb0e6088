"""A model on the loopback interface that recalls what it does not see, and answers with what it got."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok, strings

if TYPE_CHECKING:
    from tests.support.servers.loopback_http import Answering

CODE: Final = re.compile(r"\b\d{4}-[A-Z]\b")
CONTEXT_TOKENS: Final = 4_000
"""Fewer than the tests' conversations have, so that what is old leaves their contexts."""


def _answer(answering: Answering) -> None:
    body = answering.received.body
    seen = CODE.findall(answering.received.prompt)
    last = body["messages"][-1]["content"]
    if seen:
        ok(f"It opens with {seen[0]}.")(answering)
    elif isinstance(last, list) and any(block["type"] == "tool_result" for block in last):
        ok("I do not remember.")(answering)
    else:
        # Of two calls the first asks wrongly: its result says so, and the second is answered all the same.
        calls: list[dict[str, Any]] = [
            {"type": "tool_use", "id": f"toolu_{number}", "name": body["tools"][0]["name"], "input": given}
            for number, given in enumerate([{"pattern": "("}, {"query": "garage"}])
        ]
        ok("", stop_reason="tool_use", content=calls)(answering)


def recalling_model() -> LoopbackModel:
    """Return the model; it is asked for a code that stands in a message which is no longer in view."""
    return LoopbackModel(default=_answer, context_tokens=CONTEXT_TOKENS)


def check_recalled(model: LoopbackModel, tool: dict[str, Any]) -> None:
    """Check what the model was sent: the tool in each request, and the original only as the tool's result."""
    answered = [each for each in model.requests if each.status == 200]
    asking, answering = answered
    for each in answered:
        assert each.body["tools"][0].items() >= tool.items()
    assert not CODE.search(asking.prompt)
    refused, recalled = answering.body["messages"][-1]["content"]
    assert [refused["type"], recalled["type"]] == ["tool_result", "tool_result"]
    assert refused["is_error"]
    (text,) = strings([recalled])
    assert text.startswith("<recalled refs=")
    assert "The garage opens with 4711-B." in text
