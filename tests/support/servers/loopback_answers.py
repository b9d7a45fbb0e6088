"""A step that answers questions about a context, by the words that lines share with them, recalling where it may."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tests.support.servers.loopback_steps import ok, strings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.servers.loopback_http import Answering
    from tests.support.servers.loopback_steps import Step

_JUDGED: Final = "Answer to judge:"
_ASKED: Final = "asked one question about the conversation"
"""In the instructions of a question."""
_NAMED: Final = re.compile(r"[a-z] [A-Z][a-z]+")
_SUMMARY_LINES: Final = 20


def answers(verdict: str = "RIGHT") -> Step:
    """Answer a question with the line that shares the most of its words, UNKNOWN where none does.

    Where recall is declared and was not called, it is called with the question; a judge's question gets `verdict`,
    anything else lines of what is to be summarized.
    """

    def step(answering: Answering) -> None:
        body = answering.received.body
        if _JUDGED in " ".join(strings(body["messages"][-1]["content"])):
            return ok(verdict)(answering)
        if _ASKED not in " ".join(_instructions(body)):
            return _summary(answering)
        said = [message for message in body["messages"] if message["role"] != "system"]
        shown = [text for message in said for text in strings(message.get("content"))]
        results = [text for text in shown if text.startswith("<recalled ")]
        question = next(text for text in reversed(shown) if text not in results)
        if body.get("tools") and not results:
            call = {"type": "tool_use", "id": f"toolu_{answering.received.index}", "name": "recall"}
            return ok("", content=[{**call, "input": {"query": question}}], stop_reason="tool_use")(answering)
        return ok(_nearest(question, [text for text in shown if text != question]))(answering)

    return step


def _summary(answering: Answering) -> None:
    """Answer with the sentences of the prompt that tell of a name."""
    lines = [line for text in strings(answering.received.body["messages"][-1]["content"]) for line in text.splitlines()]
    told = [line.strip() for line in lines if _NAMED.search(line)]
    ok("What was said:\n" + "\n".join(told[:_SUMMARY_LINES]))(answering)


def _instructions(body: Mapping[str, Any]) -> list[str]:
    of_role = (text for m in body["messages"] if m["role"] == "system" for text in strings(m["content"]))
    return [*strings(body.get("system")), *of_role]


def _nearest(question: str, texts: Sequence[str]) -> str:
    wanted = _words(question)
    shared = [(len(wanted & _words(line)), line) for text in texts for line in text.splitlines()]
    most, line = max(shared, key=lambda pair: pair[0], default=(0, ""))
    return line[:300] if most else "UNKNOWN"


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))
