"""What a compaction reads of a conversation that is too large to be read whole, and how much runs read at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import pytest

from compaction.steps.snapshot import UNREAD
from store.bytes_held import bounded_by
from store.conversations import messages, snapshots
from tests.support.service.in_process import Chat, Workers
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import answer, exchanges, request, rounds
from worker.process.memory import FullError, Memory, RunMemory

if TYPE_CHECKING:
    from uuid import UUID

BYTES: Final = 13_500
"""Of the newest messages that are read; those of these tests have about 830 each."""


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_READ_BYTES", BYTES)
    monkeypatch.setattr(messages, "MOST_READ_BYTES", BYTES)


def fates(chat: Chat, conversation: UUID, version: int) -> list[tuple[int, int, str]]:
    return [tuple(span[:3]) for span in chat.snapshot(conversation, version).coverage]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("strategy", ["summary", "fallback"])
def test_what_a_compaction_never_read_it_has_dropped_and_not_summarized(chat: Chat, strategy: str) -> None:
    conversation = chat.begin({"compaction_threshold_tokens": 2_000, "max_conversation_messages": 8})
    chat.append(conversation, exchanges(12, 200))
    stub = StubSummarizer()
    workers = Workers(chat, stub if strategy == "summary" else None)
    workers.settle(conversation)
    (version,) = [snapshot.version for snapshot in chat.query("select version from snapshots")]
    unread, *rest = fates(chat, conversation, version)
    assert (unread[0], unread[2]) == (0, "dropped")
    assert unread[1] == 7 if strategy == "summary" else unread[1] > 7
    assert {fate for _, _, fate in rest} <= {"kept", "summarized" if strategy == "summary" else "dropped"}
    if strategy == "summary":
        assert min(each.seq for asked in stub.requests for each in asked.zone) >= 8
    assert chat.valid_context(conversation)[-1] == exchanges(12, 200)[-1]
    assert [row[0] for row in chat.originals(conversation)] == list(range(24))


@pytest.mark.usefixtures("narrow")
def test_a_compaction_announces_what_it_reads_and_reads_no_more(chat: Chat) -> None:
    announced: list[int] = []
    for turns in (exchanges(12, 200), [request("go"), *rounds(20, 200)], [answer("x" * 50_000)], exchanges(2, 200)):
        conversation = chat.begin()
        chat.append(conversation, [request("Hello."), *turns] if turns[0]["role"] == "assistant" else turns)
        row = chat.row(conversation)
        with bounded_by(announced.append), chat.database.transaction(chat.tenant_id) as connection:
            material = snapshots.load(connection, chat.tenant_id, conversation, lock="read")
        read = sum(len(original.content) + 30 for original in material.tail if original.content != UNREAD)
        newest = len(material.tail[-1].content) + 30
        assert read <= announced[-1] == min(row.context_bytes, max(announced[-1], newest))
        assert announced[-1] <= max(BYTES, newest + 2)
        assert len(material.tail) == row.next_seq


def test_runs_wait_until_there_is_room_for_what_they_read(chat: Chat) -> None:
    begun, going_on, waited = Event(), Event(), Event()

    def hold() -> None:
        begun.set()
        assert going_on.wait(60)

    class Watched(Memory):
        def wait(self, run: RunMemory, size: int) -> None:
            waited.set()
            super().wait(run, size)

    stub = StubSummarizer(act=hold)
    workers = Workers(chat, stub)
    workers.dispatcher._memory = Watched(30_000)
    leases = []
    for _ in range(2):
        conversation = chat.begin()
        chat.append(conversation, exchanges(12, 200))
        leases.append(workers.hand_over(conversation))
    threads = [Thread(target=workers.dispatcher.execute, args=(lease,)) for lease in leases]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    assert waited.wait(60)
    assert len(stub.requests) == 1
    going_on.set()
    for thread in threads:
        thread.join(60)
    assert len(stub.requests) == 2
    assert {run.state for run in chat.query("select state from runs")} == {"committed"}


def test_what_is_larger_than_all_the_room_is_read_alone() -> None:
    memory = Memory(100)
    large, small = RunMemory(memory), RunMemory(memory)
    large.take(1_000)
    with pytest.raises(Exception, match="10"):
        small.take(10)
    large.take(900)
    large.give_back()
    small.take(60)
    small.take(40)
    small.take(90)
    other: Any = RunMemory(memory)
    other.take(10)
    with pytest.raises(Exception, match="1"):
        other.take(11)


def test_what_is_large_gets_its_turn_though_small_ones_keep_coming() -> None:
    memory = Memory(10)
    first, second, large, small, other = (RunMemory(memory) for _ in range(5))
    first.take(4)
    second.take(4)
    with pytest.raises(FullError):
        large.take(8)
    first.give_back()
    with pytest.raises(FullError):
        first.take(4)
    waiting = [Thread(target=run.wait, args=(size,)) for run, size in ((large, 8), (first, 4))]
    for thread in waiting:
        thread.start()
    second.give_back()
    waiting[0].join(60)
    with pytest.raises(FullError):
        second.take(4)
    small.take(2)  # what there is room for beside it need not wait
    large.take(3)  # it is read anew, and what comes first of it may be little
    with pytest.raises(FullError):
        other.take(1)
    large.take(8)
    for run in (large, small, other):
        run.give_back()
    waiting[1].join(60)
    first.take(4)
    second.take(4)


def test_who_waits_no_more_is_waited_for_by_nobody() -> None:
    memory = Memory(10)
    small, large, other = (RunMemory(memory) for _ in range(3))
    small.take(4)
    with pytest.raises(FullError):
        large.take(8)
    with pytest.raises(FullError):
        other.take(4)
    large.give_back()
    other.wait(4)
    other.take(4)


def test_everybody_gets_in_who_waits() -> None:
    memory = Memory(10)
    inside: list[int] = []

    def run(size: int) -> None:
        room = RunMemory(memory)
        for _ in range(20):
            while True:
                try:
                    room.take(size)
                    break
                except FullError:
                    room.wait(size)
            inside.append(size)
            assert sum(inside) <= max(10, size)
            inside.remove(size)
            room.give_back()

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(run, size) for size in (4, 4, 3, 8, 6, 30)]:
            done.result(60)
    room = RunMemory(memory)
    room.take(10)
