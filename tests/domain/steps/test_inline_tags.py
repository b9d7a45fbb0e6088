"""Tool results pasted into assistant text: named elements are cut, everything else stays byte for byte."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.recall.handles import Handles
from compaction.shorten.inline_tags import cut_inline, cut_inline_results
from compaction.view import MARKER, ViewMessage
from tests.support.blocks import text_block

if TYPE_CHECKING:
    from collections.abc import Sequence

TAGS = ("localSearch", "readNote")
NOTE = "…"
WHERE = ": recall m1"
HANDLE = re.compile(r"\n\[[\d,]+ more characters: recall m1\](?=…)")


def cut(text: str, limit: int = 3) -> str:
    once = cut_inline_results(text, TAGS, limit, NOTE)
    assert cut_inline_results(once, TAGS, limit, NOTE) == once
    return once


@pytest.mark.requirement("P17")
def test_inner_text_keeps_its_start_and_the_marker_and_the_answer_around_it_is_verbatim_P17() -> None:
    listing = "".join(f"{number}. Acme Robotics, Berlin\n" for number in range(500))
    text = (
        f"Searching.\r\n<localSearch query=\"robots > 3\" n='5'>\n{listing}</localSearch >\nThree *fit*: 4 < 5 & so on."
    )
    result = cut_inline_results(text, TAGS, 500)
    before, after = text.split(listing)
    assert result == before + listing[:499] + MARKER + after, "the line end before the results counts as one"
    assert cut_inline_results(result, TAGS, 500) == result


@pytest.mark.requirement("P17")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<localSearch>12345</localSearch>", "<localSearch>123…</localSearch>"),
        ("<localSearch\n>12345</localSearch\t>", "<localSearch\n>123…</localSearch\t>"),
        ("<localSearch>1 < 2 > 3</localSearch>", "<localSearch>1 <…</localSearch>"),
        ("<localSearch><p>text</p></localSearch>", "<localSearch><p>…</localSearch>"),
        ("a<localSearch/>b<readNote>12345</readNote>c", "a<localSearch/>b<readNote>123…</readNote>c"),
        (
            "<localSearch>12<localSearch>34567</localSearch>8</localSearch>9",
            "<localSearch>12…</localSearch>9",
        ),
        (
            "<readNote><localSearch>1</localSearch></readNote><readNote>12345</readNote>",
            "<readNote>…</readNote><readNote>123…</readNote>",
        ),
    ],
    ids=["plain", "white space in tags", "angle brackets", "other tags", "self-closing", "nested", "nested other"],
)
def test_well_formed_elements_are_cut(text: str, expected: str) -> None:
    assert cut(text) == expected


def test_elements_open_at_the_cut_are_closed_after_the_marker() -> None:
    text = f"<readNote>12<localSearch>{'3' * 40}</localSearch>{'4' * 40}</readNote>!"
    assert cut(text, 20) == "<readNote>12<localSearch>33333…</localSearch></readNote>!"


def test_a_cdata_section_holds_text_and_is_closed_where_it_is_cut() -> None:
    text = f"<readNote><![CDATA[1</readNote>{'2' * 40}]]></readNote>!"
    assert cut(text, 22) == "<readNote><![CDATA[1</readNote>2…]]></readNote>!"


@pytest.mark.requirement("P17")
@pytest.mark.parametrize(
    "text",
    [
        "before <localSearch>12345 and the answer",
        "12345</localSearch> and the answer",
        "<localSearch>12345</readNote> and the answer",
        "<localSearch>1<readNote>2345</localSearch>67890</readNote> and the answer",
        "<localSearch>1<readNote>2345</localSearch> and the answer",
        "<localSearch>12345</readNote></localSearch> and the answer",
        "<localsearch>12345</localsearch>",
        "<localSearcher>12345</localSearcher>",
        "<localSearch attr='12345</localSearch> it's",
        "< localSearch>12345</localSearch>",
        "&lt;localSearch&gt;12345&lt;/localSearch&gt;",
        "<localSearch>[CDATA <![CDATA[12345</localSearch>",
        "<![CDATA[<localSearch>12345</localSearch>]]>",
        "```xml\n<localSearch>12345</localSearch>\n```\n",
        "~~~~\n```\n<localSearch>12345</localSearch>\n~~~~\n",
        "> ```\n> <localSearch>12345</localSearch>",
        "use `<localSearch>` for 12345 and `</localSearch>` to end",
        "``<localSearch>`` 12345 `x` </localSearch",
    ],
)
def test_what_is_no_well_formed_element_outside_code_is_left_alone_P17(text: str) -> None:
    assert cut(text) == text


def test_one_broken_element_does_not_protect_the_next_nor_eat_what_is_between() -> None:
    text = "<localSearch>12345 lost end. ANSWER <localSearch>67890</localSearch> ANSWER"
    assert cut(text) == "<localSearch>12345 lost end. ANSWER <localSearch>678…</localSearch> ANSWER"
    text = "```\nopen\n```\n<readNote>12345</readNote> ANSWER ```\n<readNote>12345</readNote>"
    assert cut(text) == text.replace("12345", "123…")


def test_the_cut_never_makes_a_section_of_its_own_marker() -> None:
    text = f"<readNote><![CDATA{'1' * 40}</readNote>"
    assert cut_inline_results(text, TAGS, 8) == f"<readNote>{MARKER}</readNote>"


def test_an_element_that_the_marker_would_make_no_shorter_is_left_alone() -> None:
    for more, left in ((len(MARKER), True), (len(MARKER) + 1, False)):
        text = f"<readNote>{'1' * (8 + more)}</readNote>"
        assert (cut_inline_results(text, TAGS, 8) == text) is left


@pytest.mark.parametrize("name", ["mcp:search", "a.b", "x-y", "[a"])
def test_names_are_literal(name: str) -> None:
    text = f"<{name}>12345</{name}><aXb>12345</aXb>"
    assert cut_inline_results(text, [name], 3, NOTE) == f"<{name}>123…</{name}><aXb>12345</aXb>"


@pytest.mark.parametrize("tags", [(), ("",)])
def test_without_names_nothing_is_cut(tags: Sequence[str]) -> None:
    assert cut_inline_results("<a>12345</a>", tags, 3) == "<a>12345</a>"


PROSE = st.text(alphabet="ab \n.<>&'\"/=", max_size=30)
INNER = st.text(alphabet="xyz \n>&'\"", max_size=60)


@pytest.mark.requirement("P17")
@given(st.lists(st.one_of(PROSE, st.tuples(st.sampled_from(TAGS), INNER)), max_size=6), st.integers(0, 40))
def test_only_the_inner_text_of_elements_changes_P17(segments: list[str | tuple[str, str]], limit: int) -> None:
    text = expected = ""
    for segment in segments:
        if isinstance(segment, str):
            text, expected = text + segment + "\n", expected + segment + "\n"
            continue
        tag, inner = segment
        text += f"<{tag}>{inner}</{tag}>"
        expected += f"<{tag}>{inner if len(inner) <= limit + len(NOTE) else inner[:limit] + NOTE}</{tag}>"
    assert cut_inline_results(text, TAGS, limit, NOTE) == expected


FRAGMENTS = st.sampled_from(
    [
        *(f"<{tag}>" for tag in TAGS), *(f"</{tag}>" for tag in TAGS), "<readNote a='>'>", "<readNote/>", "<readNote",
        "<![CDATA[", "<![CDATA", "]]>", "```", "~~~", "`", "``", "\n", "\n\n", " ", "<", ">", "'", '"', "text", "OK",
    ]
)  # fmt: skip


@pytest.mark.requirement("P17")
@given(st.lists(FRAGMENTS, max_size=40).map("".join), st.integers(0, 30), st.sampled_from(["", WHERE]))
def test_whatever_the_text_it_is_cut_inside_elements_only_and_once_P17(text: str, limit: int, where: str) -> None:
    result = cut_inline_results(text, TAGS, limit, NOTE, where=where)
    for then in ("", WHERE):
        assert cut_inline_results(result, TAGS, limit, NOTE, where=then) == result
    pieces = HANDLE.sub("", result).split(NOTE)
    assert (result.count(WHERE) == len(pieces) - 1) or not where
    assert re.fullmatch("(?s:.*)".join(map(re.escape, pieces)), text)
    for piece in pieces[1:]:
        assert re.match(r"(\]\]>)?</(localSearch|readNote)>", piece)


@pytest.mark.requirement("P17")
def test_a_cut_says_before_the_marker_how_to_have_the_rest_back() -> None:
    listing = "".join(f"{number}. Acme Robotics, Berlin\n" for number in range(500))
    view = (ViewMessage("assistant", f"Look: <readNote>{listing}</readNote> So.", 7), ViewMessage("assistant", listing))
    handles = Handles(view, head=0, unplaced_through=-1)
    result = cut_inline(view, TAGS, 500, handles)
    note = f"\n[{len(listing) - 500:,} more characters: recall m7]{MARKER}"
    assert result[0].content == f"Look: <readNote>{listing[:500]}{note}</readNote> So."
    assert cut_inline(result, TAGS, 500, handles) == cut_inline(result, TAGS, 500) == result
    shorter = cut_inline(result, TAGS, 100, handles)
    note = f"\n[{len(listing) - 100:,} more characters: recall m7]{MARKER}"
    assert shorter[0].content == f"Look: <readNote>{listing[:100]}{note}</readNote> So."


def test_in_a_view_only_the_text_of_assistant_messages_is_cut_P17() -> None:
    text = "<readNote>" + "1" * 50 + "</readNote>"
    short = f"<readNote>111{MARKER}</readNote>"
    call = {"type": "tool_use", "id": "t1", "name": "readNote", "input": {"note": text}}
    thinking = {"type": "thinking", "thinking": text, "signature": "s"}
    view = (
        ViewMessage("user", text, 0),
        ViewMessage("assistant", text, 1),
        ViewMessage("user", [text_block(text)], 2),
        ViewMessage("assistant", [thinking, text_block(text) | {"citations": []}, call], 3),
        ViewMessage("user", [{"type": "tool_result", "tool_use_id": "t1", "content": text}], 4),
        ViewMessage("assistant", [text_block("done"), {"type": "text", "text": None}], 5),
    )
    result = cut_inline(view, TAGS, 3)
    assert [message.seq for message in result if message not in view] == [1, 3]
    assert result[1].content == short
    assert result[3].content == [thinking, text_block(short) | {"citations": []}, call]
    assert all(new is old for new, old in zip(result, view, strict=True) if new.seq not in {1, 3})
    again = cut_inline(result, TAGS, 3)
    assert all(new is old for new, old in zip(again, result, strict=True))
    assert cut_inline(view, (), 3) == view
