"""`messages` moved into parts under a running service, by the steps of deploy/partitioning, there and back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from cli.local.installations import postgres_installations
from tests.store.test_backup import run
from tests.support.places import ROOT
from tests.support.service.in_process import Chat, Workers, head
from tests.support.service.in_process import chat_alone as chat
from tests.support.talk import answer, exchanges, request, rounds

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from cli.local.embedded import EmbeddedPostgres

__all__ = ["chat"]

STEPS = ROOT / "deploy" / "partitioning"
PARTS = 4
ERASE = "select erase_conversation(gen_random_uuid(), :c, 'conversation', null, null)"


@pytest.fixture(scope="module")
def psql(postgres: EmbeddedPostgres) -> Path:
    """The psql beside the server's programs."""
    with psycopg.connect(postgres.url) as connection:
        major = connection.info.server_version // 10_000
    for installation in postgres_installations():
        if installation.major == major and (installation.directory / "psql").exists():
            return installation.directory / "psql"
    pytest.skip(f"no psql beside the server's programs, PostgreSQL {major}")


class Move:
    """Runs the steps, and has a writer go on beside each."""

    def __init__(self, chat: Chat, psql: Path, url: str) -> None:
        self.chat = chat
        self.psql = psql
        self.url = url
        self.talked = chat.begin({"input_token_budget": 0})
        self.edited = chat.begin({"input_token_budget": 0})
        self.turns = 0
        self.edits = 0
        chat.append(self.edited, [request("to edit"), answer("0")])

    def step(self, name: str) -> str:
        """Run a step while turns, edits and an erasure go on; return what it printed."""
        erased = self.chat.begin({})
        self.chat.append(erased, exchanges(3, 100))
        ended, wrote = threading.Event(), threading.Event()
        faults: list[BaseException] = []

        def write() -> None:
            try:
                while not ended.is_set():
                    self.chat.append(self.talked, [request(f"request {self.turns}"), answer(f"answer {self.turns}")])
                    self.turns += 1
                    self.edits += 1
                    self.chat.append(self.edited, [answer(str(self.edits))], replace_from=self.edits)
                    if self.turns % 3 == 0 and not wrote.is_set():
                        self.chat.query(ERASE, c=erased)
                        wrote.set()
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                faults.append(error)
                wrote.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            single = [] if name == "2_copy" else ["--single-transaction"]
            done = run(
                self.psql, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1",
                "--set", f"parts={PARTS}", *single, "--file", STEPS / f"{name}.sql", self.url,
            )  # fmt: skip
            assert wrote.wait(30)
        finally:
            ended.set()
            writer.join(30)
        assert [(name, fault, getattr(fault, "detail", "")) for fault in faults] == []
        assert done.returncode == 0, done.stderr
        with psycopg.connect(self.url) as owner:
            left = owner.execute("select count(*) from messages where conversation_id = %s", [erased]).fetchone()
        assert left == (0,)
        return done.stdout

    def assert_whole(self) -> None:
        """Everything that was acknowledged is there, in order, once."""
        talked = self.chat.originals(self.talked)
        assert [seq for seq, _, _ in talked] == list(range(2 * self.turns))
        assert self.chat.valid_context(self.talked)[-1] == answer(f"answer {self.turns - 1}")
        edited = self.chat.originals(self.edited)
        assert len(edited) == 2 + self.edits
        assert self.chat.valid_context(self.edited) == [request("to edit"), answer(str(self.edits))]


def of_table(url: str, name: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as owner:
        return owner.execute(
            f"select conversation_id, seq, content::text, superseded_at from {name} order by 1, 2"  # noqa: S608 - a constant
        ).fetchall()


def kind_of_messages(url: str) -> tuple[Any, ...] | None:
    with psycopg.connect(url) as owner:
        return owner.execute(
            "select relkind, relforcerowsecurity from pg_class where oid = 'messages'::regclass"
        ).fetchone()


def rows_through_views(chat: Chat, url: str, conversation: UUID) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as owner:
        return [
            *owner.execute("select messages_stored from conversation_costs where conversation_id = %s", [conversation]),
            *owner.execute("select count(*) from message_lineage where conversation_id = %s", [conversation]),
        ]


def test_there_and_back_and_there_while_the_service_goes_on(chat: Chat, database_url: str, psql: Path) -> None:
    workers = Workers(chat)
    for _ in range(30):  # enough to fall into more than one part
        chat.append(chat.begin(), [request("one of many")])
    compacted = chat.begin()
    chat.append(compacted, [request("häppchen ✓ \\u0041"), *rounds(6, 600)])
    workers.settle(compacted)
    assert head(chat, compacted).version
    before = (
        chat.originals(compacted),
        chat.context_text(compacted),
        rows_through_views(chat, database_url, compacted),
    )

    move = Move(chat, psql, database_url)
    move.step("1_prepare")
    assert move.step("2_copy").strip() == "0|0"
    assert of_table(database_url, "messages_in_parts") == of_table(database_url, "messages")
    move.step("3_swap")
    assert kind_of_messages(database_url) == ("p", True)
    move.assert_whole()
    assert of_table(database_url, "messages_whole") == of_table(database_url, "messages")
    move.step("back")
    assert kind_of_messages(database_url) == ("r", True)
    move.assert_whole()
    assert of_table(database_url, "messages_in_parts") == of_table(database_url, "messages")
    move.step("3_swap")
    move.step("4_finish")

    move.assert_whole()
    assert (
        chat.originals(compacted),
        chat.context_text(compacted),
        rows_through_views(chat, database_url, compacted),
    ) == before
    chat.append(compacted, rounds(6, 600, start=6))
    workers.settle(compacted)
    chat.valid_context(compacted)
    with psycopg.connect(database_url) as owner:
        parts = owner.execute("select count(distinct tableoid) from messages").fetchone()
        assert parts is not None
        assert 1 < parts[0] <= PARTS


def test_the_parts_are_guarded_as_the_whole_was(chat: Chat, database_url: str, psql: Path) -> None:
    conversation = chat.begin()
    chat.append(conversation, exchanges(2, 20))
    move = Move(chat, psql, database_url)
    for name in ("1_prepare", "2_copy", "3_swap", "4_finish"):
        move.step(name)
    for statement in ("delete from messages", "update messages set role = 'user'", "truncate messages"):
        with psycopg.connect(database_url) as owner, pytest.raises(errors.RestrictViolation):
            owner.execute(statement)
    with pytest.raises(DBAPIError, match="permission denied"):
        chat.query("delete from messages")
    with pytest.raises(DBAPIError, match="permission denied"):
        chat.query("select * from messages_part_0")
    with chat.database.transaction(None) as connection:
        assert connection.exec_driver_sql("select count(*) from messages").scalar_one() == 0
