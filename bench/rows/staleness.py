"""How long a context stays over its budget: from the turn that crosses it to the snapshot that is the head."""

from __future__ import annotations

import http.client
import statistics
import time
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING, Final

from bench import data
from bench.measure import Row, Sample, Target, progress
from compaction.policy import Policy
from runtime import ids
from runtime.broker import CHECKS
from store.conversations import conversations
from store.runs.runs import LeaseHolder
from tests.support.service.in_process import Chat
from tests.support.talk import request, rounds
from worker.checks import Checker
from worker.runs.dispatch import Dispatcher
from worker.runs.resources import RunResources

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    import psycopg

    from bench.plan import Plan
    from bench.servers import Api

TRIALS: Final = 20
"""Conversations in a round."""
_RESULT_TOKENS: Final = 1_000
_WAIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.001
_serial: Final = count()


def staleness(plan: Plan) -> list[Row]:
    """Cross the budget over HTTP, and in this process, where nothing lies between the append and the check."""
    servers, trials = plan.servers, 3 if plan.short else TRIALS
    api = servers.api()
    samples: list[tuple[Sample, Sample]] = []
    with (
        Chat(servers.settings, servers.tenant_id) as chat,
        servers.worker(CHECKS, concurrency=1),
        servers.connect() as connection,
    ):
        dispatcher = Dispatcher(RunResources(chat.database, None, lease_seconds=45, wake=_no_summary))
        checker = Checker(chat.database, {}, holder=lambda: LeaseHolder("bench"), lease_seconds=45)

        def here(conversation: UUID) -> None:
            chat.append(conversation, [request("go on", 2 * _RESULT_TOKENS)])
            checker.check([conversation], dispatcher.execute)

        def there(conversation: UUID) -> None:
            _post(api, conversation)

        for number in range(plan.rounds + 1):
            through_api = [_milliseconds(connection, _almost(chat), there) for _ in range(trials)]
            direct = [_milliseconds(connection, _almost(chat), here) for _ in range(trials)]
            if number:  # the first round warms up
                samples.append((_sample(through_api), _sample(direct)))
            progress(f"  round {number}: {_sample(through_api).value:.0f} ms, direct {_sample(direct).value:.0f} ms")
    return [
        Row(
            name="staleness",
            what="from a turn over the budget to the snapshot in force, p50",
            measured="API, broker, worker",
            reference="append and check in one process",
            unit=" ms",
            samples=samples,
            target=Target("<=", 150, of="measured"),
        )
    ]


def _almost(chat: Chat) -> UUID:
    """Return a conversation with tool results that is just under the budget."""
    with chat.database.transaction(chat.tenant_id) as connection:
        conversation: UUID = conversations.create(connection, chat.tenant_id, {})[0].id
    budget = Policy().input_token_budget
    start = next(_serial) * 1_000
    talk = rounds(budget // (_RESULT_TOKENS + 10) - 1, _RESULT_TOKENS, start=start)
    chat.append(conversation, [request("find me a job"), *talk])
    chat.query("update conversations set check_due_at = null where id = :c", c=conversation)
    return conversation


def _milliseconds(connection: psycopg.Connection, conversation: UUID, cross: Callable[[UUID], None]) -> float:
    """Return the time from the sending of the turn to the moment at which everybody sees the new head."""
    query = "select head_version from conversations where id = %s"
    started = time.perf_counter()
    cross(conversation)
    while connection.execute(query, [conversation]).fetchone() == (0,):
        if time.perf_counter() - started > _WAIT_SECONDS:
            raise TimeoutError("no snapshot was committed")
        time.sleep(_POLL_SECONDS)
    return (time.perf_counter() - started) * 1_000


def _post(api: Api, conversation: UUID) -> None:
    body = data.json_text({"messages": [request("go on", 2 * _RESULT_TOKENS)]})
    headers = {"authorization": f"Bearer {api.key}", "content-type": "application/json"}
    with closing(http.client.HTTPConnection(api.host, api.port, timeout=30)) as connection:
        connection.request("POST", f"/v1/conversations/{ids.external('conv', conversation)}/turns", body, headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.CREATED:
            raise RuntimeError(f"the turn was answered with {response.status}: {response.read()!r}")
        response.read()


def _sample(times: list[float]) -> Sample:
    return Sample(statistics.median(times), {"longest ms": max(times)})


def _no_summary(_: object) -> None:
    raise AssertionError("a summary was due")
