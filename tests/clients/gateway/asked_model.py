"""The model behind the gateway: what clients of all kinds ask it, answered by what is in the newest question."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.clients.every_api_model import EveryApiModel, newest
from tests.support import messages_api
from tests.support.shapes import responses_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWN_COMPACTION: Final = re.compile(r"TEXT ONLY|CONTEXT CHECKPOINT|summary of (?:the|our) conversation", re.IGNORECASE)
"""In what clients ask when they compact by themselves."""
SUMMARY: Final = "The user had rows looked up."
_ROUNDS: Final = re.compile(r"(\d+) rounds?( at once)?")
_CALL_ID: Final = re.compile(r"\b(?:toolu|call)_\d+\b")


class ToolLoop(NamedTuple):
    """The loop of calls that a request is in."""

    wanted: int
    """Results that its question asks for."""
    at_once: int
    """Calls of one answer."""
    results: int
    """Results that have come."""


class AskedModel(EveryApiModel):
    """As every API's; it calls the tool of each client that gives a long result.

    It remembers the loops of its calls, as a compacted request lacks the first rounds of a running loop.

    call: returns the name and the input for the n-th call, of the names that are offered; None for none.
    is_strict: whether what was thought has to come back as it was signed.
    """

    def __init__(
        self, call: Callable[[list[str], int], tuple[str, dict[str, Any]] | None], *, is_strict: bool = True
    ) -> None:
        super().__init__(lambda _: None, context_chars=100_000_000)
        self._call = call
        self._calls = 0
        self._loops: dict[str, ToolLoop] = {}
        self._is_strict = is_strict

    def _whole_answer(self, shape: str, body: dict[str, Any]) -> dict[str, Any]:
        whole = super()._whole_answer(shape, body)
        loop = self._loop_of(shape, body)
        called = _CALL_ID.findall(json.dumps(whole))
        self._loops |= dict.fromkeys(called, loop._replace(results=loop.results + len(called)))
        return whole

    def _wanted(self, shape: str, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]] | str]:
        loop = self._loop_of(shape, body)
        names = [str(tool.get("name") or tool.get("function", {}).get("name")) for tool in body.get("tools") or ()]
        has_called = False
        for _ in range(loop.at_once if loop.results < loop.wanted else 0):
            call = self._call(names, self._calls + 1)
            if call is not None:
                self._calls += 1
                has_called = True
                yield call
        if not has_called:
            said, _ = newest(shape, body)
            yield SUMMARY if OWN_COMPACTION.search(said) else f"Done after {loop.results}."

    def _loop_of(self, shape: str, body: dict[str, Any]) -> ToolLoop:
        """Return the loop of the call that the newest row answers, else the one that the newest question begins."""
        newest_row = json.dumps(body["input" if shape == "responses" else "messages"][-1])
        for called in _CALL_ID.findall(newest_row):
            if called in self._loops:
                return self._loops[called]
        said, results = newest(shape, body)
        *_, asked = [None, *_ROUNDS.finditer(said)]
        if asked is None or OWN_COMPACTION.search(said):
            return ToolLoop(0, 0, results)
        at_once = 2 if asked[2] else 1
        return ToolLoop(int(asked[1]) * at_once, at_once, results)

    def _problems_messages(self, body: dict[str, Any]) -> list[str]:
        if self._is_strict:
            return super()._problems_messages(body)
        return messages_api.problems(body["messages"], tools=body.get("tools") or [])

    def _problems_responses(self, body: dict[str, Any]) -> list[str]:
        if self._is_strict:
            return super()._problems_responses(body)
        rows = body["input"] if isinstance(body["input"], list) else []
        return responses_api.problems(rows, after_reasoning=frozenset(self._after_reasoning))
