"""Recall in a conversation whose client has compacted it: what it went on from is had too, and nothing else."""

from __future__ import annotations

from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import pytest

from gateway.recalls import lineage
from gateway.recalls.asking import MOST_CALLS
from gateway.recalls.lineage import DecodedMessage, oldest_quoted_seq
from tests.conftest import make_tenant
from tests.gateway.conftest import room_on
from tests.gateway.recalls.test_recalling import SECRET, SHAPES, Seen, recall, results_of, scripted, talk_out_of_view
from tests.gateway.test_compacting import PROBLEMS, SHORT
from tests.support.servers.loopback_providers import Says

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room

NUMBERS: Final = count()
SUMMARY: Final = """What was done so far:
- ten questions were asked, one after the other, and each was looked up with the tool;
- the second result has the code of the door, which was not needed until now.
What is to be done: answer what the user asks next."""


@pytest.fixture(scope="module")
def recalling(module_settings: Settings) -> Iterator[Room]:
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "goes-on")
    with room_on(module_settings, tenant, policy=SHORT | {"gateway_recall": True, "recall_handles": True}) as room:
        yield room


def compacted(room: Room, shape: str) -> tuple[Seen, Seen]:
    """Return a chat, and the same one after its client has compacted it; nothing was said in that yet."""
    before = talk_out_of_view(room, shape, False)
    room.providers.model = scripted(Says(SUMMARY))
    before.ask("Summarize what was done.", stream=False)
    room.eventually_stored(before.name, len(before.rows))
    return before, beginning_with(room, shape, before.headers, f"It goes on from here:\n\n> {SUMMARY}\n")


def beginning_with(room: Room, shape: str, headers: dict[str, str], text: str) -> Seen:
    chat = Seen(room, shape, **headers)
    chat.rows = [{"role": "user", "content": text}]
    return chat


def given(chat: Seen, *asked: dict[str, Any]) -> list[str]:
    """Have the model recall; return what it was given for each call."""
    room = chat.room
    calls = tuple(recall(f"r{next(NUMBERS)}", **each) for each in asked)
    room.providers.model = scripted(Says("", calls), Says("So it is."))
    chat.ask("And now?", stream=False)
    last = room.providers.asked[-1]
    assert not PROBLEMS[chat.shape](last.rows), last.rows
    return results_of(last)[-len(asked) :]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_client_has_compacted_is_recalled(recalling: Room, shape: str) -> None:
    before, chat = compacted(recalling, shape)
    # By the first request already, of which nothing is stored yet.
    (by_words,) = given(chat, {"query": "door code"})
    assert chat.name != before.name
    assert SECRET in by_words
    assert f"{before.name}:m" in by_words.partition("\n")[0]
    recalling.eventually_stored(chat.name, len(chat.rows) + 2)
    place = next(ref for ref in by_words.split('"')[1].split() if ref.startswith(f"{before.name}:"))
    by_words, by_pattern, by_place, bare, own = given(
        chat,
        {"query": "code of the door"},
        {"pattern": "door code is"},
        {"ref": place.replace(":", "/")},
        {"ref": "m7"},
        {"ref": "m0"},
    )
    assert all(SECRET in text for text in (by_words, by_pattern))
    assert by_place.startswith(f'<recalled refs="{before.name}:m')
    assert bare.startswith(f'<recalled refs="{before.name}:m7')
    assert own.startswith('<recalled refs="m0')


def test_what_came_after_it_was_compacted_is_not(recalling: Room) -> None:
    before, chat = compacted(recalling, "chat")
    last = len(before.rows) - 1
    recalling.providers.model = scripted(Says("The alarm code is 0815."))
    before.ask("What is the alarm code?", stream=False)
    recalling.eventually_stored(before.name, last + 3)
    by_words, beside, after, summary = given(
        chat,
        {"query": "alarm code 0815"},
        {"query": "what was done so far"},
        {"ref": f"{before.name}:m{last + 2}"},
        {"ref": f"{before.name}:m{last}"},
    )
    assert "0815" not in by_words
    assert "alarm" not in beside
    assert f"{before.name}:m" in beside
    assert "nothing of this reference" in after
    assert "What was done so far" in summary


def test_what_was_compacted_twice_is_recalled(recalling: Room) -> None:
    first, second = compacted(recalling, "messages")
    again = "Everything was summarized once before, and since then nobody has asked for anything but this summary."
    recalling.providers.model = scripted(Says("Gladly."), Says(again))
    second.ask("Go on.", stream=False)
    second.ask("Summarize what was done.", stream=False)
    recalling.eventually_stored(second.name, len(second.rows))
    (text,) = given(beginning_with(recalling, "messages", second.headers, again), {"query": "door code"})
    assert SECRET in text
    assert f"{first.name}:m" in text


def test_conversations_beside_it_are_not_recalled(recalling: Room) -> None:
    before, _ = compacted(recalling, "messages")
    named = {"ref": f"{before.name}:m3"}
    other = make_tenant(recalling.settings.database_url.get_secret_value(), "somebody-else")
    beside = (
        # A subagent, and a request for a title, of the same session.
        beginning_with(recalling, "messages", before.headers, "You are a subagent. Look for the door code."),
        # The same words in another session, of another user, and of nobody.
        beginning_with(recalling, "messages", {"x-session-id": "another"}, SUMMARY),
        beginning_with(recalling, "messages", {}, SUMMARY),
        beginning_with(recalling, "messages", before.headers | {"authorization": f"Bearer {other.key}"}, SUMMARY),
    )
    for chat in beside:
        for hidden in (2, 4):
            by_words, by_place = given(chat, {"query": "door code 4711"}, named)
            assert SECRET not in by_words + by_place
            assert "nothing of this reference" in by_place
            recalling.eventually_stored(chat.name, len(chat.rows) + hidden)


@pytest.mark.parametrize("shape", SHAPES)
def test_clients_who_do_not_say_who_they_are_have_no_past(recalling: Room, shape: str) -> None:
    always = "I am sorry, but that is nothing that I could help you with: please ask somebody of the staff at the desk."
    recalling.providers.model = scripted(Says("Hello there."), *[Says(always)] * 2)
    one = Seen(recalling, shape)
    one.ask(f"Good evening {next(NUMBERS)}.")
    other = Seen(recalling, shape)
    other.rows = list(one.rows)
    one.ask("What is for dinner?")
    recalling.eventually_stored(one.name, 4)
    # It began with the same words, and takes the place of what the first one said: that is a branch from now on.
    other.ask(f"Note: {SECRET}.")
    recalling.eventually_stored(other.name, 4)
    for hidden in (2, 4):
        (text,) = given(one, {"query": "door code"})
        assert SECRET not in text
        assert one.name != other.name
        recalling.eventually_stored(one.name, len(one.rows) + hidden)


def test_what_is_erased_is_not_recalled(recalling: Room) -> None:
    before, chat = compacted(recalling, "responses")
    given(chat, {"query": "door code"})
    recalling.erase(before.name)
    by_words, by_place = given(chat, {"query": "door code"}, {"ref": f"{before.name}:m3"})
    assert before.name not in by_words
    assert "nothing of this reference" in by_place


def test_texts_are_compared_once_for_all_calls_and_on_a_thread_of_their_own(
    recalling: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, chat = compacted(recalling, "messages")
    threads = []

    def noted(*given: Any) -> int | None:
        threads.append(get_ident())
        return oldest_quoted_seq(*given)

    monkeypatch.setattr(lineage, "oldest_quoted_seq", noted)
    every = given(chat, *[{"query": "door code"}] * MOST_CALLS)
    assert all(before.name in text for text in every)
    assert len(threads) == 1
    assert recalling.gateway.thread.ident not in threads


def said(seq: int, text: str, *calls: str) -> DecodedMessage:
    blocks = [{"type": "tool_use", "id": name, "name": name, "input": {}} for name in calls]
    return DecodedMessage(seq, [{"type": "text", "text": text}, *blocks])


def test_quoted_answers() -> None:
    thought = "<analysis>\nWhat the model thought first is taken out by the client.\n</analysis>\n"
    long = "\n".join(f"{number}. a line of the summary that says something of its own" for number in range(8))
    assert oldest_quoted_seq([said(0, f"From here on:\n   {SUMMARY}")], [said(41, SUMMARY), said(9, "Yes.")]) == 41
    assert oldest_quoted_seq([said(0, long), said(1, "Go on.")], [said(41, thought + long)]) == 41
    assert oldest_quoted_seq([said(0, SUMMARY), said(1, long)], [said(41, SUMMARY), said(9, long)]) == 9
    assert oldest_quoted_seq([said(0, "Yes. And no.")], [said(1, "Yes.")]) is None
    assert oldest_quoted_seq([said(0, "Hello."), said(1, SUMMARY)], [said(1, SUMMARY)]) is None
    # What a subagent is told stands in the call, and sometimes beside it.
    assert oldest_quoted_seq([said(0, SUMMARY)], [said(41, SUMMARY, "task")]) is None
    assert oldest_quoted_seq([], [said(41, SUMMARY)]) is None


def test_no_more_is_looked_for_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = range(40)
    opening = [said(0, "\n".join(f"{number}. the same line, of which only the number differs" for number in numbers))]
    other = "\n".join(f"{number}. another line, of which nothing stands in the beginning" for number in numbers)
    like = "\n".join(f"x{number}. the same line, of which only the number differs" for number in numbers)
    quoted = f"Thought.\n{opening[0].content[0]['text']}"
    chars = len(opening[0].content[0]["text"])
    # What has other words is not looked for at all, and what suffices ends the search.
    monkeypatch.setattr(lineage, "MOST_SEARCHED_CHARS", 9 * chars)
    assert oldest_quoted_seq(opening, [said(9, quoted), said(7, other)]) == 9
    assert oldest_quoted_seq(opening, [said(9, quoted), said(7, quoted), said(5, other)]) == 7
    # Where not all could be looked for, nothing is known.
    assert oldest_quoted_seq(opening, [said(9, quoted), said(7, like)]) is None
