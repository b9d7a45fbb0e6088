"""Files, answers of providers, traces and messages of the broker, changed: a part of what `make fuzz` searches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings

from tests.fuzz.crafted_exports import CraftedExports
from tests.fuzz.gateway_doors import BODIES, GUARDRAIL, door_bodies, door_heads, gateway_doors
from tests.fuzz.trace_headers import TraceHeaders, trace_headers
from tests.fuzz.transcript_files import reads_or_says_where, transcript_files
from tests.fuzz.turns import as_json

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

pytestmark = pytest.mark.hypothesis


@given(text=transcript_files())
def test_a_transcript_is_read_or_refused_where_it_is_wrong(text: bytes) -> None:
    reads_or_says_where(text)


def test_an_export_is_refused_whole_or_lives_on(service: Service) -> None:
    crafted = CraftedExports(service)

    @settings(max_examples=settings().max_examples // 2)
    @given(drawn=crafted.drawn())
    def search(drawn: object) -> None:
        crafted.imported_or_refused(drawn)  # type: ignore[arg-type] # drawn above

    search()
    crafted.close()
    assert set(crafted.outcomes) == {"imported", "refused"}


def test_every_span_can_be_sent_and_has_no_callers_words(service: Service) -> None:
    headers = TraceHeaders(service)

    @given(drawn=trace_headers())
    def search(drawn: dict[str, object]) -> None:
        headers.traced(drawn)

    search()
    headers.stop()
    assert headers.spans > settings().max_examples


def test_a_body_at_the_gateways_doors_passes_is_answered_or_refused(service: Service) -> None:
    with gateway_doors(service) as doors:

        @settings(max_examples=settings().max_examples * 2)
        @given(drawn=door_bodies())
        @example(drawn=(GUARDRAIL, as_json(BODIES[GUARDRAIL][0])))
        @example(drawn=(GUARDRAIL, b"{"))
        def search(drawn: tuple[str, bytes]) -> None:
            doors.answered_or_refused(drawn)

        search()
        assert {status for door, status in doors.statuses if door == GUARDRAIL} == {200, 400}


def test_a_head_at_the_gateways_doors_is_read_once(service: Service) -> None:
    with gateway_doors(service) as doors:

        @given(head=door_heads())
        def search(head: bytes) -> None:
            doors.read_once(head)

        search()


def test_a_kept_connection_is_framed_as_a_strict_parser_frames_it(service: Service) -> None:
    with gateway_doors(service) as doors:

        @given(head=door_heads())
        def search(head: bytes) -> None:
            doors.read_as_framed(head)

        search()
        assert {answers for door, answers in doors.statuses if door == "kept"} >= {1, 2}
