"""Fixtures of the fault suite; what they give is described in installation.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.installation import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
    from tests.faults.installation import Installation


@pytest.fixture(scope="module")
def installation(postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis) -> Iterator[Installation]:
    """An installation of the module's own with an API process; workers and beat are the tests' to start."""
    with installed(postgres.url, template, redis_server.url) as made, made.api():
        yield made


@pytest.fixture(autouse=True)
def let_go(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold nobody and nothing any more once a test is over, however it ended."""
    yield
    if "installation" in request.fixturenames:
        made: Installation = request.getfixturevalue("installation")
        made.points.release_all()
        made.model.release()


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """Record what took how many seconds; `make faults` prints it."""
    return lambda what, seconds: record_property("measured", f"{what}: {seconds:.1f} s")
