"""What is compacted in a pause, what waits for one, what is put off, and that no threshold is passed meanwhile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.cost.swap import bounds_of
from compaction.policy import merge
from store.conversations import waiting
from store.runs.runs import LeaseHolder
from tests.support.service.in_process import SMALL, Chat, Seen, Workers, head
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import answer, exchanges, request, rounds
from worker.checks import Checker
from worker.runs.pausing import Pausing
from worker.runs.swapping import Swapping
from worker.sweeping.cold import promote_cold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from tests.support.blocks import Message

MODEL: Final = "claude-opus-5-5"
NEAR: Final[list[Message]] = [request("go", 100), *rounds(4, 400)]
"""Under the budget of tool results, and over the share of it from which work is done ahead of time."""
TALK: Final[list[Message]] = [request("go", 2_600), *rounds(5, 150), answer("so", 20)]
"""Over the budget of tool results, and over it still when they have been cut."""


SMALL_CUTS: Final = {"tool_result_retention_chars": 400}
LIMITS: Final = bounds_of(merge(SMALL))


def begin(chat: Chat, policy: Mapping[str, Any] | None = None, model: str | None = MODEL) -> UUID:
    conversation = chat.begin({"swap": "when_it_pays", **(policy or {})})
    chat.query("update conversations set model = :m where id = :c", m=model, c=conversation)
    return conversation


def workers_of(chat: Chat) -> Workers:
    workers = Workers(chat, StubSummarizer())
    workers.resources.swapping = Swapping(chat.settings, chat.database)
    workers.checker = Checker(
        chat.database,
        chat.settings.policy,
        holder=lambda: LeaseHolder("test"),
        lease_seconds=workers.lease_seconds,
        pausing=Pausing(chat.settings),
    )
    return workers


def waits(chat: Chat, conversation: UUID) -> int | None:
    rows = chat.query("select version from waiting_snapshots where conversation_id = :c", c=conversation)
    return rows[0].version if rows else None


def is_watched(chat: Chat, conversation: UUID) -> bool:
    query = "select 1 from waiting_snapshots where conversation_id = :c and version is null and cold_at < 'infinity'"
    return bool(chat.query(query, c=conversation))


@pytest.fixture
def passes(chat: Chat) -> Callable[[UUID, int], None]:
    """Return a function that has so many seconds gone by, as far as anything of a conversation can tell."""

    def passes(conversation: UUID, seconds: int = 1_000) -> None:
        with psycopg.connect(chat.url) as connection:
            connection.execute("set session_replication_role = replica")
            for change in (
                "update messages set created_at = created_at - make_interval(secs => %s) where conversation_id = %s",
                "update waiting_snapshots set cold_at = cold_at - make_interval(secs => %s) where conversation_id = %s",
            ):
                connection.execute(change, (seconds, conversation))

    return passes


def test_what_nears_a_threshold_is_compacted_in_the_next_pause(chat: Chat, passes: Callable[..., None]) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, NEAR)
    workers.settle(conversation)
    assert (head(chat, conversation), is_watched(chat, conversation)) == (Seen(0, -1, None), True)
    assert chat.runs(conversation) == []
    assert promote_cold(chat.database) == 0
    passes(conversation)
    assert promote_cold(chat.database) == 1
    workers.settle(conversation)
    assert head(chat, conversation).version == 1
    run = chat.run(conversation)
    assert (run.trigger, run.state, is_watched(chat, conversation)) == ("pause", "committed", False)
    (step,) = chat.steps(run.id)
    assert "at once: the cache is cold, saves $" in step.detail
    # Nothing is left to do, in this pause or without one.
    assert promote_cold(chat.database) == 0
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1


def test_a_check_that_comes_late_finds_the_pause_by_itself(chat: Chat, passes: Callable[..., None]) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, NEAR)
    passes(conversation)
    workers.settle(conversation)
    assert head(chat, conversation).version == 1


def test_what_is_said_meanwhile_keeps_the_cache_warm(chat: Chat, passes: Callable[..., None]) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, NEAR)
    workers.settle(conversation)
    passes(conversation)
    chat.append(conversation, [answer("there", 20)])
    assert promote_cold(chat.database) == 0
    workers.settle(conversation)
    assert (head(chat, conversation).version, is_watched(chat, conversation)) == (0, True)


@pytest.mark.parametrize(
    ("policy", "model"),
    [
        ({"swap": "at_once"}, MODEL),
        ({}, None),
        ({}, "nobody-knows-1"),
        ({"prompt_cache_seconds": 0}, MODEL),
        ({"pause_threshold_ratio": 1}, MODEL),
        ({"compaction_enabled": False, "input_token_budget": 0}, MODEL),
    ],
    ids=["forbidden", "no model", "no price", "no cache", "nothing ahead", "no summaries"],
)
def test_no_pause_is_waited_for_where_that_is_forbidden_or_saves_nothing(
    chat: Chat, policy: dict[str, Any], model: str | None, passes: Callable[..., None]
) -> None:
    conversation, workers = begin(chat, policy, model), workers_of(chat)
    chat.append(conversation, NEAR)
    workers.settle(conversation)
    passes(conversation)
    assert promote_cold(chat.database) == 0
    workers.settle(conversation)
    assert (chat.runs(conversation), waits(chat, conversation)) == ([], None)


def test_a_threshold_is_answered_at_once_whatever_the_cache_is_worth(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, [request("go", 100), *rounds(7, 400)])
    workers.settle(conversation)
    assert (head(chat, conversation).version, waits(chat, conversation)) == (1, None)
    (step,) = chat.steps(chat.run(conversation).id)
    assert "at once: the context is over a threshold" in step.detail


def test_a_cut_that_answers_no_threshold_is_put_off_and_made_in_a_pause(
    chat: Chat, passes: Callable[..., None]
) -> None:
    conversation, workers = begin(chat, SMALL_CUTS), workers_of(chat)
    chat.append(conversation, TALK)
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (head(chat, conversation).version, run.state, run.reason) == (0, "skipped", "not_worth_it_yet")
    (step,) = chat.steps(run.id)
    assert "not yet: cache warm until " in step.detail
    assert is_watched(chat, conversation) or chat.row(conversation).tool_results_hold > 0
    # It is not looked at again with every turn.
    chat.append(conversation, [request("more", 20), answer("so", 20)])
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1
    chat.append(conversation, [request("more", 150), answer("so", 150)])
    workers.settle(conversation)
    passes(conversation)
    promote_cold(chat.database)
    workers.settle(conversation)
    assert head(chat, conversation).version == 1


DEEP_CUTS: Final = {"tool_result_retention_chars": 100, "input_token_budget": 2_050}
DEEP: Final[list[Message]] = [
    request("go", 20),
    *rounds(1, 60),
    answer("so", 20),
    *exchanges(5, 100),
    request("on", 20),
    *rounds(3, 400, start=1),
]
"""Over the budget of tool results: a small one with much talk behind it, and large ones after that."""


@pytest.mark.parametrize(
    ("policy", "model", "cut"),
    [
        ({}, MODEL, [16, 18]),
        ({"swap": "at_once"}, MODEL, [2, 16, 18]),
        ({"prompt_cache_seconds": 0}, MODEL, [2, 16, 18]),
        ({}, "nobody-knows-1", [2, 16, 18]),
        # So tight that the deepest alone leaves room for the next step.
        ({"input_token_budget": 2_000}, MODEL, [2, 16, 18]),
    ],
    ids=["pays", "forbidden", "no cache", "no price", "no room"],
)
def test_tool_results_are_cut_as_deep_as_pays(chat: Chat, policy: dict[str, Any], model: str, cut: list[int]) -> None:
    conversation, workers = begin(chat, DEEP_CUTS | policy, model), workers_of(chat)
    chat.append(conversation, DEEP)
    workers.settle(conversation)
    assert head(chat, conversation).version == 1
    (step,) = chat.steps(chat.run(conversation).id)
    assert ("1 older message(s) with results stay whole: spares $" in step.detail) == (len(cut) == 2)
    view = chat.query("select messages::text from snapshots where conversation_id = :c and version = 1", c=conversation)
    shown = json.loads(view[0].messages)
    assert [at for at, each in enumerate(shown) if "[truncated for" in json.dumps(each)] == cut


def test_a_summary_that_is_due_is_not_waited_with_a_cut_before_it(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, [request("go", 2_500), *rounds(8, 400), answer("done", 20), *exchanges(6, 100)])
    workers.settle(conversation)
    assert head(chat, conversation).version >= 1
    assert "tool_results" in {step.name for step in chat.steps(chat.runs(conversation)[0].id)}


def test_a_summary_that_is_not_worth_its_price_is_not_asked_for_in_a_pause(
    chat: Chat, passes: Callable[..., None]
) -> None:
    dear = {"model_prices": {"stub": {"input": 900_000, "output": 900_000}}}
    conversation, workers = begin(chat, dear), workers_of(chat)
    stub = StubSummarizer()
    stub.model = "stub"
    workers.resources._make_summarizer = lambda: stub
    chat.append(conversation, [request("go", 20), answer("so", 20), *exchanges(17, 100)])
    workers.settle(conversation)
    passes(conversation)
    assert promote_cold(chat.database) == 1
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.trigger, run.reason, head(chat, conversation).version) == ("pause", "not_worth_it_yet", 0)
    # Its threshold is not held back by that.
    chat.append(conversation, exchanges(8, 100))
    workers.settle(conversation)
    assert head(chat, conversation).version == 1


def wait(chat: Chat, conversation: UUID, workers: Workers, passes: Callable[..., None]) -> None:
    """Have a snapshot wait: the run of a pause is under way when somebody comes back."""
    chat.append(conversation, NEAR)
    passes(conversation)
    lease = workers.begin(conversation)
    chat.append(conversation, [answer("back", 20)])
    workers.dispatcher.execute(lease)
    workers.settle(conversation)
    assert (head(chat, conversation).version, waits(chat, conversation)) == (0, 1)
    run = chat.run(conversation)
    assert (run.state, run.reason) == ("committed", "waits_until_it_pays")
    assert "waits: cache warm until " in chat.steps(run.id)[0].detail


def test_a_snapshot_waits_if_somebody_comes_back_while_it_is_made(chat: Chat, passes: Callable[..., None]) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    wait(chat, conversation, workers, passes)
    # What it was made from is served meanwhile, whole.
    assert len(chat.valid_context(conversation)) == len(NEAR) + 1
    assert promote_cold(chat.database) == 0
    passes(conversation)
    assert promote_cold(chat.database) == 1
    assert (head(chat, conversation).version, waits(chat, conversation)) == (1, None)
    assert promote_cold(chat.database) == 0


@pytest.mark.parametrize("policy", [{}, {"input_token_budget": 0, "compaction_threshold_tokens": 2_000}])
def test_a_threshold_ends_the_wait_at_once(chat: Chat, policy: dict[str, Any], passes: Callable[..., None]) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    wait(chat, conversation, workers, passes)
    if policy:
        chat.query("update conversations set policy = policy || :p where id = :c", p=json.dumps(policy), c=conversation)
    runs = len(chat.runs(conversation))
    chat.append(conversation, [request("more", 400), answer("so", 20)])
    workers.settle(conversation)
    assert (head(chat, conversation).version, waits(chat, conversation)) == (1, None)
    # It was ready: nothing had to be made.
    assert len(chat.runs(conversation)) == runs


def test_an_edit_gives_up_what_waits(chat: Chat, passes: Callable[..., None]) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    wait(chat, conversation, workers, passes)
    chat.append(conversation, [request("other", 20)], replace_from=1)
    passes(conversation)
    assert promote_cold(chat.database) == 0
    assert (head(chat, conversation).version, waits(chat, conversation)) == (0, None)


def test_an_edit_of_what_comes_after_it_takes_nothing_from_what_waits(chat: Chat, passes: Callable[..., None]) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    wait(chat, conversation, workers, passes)
    newest = len(chat.query("select 1 from messages where conversation_id = :c", c=conversation)) - 1
    chat.append(conversation, [answer("once more", 20)], replace_from=newest)
    passes(conversation)
    assert promote_cold(chat.database) == 1
    assert (head(chat, conversation).version, waits(chat, conversation)) == (1, None)


def test_in_a_loop_with_signed_thinking_it_waits_for_the_loops_end_instead(
    chat: Chat, passes: Callable[..., None]
) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    wait(chat, conversation, workers, passes)
    chat.append(conversation, [request("on", 20), *rounds(1, 20, start=50, thinking=True)])
    passes(conversation)
    assert promote_cold(chat.database) == 1
    assert head(chat, conversation) == Seen(0, -1, 1)
    chat.append(conversation, [answer("done", 20)])
    assert head(chat, conversation).version == 1


def test_a_restore_is_not_undone_by_a_pause(chat: Chat, passes: Callable[..., None]) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, NEAR)
    passes(conversation)
    workers.settle(conversation)
    chat.query("update conversations set held_by_restore = true where id = :c", c=conversation)
    chat.append(conversation, rounds(2, 300, start=40))
    passes(conversation)
    promote_cold(chat.database)
    workers.settle(conversation)
    assert head(chat, conversation).version == 1


def test_erasure_takes_what_waits(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, NEAR)
    workers.settle(conversation)
    erased = "select erase_conversation(gen_random_uuid(), :c, 'conversation', :t, gen_random_uuid())"
    chat.query(erased, t=chat.tenant_id, c=conversation)
    assert not is_watched(chat, conversation)
    with chat.database.transaction(chat.tenant_id) as connection:
        assert waiting.promote(connection, chat.tenant_id, conversation) == "outdated"


LIVES = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([20, 200, 400, 900]), st.integers(-500, 2_000), st.integers(0, 6)),
    min_size=1,
    max_size=6,
)


@settings(
    max_examples=settings().max_examples // 7,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    life=LIVES,
    price=st.sampled_from([0, 1e-6, 1, 1_000_000]),
    read=st.sampled_from([0, 0.1, 1_000_000]),
    cache=st.sampled_from([0, 1, 300, 604_800]),
    share=st.sampled_from([0.1, 0.75, 1]),
)
def test_whatever_prices_clocks_and_usage_say_no_threshold_is_passed_and_nothing_runs_for_ever(
    chat: Chat,
    passes: Callable[..., None],
    life: list[tuple[int, int, int, int]],
    price: float,
    read: float,
    cache: int,
    share: float,
) -> None:
    prices = {"mine": {"input": price, "output": 1, "cache_read": read}}
    policy = {"model_prices": prices, "prompt_cache_seconds": cache, "pause_threshold_ratio": share}
    conversation, workers = begin(chat, policy, "mine"), workers_of(chat)
    chat.append(conversation, [request("go", 100)])
    for number, (count, tokens, seconds, usage) in enumerate(life):
        chat.append(
            conversation,
            rounds(count, tokens, start=10 * number),
            # Late, missing, or at odds with what is stored.
            input_tokens=[None, 0, 5, 2_500, 5_000, 100_000, None][usage],
        )
        workers.settle(conversation)
        row = chat.row(conversation)
        assert row.check_due_at is None
        assert chat.context(conversation)["last_seq"] == row.next_seq - 1
        # Whatever the API counts: what is stored is not over the threshold of the summary, nor waits anything over any.
        assert row.context_tokens <= LIMITS.hard or row.summary_hold > 0
        if waits(chat, conversation) is not None:
            assert not LIMITS.are_exceeded(row.context_tokens)
        # Also a clock that jumps back.
        passes(conversation, seconds)
        promote_cold(chat.database)
        workers.settle(conversation)
    assert len(chat.runs(conversation)) <= 3 * len(life)
