"""Recall that the gateway answers for a model gives no credentials back, whatever the key of the request may read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.domain.credentials.samples import TOKENS
from tests.gateway.recalls.test_recalling import (
    NUMBERS,
    SHAPES,
    Seen,
    recall,
    recalling,
    results_in,
    scripted,
)
from tests.gateway.test_compacting import LONG
from tests.support.servers.loopback_providers import Says

if TYPE_CHECKING:
    from tests.gateway.conftest import Room

__all__ = ["recalling"]

KEY = TOKENS["github token"]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_recalled_for_a_model_is_masked(recalling: Room, shape: str) -> None:
    room = recalling
    chat = Seen(room, shape, **{"x-session-id": f"secrets {next(NUMBERS)}"})
    for number in range(10):
        room.providers.model = scripted(Says("", ((f"call_{number}", "look", {"n": number}),)), Says(f"noted {number}"))
        chat.ask(f"question {number} {shape}", stream=False)
        said = f"the zebra says GITHUB_TOKEN={KEY} " if number == 1 else ""
        chat.give(chat.called, f"result {number} {LONG[:500]} {said}{LONG}")
        chat.send(stream=False)
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    room.providers.model = scripted(Says("", (recall("r1", query="zebra"),)), Says("I cannot say."))
    before = len(room.providers.asked)
    chat.ask("What does the zebra say?", stream=False)
    asked = room.providers.asked[before:][-1]
    assert KEY not in asked.raw.decode()
    (result,) = results_in(asked)
    assert "zebra says" in result
    assert "[secret: github token, m" in result
