"""What a summary after an overflow may replace, and what of a zone a summary stands for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from compaction.coverage import Span
from compaction.originals import cut_in
from compaction.policy import Policy
from compaction.steps import recovery, steps
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.steps.stage import Stage
from compaction.summary.zone import Zone
from compaction.tokens import json_text
from compaction.view import ViewMessage

POLICY = Policy(min_savings_tokens=0, protected_tail_messages=6)


def stage_of(*texts: str, policy: Policy = POLICY) -> Stage:
    roles = ("user", "assistant")
    tail = [Original(seq, roles[seq % 2], json_text(text)) for seq, text in enumerate(texts)]
    return Stage(build(Snapshot(), tail, policy), bytes=sum(len(row.content) for row in tail))


@pytest.mark.parametrize(
    ("target", "most"), [(10_000, 4_096), (8_192, 4_096), (8_190, 4_095), (1_000, 500), (100, 64), (0, 64)]
)
def test_a_summary_takes_half_of_the_room_at_the_most(target: int, most: int) -> None:
    assert recovery.room_policy(Policy(), target).summary_max_tokens == most


def test_a_policy_that_leaves_room_is_the_same() -> None:
    policy = replace(Policy(), summary_max_tokens=64)
    assert recovery.room_policy(policy, 0) is policy


def test_the_protected_tail_gives_way_until_what_stays_fits_beside_the_summary() -> None:
    stage = stage_of(*["word " * 400] * 10, "what now?")
    policy = replace(POLICY, summary_max_tokens=64)
    each = stage.estimate(stage.view[:1])

    def stays(room: int) -> int:
        zone = recovery.find_zone(stage, policy, room)
        assert isinstance(zone, Zone)
        assert zone.start == 1
        return len(stage.view) - zone.stop

    assert stays(100 * each) == 6
    left = stage.estimate(stage.view[:1]) + stage.estimate(stage.view[-5:])
    assert stays(left + 64) == 5
    assert stays(left + 63) == 4
    assert stays(0) == 1


def test_the_last_request_stays_where_the_tail_holds_it() -> None:
    stage = stage_of(*["word " * 400] * 8, "what now?", "word " * 400)
    zone = recovery.find_zone(stage, replace(POLICY, summary_max_tokens=64), 0)
    assert zone == Zone(1, 8)


def test_a_summary_stands_for_what_it_covers_and_no_more() -> None:
    stage = stage_of(*["word " * 40] * 10)
    zone = steps.find_zone(stage, POLICY)
    assert zone == Zone(1, 4)
    assert steps.covered(stage, zone, None) is zone
    assert steps.covered(stage, zone, 3) is zone
    assert steps.covered(stage, zone, 2) == Zone(1, 3)
    assert steps.covered(stage, zone, 0) == Zone(1, 1)


def test_a_summary_of_a_part_of_a_zone_parts_no_pieces_of_an_answer() -> None:
    answer = [Original(seq, "assistant", json_text("word " * 40)) for seq in range(3, 6)]
    tail = [Original(0, "user", '"Hello"'), Original(1, "assistant", '"Yes?"'), Original(2, "user", '"Go on"'), *answer]
    tail += [Original(seq, ("user", "assistant")[seq % 2], json_text("word " * 40)) for seq in range(6, 14)]
    stage = Stage(build(Snapshot(), tail, POLICY, in_pieces=True))
    zone = steps.find_zone(stage, POLICY)
    assert zone == Zone(1, 8)
    assert steps.covered(stage, zone, 3) == Zone(1, 3)
    assert steps.covered(stage, zone, 5) == Zone(1, 6)


def test_cut_are_those_that_the_snapshot_says_it_cut() -> None:
    coverage = (Span(0, 1, "kept"), Span(2, 2, "truncated", "r"), Span(3, 3, "summarized", "r"))
    zone = [ViewMessage("user", "text", seq) for seq in range(6)]
    assert cut_in(zone, coverage) == (2,)
