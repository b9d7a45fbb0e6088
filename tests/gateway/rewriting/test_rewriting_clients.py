"""Clients that rewrite their own history between requests: it stays one conversation, and nothing is stored twice."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runtime import ids
from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.gateway.test_compacting import LONG, PROBLEMS, SHORT, calls_a_tool, talk
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Says

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room

Row = dict[str, Any]
SHAPES: Final = tuple(PATHS)
CLEARED: Final = "[Old tool result content cleared]"
_PARTS: Final = {"messages": ("text", "text"), "chat": ("text", "text"), "responses": ("input_text", "output_text")}


@pytest.fixture(scope="module")
def shared(module_settings: Settings) -> Iterator[Room]:
    """A gateway that compacts what is short for one of default thresholds."""
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "acme")
    with room_on(module_settings, tenant, policy=SHORT) as room:
        yield room


def copied(rows: list[Row]) -> list[Row]:
    """Return rows that may be changed in place."""
    every: list[Row] = json.loads(json.dumps(rows))
    return every


def is_result(row: Row) -> bool:
    """Tell whether a row is a tool's result."""
    parts = row.get("content")
    has_block = isinstance(parts, list) and any(part.get("type") == "tool_result" for part in parts)
    return has_block or row.get("role") == "tool" or row.get("type") == "function_call_output"


def holder(row: Row) -> tuple[Row, str]:
    """Return what has a result's content, and the name of the field."""
    if row.get("type") == "function_call_output":
        return row, "output"
    if row.get("role") == "tool":
        return row, "content"
    return next(part for part in row["content"] if part["type"] == "tool_result"), "content"


def with_positions(rows: list[Row], number: int) -> list[Row]:
    """Number blocks and rows anew in each request, with ids and times."""
    for at, row in enumerate(rows):
        row |= {"timestamp": number * 1.5, "index": number + at, "created_at": None}
        if "type" not in row or row["type"] == "message":
            row["id"] = f"row-{number}-{at}"
        if isinstance(row.get("content"), list):
            for part in row["content"]:
                part |= {"index": number - at, "cache_control": None}
    return rows


def with_callers(rows: list[Row], number: int) -> list[Row]:
    """Add fields that an answer has, in every other request."""
    for row in rows:
        if row.get("role") == "assistant" and number % 2:
            row |= {"refusal": None, "annotations": [], "audio": None, "function_call": None}
        for part in row["content"] if isinstance(row.get("content"), list) else []:
            if part["type"] == "tool_use" and number % 2:
                part["caller"] = {"type": "direct"}
    return rows


def with_sugar(rows: list[Row], number: int, shape: str) -> list[Row]:
    """Write a text as a string in one request and as a block in the next."""
    for at, row in enumerate(rows):
        content = row.get("content")
        kind = _PARTS[shape][row.get("role") == "assistant"]
        if isinstance(content, str) and content and (number + at) % 2:
            row["content"] = [{"type": kind, "text": content}]
        elif isinstance(content, list) and len(content) == 1 and content[0].get("type") == kind:
            row["content"] = content[0]["text"]
    return rows


def with_time(rows: list[Row], number: int, shape: str) -> list[Row]:
    """Say in the first message what time it is."""
    text = rows[0]["content"] if isinstance(rows[0]["content"], str) else rows[0]["content"][0]["text"]
    now = f"It is Monday, 2026-03-0{number % 9 + 1}T10:{number % 60:02d}:07Z."
    rows[0]["content"] = [{"type": _PARTS[shape][0], "text": f"{now} {text}"}]
    return rows


def with_reminder(rows: list[Row], number: int, shape: str) -> list[Row]:
    """Put a reminder into the newest message alone."""
    if rows[-1].get("role") == "user" and not is_result(rows[-1]):
        content = rows[-1]["content"]
        said = content if isinstance(content, list) else [{"type": _PARTS[shape][0], "text": content}]
        about = f"<system-reminder>{number} files are open</system-reminder>"
        rows[-1]["content"] = [*said, {"type": _PARTS[shape][0], "text": about}]
    return rows


def with_cleared_results(rows: list[Row], kept: int) -> list[Row]:
    """Clear all results but the newest."""
    results = [row for row in rows if is_result(row)]
    for row in results[: max(0, len(results) - kept)]:
        there, name = holder(row)
        there[name] = CLEARED
    return rows


def with_other_ids(rows: list[Row], number: int) -> list[Row]:
    """Name every call anew in each request, as clients do that keep no ids."""
    text = re.sub(r'"call_(\d+)"', rf'"call_r{number}x\1"', json.dumps(rows))
    every: list[Row] = json.loads(text)
    return every


def in_window(rows: list[Row], size: int) -> list[Row]:
    """Keep the first message and the newest rows, from a request on."""
    starts = [at for at, row in enumerate(rows) if row.get("role") == "user" and not is_result(row)]
    first = next((at for at in starts if at >= len(rows) - size), starts[-1])
    return rows if first <= 1 else [rows[0], *rows[first:]]


REWRITES: Final[dict[str, Callable[[list[Row], int, str], list[Row]]]] = {
    "positions": lambda rows, number, _: with_positions(rows, number),
    "callers": lambda rows, number, _: with_callers(rows, number),
    "sugar": with_sugar,
    "time": with_time,
    "reminder": with_reminder,
    "cleared": lambda rows, _, __: with_cleared_results(rows, 3),
    "ids": lambda rows, number, _: with_other_ids(rows, number),
    "window": lambda rows, _, __: in_window(rows, 14),
}


def conversation(room: Room, shape: str, name: str, rounds: int, rewrites: list[str], **headers: str) -> Chatter:
    """Talk in rounds with a tool, each request rewritten, and return the client once all is stored."""
    room.providers.model = calls_a_tool
    chat = Chatter(room, shape, **headers)
    names = set()
    for number in range(rounds):
        chat.rows.append({"role": "user", "content": f"{name} question {number}"})
        sent(chat, rewrites, number)
        names.add(chat.name)
        chat.give(chat.called, f"{name} result {number} {LONG}")
        sent(chat, rewrites, number)
        names.add(chat.name)
        room.eventually_stored(chat.name, len(chat.rows))
    assert len(names) == 1
    return chat


def sent(chat: Chatter, rewrites: list[str], number: int) -> None:
    rows = copied(chat.rows)
    for each in rewrites:
        rows = REWRITES[each](rows, number, chat.shape)
    chat.send(rows=rows)


def every_row(room: Room, chat: Chatter) -> int:
    """Return how many rows were ever stored of a conversation."""
    statement = "select count(*) as count from messages where conversation_id = %s"
    return int(room.query(statement, ids.parse("conv", chat.name))[0]["count"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_rewritten_history_is_one_conversation_and_has_its_head(room: Room, shape: str, rewrite: str) -> None:
    chat = conversation(room, shape, f"{shape} {rewrite}", 12, [rewrite], **{"x-session-id": f"s {shape} {rewrite}"})
    name = chat.name
    assert every_row(room, chat) == len(chat.rows)
    room.compact(chat.name)
    chat.rows.append({"role": "user", "content": "after it"})
    sent(chat, [rewrite], 40)
    asked = room.providers.asked[-1]
    assert (chat.name, chat.outcome) == (name, "compacted")
    assert "after it" in json.dumps(asked.rows[-1])
    # Where the client numbers its rows the API would refuse its own request.
    assert rewrite == "positions" or not PROBLEMS[shape](asked.rows)
    room.eventually_stored(name, len(chat.rows))
    assert every_row(room, chat) == len(chat.rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_head_has_the_time_that_the_client_says_now(room: Room, shape: str) -> None:
    chat = conversation(room, shape, f"{shape} dated", 12, ["time"], **{"x-session-id": f"s {shape} dated"})
    room.compact(chat.name)
    chat.rows.append({"role": "user", "content": "and now"})
    sent(chat, ["time"], 8)
    first = json.dumps(room.providers.asked[-1].rows[0])
    assert chat.outcome == "compacted"
    assert "2026-03-09T10:08:07Z" in first
    assert f"{shape} dated question 0" in first
    assert "2026-03-01" not in first


@pytest.mark.parametrize("by", ["x-session-id", "x-palimpsest-conversation", "user", "metadata"])
def test_any_name_of_a_session_or_a_user_is_enough(room: Room, by: str) -> None:
    room.providers.model = calls_a_tool
    shape = "messages" if by == "metadata" else "chat"
    chat = Chatter(room, shape, **({by: f"named by {by}"} if by.startswith("x-") else {}))
    named: dict[str, Row] = {"user": {"user": "u-17"}, "metadata": {"metadata": {"user_id": "u-18"}}}
    chat.fields = named.get(by, {})
    names = set()
    for number in range(6):
        chat.rows.append({"role": "user", "content": f"by {by} {number}"})
        sent(chat, ["time", "cleared"], number)
        chat.give(chat.called, f"by {by} result {number}")
        sent(chat, ["time", "cleared"], number)
        names.add(chat.name)
        room.eventually_stored(chat.name, len(chat.rows))
    assert len(names) == 1
    assert every_row(room, chat) == len(chat.rows)


def test_rewritten_histories_without_a_session_are_not_taken_for_each_other(room: Room) -> None:
    one, other = Chatter(room, "chat"), Chatter(room, "chat")
    for number, chat in enumerate((one, other)):
        chat.rows.append({"role": "user", "content": "the same question"})
        sent(chat, ["time"], number)
        room.eventually_stored(chat.name, 2)
        chat.rows.append({"role": "user", "content": "the same again"})
        sent(chat, ["time"], number + 2)
        room.eventually_stored(chat.name, 4)
    assert one.name != other.name


def test_conversation_that_is_named_by_its_id_is_looked_for_in_that_one_alone(room: Room) -> None:
    room.providers.model = calls_a_tool
    theirs, ours = Chatter(room, "messages"), Chatter(room, "messages")
    talk(theirs, 3, "of somebody else")
    talk(ours, 1, "of our own")
    room.eventually_stored(theirs.name, len(theirs.rows))
    room.eventually_stored(ours.name, len(ours.rows))
    own = ours.name
    ours.headers = {"x-palimpsest-conversation": own}
    ours.rows = copied(theirs.rows)
    ours.rows.append({"role": "user", "content": "and now?"})
    sent(ours, ["time"], 3)
    assert ours.name not in {theirs.name, own}


@pytest.mark.parametrize("changed", ["answer", "question", "result", "removed"])
def test_real_edit_is_an_edit_of_a_rewritten_history(room: Room, changed: str) -> None:
    headers = {"x-session-id": f"s edited {changed}"}
    chat = conversation(room, "messages", f"edited {changed}", 6, ["time", "positions"], **headers)
    name, before = chat.name, every_row(room, chat)
    rows = copied(chat.rows)
    match changed:
        case "answer":
            rows[11]["content"] = [{"type": "text", "text": "an answer in the client's words"}]
        case "question":
            rows[8]["content"] = "asked in other words"
        case "result":
            holder(rows[10])[0]["content"] = "another result " + LONG
        case _:
            del rows[12:16]
    chat.rows = rows
    chat.rows.append({"role": "user", "content": "and on"})
    sent(chat, ["time", "positions"], 7)
    assert chat.name == name
    stored = room.eventually_stored(name, len(chat.rows))
    assert every_row(room, chat) > before + 2
    texts = json.dumps([row["content"] for row in stored])
    assert "edited removed question 3" not in texts
    assert "edited question question 2" not in texts


def test_regenerated_answer_of_a_window_takes_the_place_of_the_one_before(room: Room) -> None:
    chat = conversation(room, "chat", "window again", 10, ["window"], **{"x-session-id": "s window again"})
    name, count = chat.name, len(chat.rows)
    room.providers.model = lambda _: Says("another answer")
    del chat.rows[-1]
    sent(chat, ["window"], 11)
    assert chat.name == name
    # The conversation is as long before the answer is stored as after it.
    eventually(lambda: "another answer" in json.dumps(room.stored(name)[-1]["content"]), 20)
    assert len(room.stored(name)) == count


def test_subagents_and_titles_of_a_session_have_conversations_of_their_own(room: Room) -> None:
    headers = {"x-session-id": "s with others"}
    chat = conversation(room, "messages", "main", 4, ["time"], **headers)
    other = Chatter(room, "messages", **headers)
    other.rows.append({"role": "user", "content": "Write a title for this conversation."})
    other.send()
    other.give(other.called, "its result")
    other.send()
    assert other.name != chat.name
    name = chat.name
    chat.rows.append({"role": "user", "content": "and on"})
    sent(chat, ["time"], 9)
    assert chat.name == name


def test_history_that_its_client_has_summarized_is_a_branch(room: Room) -> None:
    headers = {"x-session-id": "s summarized"}
    chat = conversation(room, "messages", "long", 6, ["time"], **headers)
    name = chat.name
    summary: Row = {
        "role": "user",
        "content": "This conversation is continued from an earlier one: " + "it was said. " * 60,
    }
    chat.rows = [summary, *chat.rows[-2:], {"role": "user", "content": "go on"}]
    chat.send()
    assert chat.name != name
    room.eventually_stored(chat.name, 5)
    (about,) = room.query("select metadata from conversations where id = %s", ids.parse("conv", chat.name))
    assert about["metadata"]["gateway"]["branch_of"] == name


@settings(
    max_examples=6,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
@given(
    shape=st.sampled_from(SHAPES),
    rewrites=st.lists(st.lists(st.sampled_from(sorted(REWRITES)), max_size=4, unique=True), min_size=4, max_size=8),
    number=st.integers(0, 10**9),
)
def test_whatever_keeps_the_meaning_is_one_conversation(
    room: Room, shape: str, rewrites: list[list[str]], number: int
) -> None:
    room.providers.model = calls_a_tool
    chat = Chatter(room, shape, **{"x-session-id": f"any {shape} {number}"})
    names = set()
    for turn, each in enumerate(rewrites):
        if not turn:
            talk(chat, 3, f"any {number}")
        chat.rows.append({"role": "user", "content": f"any {number} turn {turn}"})
        sent(chat, each, turn)
        names.add(chat.name)
        chat.give(chat.called, f"result {turn} {LONG}")
        sent(chat, each, turn)
        names.add(chat.name)
        room.eventually_stored(chat.name, len(chat.rows))
    assert len(names) == 1
    assert every_row(room, chat) <= 1.2 * len(chat.rows)
