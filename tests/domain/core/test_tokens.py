"""Token estimates: characters over four, fixed figures for what has no text, weights for dense scripts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

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


@pytest.mark.parametrize("text", ["日本語", "한국어", "ไทยไทย", "🦜🧵", "𠀀𠀁"])
def test_a_character_of_a_dense_script_counts_as_a_token(text: str) -> None:
    assert text_weight(text) == 4 * len(text)
    assert text_weight("abc" + text) == 3 + 4 * len(text)


@pytest.mark.parametrize("text", ["", "plain ascii", "Übermäßig", "Ελληνικά", "русский", "مرحبا"])
def test_other_scripts_count_by_the_character(text: str) -> None:
    assert text_weight(text) == len(text)


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
