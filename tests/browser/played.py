"""Conversations that browsers look at: the demo's long one, told through the API as a chat product tells it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from cli.scenario import job_search

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

NAME: Final = "contract-search"
USER: Final = "dana@example.org"
_OTHERS: Final = (
    ("support-4711", "lee@example.org", "claude-sonnet-4-5", 14),
    ("support-4698", "amira@example.org", "claude-sonnet-4-5", 6),
    ("onboarding-2026-03", "tomas@example.org", "claude-haiku-4-5", 9),
    ("release-notes", "dana@example.org", "claude-opus-4-5", 3),
)


def play(client: httpx2.Client, settle: Callable[[str], object], turns: int | None = None, **fields: Any) -> str:
    """Play the demo's conversation, or its first turns, and return its path; `settle` waits for what a turn caused."""
    scenario = job_search()
    path = _made(client, {"system": scenario.system, "tools": scenario.tools, **fields})
    for part in scenario.turns[:turns]:
        messages = [{"role": each.role, "content": json.loads(bytes(each.content))} for each in part.turn.messages]
        _append(client, path, messages)
        settle(path)
    asked = {"user_message": {"role": "user", "content": "Which of the three should I call first, and what do I ask?"}}
    fitted = client.post(f"{path}/context", json=asked)
    assert fitted.status_code == 200, fitted.text
    return path


def tell_others(client: httpx2.Client) -> None:
    """Make a few short conversations, for lists to have rows."""
    for name, user, model, exchanges in _OTHERS:
        path = _made(client, {"external_id": name, "user_ref": user, "model": model})
        for number in range(exchanges):
            answer = f"Step {number + 1} is done: the order was found, and the parcel was handed over yesterday. " * 20
            _append(
                client,
                path,
                [{"role": "user", "content": f"And step {number + 1}?"}, {"role": "assistant", "content": answer}],
            )


def _made(client: httpx2.Client, fields: dict[str, Any]) -> str:
    made = client.post("/v1/conversations", json=fields)
    assert made.status_code == 201, made.text
    return f"/v1/conversations/{made.json()['id']}"


def _append(client: httpx2.Client, path: str, messages: list[dict[str, Any]]) -> None:
    done = client.post(f"{path}/turns", json={"messages": messages})
    assert done.status_code == 201, done.text
