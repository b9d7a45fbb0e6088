"""What was asked back: counted, recorded with the answer, and listed with what compaction should have kept."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from actions.paging import page_of
from actions.types.recall import RecallsOut, recall_record_out, regret_out, wanted_out
from store.recall import requests
from store.recall.requests import RecalledPassages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from actions.paging import Window
    from compaction.recall.departures import Departure
    from store.recall.requests import Question


class Returned(NamedTuple):
    """What one conversation gave back, before it is known how it had left the context."""

    conversation_id: UUID
    refs: Sequence[str]
    seqs: Sequence[int]
    out_of_context: Sequence[int]
    searched: int
    tokens: int


async def note(caller: Caller, asked: Question, returned: Sequence[Returned]) -> None:
    """Count a recall and, as the setting has it, write it down; a database that takes no writes has none of it."""
    services = caller.services
    services.metrics.recalled(asked.kind, "found" if any(each.refs for each in returned) else "nothing")
    is_written = asked.origin == "console" or random.random() < services.settings.recall_audit_ratio  # noqa: S311
    if not is_written and not any(each.out_of_context for each in returned):
        return
    ways: list[Departure] = []
    is_done = False

    def write(connection: Connection, tenant_id: UUID) -> None:
        given = []
        for each in returned:
            left = requests.departures_of(connection, tenant_id, each.conversation_id, each.out_of_context)
            ways.extend(left.values())
            given.append(RecalledPassages(each.conversation_id, each.refs, each.seqs, left, each.searched, each.tokens))
        if is_written:
            requests.insert_recalls(connection, caller.operator, asked, given)

    with suppress(SQLAlchemyError, TimeoutError, OSError):
        await caller.run(write)
        is_done = True
    if asked.origin == "api":
        services.metrics.regretted(way.step for way in ways)
    if not is_done and is_written:
        services.metrics.recalls_unrecorded.inc()


def list_recalls(connection: Connection, tenant_id: UUID, conversation_id: UUID, span: Window[UUID]) -> RecallsOut:
    """Return a page of what was asked back of a conversation, and what all of it comes to."""
    rows = requests.list_page(connection, tenant_id, conversation_id, **span.query)
    listed = page_of([recall_record_out(row) for row in rows], span, lambda item: item.id)
    return RecallsOut(
        **msgspec.structs.asdict(listed),
        wanted=[wanted_out(row) for row in requests.most_recalled(connection, tenant_id, conversation_id)],
        regret=[regret_out(row) for row in requests.list_regrets(connection, tenant_id, conversation_id)],
    )
