"""The append: one database function keeps messages, counters, measured tokens, the due check and the key together."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from compaction.tokens import content_tokens
from store import hot_path
from store.engine import transaction
from tests.conftest import make_tenant
from tests.support.service.hot_calls import CAP, HotCalls, hot_calls
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from runtime.settings import Settings
    from store.hot_path import Appended
    from store.hot_pool import HotPool

Message = dict[str, Any]
HELLO: Message = {"role": "user", "content": "Hello there, how are you today?"}
ANSWER: Message = {"role": "assistant", "content": "Well, thank you. What may I look up for you?"}
LONG = "A line of a long page of results.\n" * 1_500


@pytest.fixture(scope="module")
def settings(module_settings: Settings) -> Settings:
    return module_settings


@pytest.fixture(scope="module")
def calls(settings: Settings) -> Iterator[HotCalls]:
    tenant = make_tenant(settings.database_url.get_secret_value(), "acme")
    with hot_calls(settings, tenant.id) as opened:
        yield opened


def call(*identifiers: str, thinking: bool = False) -> Message:
    first = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}] if thinking else []
    uses = [{"type": "tool_use", "id": each, "name": "look", "input": {"page": 1}} for each in identifiers]
    return {"role": "assistant", "content": [*first, *uses]}


def result(*identifiers: str, text: str = "Found.") -> Message:
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": each, "content": text} for each in identifiers],
    }


def thought(text: str) -> Message:
    return {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": text}],
    }


def estimate(*messages: Message) -> int:
    return sum(content_tokens(message["content"]) for message in messages)


def recount(calls: HotCalls, conversation: UUID, cap: int = CAP) -> int:
    """Count what is stored anew, from the contents alone."""
    total = 0
    for row in calls.owner("select content::text as text from messages where conversation_id = %s", conversation):
        content = json.loads(row["text"])
        total += content_tokens(content)
        if isinstance(content, list):
            results = [block["content"] for block in content if block["type"] == "tool_result"]
            total -= sum(max(0, len(text) - cap) for text in results) // 4
    return total


def measured(calls: HotCalls, conversation: UUID) -> tuple[int | None, int | None]:
    """Return the measured tokens that are in force, of context and of input."""
    context = calls.context(conversation)
    assert context is not None
    row = calls.stored(conversation)
    valid = row["measured_version"] == row["head_version"]
    return row["measured_tokens"] if valid else None, context.measured_input_tokens


def compacted(calls: HotCalls, settings: Settings) -> UUID:
    """Make a conversation whose head has just moved to version 1."""
    conversation = calls.conversation(policy={"input_token_budget": 1_000})
    calls.append(conversation, HELLO)
    for number in range(3):
        calls.append(conversation, call(f"c{number}"), result(f"c{number}", text=LONG[:20_000]))
    work(settings, conversation)
    assert calls.stored(conversation)["head_version"] == 1
    return conversation


def test_an_append_keeps_messages_and_counters_together(calls: HotCalls) -> None:
    conversation = calls.conversation()
    first = calls.append(conversation, HELLO)
    assert first == ("appended", 0, 0, estimate(HELLO), True)
    second = calls.append(conversation, call("a", "b"), result("a", "b"), thought("Done."))
    assert second == ("appended", 1, 3, recount(calls, conversation), False)
    row = calls.stored(conversation)
    assert (row["next_seq"], row["turn_count"], row["context_messages"]) == (4, 2, 4)
    assert row["context_tokens"] == recount(calls, conversation) == second.context_tokens
    stored = calls.owner("select * from messages where conversation_id = %s order by seq", conversation)
    assert [each["seq"] for each in stored] == [0, 1, 2, 3]
    assert [each["role"] for each in stored] == ["user", "assistant", "user", "assistant"]
    assert [each["is_request"] for each in stored] == [True, False, False, False]
    assert [each["has_thinking"] for each in stored] == [False, False, False, True]
    assert [each["result_chars"] for each in stored] == [None, None, [6, 6], None]
    assert {each["tenant_id"] for each in stored} == {calls.tenant_id}


def test_a_turn_for_nothing_changes_nothing(calls: HotCalls) -> None:
    conversation = calls.conversation()
    before = calls.stored(conversation)
    assert calls.append(calls.tenant_id, HELLO).outcome == "missing"
    assert calls.owner("select from messages where conversation_id in (%s, %s)", calls.tenant_id, conversation) == []
    assert calls.stored(conversation) == before


def test_a_measured_count_is_carried_forward(calls: HotCalls) -> None:
    conversation = calls.conversation()
    calls.append(conversation, HELLO)
    usage = {
        "input_tokens": 100,
        "cache_read_input_tokens": 1_000,
        "cache_creation_input_tokens": 10_000,
        "output_tokens": 50,
    }
    done = calls.append(conversation, call("a"), usage=usage)
    assert measured(calls, conversation) == (11_150, 11_100)
    assert done.context_tokens == 11_150
    newer = result("a", text="x" * 4_000)
    assert calls.append(conversation, newer).context_tokens == 11_150 + estimate(newer)
    assert measured(calls, conversation) == (11_150 + estimate(newer), 11_100)


def test_usage_has_not_seen_what_follows_the_answer(calls: HotCalls) -> None:
    conversation = calls.conversation()
    newer = result("a", text="x" * 4_000)
    calls.append(conversation, HELLO, call("a"), newer, usage={"input_tokens": 100, "output_tokens": 50})
    assert measured(calls, conversation) == (150 + estimate(newer), 100)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"input_tokens": 0},
        {"input_tokens": None, "output_tokens": 12},
        {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 9},
    ],
)
def test_no_count_means_no_data_and_never_an_empty_context(calls: HotCalls, usage: dict[str, Any] | None) -> None:
    conversation = calls.conversation()
    done = calls.append(conversation, HELLO, ANSWER, usage=usage)
    assert measured(calls, conversation) == (None, None)
    assert done.context_tokens == estimate(HELLO, ANSWER)


def test_a_new_request_without_a_count_carries_the_last_one_on(calls: HotCalls) -> None:
    conversation = calls.conversation()
    calls.append(conversation, HELLO, ANSWER, usage={"input_tokens": 5_000, "output_tokens": 1})
    done = calls.append(conversation, HELLO)
    carried = 5_001 + estimate(HELLO)
    assert measured(calls, conversation) == (carried, 5_000)
    assert done.context_tokens == carried
    calls.append(conversation, ANSWER, usage={"input_tokens": 0})
    assert measured(calls, conversation) == (carried + estimate(ANSWER), 5_000)


def test_a_later_count_replaces_the_earlier(calls: HotCalls) -> None:
    conversation = calls.conversation()
    for count in (100, 5_000, 200):
        calls.append(conversation, HELLO, ANSWER, usage={"input_tokens": count, "output_tokens": 7}, snapshot_version=0)
        assert measured(calls, conversation) == (count + 7, count)


def test_a_count_made_with_another_version_is_stale(calls: HotCalls, settings: Settings) -> None:
    conversation = compacted(calls, settings)
    assert measured(calls, conversation) == (None, None)
    usage = {"input_tokens": 90_000, "output_tokens": 5}
    done = calls.append(conversation, ANSWER, usage=usage, snapshot_version=0)
    assert measured(calls, conversation) == (None, None)
    assert done.context_tokens < 90_000
    calls.append(conversation, HELLO, ANSWER, usage={"input_tokens": 7_000, "output_tokens": 5}, snapshot_version=1)
    assert measured(calls, conversation) == (7_005, 7_000)
    # What cannot be used leaves the last one that could be in force.
    carried = 7_005 + estimate(HELLO, ANSWER)
    calls.append(conversation, HELLO, ANSWER, usage=usage, snapshot_version=0)
    assert measured(calls, conversation) == (carried, 7_000)
    calls.append(conversation, HELLO, ANSWER, usage=usage, snapshot_version=2)
    assert measured(calls, conversation) == (carried + estimate(HELLO, ANSWER), 7_000)


def test_a_count_without_a_version_is_doubted_right_after_the_head_moved(calls: HotCalls, settings: Settings) -> None:
    conversation = compacted(calls, settings)
    usage = {"input_tokens": 9_000, "output_tokens": 5}
    calls.append(conversation, ANSWER, usage=usage)
    assert measured(calls, conversation) == (None, None)
    calls.append(conversation, HELLO, ANSWER, usage=usage)
    assert measured(calls, conversation) == (9_005, 9_000)


def test_a_moved_head_makes_the_count_stale(calls: HotCalls, settings: Settings) -> None:
    conversation = calls.conversation(policy={"input_token_budget": 1_000})
    calls.append(conversation, HELLO, call("a"), result("a", text=LONG), call("b"), result("b"), ANSWER)
    calls.append(conversation, HELLO, ANSWER, usage={"input_tokens": 15_000, "output_tokens": 5})
    assert measured(calls, conversation) == (15_005, 15_000)
    work(settings, conversation)
    assert calls.stored(conversation)["head_version"] == 1
    assert measured(calls, conversation) == (None, None)
    context = calls.context(conversation)
    assert context is not None
    assert context.context_tokens == calls.stored(conversation)["context_tokens"] < 3_000


@pytest.mark.requirement("S15")
@pytest.mark.parametrize("own", [True, False])
def test_the_view_cap_counts_and_the_original_stays(calls: HotCalls, own: bool) -> None:
    conversation = calls.conversation(policy={"max_tool_result_chars": 1_000} if own else {})
    cap = {} if own else {"cap": 1_000}
    texts = ("x" * 1_003, "y" * 999, "z" * 30_001)
    several = [result("a", text=texts[0])["content"][0], result("b", text=texts[1])["content"][0]]
    turn = [call("a", "b"), {"role": "user", "content": several}, call("c"), result("c", text=texts[2])]
    done = calls.append(conversation, HELLO, *turn, **cap)
    assert done.context_tokens == recount(calls, conversation, cap=1_000) < estimate(HELLO, *turn) - 7_000
    rows = calls.owner("select * from messages where conversation_id = %s order by seq", conversation)
    assert sum(row["view_tokens"] for row in rows) == done.context_tokens
    assert sum(row["tokens"] for row in rows) == estimate(HELLO, *turn)
    assert [row["result_chars"] for row in rows] == [None, None, [1_003, 999], None, [30_001]]
    assert [row["content"] for row in rows][4][0]["content"] == texts[2]


def test_the_view_cap_counts_in_what_a_measured_count_has_not_seen(calls: HotCalls) -> None:
    conversation = calls.conversation(policy={"max_tool_result_chars": 1_000})
    seen, newer = result("a", text="x" * 9_000), result("b", text="y" * 21_000)
    calls.append(
        conversation, HELLO, call("a"), seen, call("b"), newer, usage={"input_tokens": 400, "output_tokens": 20}
    )
    assert measured(calls, conversation) == (420 + estimate(newer) - 5_000, 400)
    calls.append(conversation, call("c"), result("c", text="z" * 41_000))
    carried, _ = measured(calls, conversation)
    assert carried == 420 + estimate(newer) - 5_000 + estimate(call("c"), result("c", text="z" * 1_000))


def test_the_same_key_and_body_answer_the_same_again(calls: HotCalls) -> None:
    conversation = calls.conversation()
    calls.append(conversation, HELLO)
    first = calls.append(conversation, ANSWER, key="k")
    calls.append(conversation, HELLO)
    before = calls.stored(conversation)
    again = calls.append(conversation, ANSWER, key="k")
    assert again == first._replace(outcome="replayed")
    assert calls.append(conversation, HELLO, key="k").outcome == "other_body"
    assert calls.stored(conversation) == before
    elsewhere = calls.conversation()
    assert calls.append(elsewhere, ANSWER, key="k").outcome == "appended"


def test_a_refused_turn_does_not_use_up_its_key(calls: HotCalls) -> None:
    conversation = calls.conversation()
    assert calls.append(conversation, HELLO, key="k", expected_next_seq=5).outcome == "out_of_order"
    assert calls.append(conversation, HELLO, key="k", expected_next_seq=0).outcome == "appended"


def test_a_replay_comes_before_the_expected_seq(calls: HotCalls) -> None:
    conversation = calls.conversation()
    first = calls.append(conversation, HELLO, key="k", expected_next_seq=0)
    assert calls.append(conversation, HELLO, key="k", expected_next_seq=0) == first._replace(outcome="replayed")


def test_fifty_duplicates_at_once_append_once(calls: HotCalls) -> None:
    conversation = calls.conversation()
    answers = calls.at_once([calls.turn(conversation, HELLO, ANSWER, key="k") for _ in range(50)])
    assert sorted(answer.outcome for answer in answers) == ["appended"] + ["replayed"] * 49
    assert {answer[1:] for answer in answers} == {(0, 1, estimate(HELLO, ANSWER), True)}
    assert calls.stored(conversation)["next_seq"] == calls.stored(conversation)["context_messages"] == 2
    count = calls.owner("select count(*) from messages where conversation_id = %s", conversation)
    assert count == [{"count": 2}]


def test_duplicates_of_two_bodies_at_once_append_one_of_them(calls: HotCalls) -> None:
    conversation = calls.conversation()
    answers = calls.at_once([calls.turn(conversation, (HELLO, ANSWER)[n % 2], key="k") for n in range(20)])
    assert sorted(answer.outcome for answer in answers) == ["appended"] + ["other_body"] * 10 + ["replayed"] * 9
    assert calls.stored(conversation)["next_seq"] == 1


def test_an_expected_seq_that_is_wrong_tells_the_right_one(calls: HotCalls) -> None:
    conversation = calls.conversation()
    calls.append(conversation, HELLO, ANSWER, expected_next_seq=0)
    for wrong in (0, 1, 3):
        refused = calls.append(conversation, HELLO, expected_next_seq=wrong)
        assert (refused.outcome, refused.first_seq) == ("out_of_order", 2)
    assert calls.append(conversation, HELLO, expected_next_seq=2).outcome == "appended"


def test_revisions_grow_and_are_not_counted_the_same_twice(calls: HotCalls) -> None:
    """A turn that comes instead of one that a failover lost is told from it by its revision alone."""
    alike = [calls.conversation(), calls.conversation()]
    seen: list[tuple[int, ...]] = [(0, 0)]
    for text in ("one", "two"):
        for conversation in alike:
            calls.append(conversation, {"role": "user", "content": text})
        seen.append(tuple(calls.stored(conversation)["revision"] for conversation in alike))
        assert len(set(seen[-1])) == 2
    assert all(earlier < later for revisions in zip(*seen, strict=True) for earlier, later in pairwise(revisions))


def test_of_writers_that_expect_the_same_seq_one_gets_it(calls: HotCalls) -> None:
    conversation = calls.conversation()
    answers = calls.at_once([calls.turn(conversation, HELLO, expected_next_seq=0) for _ in range(20)])
    assert sorted(answer.outcome for answer in answers) == ["appended"] + ["out_of_order"] * 19
    assert {answer.first_seq for answer in answers if answer.outcome == "out_of_order"} == {1}


def test_concurrent_appends_take_seqs_without_gaps(calls: HotCalls, settings: Settings) -> None:
    """Of two processes, each of which has a statement at a time for a conversation."""
    conversations = [calls.conversation() for _ in range(2)]
    turns = [
        calls.turn(conversations[n % 2], *({"role": "user", "content": f"{n}.{place}"} for place in range(1 + n % 4)))
        for n in range(120)
    ]

    async def every(pool: HotPool, _: UUID) -> list[Appended]:
        other = await hot_path.open_pool(settings)
        pools = (pool, other)
        try:
            appends = (hot_path.append_turn(pools[n // 2 % 2], **turn) for n, turn in enumerate(turns))
            return await asyncio.gather(*appends)
        finally:
            await other.close()

    answers = calls.run(every)
    for conversation in conversations:
        rows = calls.owner("select seq, content from messages where conversation_id = %s order by seq", conversation)
        assert [row["seq"] for row in rows] == list(range(len(rows)))
        texts = [row["content"] for row in rows]
        for turn, answer in zip(turns, answers, strict=True):
            if turn["conversation_id"] == conversation:
                assert texts[answer.first_seq : answer.last_seq + 1] == [json.loads(each) for each in turn["contents"]]
        row = calls.stored(conversation)
        assert row["next_seq"] == row["context_messages"] == len(rows)
        assert row["turn_count"] == 60
        assert row["context_tokens"] == recount(calls, conversation)


def test_one_of_many_appends_asks_for_the_check(calls: HotCalls, settings: Settings) -> None:
    conversation = calls.conversation()
    answers = calls.at_once([calls.turn(conversation, HELLO) for _ in range(20)])
    assert sum(answer.queued for answer in answers) == 1
    assert not calls.append(conversation, HELLO).queued
    due = calls.stored(conversation)["check_due_at"]
    work(settings, conversation)
    assert calls.stored(conversation)["check_due_at"] is None
    assert calls.append(conversation, HELLO).queued
    assert calls.stored(conversation)["check_due_at"] > due


def test_a_check_remembers_the_request_that_asked_for_it(calls: HotCalls) -> None:
    conversation = calls.conversation()
    first = calls.turn(conversation, HELLO)
    calls.at_once([first])
    calls.append(conversation, HELLO)
    assert calls.stored(conversation)["check_request_id"] == first["request_id"]


SOUND = [
    [[HELLO], [ANSWER]],
    [[HELLO, ANSWER, HELLO]],
    [[HELLO], [call("a")], [result("a")], [ANSWER]],
    [[HELLO, call("a", "b")], [result("b", "a"), ANSWER]],
    [[HELLO, call("a")], [result("a"), call("a")], [result("a")]],
    [[HELLO], [HELLO], [ANSWER], [ANSWER]],
    [[HELLO, thought("So.")]],
]
BROKEN = [
    [[ANSWER]],
    [[HELLO, call("a")], [ANSWER]],
    [[HELLO, call("a")], [HELLO]],
    [[HELLO], [result("a")]],
    [[HELLO, call("a", "b")], [result("a")]],
    [[HELLO, call("a")], [result("b")]],
    [[HELLO, call("a", "a")]],
    [[HELLO, call("a"), HELLO, result("a")]],
    [[{"role": "user", "content": ""}]],
    [[{"role": "user", "content": []}]],
    [[HELLO, {"role": "assistant", "content": [{"type": "text", "text": " "}]}]],
]


@pytest.mark.parametrize("turns", SOUND)
def test_sound_turns_leave_the_fast_path_open(calls: HotCalls, turns: list[list[Message]]) -> None:
    conversation = calls.conversation()
    for turn in turns:
        calls.append(conversation, *turn)
    context = calls.context(conversation)
    assert context is not None
    assert context.plain
    assert calls.stored(conversation)["broken_through"] == -1


@pytest.mark.parametrize("turns", BROKEN)
def test_a_turn_that_needs_repair_closes_it(calls: HotCalls, turns: list[list[Message]]) -> None:
    conversation = calls.conversation()
    for turn in turns:
        calls.append(conversation, *turn)
    context = calls.context(conversation)
    assert context is not None
    assert not context.plain
    row = calls.stored(conversation)
    assert row["broken_through"] == row["next_seq"] - 1
    calls.append(conversation, HELLO)
    assert calls.stored(conversation)["broken_through"] >= row["broken_through"]


def test_open_calls_and_the_running_loop(calls: HotCalls) -> None:
    conversation = calls.conversation()

    def after(*messages: Message) -> tuple[list[str], bool, bool]:
        calls.append(conversation, *messages)
        row = calls.stored(conversation)
        return row["open_calls"], row["in_loop"], row["loop_has_thinking"]

    assert after(HELLO) == ([], False, False)
    assert after(call("b", "a", thinking=True)) == (["a", "b"], True, True)
    assert after(result("a", "b")) == ([], True, True)
    assert after(call("c")) == (["c"], True, True)
    assert after(result("c"), ANSWER) == ([], False, True)
    assert after(HELLO) == ([], False, False)
    assert after(call("d")) == (["d"], True, False)
    assert after(result("d"), HELLO) == ([], False, False)


def test_thinking_signed_over_an_older_prefix_is_marked(calls: HotCalls, settings: Settings) -> None:
    conversation = compacted(calls, settings)
    moved_at = calls.stored(conversation)["strip_thinking_through"]
    assert moved_at == 6

    def marked(*messages: Message, **fields: Any) -> int:
        calls.append(conversation, *messages, **fields)
        through: int = calls.stored(conversation)["strip_thinking_through"]
        return through

    assert marked(thought("Unknown version, the head has just moved.")) == 7
    assert marked(HELLO, ANSWER, snapshot_version=0) == 7
    assert marked(HELLO, thought("The head's."), snapshot_version=1) == 7
    assert marked(HELLO, thought("Taken for the head's.")) == 7
    assert marked(HELLO, thought("Stale."), snapshot_version=0) == 15


def pending(calls: HotCalls, settings: Settings) -> UUID:
    """Make a conversation with a snapshot that waits for the end of a tool loop with signed thinking."""
    conversation = calls.conversation(policy={"input_token_budget": 1_000})
    calls.append(conversation, HELLO, call("a", thinking=True))
    calls.append(conversation, result("a", text=LONG), call("b"), result("b"))
    work(settings, conversation)
    row = calls.stored(conversation)
    assert (row["head_version"], row["pending_version"], row["last_version"]) == (0, 1, 1)
    return conversation


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param([ANSWER], id="an answer"),
        pytest.param([ANSWER, HELLO], id="an answer and a new request"),
        pytest.param([HELLO], id="a request without an answer"),
        pytest.param([ANSWER, HELLO, call("z")], id="a new loop that nothing is signed in"),
    ],
)
def test_the_append_that_ends_the_loop_promotes_the_pending_snapshot(
    calls: HotCalls, settings: Settings, ending: list[Message]
) -> None:
    conversation = pending(calls, settings)
    for number in range(2):
        calls.append(conversation, call(f"more{number}"), result(f"more{number}"))
        assert calls.stored(conversation)["head_version"] == 0
    done = calls.append(conversation, *ending, key="k")
    row = calls.stored(conversation)
    assert (row["head_version"], row["pending_version"], row["covers_through"]) == (1, None, 2)
    assert row["strip_thinking_through"] == row["next_seq"] - 1 == done.last_seq
    (snapshot,) = calls.owner("select tokens, message_count from snapshots where conversation_id = %s", conversation)
    tail = calls.owner("select view_tokens from messages where conversation_id = %s and seq > 2", conversation)
    assert row["context_tokens"] == snapshot["tokens"] + sum(each["view_tokens"] for each in tail)
    assert row["context_messages"] == snapshot["message_count"] + len(tail)
    assert done.context_tokens == row["context_tokens"] < 3_000
    assert calls.append(conversation, *ending, key="k") == done._replace(outcome="replayed")


def test_a_loop_with_thinking_after_another_keeps_the_snapshot_waiting(calls: HotCalls, settings: Settings) -> None:
    conversation = pending(calls, settings)
    calls.append(conversation, ANSWER, HELLO, call("z", thinking=True))
    assert calls.stored(conversation)["pending_version"] == 1
    calls.append(conversation, result("z"), thought("Done."))
    assert calls.stored(conversation)["head_version"] == 1


def test_the_learned_ratio_corrects_the_estimate(calls: HotCalls) -> None:
    conversation = calls.conversation()
    calls.append(conversation, HELLO)
    with transaction(calls.engine, calls.tenant_id) as connection:
        connection.exec_driver_sql("update conversations set token_ratio = 2 where id = %s", (conversation,))
    done = calls.append(conversation, ANSWER)
    assert done.context_tokens == 2 * estimate(HELLO, ANSWER)
