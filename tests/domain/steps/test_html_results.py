"""Tool results that are HTML documents: readable text is kept of them, with the title first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compaction.policy import Policy
from compaction.recall.tool import definition, is_declared
from compaction.shorten.tool_results import cut_tool_results
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.summary.transcript import entries
from compaction.text.html_pages import readable_text
from compaction.text.html_text import page_text
from compaction.view import MARKER
from tests.domain.steps.test_tool_results import result, view_of
from tests.support.blocks import image_block

CODE = "<script nonce=x>var menu = '<div>';</script><style>a{color:red}</style>" * 30
PAGE = (
    f"<!DOCTYPE html>\n<html lang=en><head>{CODE}<title>Harbour &amp; pilots</title></head><body><nav><a>Menu</a></nav>"
    "<main><h1>Pilots wanted</h1><p>Two pilots for the <b>night</b> tide.</p></main><footer>Imprint</footer>"
    "</body></html>"
)
TEXT = "# Harbour & pilots\n\n# Pilots wanted\n\nTwo pilots for the night tide."


def kept(content: Any, *, limit: int = 500, reads_html: bool = True) -> Any:
    cut = cut_tool_results(view_of([result(content)], [result("new")]), limit, reads_html=reads_html)
    block = cut.view[2].content[0]
    assert isinstance(block, dict)
    return block["content"]


@pytest.mark.requirement("T6")
def test_readable_text_of_a_page_is_kept_and_the_marker_is_the_same() -> None:
    assert kept(PAGE) == TEXT + MARKER
    assert kept(PAGE, limit=30) == TEXT[:30] + MARKER
    assert kept(PAGE, limit=0) == MARKER


@pytest.mark.requirement("T6")
def test_raw_keeps_the_first_characters() -> None:
    assert kept(PAGE, reads_html=False) == PAGE[:500] + MARKER


@pytest.mark.parametrize(
    "page",
    [
        "\ufeff" + PAGE,
        "<!-- saved from the web -->\n" + PAGE,
        '<?xml version="1.0"?>\n' + PAGE,
        PAGE.replace("<!DOCTYPE html>\n", ""),
        PAGE.replace("</main>", "").replace("</p>", "").replace("</html>", "<p"),
        PAGE.upper().replace("HARBOUR &AMP; PILOTS", "Harbour &amp; pilots"),
    ],
    ids=["byte order mark", "comment", "XML declaration", "no doctype", "broken", "upper case"],
)
def test_other_forms_of_a_page(page: str) -> None:
    assert kept(page).startswith("# Harbour & pilots\n\n# P")


def test_text_before_a_page_stays_in_front_of_it() -> None:
    assert kept("From: a@example.org\nSubject: Tides\n\n" + PAGE).startswith(
        "From: a@example.org\nSubject: Tides\n\n# Harbour & pilots\n"
    )
    assert kept(f"```html\n{PAGE}\n```").startswith("```html\n# Harbour & pilots\n")


def test_a_fragment_is_read_as_a_page() -> None:
    assert kept(f"<style>{'a' * 600}</style><div><p>Low tide</p><p>at six</p></div>") == "Low tide\n\nat six" + MARKER


def test_a_page_inside_json_is_read_where_it_stands() -> None:
    answer = {"url": "https://example.org", "status": 200, "body": PAGE}
    expected = json.dumps({**answer, "body": TEXT}, ensure_ascii=False)
    assert kept(json.dumps(answer)) == expected + MARKER
    assert kept(json.dumps(answer).replace("<", "\\u003c")) == expected + MARKER
    nested = json.dumps([{"type": "text", "text": json.dumps(answer)}])
    assert kept(nested) == json.dumps([{"type": "text", "text": expected}], ensure_ascii=False) + MARKER


def test_json_that_was_cut_off_inside_its_page() -> None:
    torn = json.dumps({"body": PAGE})[: -len('night</b> tide.</p></main><footer>Imprint</footer></body></html>"}')]
    assert kept(torn).startswith('{"body": "# Harbour & pilots\\n\\n# Pilots wanted\\n\\nTwo pilots for the')


def test_text_blocks_count_as_one_text_and_images_stay() -> None:
    image = image_block()
    blocks = kept([{"type": "text", "text": "Fetched."}, {"type": "text", "text": PAGE}, image])
    assert blocks == [{"type": "text", "text": "Fetched."}, {"type": "text", "text": TEXT + MARKER}, image]
    assert kept([{"type": "text", "text": PAGE}, {"type": "text", "text": "Done."}]) == [
        {"type": "text", "text": TEXT},
        {"type": "text", "text": "Done." + MARKER},
    ]


@pytest.mark.requirement("T6")
@pytest.mark.parametrize(
    "text",
    [
        '<?xml version="1.0"?><rss><channel><title>Tides</title></channel></rss>' + "x" * 600,
        '<svg xmlns="http://www.w3.org/2000/svg"><title>Tides</title><g/><g/></svg>' + "x" * 600,
        '<p align="center"><b>Tides</b></p>\n\n# Read me\n\n' + "x" * 600,
        'PAGE = """\n<!doctype html>\n<html></html>\n"""\n' + "run()\n" * 100,
        "1\t<!doctype html>\n2\t<html>\n" * 50,
        "<results><item>1</item></results>" * 50,
        "The tag <html> opens a page. " * 50,
        json.dumps({"rows": ["a < b"] * 100}),
        "<html><head><script>" + "x" * 600,
    ],
    ids=["feed", "picture", "Markdown", "program", "numbered lines", "XML", "prose", "JSON", "only code"],
)
def test_every_other_result_keeps_its_first_characters(text: str) -> None:
    assert kept(text) == text[:500] + MARKER


def test_a_short_page_stays_as_it_is() -> None:
    page = "<html><title>Tides</title><p>Low at six</p></html>"
    assert kept(page) == page


def test_cutting_twice_changes_nothing() -> None:
    once = cut_tool_results(view_of([result(PAGE)], [result("new")]), 500)
    assert cut_tool_results(once.view, 500).view == once.view


def test_what_is_hidden_or_beside_the_page_is_left_out_unless_nothing_else_is_there() -> None:
    hidden = '<p hidden>one<p>shown<div style="color: red; display : none">two</div><b aria-hidden="true">three</b>'
    assert page_text(f"<body>{hidden}<aside>four</aside>") == "shown\n"
    assert page_text("<body><nav><a>Home</a></nav><main></main>") == "Home\n"
    assert page_text("<title>App</title><div id=root></div>") == "# App\n"


def test_a_page_is_read_beyond_the_cap_of_the_view() -> None:
    page = PAGE.replace("<body>", f"<body><script>{'x' * 50_000}</script>")
    answer = [Original(0, "user", '"go"')]
    for seq in (1, 3):
        call = {"type": "tool_use", "id": f"c{seq}", "name": "fetch", "input": {}}
        answer += [
            Original(seq, "assistant", json.dumps([call])),
            Original(seq + 1, "user", json.dumps([result(page if seq == 1 else "new", f"c{seq}")])),
        ]
    working = build(Snapshot(), answer, Policy())
    capped = working.view[2].content[0]
    assert isinstance(capped, dict)
    assert len(capped["content"]) < 41_000
    cut = cut_tool_results(working.view, 500, whole=working.whole)
    assert cut.view[2].content == [result(TEXT + MARKER, "c1")]


def test_reading_a_large_page_takes_no_longer_than_its_beginning() -> None:
    body = "<p>Low tide at six</p>" * 100_000
    page = readable_text(f"<html><title>Tides</title><body>{body}</body></html>", 500)
    assert page is not None
    assert page.startswith("# Tides\n\nLow tide at six\n")
    assert len(page) < 1_000


def test_the_summarizer_reads_the_text_of_a_page() -> None:
    read = entries(view_of([result(PAGE)]), Policy())[-1].text
    assert "Two pilots for the night tide." in read
    assert "nonce" not in read
    assert "nonce" in entries(view_of([result(PAGE)]), Policy(html_results="raw"))[-1].text


@pytest.mark.parametrize("shape", ["messages", "chat", "responses"])
def test_the_recall_tool_is_found_among_tools_of_every_shape(shape: Any) -> None:
    tool = definition(shape)
    assert is_declared([{"name": "look", "input_schema": {"type": "object"}}, tool])
    assert is_declared([json.loads(json.dumps(tool).replace('"recall"', '"mcp__palimpsest__recall"'))])
    assert not is_declared([json.loads(json.dumps(tool).replace('"query"', '"product"'))])
    assert not is_declared(None)
