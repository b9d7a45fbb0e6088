"""Conversations that browsers look at: the demo's long one, told through the API as a chat product tells it."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from cli.demo.scenario import job_search
from tests.support.spent_days import Call

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
_KEYS: Final = (
    ("chat backend", ["turns:write", "context:read"], 90),
    ("auditor", ["audit:read"], 30),
    ("laptop of tomas", ["admin"], 0),
)
_MODELS: Final = (("claude-haiku-4-5", 1), ("claude-sonnet-4-5", 3))
"""Models, and their USD for a million tokens of input; output costs five times that (list prices)."""
_REPORTED: Final = ("support-4302", "support-4377", "weekly-report", "onboarding-2026-02")


def play(client: httpx2.Client, settle: Callable[[str], object], **fields: Any) -> str:
    """Play the demo's conversation, and return its path; `settle` waits for what a turn caused."""
    scenario = job_search()
    path = _made(client, {"system": scenario.system, "tools": scenario.tools, **fields})
    for part in scenario.turns:
        messages = [{"role": each.role, "content": json.loads(bytes(each.content))} for each in part.turn.messages]
        _append(client, path, messages)
        settle(path)
    asked = {"user_message": {"role": "user", "content": "Which of the three should I call first, and what do I ask?"}}
    fitted = client.post(f"{path}/context", json=asked)
    assert fitted.status_code == 200, fitted.text
    for recalled in ({"query": "salary of the first position"}, {"ref": "m4"}, {"ref": "m4"}):
        assert client.post(f"{path}/recall", json=recalled).status_code == 200
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


def make_keys(client: httpx2.Client) -> None:
    """Make keys in every state."""
    by_name = {}
    for name, scopes, days in _KEYS:
        expires_at = (datetime.now(UTC) + timedelta(days=days)).isoformat() if days else None
        fields = {"name": name, "scopes": scopes, "expires_at": expires_at}
        by_name[name] = client.post("/v1/keys", json=fields).json()["id"]
    client.post(f"/v1/keys/{by_name['chat backend']}/rotate", json={})
    client.delete(f"/v1/keys/{by_name['laptop of tomas']}")


def spent_month() -> list[Call]:
    """Return a month of summaries, the same each time; fewer at weekends."""
    chance = random.Random(3)  # noqa: S311  plausible figures, no secrets
    calls = []
    for ago in range(29, -1, -1):
        for _ in range(chance.randint(0, 3) if ago % 7 in {0, 1} else chance.randint(2, 8)):
            model, price = chance.choice((*_MODELS, _MODELS[0]))
            read, written = chance.randint(40_000, 95_000), chance.randint(900, 3_500)
            cost = Decimal(price * (read + 5 * written)) / 1_000_000
            calls.append(Call(ago, model, read, written, cost, chance.choice(_REPORTED)))
    return calls


def _made(client: httpx2.Client, fields: dict[str, Any]) -> str:
    response = client.post("/v1/conversations", json=fields)
    assert response.status_code == 201, response.text
    return f"/v1/conversations/{response.json()['id']}"


def _append(client: httpx2.Client, path: str, messages: list[dict[str, Any]]) -> None:
    done = client.post(f"{path}/turns", json={"messages": messages})
    assert done.status_code == 201, done.text
