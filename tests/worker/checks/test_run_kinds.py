"""A run's kind is written when it is queued, and by the database for code that does not know of the column."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from compaction.policy import merge
from compaction.steps.runs import RunKind, RunState, RunTrigger, StepState
from runtime.queues import Queue
from store.runs import requested, runs
from store.runs.requested import ManualRun
from tests.support.service.in_process import SMALL, Workers
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum
    from uuid import UUID

    from sqlalchemy import Connection

    from tests.support.service.in_process import Chat

POLICY = merge(SMALL)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("runs_kind", RunKind),
        ("runs_trigger", RunTrigger),
        ("runs_state", RunState),
        ("runs_queue", Queue),
        ("run_steps_state", StepState),
    ],
)
def test_the_database_takes_what_the_code_names(chat: Chat, column: str, values: type[StrEnum]) -> None:
    definition = "select pg_get_constraintdef(oid) from pg_constraint where conname = %s and convalidated"
    with psycopg.connect(chat.url) as connection:
        row = connection.execute(definition, [f"ck_{column}"]).fetchone()
    assert row is not None
    assert set(re.findall(r"'(\w+)'", row[0])) == set(values)


@pytest.mark.parametrize(
    ("trigger", "more", "kind"),
    [
        ("check", {}, RunKind.LADDER),
        ("manual", {"strategy": "auto"}, RunKind.MANUAL),
        ("overflow", {"base_version": 0}, RunKind.RECOVERY),
        ("budget", {"base_version": 0}, RunKind.RECOVERY),
        ("context_block", {}, RunKind.CONTEXT_BLOCK),
        ("overflow", {}, RunKind.REQUEST),
        ("pin", {}, RunKind.REQUEST),
        ("restore", {}, RunKind.REQUEST),
        ("fork", {}, RunKind.REQUEST),
        ("import", {}, RunKind.REQUEST),
    ],
)
def test_a_run_of_code_that_knows_no_kinds_has_one(
    chat: Chat,
    trigger: str,
    more: dict[str, Any],
    kind: RunKind,
) -> None:
    values = {"id": uuid4(), "tenant_id": chat.tenant_id, "conversation_id": chat.begin(), "trigger": trigger, **more}
    columns, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    chat.query(
        f"insert into runs (state, queue, policy, {columns}) values ('queued', 'checks', '{{}}', {places})",  # noqa: S608
        **values,
    )
    claimed = Workers(chat).claim(values["id"])
    assert claimed is not None
    assert claimed.kind is kind


def by_hand(connection: Connection, tenant: UUID, conversation: UUID) -> UUID:
    wanted = ManualRun("auto", None, POLICY)
    return requested.request(connection, tenant, conversation, wanted, queue=Queue.CHECKS, request_id=uuid4())[0]


def after_an_overflow(connection: Connection, tenant: UUID, conversation: UUID) -> UUID:
    return requested.summarize_overflow(
        connection,
        tenant,
        conversation,
        policy=POLICY,
        request_id=None,
        base_version=0,
        parent_version=0,
        target_tokens=1,
    )


def by_a_request(connection: Connection, tenant: UUID, conversation: UUID) -> UUID:
    return requested.record(
        connection,
        tenant,
        conversation,
        trigger=RunTrigger.FORK,
        policy=POLICY,
        request_id=None,
        parent_version=None,
        snapshot_version=0,
    )


@pytest.mark.parametrize(
    ("queue", "kind"),
    [(by_hand, RunKind.MANUAL), (after_an_overflow, RunKind.RECOVERY), (by_a_request, RunKind.REQUEST)],
)
def test_the_code_writes_what_the_database_would(
    chat: Chat,
    queue: Callable[[Connection, UUID, UUID], UUID],
    kind: RunKind,
) -> None:
    conversation = chat.begin()
    with chat.database.transaction(chat.tenant_id) as connection:
        run = queue(connection, chat.tenant_id, conversation)
    assert chat.run(conversation).kind == kind
    chat.query("update runs set kind = null where id = :r", r=run)
    assert chat.run(conversation).kind == kind


def test_a_run_that_dies_holds_back_the_next_check_only_where_thresholds_brought_it_about(
    chat: Chat,
) -> None:
    held = {}
    for name in ("check", "by hand"):
        conversation = chat.begin({"input_token_budget": 0})
        chat.append(conversation, exchanges(12, 200))
        if name == "check":
            run = Workers(chat).begin(conversation).run_id
        else:
            with chat.database.transaction(chat.tenant_id) as connection:
                run = by_hand(connection, chat.tenant_id, conversation)
        chat.query(
            "update runs set attempts = 9, lease_expires_at = now() - interval '1 s', kind = null where id = :r", r=run
        )
        with chat.database.transaction(chat.tenant_id) as connection:
            assert runs.requeue(connection, run, 5) == "dead"
        held[name] = chat.row(conversation).summary_hold > 0
    assert held == {"check": True, "by hand": False}
