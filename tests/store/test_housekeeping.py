"""What its time is over for goes, in small batches and across tenants; everything else stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RestrictViolation
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from compaction.policy import merge
from runtime import ids
from runtime.settings import Settings
from store.conversations import branches
from store.runs.runs import requeue
from store.tenants import webhooks
from tests.conftest import make_tenant
from tests.support.service.in_process import Chat, Workers, head
from tests.support.service.in_process import chat_alone as chat
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges, request, rounds
from worker.database import Database
from worker.sweeping import housekeeping
from worker.sweeping.housekeeping import Housekeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID


__all__ = ["chat"]


@pytest.fixture
def clean(make_settings: Callable[..., Settings]) -> Iterator[Callable[..., dict[str, int]]]:
    """Return a function that does a round of housekeeping with the settings that it is given."""
    items: list[Database] = []

    def clean(**fields: Any) -> dict[str, int]:
        settings = make_settings(**fields)
        items.append(Database(settings, "test"))
        return {name: count for name, count in Housekeeper(settings, items[-1]).round().items() if count}

    yield clean
    for database in items:
        database.close()


@pytest.fixture
def owner(database_url: str) -> Iterator[Callable[..., list[Any]]]:
    """Return a function that runs a statement as a superuser whom no trigger stops: to let time have passed."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")

        def run(statement: str) -> list[Any]:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        yield run


def count(chat: Chat, table: str) -> int:
    records: int = chat.query(f"select count(*) from {table}")[0][0]  # noqa: S608 - a table of the test's
    return records


def older_id(days: int, number: int = 0) -> str:
    """Return, as SQL, an id like one that was made so many days ago."""
    return f"(substr(first_id_at(now() - interval '{days} days')::text, 1, 24) || lpad('{number}', 12, '0'))::uuid"


class TestIdempotencyKeys:
    def keyed(self, chat: Chat, number: int, hours: float) -> None:
        chat.query(
            """
            insert into idempotency_keys
                (tenant_id, conversation_id, key, body_hash, first_seq, last_seq, context_tokens, queued, created_at)
            select :t, gen_random_uuid(), 'k' || n, '', 0, 0, 0, false, now() - make_interval(secs => :s)
            from generate_series(1, :n) as n
            """,
            t=chat.tenant_id,
            s=hours * 3_600,
            n=number,
        )

    def test_a_day_by_default(self, chat: Chat, clean: Callable[..., dict[str, int]], database_url: str) -> None:
        self.keyed(chat, 3, 23.9)
        self.keyed(chat, 2, 24.1)
        with Chat(chat.settings, make_tenant(database_url, "rival").id) as other:
            self.keyed(other, 4, 24.1)
            assert clean() == {"idempotency_keys": 6}
            assert (count(chat, "idempotency_keys"), count(other, "idempotency_keys")) == (3, 0)
        assert clean() == {}
        assert clean(idempotency_key_hours=12) == {"idempotency_keys": 3}

    def test_in_batches_and_no_more_than_so_many_in_a_round(
        self, chat: Chat, clean: Callable[..., dict[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(housekeeping, "BATCH", 10)
        monkeypatch.setattr(housekeeping, "BATCHES", 3)
        self.keyed(chat, 45, 48)
        assert clean() == {"idempotency_keys": 30}
        assert clean() == {"idempotency_keys": 15}

    def test_a_round_that_leaves_some_is_followed_by_the_next_at_once(
        self, chat: Chat, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(housekeeping, "BATCH", 10)
        monkeypatch.setattr(housekeeping, "BATCHES", 2)
        self.keyed(chat, 45, 48)
        housekeeper = Housekeeper(make_settings(), Database(make_settings(), "test"), lambda: 0.0)
        assert [housekeeper.round().get("idempotency_keys") for _ in range(4)] == [20, 20, 5, None]

    def test_rows_that_somebody_has_locked_are_passed_over(
        self, chat: Chat, clean: Callable[..., dict[str, int]], database_url: str
    ) -> None:
        self.keyed(chat, 3, 48)
        with psycopg.connect(database_url) as connection:
            connection.execute("select from idempotency_keys where key = 'k2' for update")
            assert clean() == {"idempotency_keys": 2}
        assert clean() == {"idempotency_keys": 1}


class TestRuns:
    def settled(self, chat: Chat) -> UUID:
        """Return a conversation with a run that committed a snapshot, and one that was skipped."""
        conversation = chat.begin()
        chat.append(conversation, [request("go"), *rounds(6, 600)])
        Workers(chat).settle(conversation)
        skipped = self.run(chat, conversation)
        chat.query("update runs set state = 'skipped', finished_at = now() where id = :r", r=skipped)
        return conversation

    def run(self, chat: Chat, conversation: UUID) -> UUID:
        identifier = ids.new_id()
        chat.query(
            "insert into runs (id, tenant_id, conversation_id, trigger, state, queue, policy)"
            " values (:i, :t, :c, 'check', 'queued', 'checks', '{}')",
            i=identifier,
            t=chat.tenant_id,
            c=conversation,
        )
        chat.query(
            "insert into run_steps (tenant_id, run_id, step_no, name, state, attempt, tokens_before, tokens_after,"
            " messages_before, messages_after, duration_ms) values (:t, :i, 1, 'summary', 'skipped', 1, 1, 1, 1, 1, 1)",
            i=identifier,
            t=chat.tenant_id,
        )
        return identifier

    def let_pass(self, owner: Callable[..., list[Any]], days: int) -> None:
        """Let every run be that much older, in its id as well."""
        new = older_id(days).replace("'0'", "n::text", 1)
        numbered = "select id, row_number() over (order by id) as n from runs"
        owner(f"create temp table aged as select id, {new} as new from ({numbered}) as numbered")  # noqa: S608
        for table in ("run_steps", "snapshot_parts", "webhook_deliveries", "waiting_summaries"):
            owner(f"update {table} as t set run_id = aged.new from aged where t.run_id = aged.id")  # noqa: S608
        owner(
            f"update runs as r set id = aged.new, finished_at = finished_at - interval '{days} days'"  # noqa: S608
            " from aged where r.id = aged.id"
        )
        owner("drop table aged")

    def test_they_are_kept_for_good_unless_somebody_says_so(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        self.settled(chat)
        self.let_pass(owner, 1_000)
        assert clean() == {}
        assert (count(chat, "runs"), count(chat, "run_steps")) == (2, 2)

    def test_what_nothing_names_any_more_goes_with_its_steps(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        self.settled(chat)
        self.let_pass(owner, 8)
        self.settled(chat)
        assert clean(run_retention_days=9) == {}
        assert clean(run_retention_days=7) == {"runs": 1}
        left = chat.query("select state, snapshot_version from runs order by id")
        assert [row.state for row in left] == ["committed", "committed", "skipped"]
        assert clean(run_retention_days=7) == {}
        assert count(chat, "run_steps") == 3
        assert owner("select from snapshots where run_id not in (select id from runs)") == []

    def test_a_run_that_is_not_over_stays_and_so_does_one_that_a_delivery_names(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        with chat.database.transaction(chat.tenant_id) as connection:
            webhooks.add(connection, chat.tenant_id, "https://hooks.example.com/", webhooks.EVENTS)
        self.run(chat, chat.begin())
        dead = self.run(chat, chat.begin())
        with chat.database.transaction(chat.tenant_id) as connection:
            assert requeue(connection, dead, max_attempts=0) == "dead"
        self.let_pass(owner, 100)
        assert clean(run_retention_days=1) == {}
        owner("update webhook_deliveries set state = 'delivered', finished_at = now()")
        owner(f"update webhook_deliveries set id = {older_id(31)}")  # noqa: S608 - the test's own
        assert clean(run_retention_days=1) == {"webhook_deliveries": 1, "runs": 1}
        assert [row.state for row in chat.query("select state from runs")] == ["queued"]

    def test_one_whose_summary_waits_for_another_day_stays(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        run = self.run(chat, chat.begin())
        chat.query("update runs set state = 'skipped', finished_at = now() where id = :r", r=run)
        chat.query(
            "insert into waiting_summaries (run_id, tenant_id, conversation_id, not_before)"
            " select id, tenant_id, conversation_id, now() from runs"
        )
        self.let_pass(owner, 8)
        assert clean(run_retention_days=7) == {}
        assert count(chat, "waiting_summaries") == 1
        chat.query("update waiting_summaries set done_at = now()")
        assert clean(run_retention_days=7) == {"runs": 1}
        assert count(chat, "waiting_summaries") == 0

    def test_a_walk_goes_on_where_the_last_round_left_off(
        self,
        chat: Chat,
        owner: Callable[..., list[Any]],
        make_settings: Callable[..., Settings],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Runs that have to stay do not keep those behind them from their turn."""
        monkeypatch.setattr(housekeeping, "BATCH", 2)
        monkeypatch.setattr(housekeeping, "BATCHES", 1)
        for _ in range(3):
            self.run(chat, chat.begin())
        for _ in range(3):
            run = self.run(chat, chat.begin())
            chat.query("update runs set state = 'skipped', finished_at = now() where id = :r", r=run)
        self.let_pass(owner, 8)
        now = [0.0]
        database = Database(make_settings(), "test")
        housekeeper = Housekeeper(make_settings(run_retention_days=7), database, lambda: now[0])
        removed = []
        for _ in range(4):
            removed.append(housekeeper.round()["runs"])
            assert housekeeper.round() == {}  # it is not time yet
            now[0] += 60
        assert removed == [0, 1, 2, 0]
        database.close()


class TestDeliveries:
    def test_those_that_have_ended_go_after_thirty_days(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        with chat.database.transaction(chat.tenant_id) as connection:
            webhook = webhooks.add(connection, chat.tenant_id, "https://hooks.example.com/", webhooks.EVENTS)
        assert webhook is not None
        conversation = chat.begin()
        chat.append(conversation, [request("go"), *rounds(6, 600)])
        Workers(chat).settle(conversation)
        (template,) = chat.query("select * from webhook_deliveries")
        states = {1: "delivered", 2: "dead", 3: "pending", 4: "delivered"}
        for number, state in states.items():
            days = 29 if number == 4 else 31
            chat.query(
                "insert into webhook_deliveries"  # noqa: S608 - a literal of older_id
                " (id, tenant_id, webhook_id, run_id, run_finished_at, event, body, state)"
                f" values ({older_id(days, number)}, :t, :w, :r, now() + make_interval(secs => :n), :e, '', :s)",
                t=chat.tenant_id,
                w=webhook[0].id,
                r=template.run_id,
                n=number,
                e=f"event {number}",
                s=state,
            )
        assert clean() == {"webhook_deliveries": 2}
        left = chat.query("select event from webhook_deliveries where id <> :i order by event", i=template.id)
        assert [row.event for row in left] == ["event 3", "event 4"]
        assert clean(webhook_delivery_retention_days=0) == {}
        assert clean(webhook_delivery_retention_days=36_500) == {}
        assert clean(webhook_delivery_retention_days=28) == {"webhook_deliveries": 1}


class TestSnapshots:
    def edited(self, chat: Chat) -> UUID:
        """Return a conversation with three snapshots, of which an edit has left the last two aside, and a new head."""
        conversation = chat.begin({"input_token_budget": 0})
        workers = Workers(chat, StubSummarizer())
        for start in (0, 12, 24):
            chat.append(conversation, exchanges(12, 200, start=start))
            workers.settle(conversation)
        assert head(chat, conversation).version == 3
        with chat.database.transaction(chat.tenant_id) as connection:
            connection.execute(text("select supersede(:c, :s)"), {"c": conversation, "s": 24})
        assert head(chat, conversation).version == 1
        chat.append(conversation, exchanges(12, 200, start=50))
        workers.settle(conversation)
        assert head(chat, conversation).version == 4
        return conversation

    def versions(self, chat: Chat, conversation: UUID) -> list[int]:
        rows = chat.query("select version from snapshots where conversation_id = :c order by version", c=conversation)
        return [row.version for row in rows]

    def test_they_are_kept_for_good_unless_somebody_says_so(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        conversation = self.edited(chat)
        owner("update snapshot_parts set created_at = now() - interval '1000 days'")
        assert clean() == {}
        assert self.versions(chat, conversation) == [1, 2, 3, 4]

    def test_what_is_not_on_the_way_to_the_head_goes_from_its_end(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        conversation, other = self.edited(chat), self.edited(chat)
        context = chat.context(conversation)
        assert clean(snapshot_retention_days=7) == {}
        owner(
            "update snapshot_parts set created_at = now() - interval '8 days'"  # noqa: S608
            f" where conversation_id = '{conversation}'"
        )
        assert clean(snapshot_retention_days=7) == {"snapshots": 1}
        assert self.versions(chat, conversation) == [1, 2, 4]  # whatever is left has its parent
        assert clean(snapshot_retention_days=7) == {"snapshots": 1}
        assert self.versions(chat, conversation) == [1, 4]
        assert clean(snapshot_retention_days=7) == {}
        assert self.versions(chat, other) == [1, 2, 3, 4]
        assert chat.context(conversation) == context
        Workers(chat, StubSummarizer()).settle(conversation)
        chat.append(conversation, exchanges(12, 200, start=80))
        Workers(chat, StubSummarizer()).settle(conversation)
        assert head(chat, conversation).version == 5

    def test_what_a_restore_came_from_is_on_the_way_to_its_head(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        conversation = self.edited(chat)
        with chat.database.transaction(chat.tenant_id) as connection:
            branches.restore(connection, chat.tenant_id, conversation, 1, merge({}), ids.new_id())
        owner("update snapshot_parts set created_at = now() - interval '8 days'")
        assert clean(snapshot_retention_days=7) == {"snapshots": 1}
        assert clean(snapshot_retention_days=7) == {"snapshots": 1}
        assert self.versions(chat, conversation) == [1, 4, 5]

    def test_a_conversation_that_is_being_worked_on_has_its_turn_later(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]], database_url: str
    ) -> None:
        conversation = self.edited(chat)
        owner("update snapshot_parts set created_at = now() - interval '8 days'")
        chat.append(conversation, exchanges(12, 200, start=80))
        lease = Workers(chat, StubSummarizer()).begin(conversation)
        assert clean(snapshot_retention_days=7) == {}
        Workers(chat, StubSummarizer()).dispatcher.execute(lease)
        chat.query("update runs set state = 'skipped', finished_at = now() where finished_at is null")
        with psycopg.connect(database_url) as connection:
            connection.execute("select from conversations for update")
            assert clean(snapshot_retention_days=7) == {}
        assert clean(snapshot_retention_days=7) == {"snapshots": 1}

    def test_a_long_way_to_the_head_is_gone_through_once_and_held_up_by_nobody(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]], database_url: str
    ) -> None:
        conversation, many = self.edited(chat), 300
        row = "(jsonb_populate_record(s, jsonb_build_object('version', n, 'parent_version', n - 1))).*"
        longer = f"from snapshot_parts as s, generate_series(5, {many}) as n where s.version = 4"
        owner(f"insert into snapshot_parts select {row} {longer}")
        owner(f"update conversations set head_version = {many}, last_version = {many}")  # noqa: S608
        owner("update snapshot_parts set created_at = now() - interval '8 days'")
        for _ in range(2):
            assert clean(snapshot_retention_days=7) == {"snapshots": 1}
        expire = "select removed from expire_snapshots('00000000-0000-0000-0000-000000000000', 604800, 1000)"
        of_each = "select relname, seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables"
        with psycopg.connect(database_url) as keeping, psycopg.connect(database_url) as other:
            assert keeping.execute(expire).fetchone() == (0,)
            read: dict[str, int] = dict(keeping.execute(of_each).fetchall())
            assert many < read["snapshot_parts"] < 3 * many
            other.execute("select from conversations where id = %s for update nowait", (conversation,))

    def test_a_transaction_removes_no_more_than_so_many(
        self, chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
    ) -> None:
        self.edited(chat)
        row = "(jsonb_populate_record(s, jsonb_build_object('version', n))).*"
        beside = "from snapshot_parts as s, generate_series(5, 1010) as n where s.version = 3"
        owner(f"insert into snapshot_parts select {row} {beside}")
        owner("update snapshot_parts set created_at = now() - interval '8 days'")
        assert [clean(snapshot_retention_days=7).get("snapshots") for _ in range(4)] == [1_000, 7, 1, None]

    def test_nobody_else_can_remove_one(self, chat: Chat, database_url: str) -> None:
        self.edited(chat)
        claims = "select set_config('palimpsest.retention', 'snapshots', true)"
        with psycopg.connect(database_url) as connection:
            connection.execute(claims)
            with pytest.raises(RestrictViolation):
                connection.execute("delete from snapshot_parts")
            connection.rollback()
            connection.execute("set role palimpsest_background")
            with pytest.raises(RestrictViolation):  # not without saying what it is for
                connection.execute("delete from snapshot_parts")
            connection.rollback()
            connection.execute("set role palimpsest_service")
            connection.execute(claims)
            with pytest.raises(InsufficientPrivilege):
                connection.execute("delete from snapshot_parts")
            connection.rollback()
            connection.execute("set role palimpsest_background")
            connection.execute(claims)
            with pytest.raises(RestrictViolation):  # that takes an erasure
                connection.execute("delete from messages")


def asked_back(chat: Chat, *days: int) -> None:
    conversation = chat.begin()
    for number, each in enumerate(days):
        chat.query(
            "insert into recall_requests (id, tenant_id, conversation_id, key_id, request_id, origin, of_user, kind,"  # noqa: S608 - a literal of older_id
            " asked, refs, seqs, left_by, left_in, searched, tokens)"
            f" values ({older_id(each, number)}, :t, :c, gen_random_uuid(), gen_random_uuid(), 'api', false, 'query',"
            " 'what?', '{}', '{}', '{}', '{}', 0, 0)",
            t=chat.tenant_id,
            c=conversation,
        )


def test_what_was_asked_back_goes_after_ninety_days(chat: Chat, clean: Callable[..., dict[str, int]]) -> None:
    asked_back(chat, 89, 91, 400)
    assert clean(recall_retention_days=0) == {}
    assert clean(recall_retention_days=36_500) == {}
    assert clean() == {"recall_requests": 2}
    assert clean(recall_retention_days=80) == {"recall_requests": 1}


@pytest.mark.parametrize(
    ("table", "columns", "row", "days"),
    [
        (
            "idempotency_keys",
            "conversation_id, key, body_hash, first_seq, last_seq, context_tokens, queued, created_at",
            "gen_random_uuid(), n, sha256(n::text::bytea), 0, 0, 0, false",
            1,
        ),
        (
            "turn_usages",
            "conversation_id, seq, snapshot_version, input_tokens, output_tokens, is_edit, reckoned_at, answered_at",
            "gen_random_uuid(), n, 0, 0, 0, false, now()",
            90,
        ),
    ],
)
def test_the_oldest_are_found_however_long_rows_have_come_and_gone(
    chat: Chat,
    clean: Callable[..., dict[str, int]],
    owner: Callable[..., list[Any]],
    table: str,
    columns: str,
    row: str,
    days: int,
) -> None:
    def come(number: int, days_ago: float) -> None:
        time = f"now() - interval '{days_ago} days'"
        rows = f"select '{chat.tenant_id}', {row}, {time} from generate_series(1, {number}) as n"  # noqa: S608
        owner(f"insert into {table} (tenant_id, {columns}) {rows}")

    def blocks() -> int:
        expire = f"explain (analyze, buffers, format json) select expire_rows('{table}', {days * 86_400}, 1000)"
        ((((plan,),),),) = (owner(expire),)
        return sum(plan["Plan"][f"Shared {which} Blocks"] for which in ("Hit", "Read"))

    come(20_000, days + 1)
    for _ in range(4):
        # What is new takes the places of what is removed.
        oldest = f"select ctid from {table} order by {columns.rpartition(', ')[2]} limit 5000"  # noqa: S608
        owner(f"delete from {table} where ctid in ({oldest})")  # noqa: S608
        owner(f"vacuum {table}")
        come(5_000, days / 2)
    owner(f"vacuum analyze {table}")
    ((size,),) = owner(f"select pg_relation_size('{table}') / 8192")
    blocks()  # reads what Postgres has to know of the function
    assert blocks() < 20 < size / 10
    come(3, days + 1)
    assert clean() == {table: 3}


def test_a_kind_that_fails_is_told_of_and_keeps_no_other(
    chat: Chat, clean: Callable[..., dict[str, int]], owner: Callable[..., list[Any]]
) -> None:
    TestIdempotencyKeys().keyed(chat, 1, 48)
    asked_back(chat, 91)
    owner("revoke delete on idempotency_keys from palimpsest_background")
    try:
        with pytest.raises(ProgrammingError):
            clean()
    finally:
        owner("grant delete on idempotency_keys to palimpsest_background")
    assert count(chat, "recall_requests") == 0
    assert clean() == {"idempotency_keys": 1}


def test_times_that_no_calendar_goes_back_to_keep_for_good(chat: Chat, clean: Callable[..., dict[str, int]]) -> None:
    TestIdempotencyKeys().keyed(chat, 1, 48)
    days = dict.fromkeys((name for name in Settings.model_fields if name.endswith("_retention_days")), 1e9)
    assert clean(**days, idempotency_key_hours=1e9) == {}
    assert clean(**days) == {"idempotency_keys": 1}


def test_processes_that_are_gone_are_forgotten(chat: Chat, clean: Callable[..., dict[str, int]]) -> None:
    for seconds in (599, 601):
        chat.query(
            "insert into processes (id, kind, host, pid, queues, version, slots, seen_at)"
            " values (gen_random_uuid(), 'worker', 'h', 1, '{}', '1', 1, now() - make_interval(secs => :s))",
            s=seconds - 30 if seconds < 600 else seconds,
        )
    assert clean() == {"processes": 1}
