"""Snapshots that wait until it pays that they become the head: what they wait for, and that no bound is passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.policy import merge
from store.conversations import waiting
from tests.support.service.in_process import SMALL, Chat, Seen, Workers, chat, head
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import answer, exchanges, request, rounds
from worker.runs.swapping import Swapping
from worker.sweeping.cold import promote_cold

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from tests.support.blocks import Message

__all__ = ["chat"]

MODEL: Final = "claude-opus-5-5"
LIMIT: Final = merge(SMALL).pending_limit_tokens
READY: Final[list[Message]] = [request("go", 100), *rounds(7, 400)]
"""Over the budget of tool results, and not worth a warm cache yet."""


def begin(chat: Chat, policy: Mapping[str, Any] | None = None, model: str | None = MODEL) -> UUID:
    conversation = chat.begin({"swap": "when_it_pays", **(policy or {})})
    chat.query("update conversations set model = :m where id = :c", m=model, c=conversation)
    return conversation


def workers_of(chat: Chat) -> Workers:
    workers = Workers(chat, StubSummarizer())
    workers.resources.swapping = Swapping(chat.settings, chat.database)
    return workers


def waits(chat: Chat, conversation: UUID) -> int | None:
    rows = chat.query("select version from waiting_snapshots where conversation_id = :c", c=conversation)
    return rows[0].version if rows else None


def go_cold(chat: Chat, conversation: UUID) -> None:
    """Let the cache's life be over, as time would."""
    chat.query(
        "update waiting_snapshots set lifetime = 0, cold_at = now() - interval '1 second' where conversation_id = :c",
        c=conversation,
    )


def test_a_snapshot_waits_while_the_cache_is_warm_and_its_run_says_why(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, READY)
    workers.settle(conversation)
    assert head(chat, conversation) == Seen(0, -1, None)
    assert waits(chat, conversation) == 1
    run = chat.run(conversation)
    assert (run.state, run.reason) == ("committed", "waits_until_it_pays")
    (step,) = chat.steps(run.id)
    assert "waits: cache warm until " in step.detail
    assert "expected turns" in step.detail
    # What it was made from is served meanwhile, whole.
    assert len(chat.valid_context(conversation)) == len(READY)


def test_it_becomes_the_head_in_a_pause(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, READY)
    workers.settle(conversation)
    assert promote_cold(chat.database) == 0
    go_cold(chat, conversation)
    assert promote_cold(chat.database) == 1
    assert head(chat, conversation).version == 1
    assert waits(chat, conversation) is None
    assert chat.row(conversation).check_due_at is not None
    assert promote_cold(chat.database) == 0


def test_what_is_said_meanwhile_keeps_the_cache_warm(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, READY)
    workers.settle(conversation)
    chat.append(conversation, [answer("there", 20)])
    chat.query(
        "update waiting_snapshots set cold_at = now() - interval '1 second' where conversation_id = :c", c=conversation
    )
    assert promote_cold(chat.database) == 0
    assert waits(chat, conversation) == 1
    (row,) = chat.query(
        "select cold_at > now() as later from waiting_snapshots where conversation_id = :c", c=conversation
    )
    assert row.later


@pytest.mark.parametrize(
    ("policy", "model"),
    [({"swap": "at_once"}, MODEL), ({}, None), ({}, "nobody-knows-1"), ({"prompt_cache_seconds": 0}, MODEL)],
    ids=["forbidden", "no model", "no price", "no cache"],
)
def test_it_does_not_wait_where_that_is_forbidden_or_saves_nothing(
    chat: Chat, policy: dict[str, Any], model: str | None
) -> None:
    conversation = begin(chat, policy, model)
    chat.append(conversation, READY)
    workers_of(chat).settle(conversation)
    assert (head(chat, conversation).version, waits(chat, conversation)) == (1, None)


def test_what_waits_is_made_anew_as_the_conversation_grows_and_never_passes_the_limit(chat: Chat) -> None:
    conversation, workers = (
        begin(chat, {"compaction_threshold_tokens": 60_000, "model_context_tokens": 16_000}),
        workers_of(chat),
    )
    made = 0
    chat.append(conversation, READY)
    for number in range(40):
        workers.settle(conversation)
        assert chat.context(conversation)["tokens"]["context"] < LIMIT
        made = max(made, waits(chat, conversation) or 0)
        chat.append(conversation, rounds(1, 400, start=100 + number))
    assert made > 1
    # One a turn at most: it neither runs again and again nor stops looking.
    assert len(chat.runs(conversation)) <= 40


def test_a_summary_that_is_due_is_not_waited_with_a_cut_before_it(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, [request("go", 2_500), *rounds(8, 400), answer("done", 20), *exchanges(6, 100)])
    workers.settle(conversation)
    assert head(chat, conversation).version >= 1
    assert "tool_results" in {step.name for step in chat.steps(chat.runs(conversation)[0].id)}


def test_an_edit_gives_up_what_waits(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, READY)
    workers.settle(conversation)
    chat.append(conversation, [request("other", 20)], replace_from=1)
    go_cold(chat, conversation)
    assert promote_cold(chat.database) == 0
    assert (head(chat, conversation).version, waits(chat, conversation)) == (0, None)


def test_in_a_loop_with_signed_thinking_it_waits_for_the_loops_end_instead(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, READY)
    workers.settle(conversation)
    chat.append(conversation, rounds(1, 20, start=50, thinking=True))
    go_cold(chat, conversation)
    assert promote_cold(chat.database) == 1
    assert head(chat, conversation) == Seen(0, -1, 1)
    chat.append(conversation, [answer("done", 20)])
    assert head(chat, conversation).version == 1


def test_erasure_takes_what_waits(chat: Chat) -> None:
    conversation, workers = begin(chat), workers_of(chat)
    chat.append(conversation, READY)
    workers.settle(conversation)
    erased = "select erase_conversation(gen_random_uuid(), :c, 'conversation', :t, gen_random_uuid())"
    chat.query(erased, t=chat.tenant_id, c=conversation)
    assert waits(chat, conversation) is None
    with chat.database.transaction(chat.tenant_id) as connection:
        assert waiting.promote(connection, chat.tenant_id, conversation) == "outdated"


LIVES = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([20, 200, 400, 900]), st.booleans(), st.integers(0, 6)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    life=LIVES,
    price=st.sampled_from([0, 1e-6, 1, 1_000_000]),
    read=st.sampled_from([0, 0.1, 1_000_000]),
    cache=st.sampled_from([0, 1, 300, 604_800]),
)
def test_whatever_prices_and_pauses_say_no_bound_is_passed_and_nothing_runs_for_ever(
    chat: Chat, life: list[tuple[int, int, bool, int]], price: float, read: float, cache: int
) -> None:
    prices = {"mine": {"input": price, "output": 1, "cache_read": read}}
    policy = {"model_prices": prices, "prompt_cache_seconds": cache}
    conversation, workers = begin(chat, policy, "mine"), workers_of(chat)
    chat.append(conversation, [request("go", 100)])
    for number, (count, tokens, is_cold, usage) in enumerate(life):
        chat.append(
            conversation,
            rounds(count, tokens, start=10 * number),
            # Late, missing, or at odds with what is stored.
            input_tokens=[None, 0, 5, 2_500, 5_000, 100_000, None][usage],
        )
        workers.settle(conversation)
        assert chat.row(conversation).check_due_at is None
        context = chat.context(conversation)
        assert chat.row(conversation).context_tokens < LIMIT
        assert context["last_seq"] == chat.row(conversation).next_seq - 1
        if is_cold:
            go_cold(chat, conversation)
            promote_cold(chat.database)
            workers.settle(conversation)
            assert waits(chat, conversation) is None or cache > 0
