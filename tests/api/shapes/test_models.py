"""What a model thought goes back to that model alone: another one, in the same shape, is not shown it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from compaction.steps.snapshot import STRIPPED
from tests.api.shapes.test_shapes import KEY, append, problems_of, served
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

SECRET: Final = "What only its own model can read."
CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
LOOPS: Final[dict[str, list[dict[str, Any]]]] = {
    "messages": [
        {"role": "user", "content": "Lisbon?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": SECRET, "signature": "c2lnbmVk"},
                {"type": "tool_use", "id": "call_1", "name": "search", "input": {}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "TP 1363"}]},
    ],
    "chat": [
        {"role": "user", "content": "Lisbon?"},
        {"role": "assistant", "content": None, "reasoning_content": SECRET, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "TP 1363"},
    ],
    "responses": [
        {"role": "user", "content": "Lisbon?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SECRET},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "TP 1363"},
    ],
}
ANSWER: Final = {"role": "assistant", "content": "TP 1363."}


def post(service: Service, path: str, shape: str, *messages: Any) -> None:
    answer = append(service, path, tuple(map(json.dumps, messages)), shape=shape)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("shape", sorted(LOOPS))
def test_another_model_is_not_shown_what_the_one_before_thought(service: Service, shape: str) -> None:
    path = service.conversation(model="first")
    post(service, path, shape, *LOOPS[shape])
    assert SECRET in served(service, path).text
    service.client.patch(path, json={"model": "first"})
    assert SECRET in served(service, path).text

    service.client.patch(path, json={"model": "second"})

    answer = served(service, path)
    assert SECRET not in answer.text
    assert "TP 1363" in answer.text
    assert STRIPPED in answer.json()["warnings"]
    assert problems_of(shape, answer.json()) == []
    newer = [
        json.loads(json.dumps(each).replace("call_1", "call_2").replace(SECRET, "Newer.")) for each in LOOPS[shape]
    ]
    post(service, path, shape, *newer)
    text = served(service, path).text
    assert SECRET not in text
    assert "Newer." in text


@pytest.mark.parametrize("shape", sorted(LOOPS))
def test_nor_what_a_snapshot_kept_of_it(service: Service, shape: str) -> None:
    policy = {"input_token_budget": 400, "min_savings_tokens": 20, "protected_tail_messages": 2}
    path = service.conversation(model="first", policy=policy)
    post(service, path, shape, *LOOPS[shape], ANSWER)
    later = (
        json.dumps(LOOPS[shape]).replace("call_1", "call_2").replace("TP 1363", "row " * 900).replace(SECRET, "Later")
    )
    post(service, path, shape, *json.loads(later), ANSWER)
    newest = json.dumps(LOOPS[shape]).replace("call_1", "call_3").replace(SECRET, "Newest")
    post(service, path, shape, *json.loads(newest), ANSWER)
    work(service.settings, path)
    before = served(service, path)
    assert before.json()["snapshot"] is not None
    assert SECRET in before.text, "its prefix is as it was"
    assert before.json()["warnings"] == [STRIPPED], "an item of reasoning is no message that was dropped"

    service.client.patch(path, json={"model": "second"})

    for target in KEY:
        answer = served(service, path, target)
        assert SECRET not in answer.text
        assert problems_of(target, answer.json()) == []
    fork = service.client.post(f"{path}/fork", json={"through_seq": before.json()["last_seq"]}).json()["id"]
    assert SECRET not in served(service, f"/v1/conversations/{fork}").text
