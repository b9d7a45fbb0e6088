"""Migrations while the service runs, and the services of the release before on the newest schema.

The release before is this one's code: the schema is that of the next, see tests/store/schema/next_release.py.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import asyncpg
import psycopg
import pytest
from alembic.script import ScriptDirectory
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError

from migrations import run as migrations_run
from migrations.revisions import HEAD
from migrations.run import UnreleasedSchemaError, upgrade
from runtime.settings import Settings
from store.conversations import conversations
from store.engine import transaction
from tests.conftest import make_tenant
from tests.store.schema.next_release import NEXT, next_release, write_next_release
from tests.support.eventually import eventually
from tests.support.service.hot_calls import hot_calls
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from tests.conftest import Tenant

__all__ = ["next_release"]

RETRYABLE = ("40", "55P03", "57014")
"""SQLSTATEs that the API answers with 503: try again."""


def settings_for(url: str) -> Settings:
    return Settings(database_url=SecretStr(url), summarizer="extractive", policy={"input_token_budget": 100})


class Load:
    """Threads that append without a pause until they are told to stop."""

    def __init__(self, url: str, tenant_id: UUID, threads: int = 4) -> None:
        self.failures: list[Exception] = []
        self.stored: dict[UUID, list[str]] = {}
        self._settings, self._tenant_id = settings_for(url), tenant_id
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._append) for _ in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        eventually(lambda: len(self.stored) == len(self._threads) and all(map(len, self.stored.values())))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def goes_on(self) -> None:
        """Wait until every thread has appended something after this call."""
        before = {conversation: len(said) for conversation, said in self.stored.items()}
        eventually(lambda: all(len(self.stored[conversation]) > count for conversation, count in before.items()))

    def refused(self) -> list[Exception]:
        """Return the failures that nobody would be told to try again after."""
        return [
            error
            for error in self.failures
            if not (isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "").startswith(RETRYABLE))
            and not isinstance(error, TimeoutError)
        ]

    def _append(self) -> None:
        with hot_calls(self._settings, self._tenant_id) as service:
            conversation = service.conversation()
            said = self.stored.setdefault(conversation, [])
            number = 0
            while not self._stop.is_set():
                text = f"message {number}"
                try:
                    # With a key, so that a retry of what was stored after all is no second one.
                    done = service.append(conversation, {"role": "user", "content": text}, key=f"key {number}")
                except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                    self.failures.append(error)
                    continue
                assert done.outcome in {"appended", "replayed"}
                said.append(text)
                number += 1


def revision(url: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("select version_num from alembic_version").fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.fault("F27")
@pytest.mark.usefixtures("next_release")
def test_appends_go_on_while_the_schema_moves(database_url: str, tenant: Tenant) -> None:
    with Load(database_url, tenant.id) as load:
        upgrade(database_url)
        load.goes_on()  # also on the newest schema
    assert load.refused() == []
    with psycopg.connect(database_url) as connection:
        for conversation, said in load.stored.items():
            rows = connection.execute(
                "select content #>> '{}' from messages where conversation_id = %s order by seq", (conversation,)
            ).fetchall()
            assert [text for (text,) in rows] == said
        # Also what was appended by the release before since the function was replaced.
        assert connection.execute("select min(appends) > 0 from conversations").fetchone() == (True,)
        invalid = "select indexrelid::regclass from pg_index where not indisvalid"
        assert connection.execute(invalid).fetchall() == []
    assert revision(database_url) == NEXT


@pytest.mark.fault("F27")
@pytest.mark.usefixtures("next_release")
def test_a_migration_that_cannot_have_its_lock_tries_again(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody keeps a table until the first attempt has given up."""
    tried = threading.Event()
    is_in_use = migrations_run._is_in_use

    def told(error: Exception) -> bool:
        tried.set()
        return is_in_use(error)

    monkeypatch.setattr(migrations_run, "_is_in_use", told)
    with psycopg.connect(database_url) as reader:
        reader.execute("lock table conversations in share row exclusive mode")
        migration = threading.Thread(target=upgrade, args=(database_url,))
        migration.start()
        assert tried.wait(60)
        reader.rollback()
        migration.join(60)
    assert not migration.is_alive()
    assert revision(database_url) == NEXT


@pytest.mark.fault("F27")
@pytest.mark.usefixtures("next_release")
def test_it_gives_up_in_the_end_and_nothing_is_half_done(database_url: str) -> None:
    with psycopg.connect(database_url) as reader:
        reader.execute("lock table conversations in share row exclusive mode")
        with pytest.raises(OperationalError, match="lock timeout"):
            upgrade(database_url, attempts=1)
    assert revision(database_url) == HEAD
    with psycopg.connect(database_url) as connection:
        assert connection.execute("select to_regclass('appends_seen')").fetchone() == (None,)
    upgrade(database_url)


@pytest.mark.usefixtures("next_release")
def test_an_index_that_was_broken_off_is_made_anew(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create index ix_messages_tenant_id on messages (seq)")
        broken_off = "update pg_index set indisvalid = false where indexrelid = 'ix_messages_tenant_id'::regclass"
        connection.execute(broken_off)
        upgrade(database_url)
        valid = "select indisvalid, pg_get_indexdef(indexrelid) from pg_index where indexrelid = %s::regclass"
        row = connection.execute(valid, ("ix_messages_tenant_id",)).fetchone()
    assert row is not None
    assert row[0]
    assert "(tenant_id)" in row[1]


@pytest.mark.fault("F26")
@pytest.mark.usefixtures("next_release")
def test_what_this_release_calls_works_on_the_next_ones_schema(database_url: str, tenant: Tenant) -> None:
    """What was opened before the schema moved, prepared statements among it, and what is opened after."""
    settings = settings_for(database_url)
    with hot_calls(settings, tenant.id) as before:
        conversation = before.conversation()
        before.append(conversation, {"role": "user", "content": "hello"}, key="k")
        assert before.context(conversation) is not None
        upgrade(database_url)
        with hot_calls(settings, tenant.id) as after:
            for service in (before, after):
                assert service.append(conversation, {"role": "user", "content": "hello"}, key="k").outcome == "replayed"
                done = service.append(conversation, {"role": "assistant", "content": "Hello."})
                context = service.context(conversation)
                assert context is not None
                assert (context.plain, context.last_seq) == (True, done.last_seq)
                assert service.context(conversation, etag=context.etag).not_modified  # type: ignore[union-attr]
                with transaction(service.engine, tenant.id) as connection:
                    (state,) = conversations.check_states(connection, [conversation])
                    (overdue,) = conversations.overdue_checks(connection, 0, 10)
                assert {state.conversation_id, overdue.conversation_id} == {conversation}
        work(settings, conversation)
    with psycopg.connect(database_url) as connection:
        checked = connection.execute("select check_due_at from conversations where id = %s", (conversation,))
        assert checked.fetchone() == (None,)


def revisions() -> ScriptDirectory:
    return ScriptDirectory.from_config(migrations_run.configuration())


def test_the_code_knows_the_newest_revision() -> None:
    assert revisions().get_current_head() == HEAD


@pytest.mark.fault("F26")
@pytest.mark.usefixtures("next_release")
def test_no_revision_takes_anything_away(empty_database_url: str) -> None:
    """Functions and privileges that services of the release before use are there after each revision."""
    names = [each.revision for each in revisions().walk_revisions()][::-1]
    assert names[-2:] == [HEAD, NEXT]
    could: set[tuple[Any, ...]] = set()
    for name in names:
        upgrade(empty_database_url, name)
        can = granted(empty_database_url)
        assert could < can, name
        could = can


@pytest.mark.parametrize(
    "statement",
    [
        "revoke update (name) on tenants from palimpsest_service",
        "alter table conversations drop column overflows",
        "drop function learn_count",
        "drop function move_head; create function move_head(p_tenant uuid) returns void language sql as ''",
    ],
)
def test_a_revision_that_takes_something_away_is_noticed(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    could = granted(database_url)
    monkeypatch.setattr(migrations_run, "SCRIPTS", write_next_release(tmp_path, extra=f"{statement};"))
    upgrade(database_url)
    assert not could <= granted(database_url)


@pytest.mark.parametrize("old", ["0001", "0016", "0132"])
def test_a_schema_of_before_the_first_release_is_left_as_it_is(database_url: str, old: str) -> None:
    make_tenant(database_url, "acme")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("update alembic_version set version_num = {}").format(old))
        could = granted(database_url)
        with pytest.raises(UnreleasedSchemaError, match=rf"schema {old} .*new, empty database.*export"):
            upgrade(database_url)
        assert revision(database_url) == old
        assert granted(database_url) == could
        assert connection.execute("select count(*) from tenants").fetchone() == (1,)


def granted(url: str) -> set[tuple[Any, ...]]:
    """Return what the service's role may do: on tables, on columns, and with which functions."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "select c.relname, a.attname, p from pg_class as c join pg_attribute as a on a.attrelid = c.oid,"
            " unnest(array['select', 'insert', 'update']) as p"
            " where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v') and a.attnum > 0"
            " and not a.attisdropped and has_column_privilege('palimpsest_service', c.oid, a.attnum, p)"
        ).fetchall()
        functions = connection.execute(
            "select oid::regprocedure::text, pg_get_function_result(oid), '' from pg_proc"
            " where pronamespace = 'public'::regnamespace and prorettype <> 'trigger'::regtype"
            " and has_function_privilege('palimpsest_service', oid, 'execute')"
        ).fetchall()
    return set(tables) | set(functions)
