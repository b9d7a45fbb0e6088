"""Outlines of context blocks, and large blocks split on structure."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.text.html_text import html_text
from compaction.text.outline import outline, split_structured
from compaction.text.sections import TextKind, kind_of

MARK = re.compile(r"\[… ([\d,]+) characters left out\]")

MARKDOWN = f"""\
Preface.

# Robots at Acme

{"Robots weld. " * 100}

## Pay ##

EUR 85,000.

```python
# not a heading
def weld(): ...
```

Setext heading
==============

{"Second body. " * 100}

Another one
-----------
Short.
"""

PAGE = f"""\
<!DOCTYPE html>
<html><head><title>Jobs &amp; pay</title><style>p {{ color: red }}</style></head>
<body><!-- hidden --><h1>Jobs &amp; pay</h1>
<script>if (a < b) document.write("<h2>not a heading</h2>");</script>
<p>Acme <b>pays</b>&nbsp;&euro; 85,000.</p>
<h2 class="a > b">Berlin</h2><p>{"A long paragraph. " * 100}</p>
<ul><li>Weld<li>Rivet</ul>
<table><tr><th>Role</th><th>Pay</th></tr><tr><td>Welder</td> <td>1</td></tr></table>
<pre>
# kept
    as it is
</pre>
<h3>Last
  one</h3>Text after.
</body></html>
"""

SOURCE = f'''\
"""Welding."""

import os


# How hot it gets.
@cached
def heat(metal: str) -> int:
    """Return the temperature in kelvin."""
{"    metal = metal.strip()" + chr(10) * 1}{"    os.stat(metal)" + chr(10)}{"    metal += os.sep" + chr(10)}\
{"".join(f"    step_{number} = heat(metal){chr(10)}" for number in range(60))}

class Robot:
    """A robot."""

    def weld(self) -> None:
        self.arm.move()
'''

PLAIN = f"""\
Annual report

1. Introduction

{"We welded a lot. " * 60}

2.1 Numbers

{"More numbers here. " * 60}

RISKS AND CHANCES

{"Rust. " * 200}
"""


def outlined(text: str, section_chars: int = 100) -> str:
    result = outline(text, section_chars=section_chars)
    assert outline(result, section_chars=section_chars) == result
    return result


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (MARKDOWN, TextKind.MARKDOWN),
        ("```\nx = 1\n```\nThat is all.\n", TextKind.MARKDOWN),
        (PAGE, TextKind.HTML),
        ("<div><p>One</p><p>Two</p></div>", TextKind.HTML),
        (SOURCE, TextKind.CODE),
        ("package main\n\nfunc main() {\n\tfmt.Println(1)\n}\n", TextKind.CODE),
        ("export const weld = async (arm) => {\n  await arm.move();\n};\n", TextKind.CODE),
        ("public class Robot extends Machine {\n    private int arms;\n}\n", TextKind.CODE),
        ("#include <x.h>\nint weld(struct arm *a);\nint cool(struct arm *a);\n", TextKind.CODE),
        (PLAIN, TextKind.PLAIN),
        ("If you read this, class is over.\nfor now, import nothing.\n", TextKind.PLAIN),
        ("", TextKind.PLAIN),
    ],
)
def test_the_kind_of_a_text_is_told_by_its_content(text: str, kind: TextKind) -> None:
    assert kind_of(text) is kind


@pytest.mark.requirement("P16")
def test_markdown_keeps_every_heading_and_the_start_of_each_section_P16() -> None:
    result = outlined(MARKDOWN)
    for kept in (
        "Preface.",
        "# Robots at Acme\n",
        "## Pay ##\n",
        "Setext heading\n======",
        "Another one\n----",
        "Short.",
    ):
        assert kept in result
    assert "EUR 85,000.\n\n```python\n# not a heading\ndef weld(): ...\n```\n" in result, "a short section stays whole"
    assert MARK.findall(result) == ["1,205", "1,205"]
    assert len(result) < 700


@pytest.mark.requirement("P16")
def test_a_section_cut_inside_a_code_fence_closes_it_P16() -> None:
    text = "# A\n\n```\n" + "line of code\n" * 50 + "```\n\n# B\n\nText.\n"
    result = outlined(text, 50)
    assert re.search(r"\nline\n```\n\[… \d+ characters left out\]\n\n# B\n", result)


@pytest.mark.requirement("P16")
def test_html_comes_out_as_text_with_headings_P16() -> None:
    result = outlined(PAGE)
    assert result.startswith("# Jobs & pay\n\nAcme pays € 85,000.\n\n## Berlin\n\nA long paragraph.")
    assert "### Last one\n\nText after.\n" in result
    assert not re.search(r"script|color|hidden|<|&amp;|not a heading", result)


def test_html_text_keeps_lists_tables_and_preformatted_text() -> None:
    result = html_text(PAGE)
    assert "\n- Weld\n- Rivet\n" in result
    assert "\nRole\tPay\nWelder\t1\n" in result
    assert "\n```\n\n# kept\n    as it is\n\n```\n" in result


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>2 < 3 & 4 > 1</p>", "2 < 3 & 4 > 1\n"),
        ("<p title='a>b'>x</p>", "x\n"),
        ('<p title="a<b">x</p>', "x\n"),
        ("<p>open <b", "open <b\n"),
        ("<p>a<!-- never closed</p>b", "a never closed\n\nb\n"),
        ("<script>never closed <p>b</p>", "never closed\n\nb\n"),
        ("<SCRIPT>gone</Script >b<BR/>c", "b\nc\n"),
        ("<h2><div>In a heading</div></h2>x", "## In a heading\n\nx\n"),
        ("&lt;p&gt; &#8364; &unknown;", "<p> € &unknown;\n"),
    ],
)
def test_html_that_is_not_as_it_should_be_loses_no_text(html: str, text: str) -> None:
    assert html_text(html) == text


@pytest.mark.parametrize(
    "unit", ["<a ", "<a x='", '<a x="<', "<!--", "<![CDATA[", "<script>", "</", "&", "<h1>", "<td>"]
)
@pytest.mark.parametrize("end", ["", ">"])
def test_unclosed_markup_in_bulk_costs_what_text_costs(unit: str, end: str) -> None:
    page = "<html>" + unit * 50_000 + end
    assert len(html_text(page)) <= len(page) + 1
    assert len(outline(page, section_chars=100)) <= len(page)


@pytest.mark.requirement("P16")
def test_source_code_keeps_declarations_with_their_comments_and_docstrings_P16() -> None:
    result = outlined(SOURCE)
    assert (
        '# How hot it gets.\n@cached\ndef heat(metal: str) -> int:\n    """Return the temperature in kelvin."""'
        in result
    )
    assert 'class Robot:\n    """A robot."""\n' in result
    assert "    def weld(self) -> None:\n" in result
    assert len(MARK.findall(result)) == 1


@pytest.mark.requirement("P16")
def test_plain_text_has_numbered_and_capital_headings_P16() -> None:
    result = outlined(PLAIN)
    for heading in ("Annual report\n", "1. Introduction\n", "2.1 Numbers\n", "RISKS AND CHANCES\n"):
        assert heading in result
    assert len(MARK.findall(result)) == 3


@pytest.mark.requirement("P16")
@pytest.mark.parametrize("unit", ["word after word, ", "A paragraph.\n\n", "長い文章です。", "{}[]"])
def test_text_without_headings_is_shown_by_the_start_of_each_window_P16(unit: str) -> None:
    text = unit * (20_000 // len(unit))
    result = outlined(text)
    marks = MARK.findall(result)
    assert 12 <= len(marks) <= 30
    assert len(result) < 5_000


def test_a_very_long_section_is_shown_in_more_than_one_place() -> None:
    text = "# Title\n\n" + "".join(f"Paragraph {number} of many.\n\n" for number in range(2_000))
    result = outlined(text, 500)
    assert result.startswith("# Title\n\nParagraph 0 of many.\n")
    assert len(MARK.findall(result)) > 5


@pytest.mark.requirement("P16")
def test_what_was_left_out_is_counted_P16() -> None:
    body = "x" * 12_345
    assert outlined(f"# A\n{body}\n# B\nend\n", 345) == f"# A\n{'x' * 345}\n[… 12,001 characters left out]\n# B\nend\n"


@pytest.mark.parametrize("text", [MARKDOWN, PAGE, SOURCE, PLAIN], ids=["markdown", "html", "code", "plain"])
@pytest.mark.parametrize("max_chars", [0, 10, 49, 120, 300, 900])
def test_an_outline_has_at_most_max_chars_and_shows_more_where_it_may(text: str, max_chars: int) -> None:
    result = outline(text, section_chars=100, max_chars=max_chars)
    assert len(result) <= max_chars
    assert outline(result, section_chars=100, max_chars=max_chars) == result
    whole = outline(text, section_chars=100)
    assert max_chars < 100 or (MARK.search(result) and len(result) > min(max_chars, len(whole)) // 3)


LINES = st.one_of(
    st.sampled_from(
        [
            "# Heading", "## Two", "Title", "====", "----", "```", "~~~", "def f(x):", "class A {", "}",
            "    return 1;", "// comment", "<h1>One</h1>", "<p>text", "</p>", "<script>", "1. One", "CAPITALS", "", "",
            "[… 5 characters left out]", "[… 1,234 characters left out]", "x" * 150, "word " * 60, "日本語" * 30,
        ]
    ),
    st.text(max_size=40),
)  # fmt: skip
TEXTS = st.lists(LINES, max_size=40).map("\n".join)


@pytest.mark.requirement("P16")
@given(TEXTS, st.sampled_from([1, 10, 50, 200]), st.sampled_from([None, None, 0, 60, 200, 1_000]))
def test_any_outline_is_stable_bounded_and_never_longer_P16(
    text: str, section_chars: int, max_chars: int | None
) -> None:
    result = outline(text, section_chars=section_chars, max_chars=max_chars)
    assert outline(text, section_chars=section_chars, max_chars=max_chars) == result
    assert len(result) <= len(text)
    assert max_chars is None or len(result) <= max_chars
    again = outline(result, section_chars=section_chars, max_chars=max_chars)
    assert again == result or len(again) < len(result)
    if not MARK.search(text):
        lines = [line for line in again.split("\n") if line.strip()]
        marks = [bool(MARK.fullmatch(line)) for line in lines]
        assert not any(one and other for one, other in pairwise(marks))


@pytest.mark.requirement("P16")
@given(TEXTS, st.integers(60, 400), st.sampled_from([None, 0, 30, 200]))
def test_what_was_not_read_is_counted_as_left_out_P16(text: str, max_read: int, max_chars: int | None) -> None:
    result = outline(text, section_chars=50, max_chars=max_chars, max_read=max_read)
    assert len(result) <= len(text)
    assert max_chars is None or len(result) <= max_chars
    if len(text) > max_read + 48 and max_chars is None:
        last = result.split("\n")[-1]
        (hidden,) = MARK.findall(last)
        assert int(hidden.replace(",", "")) >= len(text) - max_read
        assert outline(text[:max_read] + "y" * (len(text) - max_read), section_chars=50, max_read=max_read) == result


@pytest.mark.requirement("P15")
@given(TEXTS, st.integers(1, 300))
def test_parts_of_a_large_block_are_bounded_and_together_are_the_block_P15(text: str, max_chars: int) -> None:
    parts = split_structured(text, max_chars)
    assert "".join(parts) == text
    assert all(0 < len(part) <= max_chars for part in parts)
    assert len(parts) <= 2 * len(text) // max_chars + 1


@pytest.mark.requirement("P15")
def test_a_large_block_is_split_before_its_sections_P15() -> None:
    text = "".join(f"## Section {number}\n\n{'Some words. ' * 60}\n\n" for number in range(20))
    parts = split_structured(text, 2_000)
    assert all(part.startswith("## Section") for part in parts)
    page = "".join(f"<h2>Section {number}</h2><p>{'Some words. ' * 60}</p>" for number in range(20))
    assert all(part.startswith("<") for part in split_structured(page, 2_000))
    assert all(part.endswith(" ") for part in split_structured("word " * 1_000, 333)[:-1])
    with pytest.raises(ValueError, match="positive"):
        split_structured(text, 0)
