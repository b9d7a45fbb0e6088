"""Whatever clients do: no text of another branch, never without the newest, never an invalid list."""

from __future__ import annotations

import copy
import json
import re
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.gateway.test_compacting import PROBLEMS
from tests.support.servers.loopback_providers import Asked, Says

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway.conftest import Room

WORD: Final = re.compile(r"word\d+x")
ACTIONS: Final = ("ask", "ask", "round", "round", "edit", "regenerate", "branch", "other", "own", "compact", "marks")
NUMBERS: Final = count()


def new_word() -> str:
    return f"word{next(NUMBERS)}x"


class Client:
    """Conversations of one client, in one session or in none; each is checked whenever it is sent."""

    def __init__(self, room: Room, shape: str, session: str | None) -> None:
        headers = {"x-session-id": session} if session else {}
        self.make: Callable[[], Chatter] = lambda: Chatter(room, shape, **headers)
        self.room = room
        self.chats = [self.make()]
        self.marks = False

    @property
    def chat(self) -> Chatter:
        return self.chats[-1]

    def send(self) -> None:
        chat = self.chat
        rows = copy.deepcopy(chat.rows)
        if self.marks and chat.shape == "messages":
            content = rows[-1]["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            rows[-1]["content"] = [*parts[:-1], {**parts[-1], "cache_control": {"type": "ephemeral"}}]
        number = len(self.room.providers.asked)
        chat.send(rows=rows)
        asked = self.room.providers.asked[number]
        assert not PROBLEMS[chat.shape](asked.rows), asked.rows
        said = json.dumps(rows)
        assert set(WORD.findall(json.dumps(asked.rows))) <= set(WORD.findall(said))
        assert asked.rows[-1] == rows[-1]
        if chat.called:
            chat.give(chat.called, f"{new_word()} " + "long output " * 1_000)
            self.send()

    def act(self, action: str, place: int) -> None:
        chat = self.chat
        asked = [
            at for at, row in enumerate(chat.rows) if row.get("role") == "user" and isinstance(row["content"], str)
        ]
        match action:
            case "edit" if asked:
                at = asked[place % len(asked)]
                chat.rows = [*chat.rows[:at], {"role": "user", "content": new_word()}]
            case "regenerate" if asked:
                chat.rows = chat.rows[: asked[-1] + 1]
            case "branch" if asked:
                other = self.make()
                other.rows = [
                    *copy.deepcopy(chat.rows[: asked[place % len(asked)]]),
                    {"role": "user", "content": new_word()},
                ]
                self.chats.append(other)
            case "own":
                chat.rows = [
                    {"role": "user", "content": f"summary {new_word()}"},
                    {"role": "user", "content": new_word()},
                ]
            case "other":
                self.chats.insert(0, self.chats.pop())
                self.chat.rows.append({"role": "user", "content": new_word()})
            case "compact":
                if chat.name:
                    self.room.compact(chat.name)
                chat.rows.append({"role": "user", "content": new_word()})
            case "marks":
                self.marks = not self.marks
                chat.rows.append({"role": "user", "content": new_word()})
            case "round":
                chat.rows.append({"role": "user", "content": f"call {new_word()}"})
            case _:
                chat.rows.append({"role": "user", "content": new_word()})
        self.send()


def model(asked: Asked) -> Says:
    """Call a tool when asked to, else answer with a word of its own, the same for the same request."""
    last = asked.rows[-1]
    known = getattr(asked, "says", None)
    if known is None:
        content = last.get("content")
        is_call = isinstance(content, str) and content.startswith("call") and last.get("role") == "user"
        is_call = is_call or (isinstance(content, list) and str(content[0].get("text", "")).startswith("call"))
        known = Says("", ((f"call_{new_word()}", "look", {}),)) if is_call else Says(new_word())
        asked.says = known  # type: ignore[attr-defined] # remembered with its request
    says: Says = known
    return says


POLICY: Final = {"input_token_budget": 2_000, "compaction_threshold_tokens": 4_000, "min_savings_tokens": 100}
"""Compacts after a few rounds."""


@pytest.mark.parametrize("shape", PATHS)
def test_no_behaviour_of_a_client_leads_astray(room: Room, shape: str) -> None:
    outcomes: set[str] = set()

    @settings(max_examples=6)
    @given(
        actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), min_size=6, max_size=16),
        session=st.sampled_from([None, "one"]),
    )
    @example(actions=[("round", 0)] * 4 + [("compact", 0), ("edit", 1), ("round", 0), ("compact", 0)], session=None)
    def behaves(actions: list[tuple[str, int]], session: str | None) -> None:
        client = Client(own, shape, session and new_word())
        for action, place in actions:
            client.act(action, place)
            outcomes.add(client.chat.outcome)

    with room_on(room.settings, room.tenant, policy=POLICY) as own:
        own.providers.model = model
        behaves()
    assert outcomes == {"compacted", "unchanged"}


def test_a_restart_between_any_two_requests(room: Room) -> None:
    rows: list[Any] = []
    names = []
    for number in range(4):
        with room_on(room.settings, room.tenant) as other:
            chat = Chatter(other, "chat")
            chat.rows = rows
            chat.ask(f"restarted {number}")
            other.eventually_stored(chat.name, len(chat.rows))
            names.append(chat.name)
            rows = chat.rows
    assert len(set(names)) == 1
