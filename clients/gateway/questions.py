"""What every program here asks through the gateway, and the one tool that it offers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

URL: Final = os.environ["GATEWAY_URL"]
KEY: Final = os.environ["PALIMPSEST_KEY"]
QUESTIONS: Final[list[str]] = json.loads(os.environ["GATEWAY_QUESTIONS"])
SCHEMA: Final = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


def look_up(key: str) -> str:
    """Look a row up."""
    return f"Row {key}: " + "lorem ipsum dolor sit amet " * 60


def ask_all(ask: Callable[[str, bool], str]) -> None:
    """Ask one question after the other, every second one streamed; print the answers."""
    print(json.dumps([ask(question, bool(number % 2)) for number, question in enumerate(QUESTIONS)]))  # noqa: T201
