"""Of a history that is resent only what is new is read: what comes of it is what reading all of it does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.histories import LISTS, NotJsonError, RowDigests, chain_digests, read_history
from gateway.conversations.meaning import UNREADABLE
from gateway.conversations.seen import SeenHistories

if TYPE_CHECKING:
    from compaction.shapes.inner import Shape

WORDS: Final = "word " * 300
SHAPES: Final[tuple[Shape, ...]] = ("messages", "chat", "responses")
_rows: Final = st.one_of(
    st.builds(
        lambda role, text, mark: {"role": role, "content": [{"type": "text", "text": text, **mark}]},
        st.sampled_from(["user", "assistant", "system"]),
        st.sampled_from(["a", "], [", '"messages": [', "ü\n\\"]).map(lambda text: text + WORDS),
        st.sampled_from([{}, {"cache_control": {"type": "ephemeral"}}]),
    ),
    st.sampled_from([1, 12, "x", None, [], {}, {"type": "item_reference", "id": "m"}]),
)
_fields: Final = st.dictionaries(
    st.sampled_from(["model", "metadata", "tools", "previous_response_id"]),
    st.sampled_from([None, "m", {"messages": [1], "input": [{}]}, [{"name": "messages"}]]),
    max_size=3,
)
_written: Final = st.sampled_from([(",", ":", ""), (", ", ": ", ""), (" ,\n ", " : ", " ")])


def written(
    name: str, rows: list[Any], before: dict[str, Any], after: dict[str, Any], how: tuple[str, str, str]
) -> bytes:
    comma, colon, inside = how
    listed = "[" + inside + comma.join(json.dumps(row, separators=(comma, colon)) for row in rows) + inside + "]"
    fields = [
        *(json.dumps(key) + colon + json.dumps(value) for key, value in before.items()),
        json.dumps(name) + colon + listed,
        *(json.dumps(key) + colon + json.dumps(value) for key, value in after.items() if key not in before),
    ]
    return ("{" + comma.join(fields) + "}").encode()


def read(seen: SeenHistories, shape: Shape, body: bytes) -> None:
    """Hold what is known of a body to what reading all of it says, and remember it."""
    known = seen.find_history(shape, body)
    try:
        history = read_history(shape, body)
        links = chain_digests(history.rows, RowDigests(), history.shape) if history is not None else []
    except (NotJsonError, *UNREADABLE):
        history = None
    if history is None:
        assert known is None
        return
    if known is not None:
        mine, its_links = known
        assert list(mine.rows) == history.rows
        assert (mine.shape, mine.lead, its_links) == (history.shape, history.lead, links)
        assert list(mine.fields) == list(history.fields)
        assert mine.with_rows(mine.rows) == history.with_rows(history.rows)
        first = len(history.rows) // 2
        assert mine.rows[first:] == history.rows[first:]
        assert mine.rows[-1] == history.rows[-1]
    seen.remember(body, history, links)


@given(st.data(), st.sampled_from(SHAPES), st.lists(_rows, min_size=3, max_size=12), _fields, _fields, _written)
def test_what_is_known_is_what_is_read(
    data: st.DataObject,
    shape: Shape,
    rows: list[Any],
    before: dict[str, Any],
    after: dict[str, Any],
    how: tuple[str, str, str],
) -> None:
    seen, name = SeenHistories(), LISTS[shape]
    read(seen, shape, written(name, rows, before, after, how))
    for _ in range(3):
        kept = data.draw(st.integers(0, len(rows)))
        rows = [*rows[:kept], *data.draw(st.lists(_rows, max_size=3))]
        body = written(name, rows, data.draw(_fields), after, how)
        # Or what is no JSON, or says it twice.
        cut = data.draw(st.integers(0, len(body)))
        into = data.draw(st.sampled_from([b"", b",", b"]", b"\xff", b'"%b":[],' % name.encode()]))
        read(seen, shape, body[:cut] + into + body[cut:])
        read(seen, shape, body)


def test_history_that_goes_on_is_known() -> None:
    seen = SeenHistories()
    rows: list[Any] = [{"role": "user", "content": f"{number} {WORDS}"} for number in range(6)]
    for number in range(40):
        body = json.dumps({"model": f"m{number}", "messages": rows, "tools": [WORDS * number]}).encode()
        assert (seen.find_history("messages", body) is not None) == (number > 0)
        read(seen, "messages", body)
        rows = [*rows, {"role": "assistant", "content": "yes"}, {"role": "user", "content": f"{number} {WORDS}"}]


@pytest.mark.parametrize("end", [b",]", b"", b"]]", b"}"])
def test_end_of_a_list_is_read_whoever_knows_its_beginning(end: bytes) -> None:
    seen = SeenHistories()
    rows = [{"role": "user", "content": f"{number} {WORDS}"} for number in range(6)]
    body = json.dumps({"messages": rows}).encode()
    read(seen, "messages", body)
    assert seen.find_history("messages", body) is not None
    assert seen.find_history("messages", body.replace(b"]}", end + b"}")) is None


def test_no_more_is_remembered_than_may_be() -> None:
    seen = SeenHistories(most=30)
    bodies = [
        json.dumps({"messages": [{"role": "user", "content": f"{number} {at} {WORDS}"} for at in range(10)]}).encode()
        for number in range(5)
    ]
    for body in bodies:
        read(seen, "messages", body)
    assert [seen.find_history("messages", body) is not None for body in bodies] == [False, False, True, True, True]
