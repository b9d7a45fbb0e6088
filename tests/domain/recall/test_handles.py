"""Handles: what was cut says what it was, and by its name the original comes back."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from hypothesis import given

from compaction.messages import blocks
from compaction.policy import Policy
from compaction.recall import references
from compaction.recall.passages import quoted, read
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.view import MARKER
from tests.domain.core.test_invariants_domain import any_lives, lived
from tests.support.domain_conversation import Conversation

if TYPE_CHECKING:
    from tests.domain.core.test_invariants_domain import Life

ON: Final = Policy(recall_handles=True, tool_result_retention_chars=20, max_tool_result_chars=3_000)
OFF: Final = Policy(tool_result_retention_chars=20, max_tool_result_chars=3_000)
HANDLE: Final = re.compile(
    r"\A(?P<shown>.*)\n\[(?:[^\[\]\n]+, )?(?P<hidden>[\d,]+) more characters"
    r"(?: of this result are stored but not shown)?: recall (?P<ref>m\d+\.\d+)\](?:\[truncated[^\n]*\])?\Z",
    re.DOTALL,
)


class Row(NamedTuple):
    seq: int
    role: str
    content: str
    created_at: datetime


def texts(block: Any) -> str:
    content = block.get("content", "")
    return content if isinstance(content, str) else "".join(str(part.get("text") or "") for part in blocks(content))


def rounds(count: int, found: str = "x" * 2_000) -> list[dict[str, Any]]:
    turn: list[dict[str, Any]] = [{"role": "user", "content": "Find me a flight."}]
    for number in range(count):
        given = {"query": f'lisbon [flights]\n "{number}"', "limit": 3}
        call = {"type": "tool_use", "id": f"t{number}", "name": "web_search", "input": given}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"{number}{found}"}
        turn += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return turn


def conversation_of(policy: Policy, messages: list[dict[str, Any]]) -> Conversation:
    conversation = Conversation(policy)
    conversation.append(messages)
    return conversation


def result_text(conversation: Conversation, index: int) -> str:
    return texts(conversation.messages()[index]["content"][0])


@pytest.mark.requirement("T5")
def test_a_cut_result_says_before_the_marker_what_it_was_and_how_to_have_it_back() -> None:
    conversation = conversation_of(ON, rounds(3))
    new = conversation.cut()
    assert new is not None
    conversation.commit(new)
    note = '\n[web_search "lisbon flights 0", 1,981 more characters: recall m2.0]'
    assert result_text(conversation, 2) == f"0{'x' * 19}{note}{MARKER}"
    assert result_text(conversation, 6) == f"2{'x' * 2_000}"
    assert conversation.cut() is None


def test_the_cap_says_so_too_and_a_later_cut_counts_what_the_cap_hid() -> None:
    conversation = conversation_of(ON, rounds(2, "x" * 5_000))
    note = (
        '\n[web_search "lisbon flights 0", 2,001 more characters of this result are stored but not shown: recall m2.0]'
    )
    assert result_text(conversation, 2) == f"0{'x' * 2_999}{note}"
    new = conversation.cut()
    assert new is not None
    conversation.commit(new)
    assert "4,981 more characters: recall m2.0]" in result_text(conversation, 2)


@pytest.mark.parametrize("figure", [",", ",,,", "9" * 5_000, "\u0663", "1,,2"])
@pytest.mark.parametrize(
    "note",
    [
        "{} more characters of this result are stored but not shown: recall m1]",
        "{} more characters: recall m1]" + MARKER,
    ],
)
def test_a_tool_may_return_what_looks_like_a_note(figure: str, note: str) -> None:
    conversation = conversation_of(ON, rounds(2, "x" * 5_000 + f"\n[{note.format(figure)}"))
    new = conversation.cut()
    assert new is not None
    conversation.commit(new)
    assert result_text(conversation, 2).startswith("0" + "x" * 19)
    assert ": recall m2.0]" in result_text(conversation, 2)


def test_without_handles_notes_are_as_they_were() -> None:
    conversation = conversation_of(OFF, rounds(2, "x" * 5_000))
    capped = "\n[2,001 more characters of this result are stored but not shown]"
    assert result_text(conversation, 2) == f"0{'x' * 2_999}{capped}"
    new = conversation.cut()
    assert new is not None
    conversation.commit(new)
    assert result_text(conversation, 2) == f"0{'x' * 19}{MARKER}"


@pytest.mark.parametrize(("first", "then"), [(OFF, ON), (ON, OFF)])
def test_switched_under_way_what_was_cut_stays_and_the_next_cut_follows(first: Policy, then: Policy) -> None:
    conversation = conversation_of(first, rounds(2))
    new = conversation.cut()
    assert new is not None
    conversation.commit(new)
    before = conversation.messages()[:3]
    conversation.policy = then
    conversation.append(rounds(2)[1:])
    new = conversation.cut()
    assert new is not None
    conversation.commit(new)
    assert conversation.messages()[:3] == before
    assert (": recall m4.0]" in result_text(conversation, 4)) == then.recall_handles


def test_a_result_that_was_moved_is_named_by_where_it_was_stored() -> None:
    late = rounds(1)
    late[2:2] = [{"role": "user", "content": "Still there?"}, {"role": "assistant", "content": "Yes."}]
    conversation = conversation_of(ON, [*late, *rounds(1)[1:]])
    new = conversation.cut()
    assert new is not None
    assert new.messages_json.count(": recall m4.0]") == 1


def test_where_a_place_is_not_certain_a_handle_names_none() -> None:
    late = rounds(1, "x" * 2_500)
    late[2:2] = [{"role": "user", "content": "Still there?"}, {"role": "assistant", "content": "Yes."}]
    conversation = conversation_of(ON, [*late, *rounds(3)[1:]])
    head = Snapshot(1, 10, conversation.working().view)
    tail = [Original(11, "user", '"Go on."')]
    view = build(head, tail, Policy(recall_handles=True, max_tool_result_chars=100), broken_through=4).view
    cut = [texts(block) for message in view for block in blocks(message.content) if block.get("type") == "tool_result"]
    assert cut[0].endswith("stored but not shown: recall by words]")
    assert cut[-1].endswith("stored but not shown: recall m10.0]")


def test_what_recall_gave_back_has_no_handle_of_its_own() -> None:
    call = {"type": "tool_use", "id": "r", "name": "recall", "input": {"query": "lisbon"}}
    found = {"type": "tool_result", "tool_use_id": "r", "content": f'<recalled refs="m2">{"x" * 5_000}'}
    recalled = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [found]}]
    conversation = conversation_of(ON, [*rounds(1), *recalled])
    assert result_text(conversation, 4).endswith("\n[2,020 more characters of this result are stored but not shown]")


@given(any_lives())
def test_every_handle_gives_the_original_whose_cut_it_stands_in(life: Life) -> None:
    for event, conversation in lived(life):
        rows = [Row(row.seq, row.role, row.content, datetime(2026, 5, 3, tzinfo=UTC)) for row in conversation.originals]
        for message in conversation.messages():
            for block in blocks(message["content"]):
                if block.get("type") != "tool_result" or (noted := HANDLE.match(texts(block))) is None:
                    continue
                place = references.parse(noted["ref"])
                packed = read([quoted(rows)[place.first]], block=place.block, offset=0, max_tokens=10**6)
                whole = "".join(excerpt.text for passage in packed.passages for excerpt in passage.excerpts)
                shown = noted["shown"].replace("\n", "")
                assert whole.replace("\n", "").startswith(shown), event
