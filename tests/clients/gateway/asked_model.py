"""The model behind the gateway: what clients of all kinds ask it, answered by what is in the newest question."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tests.clients.every_api_model import EveryApiModel, newest
from tests.support import messages_api
from tests.support.shapes import responses_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWN_COMPACTION: Final = re.compile(r"TEXT ONLY|CONTEXT CHECKPOINT|summary of (?:the|our) conversation", re.IGNORECASE)
"""In what clients ask when they compact by themselves."""
SUMMARY: Final = "The user had rows looked up."
_ROUNDS: Final = re.compile(r"(\d+) rounds?( at once)?")


class AskedModel(EveryApiModel):
    """As every API's; it calls the tool of each client that gives a long result.

    call: returns the name and the input for the n-th call, of the names that are offered; None for none.
    is_strict: whether what was thought has to come back as it was signed.
    """

    def __init__(
        self, call: Callable[[list[str], int], tuple[str, dict[str, Any]] | None], *, is_strict: bool = True
    ) -> None:
        super().__init__(lambda _: None, context_chars=100_000_000)
        self._call = call
        self._calls = 0
        self._is_strict = is_strict

    def _wanted(self, shape: str, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]] | str]:
        said, results = newest(shape, body)
        names = [str(tool.get("name") or tool.get("function", {}).get("name")) for tool in body.get("tools") or ()]
        *_, asked = [None, *_ROUNDS.finditer(said)]
        at_once = 2 if asked and asked[2] else 1
        wanted = int(asked[1]) * at_once if asked and not OWN_COMPACTION.search(said) else 0
        for _ in range(at_once if results < wanted else 0):
            call = self._call(names, self._calls + 1)
            if call is not None:
                self._calls += 1
                wanted = -1
                yield call
        if wanted >= 0:
            yield SUMMARY if OWN_COMPACTION.search(said) else f"Done after {results}."

    def _problems_messages(self, body: dict[str, Any]) -> list[str]:
        if self._is_strict:
            return super()._problems_messages(body)
        return messages_api.problems(body["messages"], tools=body.get("tools") or [])

    def _problems_responses(self, body: dict[str, Any]) -> list[str]:
        if self._is_strict:
            return super()._problems_responses(body)
        rows = body["input"] if isinstance(body["input"], list) else []
        return responses_api.problems(rows, after_reasoning=frozenset(self._after_reasoning))
