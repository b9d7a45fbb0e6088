"""The id of a gateway's request leads to the turn that it stored and to what the gateway did with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cli.installation.trace import run_trace
from tests.gateway.chatter import PATHS
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.gateway.conftest import Room


@pytest.mark.parametrize("shape", PATHS)
def test_a_request_is_followed_to_its_turn(room: Room, capsys: pytest.CaptureFixture[str], shape: str) -> None:
    name = "input" if shape == "responses" else "messages"
    rows = [{"role": "user", "content": f"A question by {shape}, followed by its id."}]
    answer = room.client.post(PATHS[shape], json={"model": "m", "max_tokens": 9, name: rows})
    assert answer.status_code == 200, answer.text
    request = answer.headers["x-palimpsest-request"]

    def is_found() -> bool:
        return run_trace(room.settings, request, None, as_json=True) == 0

    eventually(is_found, 20)
    capsys.readouterr()
    assert is_found()
    (turn,) = json.loads(capsys.readouterr().out.splitlines()[-1])["turns"]
    assert turn["conversation_id"] == answer.headers["x-palimpsest-conversation"]
    assert (turn["first_seq"], turn["last_seq"]) == (0, 1)
    assert turn["gateway"]["outcome"] == "unchanged"
