"""What is stored beside a snapshot's messages, and of each message of the tail, spares work and changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.policy import Policy
from compaction.steps.snapshot import UNREAD, Original, Snapshot, build, settle
from compaction.steps.stage import Stage
from compaction.steps.stored_view import StoredView, dump_messages
from compaction.view import ViewMessage, view_tokens
from tests.domain.core.test_invariants_domain import any_lives, lived, valid_lives

if TYPE_CHECKING:
    from compaction.view import View
    from tests.domain.core.test_invariants_domain import Life

VIEW: View = (
    ViewMessage("user", "Hello, 世界.", 0),
    ViewMessage("assistant", [{"type": "text", "text": "Hi."}], 1),
    ViewMessage("user", [{"type": "text", "text": "And now?"}], 2),
)
# Bytes that nothing here would write: what comes of them shows that they were kept.
TEXT = dump_messages(VIEW[:2]).replace('"Hi."', '"\\u0048i."')
STORED = StoredView(VIEW[:2], TEXT, 1_000, 70)
ASKED = Original(2, "user", '[{"type":"text","text":"And now?"}]')


def head(stored: StoredView = STORED) -> Snapshot:
    return Snapshot(1, 1, VIEW[:2], stored=stored)


@pytest.mark.parametrize("lives", [any_lives(), valid_lives()], ids=["any", "valid"])
def test_a_life_is_the_same_for_who_knows_nothing_beforehand(lives: st.SearchStrategy[Life]) -> None:
    @given(lives)
    def is_the_same(life: Life) -> None:
        # Where a handle may name a place depends on what is known to have been broken.
        plain = life._replace(policy=msgspec.structs.replace(life.policy, recall_handles=False))
        for (event, known), (_, anew) in zip(lived(plain), lived(plain, knows=False), strict=True):
            one, other = known.working(), anew.working()
            assert (one.view, one.warnings) == (other.view, other.warnings), event
            assert [message.tokens for message in one.view] == [message.tokens for message in other.view], event
            assert Stage(one).tokens == Stage(other).tokens, event
            assert known.versions == anew.versions, event

    is_the_same()


def test_a_snapshot_that_begins_with_another_has_its_bytes_and_its_counts() -> None:
    working = build(head(), [ASKED], Policy())
    asked = ViewMessage("user", "And now, shorter?", 2)

    new = settle(working, (*working.view[:2], asked), run_id="r", truncated=[2])

    assert new.messages_json == f"{TEXT[:-1]},{dump_messages([asked])[1:]}"
    assert [message["content"] for message in json.loads(new.messages_json)][1:] == [VIEW[1].content, asked.content]
    assert (new.tokens, new.exchanges) == (1_000 + asked.tokens, 71)
    assert new.bytes == len(new.messages_json.encode())
    assert new.seqs == (0, 1, 2)


def test_one_that_begins_otherwise_is_counted_and_written_anew() -> None:
    working = build(head(), [ASKED], Policy())
    changed = (VIEW[0].with_content("Hello."), *working.view[1:])

    new = settle(working, changed, run_id="r", truncated=[0])

    assert new.messages_json == dump_messages(changed[:2])
    assert (new.tokens, new.exchanges) == (view_tokens(changed[:2]), 1)


def test_nothing_before_a_view_is_nothing() -> None:
    assert StoredView().split(VIEW) == (StoredView(), VIEW)
    assert StoredView().followed_by("[1]") == "[1]"
    assert STORED.followed_by("[]") == TEXT
    assert STORED.split(VIEW) == (STORED, VIEW[2:])
    assert STORED.split(VIEW[:1]) == (StoredView(), VIEW[:1])


def test_what_was_left_unread_is_repaired_although_nothing_was_stored_broken() -> None:
    tail = [Original(2, "user", UNREAD, 900), Original(3, "user", '"Still there?"', 4)]

    view = build(head(), tail, Policy(), broken_through=-1).view

    assert [message.seq for message in view] == [0, 1, 3]


def test_a_stored_count_goes_before_an_estimate() -> None:
    view = build(Snapshot(), [Original(0, "user", '"Hello."', 77)], Policy()).view

    assert view_tokens(view) == 77
