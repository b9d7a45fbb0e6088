"""Contexts over their budget are full, whichever call asks for them: a unit that does not fit whole is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from compaction.repair import repair
from compaction.shorten.fitting import fit_history
from compaction.tokens import content_tokens
from compaction.view import ViewMessage
from tests.support import talk
from tests.support.messages_api import problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.blocks import Message
    from tests.support.service.running_api import Service


def calls(count: int, text: str = "") -> Message:
    given = {"path": "a.py", "content": text} if text else {}
    content = [{"type": "tool_use", "id": f"t{n}", "name": "read", "input": given} for n in range(count)]
    return {"role": "assistant", "content": content}


def results(count: int, chars: int) -> Message:
    content = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": f"{n} " + "r" * chars} for n in range(count)]
    return {"role": "user", "content": content}


ANSWERED = [talk.answer("I have read them."), talk.request("And now?")]
SHAPES: dict[str, Sequence[Message]] = {
    "parallel results": [talk.request("Read all."), calls(13), results(13, 40_000), *ANSWERED],
    "a long input": [talk.request("Write it."), calls(1, "i" * 700_000), results(1, 10), *ANSWERED],
    "a long answer": [talk.request("Write it."), talk.answer("essay", 180_000), talk.request("Go on.")],
    "a long request": [talk.request("Read this.", 180_000), *ANSWERED],
    "many rounds": [talk.request("Fix it."), *talk.rounds(60, 4_000), *ANSWERED],
    "an older exchange of many rounds": [
        *[talk.request("Fix it."), *talk.rounds(60, 4_000), talk.answer("Fixed.")],
        *talk.exchanges(3, 2_000),
    ],
    "long results behind a talk": [
        *talk.exchanges(20, 1_000),
        *[talk.request("Read all."), calls(13), results(13, 39_000), *ANSWERED],
    ],
}


@pytest.mark.parametrize("model_tokens", [16_000, 64_000, 128_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_context_is_as_full_as_its_budget_allows(service: Service, shape: str, model_tokens: int) -> None:
    """What the database reads of a long tail is all that is needed to fill the budget."""
    messages = SHAPES[shape]
    policy = {"total_token_budget": model_tokens, "compaction_enabled": False, "input_token_budget": 0}
    room = model_tokens - 4_096
    view, _ = repair([ViewMessage(each["role"], each["content"], seq) for seq, each in enumerate(messages)])
    for length in range(len(messages) - 2, len(messages) + 1):
        path = service.conversation(policy=policy)
        service.append(path, *messages[:length])
        found = service.client.get(f"{path}/context").json()
        posted = service.client.post(f"{path}/context", json={}).json()
        whole = fit_history(view[:length], room, lambda message: message.tokens, carries_summary=False)
        assert found["messages"] == posted["messages"] == [message.as_message() for message in whole.view]
        assert problems(found["messages"]) == []
        total = sum(content_tokens(message["content"]) for message in messages[:length])
        # A request that nobody has answered is never cut, and the answer says by how much it is over.
        if found["tokens"]["context"] > room:
            assert any("over the budget" in warning for warning in found["warnings"])
        else:
            assert found["tokens"]["context"] >= min(total, room - 1_600)


def test_a_context_with_a_call_that_code_made_begins_with_the_code(service: Service) -> None:
    """The database reads from the first message of the server tool's call, though later rounds alone would fit."""
    caller: dict[str, Any] = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    code = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "await f()"}}
    messages: list[Message] = [*talk.exchanges(3, 5_000), talk.request("Sum it up.")]
    for number in range(30):
        made = {"type": "tool_use", "id": f"t{number}", "name": "query", "input": {}, "caller": caller}
        messages.append({"role": "assistant", "content": [*([] if number else [code]), made]})
        found = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "rows " * 800}
        messages.append({"role": "user", "content": [found]})
    path = service.conversation(policy={"total_token_budget": 16_000, "compaction_enabled": False})
    service.append(path, *messages)
    served = service.client.get(f"{path}/context").json()["messages"]
    assert problems(served) == []
    assert served[:2] == [messages[6], messages[7]]
    assert len(served) == 61
