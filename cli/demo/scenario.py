"""The demo's conversation in the shapes that the command line posts."""

from __future__ import annotations

from typing import Any

import msgspec

from api.console.demo import story
from api.console.demo.pages import Vacancy
from cli.client.types import Message
from cli.transcripts.readers import Turn
from cli.transcripts.shaped import in_shape
from compaction.recall.tool import definition
from compaction.shapes.inner import Shape


class ScenarioTurn(msgspec.Struct, frozen=True):
    """One turn of the story with a few words on what happens in it."""

    label: str
    turn: Turn


class Scenario(msgspec.Struct, frozen=True):
    """The whole conversation, and what is worth finding again in its final context."""

    system: str
    tools: tuple[dict[str, Any], ...]
    turns: tuple[ScenarioTurn, ...]
    criteria: tuple[str, ...]
    refined_criteria: tuple[str, ...]
    scored: tuple[Vacancy, ...]
    shape: Shape = "messages"


def job_search(seed: int = story.SEED, shape: Shape = "messages") -> Scenario:
    """Return the conversation in a shape; the same seed always gives the same bytes."""
    script = story.job_search(seed)
    turns = tuple(
        ScenarioTurn(each.label, Turn(tuple(in_shape(map(_message, each.messages), shape)))) for each in script.turns
    )
    # Declared from the first call on: a tool that comes later makes the prompt cache begin anew.
    tools = (*script.tools, definition(shape))
    return Scenario(script.system, tools, turns, script.criteria, script.refined_criteria, script.scored, shape)


def _message(message: dict[str, Any]) -> Message:
    return Message(role=message["role"], content=msgspec.Raw(msgspec.json.encode(message["content"])))
