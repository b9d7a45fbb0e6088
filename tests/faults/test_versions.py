"""Processes of a release on the schema of the one before, and while `palimpsest migrate` brings it up to date.

The release is the next one, see tests/store/schema/next_release.py; one of its workers is still of this one. What this
one calls on the next one's schema: tests/store/schema/test_migrations_under_load.py.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.faults.installation import installed
from tests.store.schema.next_release import NEXT, write_next_release
from tests.support.eventually import eventually
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
    from tests.faults.installation import Installation, Talk

TALKS = 3


@pytest.fixture(scope="module")
def installation(
    postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("next")
    write_next_release(folder)
    with installed(postgres.url, template, redis_server.url, PYTHONPATH=str(folder)) as made, made.api():
        yield made


def readiness(installation: Installation) -> tuple[int, str]:
    """Return the status of /readyz, and what it says of the schema."""
    response = installation.client.get("/readyz")
    return response.status_code, response.json()["services"]["migrations"]


@pytest.mark.fault("F26", "F27")
@pytest.mark.slow
def test_the_schema_moves_under_processes_that_are_ahead_of_it(installation: Installation) -> None:
    """The API says that it is not ready; who sends turns all the same, with keys, loses none and stores none twice.

    Nothing is started anew. Requests meet the migration's locks: they wait, or are told to come again.
    """
    talks = [installation.talk() for _ in range(TALKS)]
    stop, refused = threading.Event(), set[int]()

    def converse(talk: Talk) -> None:
        while not stop.is_set():
            said = [request(f"{talk.label} {len(talk.sent)}", 100), answer(f"{talk.label} {len(talk.sent)}", 100)]
            key = {"idempotency-key": f"{talk.label} {len(talk.sent)}"}
            while True:
                response = installation.client.post(f"{talk.path}/turns", json={"messages": said}, headers=key)
                if response.status_code == 201:
                    break
                refused.add(response.status_code)
            talk.sent.extend(said)

    with (
        installation.worker("checks,summaries", "--concurrency", "2") as worker,
        installation.worker("checks,summaries", "--concurrency", "2", env={"PYTHONPATH": ""}) as before,
        installation.worker("beat") as sweeper,
        ThreadPoolExecutor(TALKS) as threads,
    ):
        assert readiness(installation) == (503, "behind")
        conversing = [threads.submit(converse, talk) for talk in talks]
        try:
            eventually(lambda: all(talk.sent for talk in talks), 60)
            migrate = [sys.executable, "-P", "-m", "cli.main", "migrate"]
            done = subprocess.run(
                migrate, env=installation.env, check=False, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            assert eventually(lambda: readiness(installation)) == (200, "ok")
            with psycopg.connect(installation.database_url) as connection:
                assert connection.execute("select version_num from alembic_version").fetchone() == (NEXT,)
            sent = [len(talk.sent) for talk in talks]
            eventually(lambda: all(len(talk.sent) > count + 20 for talk, count in zip(talks, sent, strict=True)), 60)
        finally:
            stop.set()
        for each in conversing:
            each.result(60)
        assert refused <= {503}
        ends = [talk.end_state(runs=1) for talk in talks]
        # A summary or, where the guard does not accept what the stand-in model makes of so many turns, an extract.
        assert all(end.snapshots for end in ends)
        assert "dead" not in {run.state for end in ends for run in end.runs}
        paid = sum(step.model_calls for end in ends for step in end.steps)
        assert paid == len(installation.model.requests)
        assert [process.process.poll() for process in (worker, before, sweeper)] == [None] * 3
