"""Handles over HTTP where a text lost its middle or gave way to a line: in a snapshot, or in one context alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

ANSWER: Final = "It begins. " + "An answer goes on. " * 1_000 + "It ends."
FLIGHTS: Final = "TP 1363, 07:05\n" + "TP 99, late\n" * 1_000
PRUNES: Final = {
    "input_token_budget": 0,
    "compaction_enabled": False,
    "model_context_tokens": 16_000,
    "min_savings_tokens": 1,
    "prune_min_freed_tokens": 0,
    "prune_soft_share": 0.001,
    "prune_head_chars": 100,
    "prune_tail_chars": 50,
}
GAP: Final = re.compile(r'\n\[flights "LIS", +([\d,]+) characters between are stored but not shown: recall (m2\.0)\]\n')
SAID: Final = re.compile(r"\n\[ *([\d,]+) characters between are stored but not shown: recall (m1)\]\n")
CLEARED: Final = re.compile(r'\[cleared: flights "LIS", ([\d,]+) characters: recall (m2\.0)\]')


def talk(service: Service, policy: dict[str, Any]) -> str:
    """A conversation in which a tool was called, and another one after it."""
    path = service.conversation(policy={"recall_handles": True} | policy)
    for number, (name, found) in enumerate((("flights", FLIGHTS), ("hotels", "None."))):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {"to": "LIS"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": found}
        service.append(
            path,
            *([{"role": "user", "content": "Find me a flight to Lisbon."}] if number == 0 else []),
            {"role": "assistant", "content": [{"type": "text", "text": ANSWER if number == 0 else "And?"}, call]},
            {"role": "user", "content": [result]},
        )
    return path


def recalled(service: Service, path: str, ref: str) -> str:
    answer = service.client.post(f"{path}/recall", json={"ref": ref, "max_tokens": 20_000}).json()
    assert not answer["more"]
    return "".join(part["text"] for passage in answer["passages"] for part in passage["parts"])


@pytest.mark.parametrize("hard_share", [0.001, 1])
def test_what_was_pruned_is_had_back_by_its_handle(service: Service, hard_share: float) -> None:
    path = talk(service, PRUNES | {"prune_hard_share": hard_share})
    work(service.settings, path)
    messages = service.client.get(f"{path}/context").json()["messages"]
    shown = messages[2]["content"][0]["content"]
    if hard_share < 1:
        handle = CLEARED.fullmatch(shown)
        assert handle is not None, shown
        assert int(handle[1].replace(",", "")) == len(FLIGHTS)
        assert recalled(service, path, handle[2]) == FLIGHTS
    else:
        assert_gap(service, path, GAP, shown, FLIGHTS)


@pytest.mark.parametrize("call", ["GET", "POST"])
def test_what_lost_its_middle_in_one_context_is_had_back_by_its_handle(service: Service, call: str) -> None:
    budget = {"total_token_budget": 4_000, "reserved_output_tokens": 100, "input_token_budget": 0}
    path = service.conversation(policy={"recall_handles": True, "compaction_enabled": False} | budget)
    made = {"type": "tool_use", "id": "toolu_0", "name": "flights", "input": {"to": "LIS"}}
    service.append(
        path,
        {"role": "user", "content": "Find me a flight to Lisbon."},
        {"role": "assistant", "content": [{"type": "text", "text": ANSWER}, made]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_0", "content": FLIGHTS}]},
    )
    answer = service.client.request(call, f"{path}/context", json={} if call == "POST" else None)
    assert answer.status_code == 200, answer.text
    messages = answer.json()["messages"]
    marker = "[truncated for context management]"
    assert_gap(service, path, SAID, messages[1]["content"][0]["text"].removesuffix(marker), ANSWER)
    assert_gap(service, path, GAP, messages[2]["content"][0]["content"].removesuffix(marker), FLIGHTS)
    assert service.client.request(call, f"{path}/context", json={} if call == "POST" else None).json() == answer.json()


def assert_gap(service: Service, path: str, note: re.Pattern[str], shown: str, whole: str) -> None:
    """Assert that a shown text lost exactly what its note says, and that recall gives the whole of it."""
    handle = note.search(shown)
    assert handle is not None, shown
    head, tail = shown[: handle.start()], shown[handle.end() :]
    hidden = int(handle[1].replace(",", ""))
    assert (head, tail) == (whole[: len(head)], whole[len(head) + hidden :])
    assert whole in recalled(service, path, handle[2])
