"""Token estimates: characters over four, fixed figures for what has no text, weights for dense scripts."""

from __future__ import annotations

import base64
import hashlib
import math
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.media.files import DOCUMENT_TOKENS, IMAGE_TOKENS
from compaction.tokens import MOST_TOKENS, block_weight, content_tokens, json_text, text_weight
from tests.support.blocks import image_block, text_block, unknown_block
from tests.support.strategies import valid_conversations


@pytest.mark.requirement("S1")
def test_a_string_costs_its_characters_over_four_rounded_up() -> None:
    assert content_tokens("") == 0
    assert [content_tokens("x" * size) for size in (1, 4, 5, 400)] == [1, 1, 2, 100]
    assert content_tokens([text_block("x" * 400)]) == content_tokens("x" * 400)


@pytest.mark.requirement("S1")
def test_a_call_costs_its_name_and_its_input_as_json() -> None:
    call = {"type": "tool_use", "id": "toolu_with_a_long_id", "name": "search", "input": {"query": "jobs", "page": 2}}
    assert block_weight(call) == len("search") + len('{"query":"jobs","page":2}')
    assert block_weight({"type": "tool_use", "id": "a", "name": "now"}) == len("now{}")
    assert block_weight({"type": "server_tool_use", "id": "a", "name": "now", "input": {}}) == len("now{}")


@pytest.mark.requirement("S1")
def test_a_result_costs_the_text_inside_it() -> None:
    inside = [text_block("x" * 30), text_block("y" * 10)]
    assert block_weight({"type": "tool_result", "tool_use_id": "a", "content": "x" * 40}) == 40
    assert block_weight({"type": "tool_result", "tool_use_id": "a", "content": inside}) == 40
    assert block_weight({"type": "tool_result", "tool_use_id": "a"}) == 0


def test_pictures_cost_their_pixels_and_files_of_no_pages_a_fixed_figure_never_their_base64() -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image_block()]}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "A" * 90_000}}
    assert content_tokens([image_block()]) == content_tokens([result]) == IMAGE_TOKENS
    assert content_tokens([pdf]) == DOCUMENT_TOKENS
    assert content_tokens([{"type": "container_upload", "file_id": "file_1"}]) == DOCUMENT_TOKENS


def test_a_document_made_of_text_costs_its_text() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "x" * 400}
    parts = {"type": "content", "content": [text_block("x" * 400)]}
    assert content_tokens([{"type": "document", "source": plain}]) == 100
    assert content_tokens([{"type": "document", "source": parts}]) == 100


def test_thinking_costs_its_text_and_not_its_signature() -> None:
    assert block_weight({"type": "thinking", "thinking": "x" * 40, "signature": "s" * 4_000}) == 40


def test_an_unknown_block_costs_its_json() -> None:
    assert block_weight(unknown_block()) == len(json_text(unknown_block()))


def test_what_says_its_size_costs_that_within_what_anything_can_be() -> None:
    assert content_tokens([{"type": "opaque", "size": 4_000}]) == 1_000
    assert content_tokens([{"type": "opaque", "size": -4_000}, text_block("x" * 40)]) == 10
    assert content_tokens([{"type": "opaque", "size": 10**10}] * 3) == MOST_TOKENS


@pytest.mark.parametrize("text", ["日本語", "한국어", "漢字仮名", "🦜🧵", "𠀀𠀁"])
def test_a_character_of_a_dense_script_counts_as_a_token(text: str) -> None:
    assert text_weight(text) == 4 * len(text)
    assert text_weight("abc" + text) == 3 + 4 * len(text)


@pytest.mark.parametrize("text", ["", "plain ascii", "a dash \u2014 and \u201cquotes\u201d"])
def test_plain_text_counts_by_the_character(text: str) -> None:
    assert text_weight(text) == len(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Übermäßig viele Wörter stehen hier, und alle sind größer.", (14, 19)),
        ("Комитет собрался во вторник, чтобы обсудить новый бюджет.", (14, 26)),
        ("Η επιτροπή συνεδρίασε την Τρίτη για τον νέο προϋπολογισμό.", (18, 52)),  # noqa: RUF001 - it is Greek
        ("اجتمعت اللجنة يوم الثلاثاء لمناقشة الميزانية الجديدة", (14, 36)),
        ("הוועדה התכנסה ביום שלישי כדי לדון בתקציב החדש", (16, 44)),
        ("समिति ने मंगलवार को नए बजट पर चर्चा करने के लिए बैठक की", (15, 55)),
        ("คณะกรรมการประชุมกันในวันอังคารเพื่อหารือเรื่องงบประมาณใหม่", (20, 53)),
        ("ကော်မတီသည် ဘတ်ဂျက်အသစ်ကို ဆွေးနွေးရန် အင်္ဂါနေ့တွင် တွေ့ဆုံခဲ့သည်။", (35, 125)),
    ],
)
def test_scripts_count_between_two_public_tokenizers(text: str, tokens: tuple[int, int]) -> None:
    assert tokens[0] <= content_tokens(text) <= tokens[1]


@given(st.text(max_size=3_000))
def test_no_text_counts_less_than_its_characters_over_four(text: str) -> None:
    assert len(text) <= text_weight(text) <= 8 * len(text)


@pytest.mark.parametrize(
    "content", [None, [], [None, 3, "loose"], [{"type": "text"}], [{"type": "text", "text": None}]]
)
def test_content_without_text_costs_nothing(content: object) -> None:
    assert content_tokens(content) == 0


@pytest.mark.requirement("O1")
@given(valid_conversations(max_exchanges=3))
def test_the_estimate_adds_up_and_grows_with_every_block(conversation: list[dict[str, object]]) -> None:
    for content in (message["content"] for message in conversation):
        if isinstance(content, list):
            weights = [block_weight(block) for block in content]
            assert content_tokens(content) == math.ceil(sum(weights) / 4)
            assert content_tokens([*content, text_block("more")]) == math.ceil((sum(weights) + 4) / 4)


_RUN = hashlib.sha512(b"a seed").digest() * 40


def hexdump(data: bytes, *, groups: int) -> str:
    """Return a dump as xxd and hexdump print it, with groups of so many bytes."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        shown = " ".join(row[at : at + groups].hex() for at in range(0, len(row), groups))
        lines.append(f"{start:08x}: {shown}  " + "".join(chr(each) if 32 <= each < 127 else "." for each in row))
    return "\n".join(lines)


def drawing(command: str, between: str) -> str:
    """Return an inline SVG with a path of made-up points."""
    points = [f"{at * 7919 % 5_003 / 10.1:.2f}{between}{at * 104_729 % 4_001 / 8.3:.2f}" for at in range(300)]
    return f'<svg viewBox="0 0 500 500"><path d="M{command.join(points)}"/></svg>'


def source_map() -> str:
    """Return a source map whose mappings are groups of four or five digits in base64."""
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    groups = [
        f"{digits[at * 7 % 32]}A{digits[at % 5 // 4 * 2]}{digits[at * 13 % 32]}" + "C" * (at % 3 == 0)
        for at in range(2_000)
    ]
    lines = [",".join(groups[start : start + 16]) for start in range(0, len(groups), 16)]
    return f'{{"version":3,"sources":["../src/a.ts"],"names":["foo"],"mappings":"{";".join(lines)}"}}'


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param(base64.b64encode(_RUN).decode(), 1.40, id="base64"),
        pytest.param(base64.urlsafe_b64encode(_RUN).decode(), 1.40, id="base64 for URLs"),
        pytest.param(_RUN.hex(), 1.76, id="hexadecimal"),
        pytest.param(_RUN.hex().upper(), 1.73, id="hexadecimal in capitals"),
        pytest.param("\n".join(str(UUID(bytes=_RUN[at : at + 16])) for at in range(0, 800, 16)), 1.56, id="UUIDs"),
        pytest.param(",".join(f"{at * 7919 % 100_003 / 97:.4f}" for at in range(300)), 1.8, id="rows of numbers"),
        pytest.param(hexdump(_RUN, groups=2), 1.67, id="xxd"),
        pytest.param(hexdump(_RUN, groups=1), 1.55, id="hexdump -C"),
        pytest.param(hexdump(b"import os, sys  # all of it\n" * 60, groups=2), 1.8, id="xxd of text"),
        pytest.param(":".join(f"{byte:02x}" for byte in _RUN), 1.35, id="bytes with colons"),
        pytest.param(", ".join(f"0x{byte:02x}" for byte in _RUN), 1.18, id="bytes of an array"),
        pytest.param(drawing(" L", ","), 2.07, id="a drawing's path"),
        pytest.param(drawing("l", "-"), 1.7, id="a drawing's path, minified"),
        pytest.param(
            f"<p>{'Some words of a page. ' * 300}</p>" + drawing("l", " ") * 8, 1.9, id="a page with drawings"
        ),
        pytest.param(source_map(), 1.6, id="a source map"),
    ],
)
def test_encoded_text_counts_near_a_tokenizer(text: str, tokens: float) -> None:
    """The second figure is the characters a token of cl100k_base, measured once over random text of the kind."""
    assert 0.7 <= content_tokens(text) / (len(text) / tokens) <= 1.3


@pytest.mark.parametrize(
    "text",
    [
        "https://www.example.com/products/category/item?page=12&sort=price " * 20,
        "getUserProfileConfigurationManagerFactoryBean " * 20,
        "x" * 5_000,
        "2031-04-02 at 10:15, order 12345, 3 items, 99.50 in all. " * 20,
        "/usr/lib/python3/dist-packages/package/module/file.py " * 20,
        "Alice,Bob,Carol,Dave,Erin,Frank,Grace,Heidi,Ivan,Judy,Mallory,Niaj,Olivia,Peggy,Rupert,Sybil,Trent\n" * 20,
        "red,green,blue,black,white,yellow,orange,purple,brown,grey,pink,cyan,lime,navy,teal,olive,maroon\n" * 20,
        "def add(a, b, c, d, e, f, g, h): return sum((a, b, c, d, e, f, g, h))\n" * 20,
    ],
)
def test_addresses_names_and_dates_are_not_taken_for_encoded_text(text: str) -> None:
    assert content_tokens(text) == -(-len(text) // 4)
