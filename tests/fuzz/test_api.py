"""Whatever is sent to whichever route: no 500, nothing that the OpenAPI document does not say, nothing of another's.

`make fuzz` searches for longer, with random seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fuzz.api_calls import ApiFuzz

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a bound for a loaded machine: the search is one fixture
EXAMPLES = 12


@pytest.fixture(scope="module")
def fuzzed(service: Service) -> ApiFuzz:
    fuzz = ApiFuzz(service, 0)
    fuzz.run(EXAMPLES)
    return fuzz


def test_every_answer_is_as_documented_and_none_is_about_another_tenant(fuzzed: ApiFuzz) -> None:
    assert not fuzzed.failures, fuzzed.failures.report()
    assert fuzzed.planted.changed() == set()
    assert not fuzzed.planted.reads_differently()


def test_the_search_went_everywhere(fuzzed: ApiFuzz) -> None:
    assert fuzzed.requests > 500
    assert fuzzed.foreign > 50
    assert {200, 201, 204, 404, 422} <= set(fuzzed.statuses)
