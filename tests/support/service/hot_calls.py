"""The database functions of the hot path, called as the API calls them, from synchronous tests."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from compaction.policy import merge
from runtime import ids
from store import hot_path
from store.conversations import conversations
from store.engine import service_engine, transaction
from tests.support.stored_turns import stored_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Engine

    from compaction.payload.stored_context import StoredContext
    from runtime.settings import Settings
    from store.hot_path import Appended

CAP = 40_000


class HotCalls:
    """One tenant's calls on a pool of its own."""

    def __init__(self, settings: Settings, tenant_id: UUID, runner: asyncio.Runner, engine: Engine) -> None:
        self.tenant_id = tenant_id
        self.engine = engine
        self._url = settings.database_url.get_secret_value()
        self._runner = runner
        self.pool = runner.run(hot_path.open_pool(settings))

    def close(self) -> None:
        self._runner.run(self.pool.close())

    def run(self, query: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a query of the store that takes a pool and a tenant."""
        return self._runner.run(query(self.pool, self.tenant_id, *args, **kwargs))

    def conversation(self, **values: Any) -> UUID:
        """Make a conversation."""
        with transaction(self.engine, self.tenant_id) as connection:
            row, _ = conversations.create(connection, self.tenant_id, values)
        identifier: UUID = row.id
        return identifier

    def append(self, conversation: UUID, *messages: Mapping[str, Any], **options: Any) -> Appended:
        """Append a turn; options as for `turn`."""
        return self.at_once([self.turn(conversation, *messages, **options)])[0]

    def turn(
        self,
        conversation: UUID,
        *messages: Mapping[str, Any],
        key: str | None = None,
        cap: int = CAP,
        tenant_id: UUID | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Return a call of append_turn; `fields` are further fields of the body."""
        body = json.dumps({"messages": messages, **fields}).encode()
        turn = stored_turn(body)
        return {
            "tenant_id": tenant_id or self.tenant_id,
            "conversation_id": conversation,
            "request_id": ids.new_id(),
            "contents": turn.contents,
            "facts": turn.facts,
            "usage": turn.usage,
            "result_cap": cap,
            "expected_seq": turn.expected_seq,
            "idempotency_key": key,
            "body_hash": hashlib.sha256(body).digest() if key else None,
        }

    def at_once(self, calls: Sequence[Mapping[str, Any]]) -> list[Appended]:
        """Make calls concurrently; return their answers in the calls' order."""

        async def every() -> list[Appended]:
            return await asyncio.gather(*(hot_path.append_turn(self.pool, **call) for call in calls))

        return self._runner.run(every())

    def context(self, conversation: UUID, *, etag: str | None = None, cap: int = CAP) -> StoredContext | None:
        """Read a context."""
        return self._runner.run(
            hot_path.read_context(
                self.pool,
                tenant_id=self.tenant_id,
                conversation_id=conversation,
                etag=etag,
                policy=merge({"max_tool_result_chars": cap}),
            )
        )

    def contexts(self, wanted: Sequence[tuple[UUID, UUID]]) -> list[StoredContext | None]:
        """Read contexts concurrently, each by the tenant's and the conversation's id; return them in that order."""

        async def every() -> list[StoredContext | None]:
            reads = (
                hot_path.read_context(self.pool, tenant_id=tenant, conversation_id=each, etag=None, policy=merge({}))
                for tenant, each in wanted
            )
            return await asyncio.gather(*reads)

        return self._runner.run(every())

    def fetch(self, statement: str) -> Any:
        """Run a statement for one row on a connection of the pool, as whatever the last call left it."""
        return self._runner.run(self.pool.fetchrow(statement))

    def stored(self, conversation: UUID) -> dict[str, Any]:
        """Return the conversation's row as it is stored."""
        (row,) = self.owner("select * from conversations where id = %s", conversation)
        return row

    def owner(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Run a statement as the database's owner."""
        with psycopg.connect(self._url, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def hot_calls(settings: Settings, tenant_id: UUID) -> Iterator[HotCalls]:
    """Open a pool and an engine in the role of the service."""
    engine = service_engine(settings, "test")
    with asyncio.Runner() as runner:
        calls = HotCalls(settings, tenant_id, runner, engine)
        yield calls
        calls.close()
    engine.dispose()
