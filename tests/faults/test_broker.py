"""Redis away, emptied, killed and full: a turn is stored all the same, and its compaction comes afterwards, once."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.broker import CHECK_TASK, CHECKS, RUN_TASK, SUMMARIES
from runtime.queues import Queue
from tests.faults.installation import SETTLE_SECONDS, installed, once
from tests.support.eventually import eventually
from tests.support.servers.own_servers import OwnRedis, own_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli.local.embedded import EmbeddedPostgres
    from tests.faults.installation import Installation, Talk
    from tests.support.processes import Worker

pytestmark = pytest.mark.slow
WORDS: Final = "the words of a stranger"


@pytest.fixture(scope="module")
def broker() -> Iterator[OwnRedis]:
    with own_redis() as server:
        yield server


@pytest.fixture(scope="module")
def installation(postgres: EmbeddedPostgres, template: str, broker: OwnRedis) -> Iterator[Installation]:
    with installed(postgres.url, template, broker.url) as made, made.api():
        yield made


@pytest.fixture(scope="module")
def workers(installation: Installation) -> Iterator[list[Worker]]:
    with installation.running("checks", "summaries", "beat") as running:
        yield running


@pytest.fixture(autouse=True)
def _as_before(broker: OwnRedis) -> Iterator[None]:
    """Let no test find what another one broke."""
    yield
    if not broker.answers():
        broker.start()
    broker.make_room()


def say(talk: Talk) -> str:
    """Append what needs a summary, and return what became of its check."""
    told: str = talk.append(*talk.long())["check"]
    return told


def reached(installation: Installation) -> bool:
    answer: str = installation.client.get("/readyz").json()["services"]["broker"]
    return answer == "ok"


def take_away(installation: Installation, broker: OwnRedis) -> None:
    """Kill Redis, and wait until the API has seen its connection end."""
    broker.kill()
    eventually(lambda: not reached(installation))


def wakeups(installation: Installation, outcome: str) -> float:
    """Return the conversations in wake-ups of the API with that outcome."""
    families = text_string_to_metric_families(installation.client.get("/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    (value,) = (
        each.value for each in samples if (each.name, each.labels) == ("palimpsest_wakeups_total", {"outcome": outcome})
    )
    return value


@pytest.mark.fault("F10")
def test_what_waits_in_redis_is_flushed(installation: Installation, broker: OwnRedis, workers: list[Worker]) -> None:
    """Both processes of the checks are held, so that a third check waits; both threads of the summaries likewise."""
    talks = [installation.talk() for _ in range(3)]
    installation.points.hold("check.started", 2)
    held = []
    for talk in talks[:2]:
        assert say(talk) == "queued"
        held.append(installation.points.arrival("check.started"))
    say(talks[2])
    eventually(lambda: installation.queued(CHECKS) >= 1)
    flush(broker)
    installation.model.hold()
    for each in held:
        each.release()
    eventually(lambda: sum(talk.calls for talk in talks) == 2, 60)
    eventually(lambda: installation.queued(SUMMARIES) >= 1, 60)  # the third was found by the sweep meanwhile
    flush(broker)
    installation.model.release()
    for talk in talks:
        once(talk.end_state(runs=1))


def flush(broker: OwnRedis) -> None:
    with broker.client() as client:
        client.flushall()


@pytest.mark.fault("F9")
def test_turns_while_redis_is_away(
    installation: Installation, broker: OwnRedis, workers: list[Worker], measured: Callable[[str, float], None]
) -> None:
    talks = [installation.talk() for _ in range(8)]
    take_away(installation, broker)
    for talk in talks:
        assert say(talk) == "deferred"
        assert talk.context()["last_seq"] == len(talk.sent) - 1
    assert not reached(installation)
    broker.start()
    began = installation.now()
    for talk in talks:
        once(talk.end_state(runs=1))
    measured("F9 Redis back: eight conversations compacted", (installation.now() - began).total_seconds())
    assert [worker.process.poll() for worker in workers] == [None] * 3


@pytest.mark.slow
@pytest.mark.fault("F9")
@pytest.mark.timeout(300)
def test_redis_is_away_for_a_minute(
    installation: Installation, broker: OwnRedis, workers: list[Worker], measured: Callable[[str, float], None]
) -> None:
    """A turn a second meanwhile; by then the workers try to connect less and less often."""
    take_away(installation, broker)
    talks = []
    for _ in range(60):
        talks.append(installation.talk())
        assert say(talks[-1]) == "deferred"
        time.sleep(1)  # the length of the outage is what is tried
    broker.start()
    began = installation.now()
    for talk in talks:
        once(talk.end_state(runs=1))
    measured("F9 Redis back after a minute: 60 conversations compacted", (installation.now() - began).total_seconds())
    assert [worker.process.poll() for worker in workers] == [None] * 3


@pytest.mark.fault("F10", "F11")
def test_redis_is_killed_while_a_model_is_asked(
    installation: Installation, broker: OwnRedis, workers: list[Worker], measured: Callable[[str, float], None]
) -> None:
    """With a run that waits in it, as both threads of the worker are busy."""
    asked, waiting, later = [installation.talk() for _ in range(2)], installation.talk(), installation.talk()
    installation.model.hold()
    for talk in asked:
        say(talk)
    eventually(lambda: [talk.calls for talk in asked] == [1, 1], 60)
    say(waiting)
    eventually(lambda: installation.queued(SUMMARIES) == 1, 60)
    broker.kill()
    installation.model.release()
    for talk in asked:  # the worker needs nothing of Redis to finish what it is at
        once(talk.end_state(runs=1))
    broker.start()
    began = installation.now()
    eventually(lambda: reached(installation))
    say(later)
    for talk in (later, waiting):
        once(talk.end_state(runs=1))
    measured("F11 Redis back: the next conversations compacted", (installation.now() - began).total_seconds())
    for talk in asked:
        once(talk.end_state())
    assert [worker.process.poll() for worker in workers] == [None] * 3


@pytest.mark.fault("F15")
@pytest.mark.parametrize("queue", [CHECKS, SUMMARIES])
def test_a_message_that_is_no_task_of_ids_is_rejected_and_the_worker_goes_on(
    installation: Installation, workers: list[Worker], queue: str
) -> None:
    """More of each than the worker has slots for: a rejected message keeps none."""
    worker = workers[[CHECKS, SUMMARIES].index(Queue(queue))]
    before = refusals(worker)
    for _ in range(3):
        installation.app.send_task("palimpsest.unknown", args=[[str(uuid4())]], queue=queue)
        installation.app.send_task(CHECK_TASK, args=[[WORDS]], queue=queue)
        installation.app.send_task(CHECK_TASK, args=[7], queue=queue)
        installation.app.send_task(RUN_TASK, args=[str(uuid4()), None], queue=queue)
    eventually(lambda: len(refusals(worker)) == len(before) + 12, SETTLE_SECONDS)
    assert Counter(refusals(worker)) - Counter(before) == {"unknown_task": 3, "invalid_ids": 9}
    installation.drain()
    talk = installation.talk()
    say(talk)
    once(talk.end_state(runs=1))
    assert [each.process.poll() for each in workers] == [None] * 3


def refusals(worker: Worker) -> list[str]:
    """Return the reasons for which a worker has rejected messages."""
    return [event["reason"] for event in worker.events if event["event"] == "message.refused"]


@pytest.mark.fault("F23")
def test_redis_takes_nothing_more(
    installation: Installation, broker: OwnRedis, workers: list[Worker], measured: Callable[[str, float], None]
) -> None:
    talk = installation.talk()
    lost = wakeups(installation, "lost")
    broker.fill_up()
    say(talk)
    eventually(lambda: wakeups(installation, "lost") == lost + 1)
    assert talk.context()["last_seq"] == len(talk.sent) - 1
    beat = workers[-1]
    eventually(lambda: "Message Error" in beat.log.read_text())
    broker.make_room()
    began = installation.now()
    once(talk.end_state(runs=1))
    measured("F23 room in Redis again: the conversation compacted", (installation.now() - began).total_seconds())
    assert [worker.process.poll() for worker in workers] == [None] * 3
