"""Worker processes as a deployment runs them: what they take over, how they end, what they log."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import text

from runtime.broker import CHECK_TASK, CHECKS
from tests.cli.test_processes import still_running
from tests.support.eventually import eventually
from tests.support.processes import START_SECONDS, Product, ended, long_talk, product
from tests.support.service.in_process import SMALL, head
from tests.support.talk import request, rounds

if TYPE_CHECKING:
    from tests.support.servers.loopback_model import LoopbackModel

__all__ = ["product"]


@pytest.mark.fault("F5")
def test_sigterm_gives_up_a_model_call_and_another_worker_goes_on_at_once(
    product: Product, model: LoopbackModel
) -> None:
    conversation = long_talk(product)
    model.hold()
    with product.worker("checks,summaries", "--concurrency", "2") as first:
        product.wake(conversation)
        model.wait_for_requests(1)
        assert first.end() == 0
    assert "run.released" in {event["event"] for event in first.events}
    assert "Traceback" not in first.log.read_text()
    run = product.chat.run(conversation)
    assert (run.state, run.attempts, run.lease_token) == ("queued", 0, None)
    model.release()
    with product.worker("summaries", "--concurrency", "2") as second:
        # No sweeper runs: the wake-up was there for it.
        eventually(ended(product, conversation), 60)
        assert second.end() == 0
    run = product.chat.run(conversation)
    assert (run.state, run.attempts) == ("committed", 1)
    assert len(model.requests) == 2


def test_sigterm_ends_idle_workers_and_the_sweeper(product: Product) -> None:
    conversation = product.chat.begin()
    product.chat.append(conversation, [request("go"), *rounds(6, 600)])
    with product.worker("checks") as checks, product.worker("beat") as sweeper:
        eventually(ended(product, conversation), 60)  # nobody woke the worker: the sweep did
        assert (checks.end(), sweeper.end()) == (0, 0)
    for worker in (checks, sweeper):
        assert "Traceback" not in worker.log.read_text()
    assert product.chat.run(conversation).state == "committed"
    assert head(product.chat, conversation).version == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_the_processes_of_a_pool_end_with_a_parent_that_is_killed(product: Product) -> None:
    with product.worker("checks", "--concurrency", "2") as worker:
        pid = worker.process.pid
        eventually(lambda: len(children(pid)) == 2, 60)
        pool = children(pid)
        os.kill(pid, signal.SIGKILL)
        worker.process.wait(60)
        assert still_running(*pool) == []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.fault("F30")
@pytest.mark.fault("F15")
def test_a_failed_task_logs_its_type_and_nothing_of_what_it_held(product: Product) -> None:
    secret = "the words of a user"
    function = "function due_states(uuid[], boolean)"
    lost = product.chat.begin(SMALL)

    def told(event: str) -> list[dict[str, Any]]:
        return [each for each in worker.events if each["event"] == event]

    def as_owner(statement: str) -> None:
        with psycopg.connect(product.env["PALIMPSEST_DATABASE_URL"], autocommit=True) as owner:
            owner.execute(statement.encode())

    with product.worker("checks", "--concurrency", "1") as worker:
        product.app.send_task(CHECK_TASK, args=[[secret]], queue=CHECKS)
        (refused,) = eventually(lambda: told("message.refused"), 60)
        assert refused["reason"] == "invalid_ids"
        as_owner(f"revoke execute on {function} from palimpsest_service")
        product.wake(lost)
        (failed,) = eventually(lambda: told("task.failed"), 60)
        assert (failed["task"], failed["error"]) == (
            CHECK_TASK,
            "ProgrammingError: 42501 the login lacks a right in the database",
        )
        as_owner(f"grant execute on {function} to palimpsest_service")
        # It goes on with the next.
        conversation = product.chat.begin()
        product.chat.append(conversation, [request(secret), *rounds(6, 600)])
        product.wake(conversation)
        eventually(ended(product, conversation), 60)
        assert worker.end() == 0
    log = worker.log.read_text()
    assert secret not in log
    assert "Traceback" not in log
    assert "lorem" not in log


@pytest.mark.slow
def test_a_worker_that_hangs_ends_all_the_same(product: Product) -> None:
    impatient = "from worker.process import shutdown; shutdown.STOP_SECONDS = 0.5; from cli.main import main; main()"
    product.program = ["-c", impatient]
    conversation = product.chat.begin()
    product.chat.append(conversation, [request("go"), *rounds(6, 600)])
    with (
        product.worker("checks", "--concurrency", "1") as worker,
        product.chat.database.transaction(product.chat.tenant_id) as connection,
    ):
        connection.execute(text("select from conversations where id = :c for update"), {"c": conversation})
        product.wake(conversation)
        eventually(lambda: product.chat.query("select from pg_locks where not granted"), 60)
        assert worker.end() == 1
    assert "worker.stop_overdue" in {event["event"] for event in worker.events}
    # Its child is gone as well, or it would have the row by now.
    product.chat.append(conversation, [request("more")])
    assert product.chat.runs(conversation) == []


def test_a_worker_that_was_given_no_key_for_its_model_says_so(product: Product) -> None:
    for env, expected in (({}, []), ({"ANTHROPIC_API_KEY": "", "ANTHROPIC_BASE_URL": ""}, ["ANTHROPIC_API_KEY"])):
        with product.worker("summaries", env=env) as worker:
            # What comes after it at a worker's start: it is seen.
            eventually(lambda: product.chat.query("select 1 from processes where kind = 'worker'"), START_SECONDS)
            assert worker.end() == 0
            assert [each["variable"] for each in worker.events if each["event"] == "worker.no_key"] == expected


def test_what_starts_says_what_it_is_and_of_which_release(product: Product) -> None:
    with product.api() as api, product.worker("checks") as worker:
        eventually(lambda: product.chat.query("select 1 from processes where kind = 'worker'"), START_SECONDS)
        (served,) = (each for each in api.events if each["event"] == "api.started")
        (working,) = (each for each in worker.events if each["event"] == "worker.started")
    assert api.url.endswith(f":{served['port']}")
    assert (working["queues"], working["release"]) == (["checks"], served["release"])
