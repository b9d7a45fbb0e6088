"""What the model's server does wrong, as conversations see it: all of them at once, through real workers.

Each conversation has a script of its own, found by its label in the prompt; after the script the server is well. No
sweeper runs: nothing here may need one.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.faults.installation import installed
from tests.support.eventually import eventually
from tests.support.servers.loopback_faults import FAULTS
from tests.support.servers.loopback_steps import status, summary
from worker.summarizers.asking import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
    from tests.faults.installation import EndState, Installation, Talk
    from tests.support.servers.loopback_http import Answering
    from tests.support.servers.loopback_steps import Step

pytestmark = pytest.mark.slow
DEADLINE_SECONDS: Final = 10.0
SUMMARY: Final = ("committed", None)
EXTRACT: Final = ("degraded", "summary_failed_extract_committed")


class Case(NamedTuple):
    """What the server answers to one conversation, one after the other, and what comes of it.

    calls: questions, at least and at most. code: why the summary failed; None where it did not.
    """

    fault: str
    steps: list[str | Step]
    calls: tuple[int, int]
    code: str | None = None


def again(fault: str, *names: str) -> list[tuple[str, Case]]:
    """Return cases in which one more question has the answer."""
    return [(name, Case(fault, [name], (2, 2))) for name in names]


def given_up(fault: str, *names: str) -> list[tuple[str, Case]]:
    """Return cases in which nothing is asked any more, and an extract stands in."""
    return [(name, Case(fault, [name], (1, 1), FAULTS[name].code)) for name in names]


def in_a_second(answering: Answering) -> None:
    """Answer 429 with a date that is nearly there; HTTP dates have no fractions."""
    status(429, retry_after=format_datetime(datetime.now(UTC) + timedelta(seconds=1), usegmt=True))(answering)


CASES: Final[dict[str, Case]] = dict(
    [
        *again("F17", "429", "429 seconds", "429 milliseconds", "429 date in the past", "429 no number"),
        *again("F17", "500", "502", "503", "529", "connection reset", "cut in the body"),
        *given_up("F17", "429 in an hour", "429 on a day far away", "429 do not retry", "503 in an hour"),
        ("429 date", Case("F17", [in_a_second], (2, 2))),
        ("429, then 529, then 500", Case("F17", ["429 seconds", "529", "500"], (4, 4))),
        ("529 for ever", Case("F17", ["529"] * 99, (ATTEMPTS, ATTEMPTS), "model_overloaded")),
        *[
            (name, Case("F18", [name] * 99, (1, 2), "model_timeout"))
            for name in ("slow headers", "half a body", "trickled body")
        ],
        *[
            (name, Case("F19", [name], (1, 2)))
            for name in ("max_tokens", "longer than its input", "NUL and half a surrogate", "echoed injection")
        ],
        *[
            (f"{name} for ever", Case("F19", [name] * 99, (1, 4), FAULTS[name].code))
            for name in ("refusal", "empty", "garbage", "empty body", "HTML page with 200", "garbage: an empty object")
        ],
        ("max_tokens for ever", Case("F19", ["max_tokens"] * 99, (2, 4), "summary_cut")),
        ("longer for ever", Case("F19", ["longer than its input"] * 99, (2, 4), "summary_too_long")),
        ("400 prompt too long", Case("F20", ["400 prompt too long"], (3, 12))),
        ("413 of a proxy", Case("F20", ["413 of a proxy"], (3, 12))),
        ("prompt too long for ever", Case("F20", ["400 prompt too long"] * 99, (2, 24), "prompt_too_long")),
        *given_up("F20", "401", "403", "400 account empty"),
    ]
)


class Scripts:
    """The scripts of all conversations, as one step of the model's server."""

    def __init__(self) -> None:
        self.by_label: dict[str, deque[Step]] = {}
        self._usual = summary()

    def __call__(self, answering: Answering) -> None:
        prompt = answering.received.prompt
        script = next((script for label, script in self.by_label.items() if label in prompt), None)
        (script.popleft() if script else self._usual)(answering)


class Played(NamedTuple):
    """The installation once every conversation is at rest, and its conversations by case."""

    installation: Installation
    scripts: Scripts
    talks: dict[str, Talk]


@pytest.fixture(scope="module")
def played(postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis) -> Iterator[Played]:
    scripts = Scripts()
    env = {
        "PALIMPSEST_SUMMARIZER_DEADLINE_SECONDS": str(DEADLINE_SECONDS),
        "PALIMPSEST_SUMMARIES_PER_TENANT": "0",
        # Nobody is killed here, and many threads share one process.
        "PALIMPSEST_LEASE_SECONDS": "30",
    }
    with (
        installed(postgres.url, template, redis_server.url, default_step=scripts, **env) as installation,
        installation.api(),
    ):
        talks = {name: installation.talk() for name in CASES}
        for name, case in CASES.items():
            steps = [FAULTS[step].step() if isinstance(step, str) else step for step in case.steps]
            scripts.by_label[talks[name].label] = deque(steps)
        with (
            installation.worker("checks", "--concurrency", "1"),
            installation.worker("summaries", "--concurrency", str(len(CASES))) as summaries,
        ):
            for talk in talks.values():
                talk.append(*talk.long())
            eventually(lambda: all(talk.is_at_rest() for talk in talks.values()), 120)
            assert summaries.end() == 0
            assert "Traceback" not in summaries.log.read_text()
        yield Played(installation, scripts, talks)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.fault(case.fault), id=name) for name, case in CASES.items()]
)
def test_what_comes_of_it(played: Played, name: str) -> None:
    case, end = CASES[name], played.talks[name].end_state(runs=1)
    least, most = case.calls
    billed = sum(step.model_calls for step in end.steps)
    assert least <= end.calls <= billed <= most, end  # a merge of parts' summaries need not have the label
    assert end.outcome == [EXTRACT if case.code else SUMMARY]
    assert end.runs[0].attempts == 1
    assert len(end.snapshots) == 1
    assert [(step.name, step.state, step.reason) for step in end.steps if step.state != "skipped"] == (
        [("summary", "failed", case.code), ("extract", "committed", None)]
        if case.code
        else [("summary", "committed", None)]
    )
    clean(end)


def clean(end: EndState) -> None:
    """Assert that nothing of what went wrong is told to the conversation's model."""
    told = str(end.served["messages"])
    for trace in ("loopback", "<html", "COMPROMISED", "\x00", "\ud800"):
        assert trace not in told


@pytest.mark.fault("F20")
def test_a_refused_key_is_tried_once_for_all_conversations(played: Played) -> None:
    """The breaker, which the other tests do without: it opens at the first 401, for every worker."""
    installation = played.installation
    first, second = installation.talk(), installation.talk()
    played.scripts.by_label |= {talk.label: deque([status(401)] * 9) for talk in (first, second)}
    with installation.running("checks", "summaries", env={"PALIMPSEST_BREAKER_FAILURES": "5"}):
        outcomes: list[Any] = []
        for talk in (first, second):
            talk.append(*talk.long())
            end = talk.end_state(runs=1)
            outcomes.append((end.outcome, end.runs[0].attempts, end.calls, end.runs[0].error.partition(":")[0]))
    assert outcomes == [([EXTRACT], 1, 1, "model_auth"), ([EXTRACT], 1, 0, "circuit_open")]
