"""Migrations while the service runs, and the services of earlier revisions on the newest schema."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError

from migrations import run as migrations_run
from migrations.revisions import HEAD
from migrations.run import downgrade, upgrade
from runtime import ids
from runtime.settings import Settings
from store.engine import owner_engine
from store.tenants import tenants
from tests.support.eventually import eventually
from tests.support.service.hot_calls import CAP, hot_calls
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from store.tenants.tenants import Tenant

PREVIOUS = "0002"
TYPES_0001 = (
    *("uuid", "uuid", "uuid", "text", "bytea", "integer", "text[]", "json[]", "integer[]", "integer[]", "text[]"),
    *("boolean[]", "boolean[]", *["integer"] * 8, "boolean", "text[]", "text[]", "integer", "integer"),
    *("boolean", "boolean", "boolean", *["integer"] * 4),
)
"""The types of append_turn's 33 parameters in revision 0001."""
RETRYABLE = ("40", "55P03", "57014")
"""SQLSTATEs that the API answers with 503: try again."""


class Old:
    """A service of an earlier revision, in the role of all services."""

    def __init__(self, url: str, tenant_id: UUID) -> None:
        self.tenant_id = tenant_id
        self.connection = psycopg.connect(
            url, options="-c role=palimpsest_service", autocommit=True, row_factory=dict_row
        )

    def call(self, statement: str, *values: object) -> list[dict[str, Any]]:
        with self.connection.transaction():
            self.connection.execute("select set_config('app.tenant_id', %s, true)", (str(self.tenant_id),))
            cursor = self.connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def conversation(self) -> UUID:
        identifier = ids.new_id()
        self.call("insert into conversations (id, tenant_id) values (%s, %s)", identifier, self.tenant_id)
        return identifier

    def append(self, conversation: UUID, content: str, *, key: str | None = None) -> dict[str, Any]:
        """Append one message of a user, as revision 0001 did."""
        values: list[object] = [
            self.tenant_id, conversation, ids.new_id(), key, b"hash" if key else None, None,
            ["user"], [json.dumps(content)], [10], [50], [None], [True], [False],
            10, 10, 0, 50, 0, -1, CAP, 0, True, [], [], 1, 0, True, False, False, None, None, None, None,
        ]  # fmt: skip
        (row,) = self.call(
            sql.SQL("select * from append_turn({})")
            .format(sql.SQL(", ").join(sql.SQL("%s::" + kind) for kind in TYPES_0001))
            .as_string(),
            *values,
        )
        return row


@pytest.fixture
def url(empty_database_url: str) -> str:
    """A database at the revision before the newest."""
    upgrade(empty_database_url, PREVIOUS)
    return empty_database_url


@pytest.fixture
def tenant_there(url: str) -> Tenant:
    """A tenant without a key: what this release makes of one is not there yet."""
    engine = owner_engine(url)
    with engine.begin() as connection:
        made = tenants.create_tenant(connection, "acme")
    engine.dispose()
    return made


@pytest.fixture
def old(url: str, tenant_there: Tenant) -> Iterator[Old]:
    service = Old(url, tenant_there.id)
    yield service
    service.connection.close()


class Load:
    """Threads that append without a pause until they are told to stop."""

    def __init__(self, url: str, tenant_id: UUID, threads: int = 4) -> None:
        self.failures: list[psycopg.Error] = []
        self.stored: dict[UUID, list[str]] = {}
        self._url, self._tenant_id = url, tenant_id
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

    @property
    def count(self) -> int:
        return sum(map(len, list(self.stored.values())))

    def _append(self) -> None:
        service = Old(self._url, self._tenant_id)
        conversation = service.conversation()
        said = self.stored.setdefault(conversation, [])
        number = 0
        while not self._stop.is_set():
            text = f"message {number}"
            try:
                # With a key, so that a retry of what was stored after all is no second one.
                done = service.append(conversation, text, key=f"key {number}")
            except psycopg.Error as error:
                self.failures.append(error)
                continue
            assert done["outcome"] in {"appended", "replayed"}
            said.append(text)
            number += 1
        service.connection.close()


@pytest.mark.fault("F27")
def test_appends_go_on_while_the_schema_moves(url: str, tenant_there: Tenant) -> None:
    with Load(url, tenant_there.id) as load:
        upgrade(url)
        after = load.count
        eventually(lambda: load.count > after)  # also on the newest schema
    assert [error for error in load.failures if not (error.sqlstate or "").startswith(RETRYABLE)] == []
    with psycopg.connect(url) as connection:
        for conversation, said in load.stored.items():
            rows = connection.execute(
                "select content #>> '{}' from messages where conversation_id = %s order by seq", (conversation,)
            ).fetchall()
            assert [text for (text,) in rows] == said
        assert connection.execute("select version_num from alembic_version").fetchone() == (HEAD,)
        invalid = "select indexrelid::regclass from pg_index where not indisvalid"
        assert connection.execute(invalid).fetchall() == []


@pytest.mark.fault("F27")
def test_a_migration_that_cannot_have_its_lock_tries_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody keeps a table until the first attempt has given up."""
    tried = threading.Event()
    is_in_use = migrations_run._is_in_use

    def told(error: Exception) -> bool:
        tried.set()
        return is_in_use(error)

    monkeypatch.setattr(migrations_run, "_is_in_use", told)
    with psycopg.connect(url) as reader:
        reader.execute("lock table snapshots in share row exclusive mode")
        migration = threading.Thread(target=upgrade, args=(url,))
        migration.start()
        assert tried.wait(60)
        reader.rollback()
        migration.join(60)
    assert not migration.is_alive()
    with psycopg.connect(url) as connection:
        assert connection.execute("select version_num from alembic_version").fetchone() == (HEAD,)


@pytest.mark.fault("F27")
def test_it_gives_up_in_the_end_and_nothing_is_half_done(url: str) -> None:
    with psycopg.connect(url) as reader:
        reader.execute("lock table snapshots in share row exclusive mode")
        with pytest.raises(OperationalError, match="lock timeout"):
            upgrade(url, attempts=1)
    with psycopg.connect(url) as connection:
        assert connection.execute("select version_num from alembic_version").fetchone() == (PREVIOUS,)
        assert connection.execute("select to_regclass('processes')").fetchone() == (None,)
    upgrade(url)


def test_an_index_that_was_broken_off_is_made_anew(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create index ix_runs_dead on runs (id)")
        connection.execute("update pg_index set indisvalid = false where indexrelid = 'ix_runs_dead'::regclass")
        upgrade(url)
        valid = (
            "select indisvalid, pg_get_indexdef(indexrelid) from pg_index where indexrelid = 'ix_runs_dead'::regclass"
        )
        row = connection.execute(valid).fetchone()
    assert row is not None
    assert row[0]
    assert "state = 'dead'" in row[1]


@pytest.mark.fault("F26")
def test_what_revision_0001_calls_works_on_the_newest_schema(url: str, old: Old) -> None:
    upgrade(url)
    conversation = old.conversation()
    first = old.append(conversation, "hello", key="k")
    assert (first["outcome"], first["first_seq"], first["queued"]) == ("appended", 0, True)
    assert old.append(conversation, "hello", key="k")["outcome"] == "replayed"
    assert old.append(conversation, "more")["last_seq"] == 1
    (state,) = old.call("select * from check_states(%s::uuid[], %s)", [conversation], False)
    assert (state["conversation_id"], state["tenant_id"]) == (conversation, old.tenant_id)
    assert {"revision", "estimated", "measured", "pending_version", "has_active_run"} <= set(state)
    assert "model" not in state
    old.call("select pg_sleep(0.01)")
    assert old.call("select * from overdue_checks(%s::float8, %s)", 0, 10) == [{"conversation_id": conversation}]
    assert old.call("select * from clear_checks(%s::uuid[], %s::bigint[])", [conversation], [state["revision"]]) == [
        {"clear_checks": conversation}
    ]
    assert old.call("select * from stranded_runs(%s::float8, %s)", 0, 10) == []


@pytest.mark.fault("F26")
@pytest.mark.parametrize("revision", [PREVIOUS, HEAD])
def test_a_context_is_read_as_revision_0001_reads_it(url: str, old: Old, revision: str) -> None:
    conversation = old.conversation()
    old.append(conversation, "hello")
    upgrade(url, revision)
    statement = "select * from read_context(%s, %s, %s::text, %s, %s, %s, %s::integer)"
    (found,) = old.call(statement, old.tenant_id, conversation, None, CAP, 128_000, 4_096, None)
    assert (found["plain"], found["last_seq"], found["head_version"], found["not_modified"]) == (True, 0, 0, False)
    assert json.loads(f"[{found['tail']}]") == [{"role": "user", "content": "hello"}]
    (same,) = old.call(statement, old.tenant_id, conversation, found["etag"], CAP, 128_000, 4_096, None)
    assert same["not_modified"]


@pytest.mark.fault("F26")
def test_the_newest_revision_takes_nothing_away(url: str, tenant_there: Tenant) -> None:
    """Whatever services of the one before call is there, and they may."""
    before = granted(url)
    upgrade(url)
    assert before <= granted(url)
    settings = Settings(database_url=SecretStr(url), summarizer="extractive", policy={"input_token_budget": 100})
    with hot_calls(settings, tenant_there.id) as calls:
        conversation = calls.conversation()
        calls.append(conversation, {"role": "user", "content": "Look."})
        work(settings, conversation)
    downgrade(url, PREVIOUS)
    assert granted(url) == before


def granted(url: str) -> set[tuple[Any, ...]]:
    """Return what the service's role may do: on tables, on columns, and with which functions."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "select c.relname, a.attname, p from pg_class as c join pg_attribute as a on a.attrelid = c.oid,"
            " unnest(array['select', 'insert', 'update']) as p"
            " where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'v') and a.attnum > 0"
            " and has_column_privilege('palimpsest_service', c.oid, a.attnum, p)"
        ).fetchall()
        functions = connection.execute(
            "select oid::regprocedure::text, '', '' from pg_proc where pronamespace = 'public'::regnamespace"
            " and has_function_privilege('palimpsest_service', oid, 'execute')"
        ).fetchall()
    return set(tables) | set(functions)
