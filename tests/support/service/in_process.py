"""A chat product and a worker in the test's own process, on the test's real database.

Turns take the road of the API (`actions.input.checks`, `store.hot_path`), contexts are what it would answer; runs are
carried out by `Checker` and `Dispatcher` as a worker's tasks do, only that wake-ups are collected instead of sent.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from actions.read_context import encode_context
from compaction.pins.ledger import turn_entries
from compaction.policy import merge
from compaction.steps.snapshot import load_view
from runtime.broker import SUMMARIES
from runtime.settings import Settings
from store import hot_path
from store.conversations import conversations, snapshots
from store.runs import runs
from store.runs.runs import LeaseHolder
from store.tenants import tenants
from tests.support.eventually import PATIENCE_SECONDS
from tests.support.messages_api import problems
from tests.support.stored_turns import stored_turn
from worker.checks import Checker
from worker.database import Database
from worker.parts import choose_signed, choose_summarizer
from worker.runs.dispatch import Dispatcher
from worker.runs.resources import RunResources

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    import asyncpg

    from store.conversations.conversations import CheckState
    from store.runs.runs import Lease
    from store.tables import AnyRow
    from tests.conftest import Tenant
    from tests.support.blocks import Message
    from worker.summarizers import Summarizer

T = TypeVar("T")

SMALL: Final[dict[str, Any]] = {
    "input_token_budget": 2_000,
    "compaction_threshold_tokens": 4_000,
    "min_savings_tokens": 100,
    "model_context_tokens": 16_000,
}
"""A policy in miniature; what it leaves out keeps its default. The trim threshold is 9,600 tokens."""


class Chat:
    """Conversations of one tenant, as a chat product and its audit see them."""

    def __init__(self, settings: Settings, tenant_id: UUID) -> None:
        self.settings = self._given = settings
        self.tenant_id = tenant_id
        self.database = Database(settings, "test")
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._pool: asyncpg.Pool = self._await(hot_path.open_pool(settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._await(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.database.close()

    def _await(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE_SECONDS)

    @property
    def url(self) -> str:
        """The URL of the database, for the login that owns it."""
        return self.settings.database_url.get_secret_value()

    def renew(self, **fields: Any) -> Self:
        """Go on as the product of a new tenant; `fields` are settings other than those it was made with."""
        self.settings = Settings(**self._given.model_dump(exclude_unset=True) | fields)
        with self.database.transaction(None) as connection:
            self.tenant_id = tenants.create_tenant(connection, uuid4().hex).id
        return self

    def begin(self, policy: Mapping[str, Any] | None = None) -> UUID:
        """Make a conversation with a small policy, changed by `policy`."""
        with self.database.transaction(self.tenant_id) as connection:
            row, _ = conversations.create(connection, self.tenant_id, {"policy": SMALL | dict(policy or {})})
        identifier: UUID = row.id
        return identifier

    def append(
        self,
        conversation: UUID,
        messages: Sequence[Message],
        *,
        input_tokens: int | None = None,
        output_tokens: int = 0,
        snapshot_version: int | None = None,
        replace_from: int | None = None,
        created_at: Sequence[str | None] | None = None,
    ) -> hot_path.Appended:
        """Append one turn, or an edit; callable from any thread."""
        body: dict[str, Any] = {"messages": list(messages)}
        if created_at is not None:
            body["created_at"] = list(created_at)
        if input_tokens is not None:
            body["usage"] = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        if snapshot_version is not None:
            body["snapshot_version"] = snapshot_version
        turn = stored_turn(json.dumps(body, ensure_ascii=False).encode())
        done = self._await(
            hot_path.append_turn(
                self._pool,
                tenant_id=self.tenant_id,
                conversation_id=conversation,
                request_id=uuid4(),
                contents=turn.contents,
                facts=turn.facts,
                usage=turn.usage,
                result_cap=merge(self.settings.policy).max_tool_result_chars,
                expected_seq=None,
                idempotency_key=None,
                body_hash=None,
                policy=merge(self.settings.policy),
                replace_from=replace_from,
                entries=turn_entries(turn.said),
                times=turn.times,
            )
        )
        assert done.outcome == "appended"
        return done

    def context(self, conversation: UUID) -> dict[str, Any]:
        """Return the answer of GET …/context."""
        answer: dict[str, Any] = json.loads(self.context_text(conversation))
        return answer

    def context_text(self, conversation: UUID) -> bytes:
        """Return the answer of GET …/context as it is sent."""
        context = self._await(
            hot_path.read_context(
                self._pool,
                tenant_id=self.tenant_id,
                conversation_id=conversation,
                etag=None,
                policy=merge(self.settings.policy),
            )
        )
        assert context is not None
        return encode_context(context, merge(self.settings.policy, json.loads(context.policy))).body

    def valid_context(self, conversation: UUID) -> list[Message]:
        """Return the context's messages, which the Messages API would accept."""
        messages: list[Message] = self.context(conversation)["messages"]
        assert problems(messages) == []
        return messages

    def originals(self, conversation: UUID) -> list[tuple[int, str, str]]:
        """Return (seq, role, content text) of every stored message."""
        rows = self.query(
            "select seq, role, content::text from messages where conversation_id = :c order by seq", c=conversation
        )
        return [(row.seq, row.role, row.content) for row in rows]

    def runs(self, conversation: UUID) -> list[AnyRow]:
        """Return the runs, oldest first."""
        with self.database.transaction(self.tenant_id) as connection:
            listed = runs.page(connection, self.tenant_id, conversation_id=conversation, limit=1_000)
        return list(reversed(listed))

    def run(self, conversation: UUID) -> AnyRow:
        """Return the only run."""
        (run,) = self.runs(conversation)
        return run

    def steps(self, run_id: UUID) -> Sequence[AnyRow]:
        """Return a run's steps in order."""
        with self.database.transaction(self.tenant_id) as connection:
            return runs.steps_of(connection, [run_id])

    def snapshot(self, conversation: UUID, version: int) -> AnyRow:
        """Return one snapshot in full."""
        with self.database.transaction(self.tenant_id) as connection:
            row = snapshots.get(connection, self.tenant_id, conversation, version)
        assert row is not None
        return row

    def row(self, conversation: UUID) -> AnyRow:
        """Return the conversation's own row, counters and all."""
        (row,) = self.query("select * from conversations where id = :c", c=conversation)
        return row

    def query(self, statement: str, **values: Any) -> Sequence[AnyRow]:
        """Run a statement for the tenant; return its rows, if it has any."""
        with self.database.transaction(self.tenant_id) as connection:
            result = connection.execute(text(statement), values)
            return result.all() if result.returns_rows else []

    def expire_lease(self, run_id: UUID) -> None:
        """Let a run's lease have run out, as time would."""
        self.query("update runs set lease_expires_at = now() - interval '1 second' where id = :r", r=run_id)


class Workers:
    """What the workers of both queues do, one task at a time; wake-ups wait in `woken`."""

    def __init__(
        self,
        chat: Chat,
        summarizer: Summarizer | str | None = "chosen",
        *,
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
    ) -> None:
        self.chat = chat
        self.lease_seconds = lease_seconds
        self.max_attempts = max_attempts
        self.woken: deque[UUID] = deque()
        make: Callable[[], Any] | None = (lambda: summarizer) if summarizer is not None else None
        if isinstance(summarizer, str):
            make = choose_summarizer(chat.settings)
        self.resources = RunResources(
            chat.database, make, lease_seconds=lease_seconds, wake=lambda lease: self.woken.append(lease.run_id)
        )
        signed = choose_signed(chat.settings) if isinstance(summarizer, str) else None
        self.dispatcher = Dispatcher(self.resources, signed)
        self.checker = Checker(
            chat.database, chat.settings.policy, holder=lambda: LeaseHolder("test"), lease_seconds=lease_seconds
        )

    def check(self, *conversation_ids: UUID) -> None:
        """Do what the task of a check does."""
        self.checker.check(conversation_ids, self.dispatcher.execute)

    def claim(self, run_id: UUID) -> Lease | None:
        """Take a queued run, or one whose lease is over."""
        with self.chat.database.transaction(self.chat.tenant_id) as connection:
            return runs.claim(
                connection,
                run_id,
                holder=LeaseHolder("test"),
                lease_seconds=self.lease_seconds,
                max_attempts=self.max_attempts,
            )

    def summarize(self) -> None:
        """Do what the tasks of the woken runs do, until no more are woken."""
        while self.woken:
            lease = self.claim(self.woken.popleft())
            if lease is not None:
                assert lease.queue == SUMMARIES
                self.dispatcher.execute(lease)
                self.check(lease.conversation_id)

    def settle(self, *conversation_ids: UUID) -> None:
        """Check, summarize and check again until nothing is left to do."""
        self.check(*conversation_ids)
        self.summarize()

    def begin(self, conversation: UUID) -> Lease:
        """Begin a run as a check does, without carrying it out."""
        leases: list[Lease] = []
        self.checker.check([conversation], leases.append)
        (lease,) = leases
        return lease

    def hand_over(self, conversation: UUID) -> Lease:
        """Check, and claim the run that now waits for a summary."""
        self.check(conversation)
        lease = self.claim(self.woken.popleft())
        assert lease is not None
        return lease


class Seen(NamedTuple):
    """A conversation's head."""

    version: int
    covers_through: int
    pending: int | None


def head(chat: Chat, conversation: UUID) -> Seen:
    """Return the conversation's head."""
    row = chat.row(conversation)
    return Seen(row.head_version, row.covers_through, row.pending_version)


def view_of(chat: Chat, conversation: UUID, version: int) -> list[tuple[int, Message]]:
    """Return (seq, message) for every message of a snapshot."""
    row = chat.snapshot(conversation, version)
    return [(message.seq, message.as_message()) for message in load_view(row.messages, row.seqs)]


def check_state(chat: Chat, conversation: UUID) -> CheckState | None:
    """Return what a check would see, None if none is due."""
    with chat.database.transaction(None) as connection:
        states = conversations.check_states(connection, [conversation])
    return states[0] if states else None


@pytest.fixture(scope="module")
def module_chat(module_settings: Settings) -> Iterator[Chat]:
    """A chat product on the module's database, without a tenant."""
    with Chat(module_settings, UUID(int=0)) as made:
        yield made


@pytest.fixture
def chat(module_chat: Chat) -> Chat:
    """A chat product of a tenant of the test's own, on the module's database."""
    return module_chat.renew()


@pytest.fixture
def chat_alone(make_settings: Callable[..., Settings], tenant: Tenant) -> Iterator[Chat]:
    """A chat product of one tenant on a database of the test's own, for tests that look at all of it."""
    with Chat(make_settings(), tenant.id) as made:
        yield made
