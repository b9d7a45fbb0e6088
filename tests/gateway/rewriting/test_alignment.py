"""Rows of a request among stored ones, by what they mean."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.alignment import StoredMeaning, align
from gateway.conversations.meaning import meaning_of, meaning_of_row, row_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.conversations.alignment import Alignment

LONG: Final = "a line that a tool returned\n" * 40
IMAGE: Final = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}


def stored(rows: Sequence[Any]) -> list[StoredMeaning]:
    return [StoredMeaning(seq, meaning_of(row["role"], row["content"])) for seq, row in enumerate(rows)]


def aligned(rows: Sequence[Any], others: Sequence[Any]) -> Alignment | None:
    return align(stored(rows), [meaning_of(row["role"], row["content"]) for row in others])


def talk(count: int) -> list[Any]:
    """Return rounds of a question, a call, its result and an answer."""
    rows: list[Any] = []
    for at in range(count):
        call = {"type": "tool_use", "id": f"t{at}", "name": "look", "input": {"n": at}}
        result = {"type": "tool_result", "tool_use_id": f"t{at}", "content": f"result {at} {LONG}"}
        rows += [
            {"role": "user", "content": f"question {at}"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": f"answer {at}"},
        ]
    return rows


NEW: Final = {"role": "user", "content": "something new"}


@given(st.data())
def test_window_of_any_size_goes_on_where_it_ends(data: st.DataObject) -> None:
    rows = talk(data.draw(st.integers(4, 40)))
    start = data.draw(st.integers(1, len(rows) - 1))
    first = [rows[0]] if data.draw(st.booleans()) else []
    new = [NEW] * data.draw(st.integers(0, 3))
    found = aligned(rows, [*first, *rows[start:], *new])
    assert found is not None
    assert found.seqs == (*([0] if first else []), *range(start, len(rows)))
    assert found.replaced_from is None


@given(st.data())
def test_row_that_was_changed_is_an_edit(data: st.DataObject) -> None:
    rows = talk(data.draw(st.integers(3, 12)))
    at = data.draw(st.integers(4, len(rows) - 1))
    words = "said in other words, as long as a line"
    changed = {**rows[at], "content": words}
    found = aligned(rows, [*rows[:at], changed, *rows[at + 1 :], NEW])
    assert found is not None
    assert (len(found.seqs), found.replaced_from) == (at, at)


@pytest.mark.parametrize(
    ("sent", "is_cleared"),
    [
        ("[Old tool result content cleared]", True),
        ("Tool result removed to save context.", True),
        ("", True),
        (LONG[:200] + "… [truncated]", True),
        ("<persisted-output>Output too large, offloaded to a file</persisted-output>", True),
        ("corrected: 42", False),
        ("another " + LONG, False),
    ],
)
def test_result_that_the_client_clears_is_no_edit(sent: str, is_cleared: bool) -> None:
    one, other = ([{"type": "tool_result", "tool_use_id": "t", "content": content}] for content in (LONG, sent))
    assert meaning_of("user", other).is_same_as(meaning_of("user", one)) == is_cleared


def test_media_that_the_client_clears_are_no_edit_and_others_are_one() -> None:
    words = {"type": "text", "text": "Look at this."}
    whole = meaning_of("user", [words, IMAGE])
    assert meaning_of("user", [words]).is_same_as(whole)
    assert meaning_of("user", [words, {"type": "text", "text": "[image removed]"}]).is_same_as(whole)
    other = {"type": "image", "source": {**IMAGE["source"], "data": "b3RoZXI="}}  # type: ignore[dict-item]
    assert not meaning_of("user", [words, other]).is_same_as(whole)
    assert not whole.is_same_as(meaning_of("user", [words]))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("It is 2026-01-01T10:00:00Z. Hello", "It is 2026-01-02 11:30. Hello", True),
        (
            "Current time: Monday, January 5, 2026 10:32 AM\nHello",
            "Current time: Tuesday, January 6, 2026 9:01 PM\nHello",
            True,
        ),
        ("[1767225600] Hello", "[1767229999.5] Hello", True),
        ("Hello <environment_details>a</environment_details>", "Hello", True),
        ("Hello at step 4", "Hello at step 5", False),
        ("Remind Ann", "Remind Bob", False),
    ],
)
def test_time_in_the_first_message_is_no_edit_where_its_answer_is_there(one: str, other: str, is_same: bool) -> None:
    answer = {"role": "assistant", "content": "Hello."}
    found = aligned([{"role": "user", "content": one}, answer], [{"role": "user", "content": other}, answer, NEW])
    assert (found is not None) == is_same
    # Without it a date may be what was edited.
    alone = aligned([{"role": "user", "content": one}], [{"role": "user", "content": other}, NEW])
    assert alone is None or "<" in one


def test_rows_of_one_meaning_have_one_digest() -> None:
    plain = b'{"role":"user","content":"x"}'
    same = [
        b'{"content":[{"type":"text","text":"x","index":3,"cache_control":{"type":"ephemeral"}}],"role":"user","id":"m1"}',
        b'{"role":"user","content":"x","timestamp":1.5,"name":null}',
    ]
    for shape in ("messages", "chat"):
        assert {row_digest(shape, json.loads(row)) for row in same} == {row_digest(shape, json.loads(plain))}
    other = [
        b'{"role":"assistant","content":"x"}',
        b'{"role":"user","content":"y"}',
        b'{"role":"user","content":"x","name":"ann"}',
    ]
    assert len({row_digest("chat", json.loads(row)) for row in (plain, *other)}) == 4


def test_row_that_cannot_be_read_means_itself_alone() -> None:
    rows = [b'{"role":"user","content":"\\ud83d "}', b'{"role":"user","content":7}', b"[1]"]
    meanings = [meaning_of_row("chat", row) for row in rows]
    assert len({meaning.exact for meaning in meanings}) == 3
