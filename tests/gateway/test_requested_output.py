"""Output that a client asks for is kept free of the budget, in the compactions that follow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.support.servers.loopback_providers import Says

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room

BUDGET: Final = 20_000
POLICY: Final = {"total_token_budget": BUDGET, "reserved_output_tokens": 100, "compaction_threshold_tokens": 16_000}
FIELDS: Final = {
    "messages": ("max_tokens",),
    "chat": ("max_tokens", "max_completion_tokens"),
    "responses": ("max_output_tokens",),
}
EVERY_FIELD: Final = [(shape, name) for shape, names in FIELDS.items() for name in names]


@pytest.fixture(scope="module")
def shared(module_settings: Settings) -> Iterator[Room]:
    """A gateway whose budget is small."""
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "acme")
    with room_on(module_settings, tenant, policy=POLICY) as room:
        yield room


def talk(room: Room, shape: str, about: str, **fields: int) -> Chatter:
    """Have a conversation of about 12,000 tokens, and do what is due for it."""
    room.providers.model = lambda asked: Says(f"answer {len(asked.rows)} " + "and so on " * 200)
    chat = Chatter(room, shape)
    for number in range(11):
        chat.fields = {"max_tokens": None, **fields}
        chat.ask(f"{about} {number} " + "more words " * 190)
    room.eventually_stored(chat.name, len(chat.rows))
    room.compact(chat.name)
    chat.ask("And now?")
    return chat


@pytest.mark.parametrize(("shape", "field"), EVERY_FIELD)
def test_context_leaves_room_for_the_output_that_is_asked_for(room: Room, shape: str, field: str) -> None:
    chat = talk(room, shape, f"{shape} {field}", **{field: 10_000})
    assert chat.outcome == "compacted"
    assert len(json.dumps(room.providers.asked[-1].rows)) / 4 + 10_000 <= BUDGET


@pytest.mark.parametrize("asked", [500, 262_144])
@pytest.mark.parametrize("shape", PATHS)
def test_small_and_absurd_outputs_leave_the_history_whole(room: Room, shape: str, asked: int) -> None:
    chat = talk(room, shape, f"{shape} {asked}", **{FIELDS[shape][0]: asked})
    assert chat.outcome == "unchanged"
    assert len(room.providers.asked[-1].rows) == len(chat.rows) - 1
