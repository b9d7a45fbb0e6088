"""Usages of turns: kept off the request path, reckoned by sweepers, shown in the console, statistics and SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, LiteralString

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from store.conversations import usages
from store.conversations.usages import SavedDay, UsageRecord
from tests.support.service.in_process import Chat, Workers
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import answer, request, rounds
from worker.metrics import METRICS
from worker.sweeping.reckoning import Reckoning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from store.tables import AnyRow

MODEL: Final = "claude-opus-5-5"
START: Final = datetime.now(UTC) - timedelta(hours=1)


def begin(chat: Chat, model: str | None = MODEL) -> UUID:
    conversation = chat.begin({"swap": "at_once"})
    chat.query("update conversations set model = :m where id = :c", m=model, c=conversation)
    return conversation


def call(chat: Chat, conversation: UUID, seq: int, seconds: float, **fields: Any) -> UsageRecord:
    values = {"snapshot_version": None, "cached_tokens": None, "written_tokens": None, "output_tokens": 10}
    return UsageRecord(
        tenant_id=chat.tenant_id,
        conversation_id=conversation,
        seq=seq,
        is_edit=fields.pop("is_edit", False),
        answered_at=START + timedelta(seconds=seconds),
        **(values | fields),
    )


def keep(chat: Chat, *records: UsageRecord) -> None:
    with chat.database.transaction(chat.tenant_id) as connection:
        usages.remember(connection, records)


def reckoned(chat: Chat, conversation: UUID) -> list[AnyRow]:
    Reckoning(chat.settings, chat.database).reckon()
    query = "select * from turn_usages where conversation_id = :c order by seq"
    return list(chat.query(query, c=conversation))


def audited(chat: Chat, statement: LiteralString, conversation: UUID) -> list[tuple[Any, ...]]:
    """Return what a view of the auditors has of a conversation."""
    with psycopg.connect(chat.url) as connection:
        connection.execute("set role palimpsest_auditor")
        return connection.execute(statement, (conversation,)).fetchall()


def test_a_call_is_expected_to_read_all_of_the_one_before(chat: Chat) -> None:
    conversation = begin(chat)
    keep(
        chat,
        call(chat, conversation, 0, 0, input_tokens=10_000, cached_tokens=0, written_tokens=10_000),
        call(chat, conversation, 2, 60, input_tokens=12_000, cached_tokens=10_000, written_tokens=2_000),
        call(chat, conversation, 4, 120, input_tokens=14_000, cached_tokens=1_000, written_tokens=13_000),
        call(chat, conversation, 6, 1_000, input_tokens=16_000, cached_tokens=0, written_tokens=16_000),
    )
    rows = reckoned(chat, conversation)
    assert [row.prefix_tokens for row in rows] == [0, 10_000, 12_000, 14_000]
    assert [row.expected_tokens for row in rows] == [0, 10_000, 12_000, 0]
    missing = audited(chat, "select missing_tokens from prompt_cache_turns where conversation_id = %s", conversation)
    # The third broke although nothing of the context had changed.
    assert sorted(missing) == [(0,), (0,), (0,), (11_000,)]
    assert float(rows[1].cost_usd) == pytest.approx((10_000 * 0.2 + 2_000 * 5) / 1e6)
    assert all(row.saved_tokens == 0 and row.saved_usd == 0 for row in rows)


def test_what_a_snapshot_stands_for_is_saved_in_every_call_after_it(chat: Chat) -> None:
    conversation, workers = begin(chat), Workers(chat, StubSummarizer())
    chat.append(conversation, [request("go", 100), *rounds(7, 400)])
    keep(chat, call(chat, conversation, 0, 0, snapshot_version=0, input_tokens=3_000))
    workers.settle(conversation)
    (step,) = chat.steps(chat.run(conversation).id)
    keep(chat, call(chat, conversation, 20, 20, input_tokens=2_000, cached_tokens=100, written_tokens=1_900))
    keep(chat, call(chat, conversation, 22, 40, input_tokens=2_100, cached_tokens=2_000, written_tokens=100))
    rows = reckoned(chat, conversation)
    assert [row.snapshot_version for row in rows] == [0, 1, 1]
    freed = step.tokens_before - step.tokens_after
    assert [row.saved_tokens for row in rows] == [0, freed, freed]
    assert step.shared_tokens is not None
    assert rows[1].prefix_tokens == step.shared_tokens < 2_000
    assert float(rows[2].saved_usd) == pytest.approx(freed * 0.2e-6, rel=0.02)
    assert float(rows[2].saved_uncached_usd) == pytest.approx(freed * 4e-6, rel=0.02)
    with chat.database.transaction(chat.tenant_id) as connection:
        (day,) = usages.saved_daily(connection, chat.tenant_id, 2)[:1]
        assert day.saved_tokens == 2 * freed
        assert {row.id for row in usages.saved_most(connection, chat.tenant_id, 2, 10)} <= {conversation}
    statement = "select sum(saved_tokens)::integer from compaction_savings where conversation_id = %s"
    assert audited(chat, statement, conversation) == [(2 * freed,)]


def test_call_without_a_price_is_unknown_and_not_free(chat: Chat) -> None:
    priced, unpriced, unnamed = begin(chat), begin(chat, "model-of-their-own"), begin(chat, None)

    def day() -> SavedDay:
        Reckoning(chat.settings, chat.database).reckon()
        with chat.database.transaction(chat.tenant_id) as connection:
            return usages.saved_daily(connection, chat.tenant_id, 2)[0]

    keep(
        chat,
        *(call(chat, unpriced, seq, seq, input_tokens=1_000) for seq in (0, 2)),
        call(chat, unnamed, 0, 0, input_tokens=1_000),
    )
    none = day()
    assert (none.calls, none.unpriced_calls) == (3, 3)
    assert none[8:] == none.plus(none)[8:] == (None, None, None)
    keep(chat, call(chat, priced, 0, 0, input_tokens=10_000))
    some = day()
    assert (some.calls, some.unpriced_calls) == (4, 3)
    assert some.cost_usd == some.plus(none).cost_usd == none.plus(some).cost_usd == Decimal("0.05")
    with chat.database.transaction(chat.tenant_id) as connection:
        assert usages.unpriced_models(connection, chat.tenant_id, 2) == [("model-of-their-own", 2), (None, 1)]


def test_more_than_was_expected_of_a_cache_is_not_over_all_of_it(chat: Chat) -> None:
    conversation = begin(chat)
    keep(
        chat,
        call(chat, conversation, 0, 0, input_tokens=10_000, cached_tokens=5_000, written_tokens=5_000),
        call(chat, conversation, 2, 60, input_tokens=12_000, cached_tokens=9_000, written_tokens=2_000),
    )
    reckoned(chat, conversation)
    with chat.database.transaction(chat.tenant_id) as connection:
        (day,) = usages.saved_daily(connection, chat.tenant_id, 2)[:1]
    assert (day.expected_tokens, day.missed_tokens, day.cached_tokens) == (10_000, 1_000, 14_000)


def test_nothing_said_of_a_cache_is_not_a_cache_that_had_nothing(chat: Chat) -> None:
    said, silent, mixed = begin(chat), begin(chat), begin(chat)
    for conversation, cached in ((said, (0, 0)), (silent, (None, None)), (mixed, (None, 0))):
        for number, count in enumerate(cached):
            tokens = 10_000 + 2_000 * number
            keep(chat, call(chat, conversation, 2 * number, 60 * number, input_tokens=tokens, cached_tokens=count))
    rows = {each: reckoned(chat, each)[1] for each in (said, silent, mixed)}
    assert [rows[each].expected_tokens for each in rows] == [10_000] * 3
    assert float(rows[said].cost_usd) == pytest.approx(12_000 * 4e-6)
    assert float(rows[silent].cost_usd) == pytest.approx((10_000 * 0.2 + 2_000 * 5) / 1e6)
    statement = (
        "select expected_tokens::integer, cached_tokens::integer, calls::integer, calls_with_cache_counts::integer "
        "from compaction_savings where conversation_id = %s"
    )
    assert audited(chat, statement, said) == [(10_000, 0, 2, 2)]
    assert audited(chat, statement, silent) == [(None, None, 2, 0)]
    assert audited(chat, statement, mixed) == [(10_000, 0, 2, 1)]


def test_what_calls_cost_and_a_cache_had_is_counted_once(chat: Chat) -> None:
    conversation = begin(chat)
    before = counts()
    keep(
        chat,
        call(chat, conversation, 0, 0, input_tokens=10_000, cached_tokens=0, written_tokens=10_000),
        call(chat, conversation, 2, 60, input_tokens=12_000, cached_tokens=1_000, written_tokens=11_000),
        call(chat, conversation, 4, 120, input_tokens=13_000),
    )
    rows = reckoned(chat, conversation)
    reckoned(chat, conversation)
    counted = {name: round(value - before[name], 6) for name, value in counts().items()}
    usd = round(sum(float(row.cost_usd) for row in rows), 6)
    assert counted == pytest.approx(
        {
            "calls": 3,
            "input_tokens": 35_000,
            "saved_tokens": 0,
            "expected": 10_000,
            "cached": 1_000,
            "missing": 9_000,
            "sent": usd,
            "uncompacted": usd,
            "saved_uncached_usd": 0,
        },
        abs=1e-5,
    )


def test_sweepers_at_the_same_time_reckon_each_call_once(chat: Chat) -> None:
    conversation, before = begin(chat), counts()
    keep(chat, *(call(chat, conversation, seq, seq, input_tokens=10_000) for seq in (0, 2)))
    with chat.database.transaction(chat.tenant_id) as connection:
        assert len(usages.to_reckon(connection, chat.tenant_id, 1)) == 1
        (_, other) = reckoned(chat, conversation)
        assert (other.seq, other.prefix_tokens) == (2, 10_000)
    assert counts()["calls"] - before["calls"] == 1
    assert [row.prefix_tokens for row in reckoned(chat, conversation)] == [0, 10_000]
    assert counts()["calls"] - before["calls"] == 2


def counts() -> dict[str, float]:
    """Return what the process has counted of chats' calls so far."""
    names = ("calls", "input_tokens", "saved_tokens", "saved_uncached_usd")
    value = METRICS.registry.get_sample_value
    found = {name: value(f"palimpsest_chat_{name}_total") for name in names}
    for which in ("expected", "cached", "missing"):
        found[which] = value("palimpsest_chat_prefix_tokens_total", {"which": which})
    for context in ("sent", "uncompacted"):
        found[context] = value("palimpsest_chat_cost_usd_total", {"context": context})
    return {name: count or 0.0 for name, count in found.items()}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # More than there was to read, and to write: contradicting, so that it is held within the input.
        ({"cached_tokens": 90_000, "written_tokens": 90_000}, 12_000 * 0.2e-6),
        ({"cached_tokens": 0, "written_tokens": 90_000}, 12_000 * 5e-6),
        # Read, but nothing said of what was written.
        ({"cached_tokens": 2_000, "written_tokens": None}, 2_000 * 0.2e-6 + 10_000 * 4e-6),
    ],
)
def test_a_usage_that_contradicts_itself_costs_no_more_than_all_of_its_input(
    chat: Chat, fields: dict[str, Any], expected: float
) -> None:
    conversation = begin(chat)
    keep(chat, call(chat, conversation, 0, 0, input_tokens=10_000))
    keep(chat, call(chat, conversation, 2, 60, input_tokens=12_000, **fields))
    row = reckoned(chat, conversation)[1]
    assert float(row.cost_usd) == pytest.approx(expected)
    assert row.saved_usd == 0


def test_a_version_that_never_was_holds_up_no_other_usage(chat: Chat) -> None:
    conversation, other = begin(chat), begin(chat)
    keep(
        chat,
        call(chat, conversation, 0, 0, snapshot_version=2**31 - 1, input_tokens=10_000, cached_tokens=0),
        call(chat, conversation, 2, 30, snapshot_version=0, input_tokens=300_000_000, cached_tokens=300_000_000),
        call(chat, conversation, 4, 60, snapshot_version=7, input_tokens=1, cached_tokens=0, written_tokens=2**31 - 1),
        call(chat, other, 0, 0, input_tokens=10_000),
        call(chat, other, 2, 30, input_tokens=12_000),
    )
    rows = reckoned(chat, conversation)
    assert all(row.reckoned_at is not None and row.cost_usd >= 0 for row in rows)
    # Where the head went between calls is not known, nor what it left.
    assert [row.saved_tokens for row in rows] == [0, 0, 0]
    assert [row.prefix_tokens for row in reckoned(chat, other)] == [0, 10_000]


def loops(plan: Any) -> Iterator[int]:
    """Yield how often each step of a plan was begun."""
    yield plan["Actual Loops"]
    for step in plan.get("Plans", ()):
        yield from loops(step)


def test_only_what_is_reckoned_now_is_looked_into(chat: Chat) -> None:
    for conversation in (begin(chat), begin(chat), begin(chat)):
        keep(chat, *(call(chat, conversation, 2 * n, n, input_tokens=10_000 + n) for n in range(100)))
    chat.query("analyze turn_usages")
    with chat.database.transaction(chat.tenant_id) as connection:
        statement = text(f"explain (analyze, format json) {usages._TO_RECKON}")
        plan = connection.execute(statement, {"tenant": chat.tenant_id, "limit": 10}).scalar_one()
        assert len(usages.to_reckon(connection, chat.tenant_id, 10)) == 10
    assert max(loops(plan[0]["Plan"])) <= 10


def test_more_tokens_than_there_are_numbers_are_the_most(chat: Chat) -> None:
    conversation, workers = begin(chat), Workers(chat, StubSummarizer())
    chat.append(conversation, [request("go", 100), *rounds(7, 400)])
    workers.settle(conversation)
    with psycopg.connect(chat.url, autocommit=True) as owner:
        owner.execute("set session_replication_role = replica")
        owner.execute("update messages set tokens = 2000000000 where conversation_id = %s", [conversation])
    keep(chat, call(chat, conversation, 20, 20, input_tokens=2_000))
    (row,) = reckoned(chat, conversation)
    assert (row.saved_tokens, row.reckoned_at is not None) == (2**31 - 1, True)


def test_a_tenant_whose_usages_cannot_be_reckoned_holds_up_no_other(chat: Chat) -> None:
    own: dict[UUID, UUID] = {}
    for _ in range(2):
        tenant_id, conversation = chat.renew().tenant_id, begin(chat)
        keep(chat, call(chat, conversation, 0, 0, input_tokens=10_000))
        own[tenant_id] = conversation
    with chat.database.transaction(None) as connection:
        broken, other = (each for each in usages.tenants_to_reckon(connection, 10_000) if each in own)
    refuse = f"""
        create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
        create trigger refused before update on turn_usages for each row
            when (new.tenant_id = '{broken}') execute function refuse()
    """
    with psycopg.connect(chat.url, autocommit=True) as owner:
        owner.execute(refuse.encode())
        try:
            with pytest.raises(DBAPIError, match="refused"):
                Reckoning(chat.settings, chat.database).reckon()
            done = owner.execute("select tenant_id from turn_usages where reckoned_at is not null").fetchall()
        finally:
            owner.execute("drop function refuse() cascade")
    assert own.keys() & {tenant_id for (tenant_id,) in done} == {other}


def test_a_usage_that_comes_late_is_reckoned_by_what_is_known_then(chat: Chat) -> None:
    conversation = begin(chat)
    keep(chat, call(chat, conversation, 0, 0, input_tokens=10_000))
    keep(chat, call(chat, conversation, 4, 60, input_tokens=14_000, cached_tokens=11_000))
    assert [row.prefix_tokens for row in reckoned(chat, conversation)] == [0, 10_000]
    keep(chat, call(chat, conversation, 2, 30, input_tokens=12_000, cached_tokens=10_000))
    rows = reckoned(chat, conversation)
    assert [(row.seq, row.prefix_tokens) for row in rows] == [(0, 0), (2, 10_000), (4, 10_000)]
    assert all(row.reckoned_at is not None for row in rows)


def test_where_the_price_is_not_known_tokens_are(chat: Chat) -> None:
    conversation = begin(chat, None)
    keep(chat, call(chat, conversation, 0, 0, input_tokens=10_000))
    (row,) = reckoned(chat, conversation)
    assert (row.cost_usd, row.saved_tokens, row.reckoned_at is not None) == (None, 0, True)


def test_an_edit_and_a_clock_that_jumps_say_nothing_of_the_prefix(chat: Chat) -> None:
    conversation = begin(chat)
    keep(
        chat,
        call(chat, conversation, 0, 500, input_tokens=10_000),
        call(chat, conversation, 2, 0, input_tokens=9_000),
        call(chat, conversation, 4, 30, input_tokens=9_500, is_edit=True),
        # Late, and again.
        call(chat, conversation, 4, 90, input_tokens=1),
    )
    rows = reckoned(chat, conversation)
    assert [row.prefix_tokens for row in rows] == [0, 9_000, None]
    assert [row.input_tokens for row in rows] == [10_000, 9_000, 9_500]
    assert reckoned(chat, conversation) == rows


def test_usages_go_with_their_conversation_and_in_time(chat: Chat) -> None:
    conversation = begin(chat)
    chat.append(conversation, [request("go", 100), answer("so", 20)])
    keep(chat, call(chat, conversation, 0, 0, input_tokens=10_000))
    with chat.database.transaction(None) as connection:
        usages.expire(connection, 86_400, 1_000)
    assert len(reckoned(chat, conversation)) == 1
    erased = "select erase_conversation(gen_random_uuid(), :c, 'conversation', :t, gen_random_uuid())"
    chat.query(erased, t=chat.tenant_id, c=conversation)
    assert reckoned(chat, conversation) == []
    # One that is written down too late finds nothing to belong to.
    keep(chat, call(chat, conversation, 2, 0, input_tokens=10_000))
    assert reckoned(chat, conversation) == []
    other = begin(chat)
    keep(chat, call(chat, other, 0, 0, input_tokens=10_000))
    with chat.database.transaction(None) as connection:
        assert usages.expire(connection, 60, 1_000) >= 1
    assert reckoned(chat, other) == []
