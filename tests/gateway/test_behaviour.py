"""Whatever clients do: no text of another branch, never without the newest, never an invalid list."""

from __future__ import annotations

import copy
import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.gateway.running_gateway import running_gateway
from tests.gateway.test_compacting import PROBLEMS
from tests.support.servers.loopback_providers import Asked, Says

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway.conftest import Room

WORD: Final = re.compile(r"word\d+x")
ACTIONS: Final = (
    *("ask", "ask", "round", "round", "edit", "regenerate", "resend", "branch", "other", "agents", "own", "compact"),
    *("marks", "lists", "restart"),
)
BACK: Final = frozenset({"edit", "regenerate", "resend", "branch"})
NUMBERS: Final = count()


def new_word() -> str:
    return f"word{next(NUMBERS)}x"


class Client:
    """Conversations of one client, in one session or in none; each is checked whenever it is sent."""

    def __init__(self, room: Room, shape: str, session: str | None) -> None:
        headers = {"x-session-id": session} if session else {}
        self.make: Callable[[], Chatter] = lambda: Chatter(self.room, shape, **headers)
        self.room = room
        self.chats = [self.make()]
        self.marks = False
        self.lists = False
        """Whether a lone text is written as a list of one part."""

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
        if self.lists:
            rows = [as_list(chat.shape, row) for row in rows]
        number = len(self.room.providers.asked)
        chat.send(rows=rows)
        check(chat.shape, self.room.providers.asked[number], rows)
        if chat.called:
            chat.give(chat.called, f"{new_word()} " + "long output " * 1_000)
            self.send()

    def ask_together(self) -> None:
        """Ask on while an agent of the same session asks what it was sent for."""
        agent = self.make()
        together = [self.chat, agent]
        for chat in together:
            chat.rows.append({"role": "user", "content": new_word()})
        with ThreadPoolExecutor(len(together)) as pool:
            list(pool.map(self.post, together))
        for chat in together:
            newest = chat.rows[-1]
            asked = next(each for each in reversed(self.room.providers.asked) if each.rows[-1] == newest)
            check(chat.shape, asked, chat.rows)
            chat.rows += chat.answer(self.room.providers.model(asked))  # type: ignore[arg-type] # it never fails here
        self.chats.insert(0, agent)

    def post(self, chat: Chatter) -> None:
        name = "input" if chat.shape == "responses" else "messages"
        body = {"model": "model-1", "max_tokens": 99, name: chat.rows, "stream": True}
        assert chat.room.client.post(PATHS[chat.shape], json=body, headers=chat.headers).status_code == 200

    def go_on_at(self, room: Room) -> None:
        """Send to another process from now on."""
        self.room = room
        for chat in self.chats:
            chat.room = room

    def act(self, action: str, place: int) -> None:
        if action == "agents":
            return self.ask_together()
        asked = [
            at for at, row in enumerate(self.chat.rows) if row.get("role") == "user" and isinstance(row["content"], str)
        ]
        if action in BACK and asked:
            self.go_back(action, asked, asked[place % len(asked)])
        else:
            self.go_on(action)
        return self.send()

    def go_back(self, action: str, asked: list[int], at: int) -> None:
        """Change what was said: at one of what was asked, or the newest answer."""
        chat = self.chat
        newest = {"role": "user", "content": new_word()}
        match action:
            case "edit":
                chat.rows = [*chat.rows[:at], newest]
            case "branch":
                other = self.make()
                other.rows = [*copy.deepcopy(chat.rows[:at]), newest]
                self.chats.append(other)
            case "resend":
                # Its answer did not come.
                del chat.rows[asked[-1] + 1 :]
                self.send()
                del chat.rows[asked[-1] + 1 :]
            case _:
                del chat.rows[asked[-1] + 1 :]

    def go_on(self, action: str) -> None:
        """Say something new, in one way or another."""
        word = new_word()
        match action:
            case "own":
                self.chat.rows = [{"role": "user", "content": f"summary {new_word()}"}]
            case "other":
                self.chats.insert(0, self.chats.pop())
            case "compact" if self.chat.name:
                self.room.compact(self.chat.name)
            case "marks":
                self.marks = not self.marks
            case "lists":
                self.lists = not self.lists
            case "round":
                word = f"call {word}"
        self.chat.rows.append({"role": "user", "content": word})


def as_list(shape: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the user's with a lone text in a list."""
    if row.get("role") != "user" or not isinstance(row["content"], str):
        return row
    kind = "input_text" if shape == "responses" else "text"
    return {**row, "content": [{"type": kind, "text": row["content"]}]}


def check(shape: str, asked: Asked, rows: list[Any]) -> None:
    """Assert that a model was asked a valid list, of these rows' words alone, that ends with the newest of them."""
    assert not PROBLEMS[shape](asked.rows), asked.rows
    assert set(WORD.findall(json.dumps(asked.rows))) <= set(WORD.findall(json.dumps(rows)))
    assert asked.rows[-1] == rows[-1]


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


@pytest.mark.hypothesis
@pytest.mark.parametrize("shape", PATHS)
def test_no_behaviour_of_a_client_leads_astray(room: Room, shape: str) -> None:
    outcomes: set[str] = set()

    @settings(max_examples=settings().max_examples // 10)
    @given(
        actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), min_size=6, max_size=16),
        session=st.sampled_from([None, "one"]),
    )
    @example(actions=[("round", 0)] * 4 + [("compact", 0), ("edit", 1), ("round", 0), ("compact", 0)], session=None)
    def behaves(actions: list[tuple[str, int]], session: str | None) -> None:
        client = Client(own, shape, session and new_word())
        with ExitStack() as others:
            for action, place in actions:
                if action == "restart":
                    gateway = others.enter_context(running_gateway(own.settings))
                    other = others.enter_context(gateway.client(own.tenant.key))
                    client.go_on_at(own._replace(gateway=gateway, client=other))
                client.act(action, place)
                outcomes.add(client.chat.outcome)

    with room_on(room.settings, room.tenant, policy=POLICY) as own:
        own.providers.model = model
        behaves()
    assert outcomes - {""} == {"compacted", "unchanged"}


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
