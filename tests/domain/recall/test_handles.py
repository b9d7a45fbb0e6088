"""Handles: what was cut says what it was, and by its name the original comes back."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.messages import blocks
from compaction.policy import Policy
from compaction.recall import references
from compaction.recall.parts import MEDIA
from compaction.recall.passages import StoredText, quote_messages, read_range
from compaction.shorten.fitting import fit_history
from compaction.shorten.pruning import prune
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.view import MARKER, view_tokens
from tests.domain.core.test_invariants_domain import any_lives, lived
from tests.support.domain_conversation import Conversation
from tests.support.strategies import any_conversations

if TYPE_CHECKING:
    from compaction.shorten.fitting import FittedHistory
    from compaction.view import View
    from tests.domain.core.test_invariants_domain import Life

ON: Final = Policy(recall_handles=True, tool_result_retention_chars=20, max_tool_result_chars=3_000)
OFF: Final = Policy(tool_result_retention_chars=20, max_tool_result_chars=3_000)
HANDLE: Final = re.compile(
    r"\A(?P<shown>.*)\n\[(?:[^\[\]\n]+, )?(?P<hidden>[\d,]+) more characters"
    r"(?: of this result are stored but not shown)?: recall (?P<ref>m\d+\.\d+)\](?:\[truncated[^\n]*\])?\Z",
    re.DOTALL,
)


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
    quoted_result = {"type": "tool_result", "tool_use_id": "r", "content": f'<recalled refs="m2">{"x" * 5_000}'}
    recalled = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [quoted_result]}]
    conversation = conversation_of(ON, [*rounds(1), *recalled])
    assert result_text(conversation, 4).endswith("\n[2,020 more characters of this result are stored but not shown]")


def test_a_result_that_only_looks_like_recall_has_a_handle() -> None:
    call = {"type": "tool_use", "id": "f", "name": "fetch", "input": {"url": "https://example.com"}}
    page = {"type": "tool_result", "tool_use_id": "f", "content": f'<recalled refs="m2">{"x" * 5_000}'}
    fetched = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [page]}]
    conversation = conversation_of(ON, [*rounds(1), *fetched])
    assert result_text(conversation, 4).endswith("stored but not shown: recall m4.0]")


GAP: Final = re.compile(
    r"\A(?P<head>.*)\n\[(?:[^\[\]\n]+, )? *(?P<hidden>[\d,]+) characters between are stored but not shown"
    r": recall (?P<ref>m\d+(?:\.\d+)?)\]\n(?P<tail>.*?)(?:\[truncated[^\n]*\])?\Z",
    re.DOTALL,
)
CLEARED: Final = re.compile(r"\[cleared: [^\[\]\n]+, ([\d,]+) characters[^\n,:]*: recall (m\d+\.\d+)\]")
PRUNES: Final[dict[str, Any]] = {
    "window_tokens": 1_000,
    "soft_share": 0,
    "head_chars": 40,
    "tail_chars": 20,
    "min_freed_tokens": 0,
}


def original(rows: list[StoredText], ref: str) -> str:
    """Return all the text that recall gives back by a reference, but what describes media."""
    place = references.parse(ref)
    packed = read_range([quote_messages(rows)[place.first]], block=place.block, offset=0, max_tokens=10**6)
    excerpts = (excerpt for passage in packed.passages for excerpt in passage.excerpts)
    return "".join(excerpt.text for excerpt in excerpts if excerpt.part.kind not in MEDIA)


def rows_of(messages: list[dict[str, Any]]) -> list[StoredText]:
    came = datetime(2026, 5, 3, tzinfo=UTC)
    return [StoredText(seq, each["role"], json.dumps(each["content"]), came) for seq, each in enumerate(messages)]


def shown_texts(view: View) -> list[str]:
    """Return the texts of a view: those of a message's blocks each, a result's as one."""
    return [
        texts(block) if block.get("type") == "tool_result" else str(block.get("text") or "")
        for message in view
        for block in blocks(message.content)
    ]


def test_what_is_pruned_says_what_it_was_and_how_to_have_it_back() -> None:
    conversation = conversation_of(ON, [*rounds(3), {"role": "assistant", "content": "Well."}])
    working = conversation.working()
    softer = prune(working.view, **PRUNES, hard_share=1, handles=working.handles)
    note = '\n[web_search "lisbon flights 0", 1,941 characters between are stored but not shown: recall m2.0]\n'
    assert texts(blocks(softer.view[2].content)[0]) == f"0{'x' * 39}{note}{'x' * 20}"
    cleared = prune(working.view, **PRUNES, hard_share=0, handles=working.handles)
    line = '[cleared: web_search "lisbon flights 0", 2,001 characters: recall m2.0]'
    assert texts(blocks(cleared.view[2].content)[0]) == line
    for pruned in (softer, cleared):
        assert prune(pruned.view, **PRUNES, hard_share=1, handles=working.handles).view == pruned.view


def test_what_loses_its_middle_to_fit_says_how_to_have_it_back() -> None:
    talk = rounds(1, "x" * 20_000)
    talk[1]["content"].insert(0, {"type": "text", "text": "Begin. " + "e" * 20_000 + " End."})
    working = conversation_of(Policy(recall_handles=True), talk).working()
    fitted = fit_history(
        working.view, 2_000, lambda message: message.tokens, carries_summary=False, handles=working.handles
    )
    assert fitted.tokens <= 2_000
    _, answer, _, result = shown_texts(fitted.view)
    said = "characters between are stored but not shown: recall"
    assert re.search(rf'\n\[web_search "lisbon flights 0", *[\d,]+ {said} m2\.0\]\n', result)
    assert re.search(rf"\n\[ *[\d,]+ {said} m1\]\n", answer)
    plain = fit_history(working.view, 2_000, lambda message: message.tokens, carries_summary=False)
    assert "recall m" not in str(shown_texts(plain.view))


@given(any_conversations(max_chars=6_000, max_exchanges=3), st.integers(0, 4_000), st.booleans())
def test_every_gap_and_every_line_names_the_text_that_it_stands_in(
    messages: list[dict[str, Any]], room: int, clears: bool
) -> None:
    working = conversation_of(Policy(recall_handles=True), messages).working()
    rows = rows_of(messages)
    pruned = prune(working.view, **PRUNES, hard_share=0 if clears else 1, handles=working.handles).view
    assert prune(pruned, **PRUNES, hard_share=0 if clears else 1, handles=working.handles).view == pruned

    def fit(view: View, room: int) -> FittedHistory:
        return fit_history(view, room, lambda message: message.tokens, carries_summary=False, handles=working.handles)

    fitted = fit(working.view, room)
    assert fitted.tokens == view_tokens(fitted.view)
    if fitted.tokens <= room:
        assert fit(fitted.view, room).view == fitted.view
    assert {message.seq for message in fitted.view} <= {message.seq for message in fit(working.view, 2 * room).view}
    for text in shown_texts((*pruned, *fitted.view)):
        if (noted := GAP.match(text)) is not None:
            whole = original(rows, noted["ref"]).replace("\n", "")
            assert noted["head"].replace("\n", "") in whole
            assert noted["tail"].replace("\n", "") in whole
        elif (line := CLEARED.fullmatch(text)) is not None:
            assert len(original(rows, line[2]).replace("\n", "")) <= int(line[1].replace(",", ""))


@given(any_lives())
def test_every_handle_gives_the_original_whose_cut_it_stands_in(life: Life) -> None:
    for event, conversation in lived(life):
        rows = [
            StoredText(row.seq, row.role, row.content, datetime(2026, 5, 3, tzinfo=UTC))
            for row in conversation.originals
        ]
        for message in conversation.messages():
            for block in blocks(message["content"]):
                if block.get("type") != "tool_result" or (noted := HANDLE.match(texts(block))) is None:
                    continue
                place = references.parse(noted["ref"])
                packed = read_range([quote_messages(rows)[place.first]], block=place.block, offset=0, max_tokens=10**6)
                whole = "".join(excerpt.text for passage in packed.passages for excerpt in passage.excerpts)
                text = noted["shown"].replace("\n", "")
                assert whole.replace("\n", "").startswith(text), event
