"""What the demo found out: events while it plays, what survived compaction, and the sums it ends with."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.messages import blocks
from compaction.steps.runs import StepState
from compaction.tokens import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.client.types import Run, RunStep
    from cli.demo.scenario import Scenario
    from compaction.policy import Policy

SUMMARY_STEP: Final = "summary"


class Event(msgspec.Struct, frozen=True):
    """One step of a run, seen after the turn of that number; tokens and messages of the context around it."""

    turn: int
    run_id: str
    step: str
    state: str
    reason: str | None
    tokens_before: int | None
    tokens_after: int | None
    messages_before: int | None
    messages_after: int | None
    results_cut: int | None
    summarizer: str | None
    snapshot_version: int | None

    @property
    def is_commit(self) -> bool:
        """Whether the step made a snapshot."""
        return self.state == StepState.COMMITTED

    @property
    def what(self) -> str:
        """What was compacted, in a few words."""
        name = self.step.replace("_", " ")
        if not self.is_commit:
            return f"{name} {self.state}: {self.reason or 'no reason given'}"
        if self.results_cut:
            return f"{self.results_cut} tool results cut"
        gone = (self.messages_before or 0) - (self.messages_after or 0)
        by = f" ({self.summarizer})" if self.summarizer else ""
        return f"{name}{by} for {gone} messages"

    def kept(self, policy: Policy) -> str:
        """Return what the step left alone, in a few words."""
        if not self.is_commit:
            return ""
        if self.results_cut:
            return f"the newest, {policy.tool_result_retention_chars} characters of each"
        if self.step == SUMMARY_STEP:
            return f"the first request, the newest {policy.protected_tail_messages} messages"
        return f"the newest {self.messages_after or policy.max_conversation_messages} messages"


def events_of(turn: int, run: Run) -> list[Event]:
    """Return a run's steps as events, and the run itself where it took none."""
    return [_event(turn, run, step) for step in run.steps] or [_event(turn, run, None)]


def _event(turn: int, run: Run, step: RunStep | None) -> Event:
    source = step or run
    return Event(
        turn=turn,
        run_id=run.id,
        step=step.name if step else "run",
        state=source.state,
        reason=source.reason,
        tokens_before=source.tokens_before,
        tokens_after=source.tokens_after,
        messages_before=source.messages_before,
        messages_after=source.messages_after,
        results_cut=step.results_cut if step else None,
        summarizer=step.summarizer if step else None,
        snapshot_version=source.snapshot_version,
    )


class Survival(msgspec.Struct, frozen=True):
    """How much of what matters can still be read somewhere: found and wanted, each."""

    first_criteria: tuple[int, int]
    later_criteria: tuple[int, int]
    scores: tuple[int, int]
    urls: tuple[int, int]


def survival(scenario: Scenario, place: Sequence[Any], said: Sequence[Any]) -> Survival:
    """Count what `said` established and `place` still holds; both are messages."""
    there, then = plain_text(place), plain_text(said)

    def count(wanted: Sequence[str]) -> tuple[int, int]:
        known = [phrase for phrase in wanted if phrase in then]
        return sum(phrase in there for phrase in known), len(known)

    scored = [vacancy for vacancy in scenario.scored if f"({vacancy.id}): {vacancy.score}/100" in then]
    rows = [line for line in there.split("\n") if "/100" in line or line.startswith("| ")]
    kept = sum(any(each.id in row and str(each.score) in row for row in rows) for each in scored)
    return Survival(
        first_criteria=count(scenario.criteria),
        later_criteria=count(scenario.refined_criteria),
        scores=(kept, len(scored)),
        urls=count([vacancy.url for vacancy in scored]),
    )


def plain_text(messages: Sequence[Any]) -> str:
    """Return everything that can be read in messages: text, tool input and tool results."""
    return "\n".join(_block_text(block) for message in messages for block in blocks(message["content"]))


def _block_text(block: Any) -> str:
    match block.get("type"):
        case "tool_use":
            return json_text(block.get("input")).replace("\\n", "\n")
        case "tool_result":
            return "\n".join(_block_text(part) for part in blocks(block.get("content")))
        case _:
            return str(block.get("text", ""))


class Recollection(msgspec.Struct, frozen=True):
    """A question, the handle that the context has in the place of its answer, and what recall gave back."""

    question: str
    handle: str
    call: dict[str, Any]
    answer: str
    """A sentence of an original that is nowhere in the context."""
    ref: str
    characters: int
    """Of the original."""
    is_found: bool
    """Whether what came back has that sentence."""
    milliseconds: float


class Report(msgspec.Struct, frozen=True):
    """What the demo ends with; tokens by characters / 4, money in dollars at the accounting's prices."""

    conversation_id: str
    turns: int
    messages_stored: int
    tokens_stored: int
    messages_in_context: int
    tokens_in_context: int
    largest_call: int
    largest_call_uncompacted: int
    window_tokens: int
    window_passed_at_turn: int | None
    """The turn whose call would not have fitted the model's window without compaction."""
    input_tokens: int
    input_tokens_uncompacted: int
    usd: Decimal
    usd_uncompacted: Decimal
    usd_cached: Decimal
    usd_cached_uncompacted: Decimal
    runs: dict[str, int]
    events: list[Event]
    in_summary: Survival | None
    in_context: Survival
    recalled: Recollection | None
    """What was asked in the end; None where nothing of what could be asked was cut."""
    seconds: float
