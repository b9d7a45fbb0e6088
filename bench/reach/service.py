"""The service that is measured: conversations stored in it, and what its database tells of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import psycopg

from cli.client.types import Message
from compaction.recall.segments import MOST_MESSAGES
from runtime import ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.client.client import ServiceClient
    from cli.client.types import Recalled
    from cli.local.serve import RunningService

TURN: Final = 500
"""Messages that are appended at a time."""
_WAIT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.002


class Measured(NamedTuple):
    """A running service and a client of it."""

    service: RunningService
    client: ServiceClient

    def store(
        self, messages: Sequence[Mapping[str, Any]], *, policy: Mapping[str, Any] | None = None, turn: int = TURN
    ) -> str:
        """Store messages in a conversation of their own; return its id."""
        conversation = self.client.create_conversation(policy=policy or {"compaction_enabled": False}).id
        self.append(conversation, messages, turn=turn)
        return conversation

    def append(self, conversation: str, messages: Sequence[Mapping[str, Any]], *, turn: int = TURN) -> None:
        """Append messages, `turn` of them at a time."""
        for start in range(0, len(messages), turn):
            self.client.append_turn(
                conversation,
                [
                    Message(each["role"], msgspec.Raw(msgspec.json.encode(each["content"])))
                    for each in messages[start : start + turn]
                ],
            )

    def stored_bytes(self) -> int:
        """Return the bytes on disk of everything that is stored for recall, indexes included."""
        with self._connect() as connection:
            row = connection.execute("select pg_total_relation_size('recall_segments')").fetchone()
        return int(row[0]) if row else 0

    def prepared_through(self, conversation: str) -> int:
        """Return the last message of a conversation that something is stored for, -1 for none."""
        with self._connect() as connection:
            row = connection.execute(
                "select max(last_seq) from recall_segments where conversation_id = %s",
                [ids.parse("conv", conversation)],
            ).fetchone()
        return int(row[0]) if row and row[0] is not None else -1

    def prepared_after(self, conversation: str) -> float:
        """Wait for the first snapshot and until what left the context with it is prepared; return the seconds between.

        By the database's clock, from the beginning of the transaction that commits the snapshot on. Messages of short
        texts are assumed: of these a segment has 128, and the rest of them is not prepared.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        with self._connect() as connection:
            while time.monotonic() < deadline:
                row = connection.execute(_PREPARED, [ids.parse("conv", conversation)]).fetchone()
                if row is not None and row[1] >= (row[0] + 1) // MOST_MESSAGES * MOST_MESSAGES - 1:
                    return float(row[2])
                time.sleep(_POLL_SECONDS)
        raise TimeoutError(f"what left the context of {conversation} was not prepared in {_WAIT_SECONDS:.0f} s")

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.service.stack.database_url, autocommit=True)


def seqs_of(recalled: Recalled) -> list[int]:
    """Return the messages of an answer."""
    return [int(part.ref[1:].partition(".")[0]) for passage in recalled.passages for part in passage.parts]


_PREPARED: Final = """
    select s.covers_through,
           coalesce((select max(last_seq) from recall_segments where conversation_id = c.id), -1),
           extract(epoch from clock_timestamp() - s.created_at)
    from conversations as c join snapshots as s
        on s.tenant_id = c.tenant_id and s.conversation_id = c.id and s.version = c.head_version
    where c.id = %s
"""
