"""The recall tool in the shapes of the model APIs: what a model called it with, and the result that it is given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from palimpsest_client.calls import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS: Final = frozenset({"query", "ref", "pattern", "offset"})
"""What the tool's definition has a model give."""


class Call(NamedTuple):
    """A model's call of the tool: its id, what it asks, and how its result looks."""

    id: str
    asked: dict[str, Any]
    shape: str

    def result(self, text: str, *, is_error: bool = False) -> dict[str, Any]:
        """Return the result as the API of the call's shape takes it."""
        if self.shape == "messages":
            result = {"type": "tool_result", "tool_use_id": self.id, "content": text}
            return {**result, "is_error": True} if is_error else result
        if self.shape == "chat":
            return {"role": "tool", "tool_call_id": self.id, "content": text}
        return {"type": "function_call_output", "call_id": self.id, "output": text}


def read_call(call: Any) -> Call:
    """Return a call of the tool: a `tool_use` block, an item of `tool_calls`, or a `function_call` item.

    Objects of the model libraries are taken as well as dictionaries. What a model gave beyond the tool's fields is
    left out, and arguments that are no JSON ask nothing: the service says what is wrong with that.
    """
    given: Mapping[str, Any] = plain(call)
    if given.get("type") == "tool_use":
        return Call(str(given["id"]), _asked(given.get("input")), "messages")
    if given.get("type") == "function_call":
        return Call(str(given["call_id"]), _asked(given.get("arguments")), "responses")
    return Call(str(given["id"]), _asked(plain(given["function"]).get("arguments")), "chat")


def _asked(arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {}
    if not isinstance(arguments, dict):
        return {}
    return {name: value for name, value in arguments.items() if name in FIELDS and value is not None}
