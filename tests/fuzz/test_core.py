"""Turns with a changed structure: refused with a pointer, or stored and valid ever after.

`make fuzz` searches for longer, with random seeds: here is a sixth of what other properties are tried with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.core import invariants
from tests.fuzz.turn_calls import Turns, lives_of_turns

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

INVARIANTS = invariants()
EXAMPLES: Final = settings().max_examples // 6
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
FOUND: dict[str, list[Any]] = {
    "a call made into a summary": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{**CALL, "type": "compaction"}, {**CALL, "id": "toolu_2"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_2", "content": "a"}]},
    ],
    "a summary of no text": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "compaction", "content": ""}, {"type": "text", "text": "Yes."}]},
    ],
    "a summary signed by a number": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "compaction", "content": "a", "signature": 5}]},
    ],
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", INVARIANTS)
def test_an_invariant_holds_for_whatever_the_door_takes(name: str) -> None:
    drawn, holds = INVARIANTS[name]

    @settings(max_examples=EXAMPLES)
    @given(drawn)
    def holds_for(example: Any) -> None:
        holds(example)

    holds_for()


@pytest.mark.parametrize("name", FOUND)
def test_what_a_longer_search_has_found(service: Service, name: str) -> None:
    for size in (1, len(FOUND[name])):
        turns = [FOUND[name][start : start + size] for start in range(0, len(FOUND[name]), size)]
        Turns(service).live(["messages", {}, *turns], 0)


@settings(max_examples=EXAMPLES)
@given(turns=lives_of_turns(), number=st.integers(0, 2**16))
def test_any_turns_are_refused_with_a_pointer_or_served_validly(
    service: Service, turns: list[Any], number: int
) -> None:
    Turns(service).live(turns, number)
