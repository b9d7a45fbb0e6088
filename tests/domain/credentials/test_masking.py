"""Credentials in texts and messages give way to marks that name their kind and their message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.claims.citations import strip_citations
from compaction.credentials.marks import has_mark, mark_for, without_marks
from compaction.credentials.masking import Masker, mask_content, mask_text
from compaction.text.salience import values
from compaction.view import MARKER, ViewMessage, truncate_result
from tests.domain.credentials.samples import AWS_SECRET, BODY, CARD, PASSWORD, PEM, TOKENS, mixed

KEY = TOKENS["anthropic key"]
MARK = "[secret: anthropic key, m7]"
SAID = [
    *TOKENS.values(),
    f"password={PASSWORD}",
    f"The password is {PASSWORD}.",
    f"postgres://app:{PASSWORD}@db/x",
    f"my card is {CARD}",
    f"AWS_SECRET_ACCESS_KEY={AWS_SECRET}\n",
    f"Authorization: Bearer {mixed(40)}",
    json.dumps({"env": f"A=1\nSECRET_KEY={mixed(30)}\n", "private_key": PEM}),
    "plain words",
    "[secret: jwt, m3]",
    "commit 3f9c1e7ab04d5862",
    "\n",
    " and then ",
    "\"'",
    "密码",
]


def test_a_mark_names_kind_and_message() -> None:
    assert mask_text(f"key {KEY} here", 7) == f"key {MARK} here"
    assert mask_text(f"key {KEY} here") == "key [secret: anthropic key] here"


@given(st.lists(st.sampled_from(SAID), max_size=6).map("".join))
def test_masking_twice_is_masking_once(text: str) -> None:
    masked = mask_text(text, 7)
    assert mask_text(masked, 7) == masked
    assert mask_text(masked, 8) == masked


@given(st.lists(st.sampled_from(SAID), max_size=6).map("\n".join))
def test_no_credential_is_left_on_lines_of_its_own(text: str) -> None:
    masked = mask_text(text, 7)
    for secret in (*TOKENS.values(), PASSWORD, CARD, AWS_SECRET, BODY):
        assert secret not in masked


def test_a_text_without_credentials_is_the_same_object() -> None:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "plain words"},
        {"type": "tool_use", "id": "t", "name": "x", "input": {"a": [1]}},
    ]
    text = "plain words"
    assert mask_text(text) is text
    assert mask_content(content, 1) is content
    message = ViewMessage("user", content, 1)
    assert Masker().mask_message(message) is message


BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": f"see {KEY}"},
    {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": f"export K={KEY}"}},
    {"type": "tool_use", "id": "t1", "name": "login", "input": {"user": "bob", "password": KEY}},
    {"type": "tool_use", "id": "t1", "name": "run", "input": {"env": [{"name": "API_KEY", "value": KEY}]}},
    {"type": "tool_use", "id": "t1", "name": "run", "input": {"argv": ["login", "--password", KEY]}},
    {"type": "tool_result", "tool_use_id": "t1", "content": f"K={KEY}\n"},
    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": json.dumps({"a": KEY})}]},
    {"type": "mcp_tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": KEY}]},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": KEY}, "title": KEY},
    {"type": "image", "source": {"type": "url", "url": f"https://h/x?token={KEY}"}},
    {"type": "instruction", "text": KEY, "by": "system"},
    {"type": "opaque", "of": "responses", "text": KEY, "size": 3},
    {"type": "compaction", "content": KEY, "signature": "s"},
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block["type"]))
def test_every_block_is_masked(block: dict[str, Any]) -> None:
    masked = mask_content([block], 7)
    assert KEY not in json.dumps(masked)
    assert "m7]" in json.dumps(masked)
    assert isinstance(masked, list)
    assert masked[0]["type"] == block["type"]
    assert masked[0].get("tool_use_id") == block.get("tool_use_id")


def test_a_field_that_is_named_a_password_is_masked_whatever_its_value() -> None:
    masked = mask_content([{"type": "tool_use", "id": "t", "name": "login", "input": {"password": "swordfish"}}], 3)
    assert masked == [{"type": "tool_use", "id": "t", "name": "login", "input": {"password": "[secret: password, m3]"}}]


def test_images_and_signed_thinking_stay_as_they_are() -> None:
    content: list[dict[str, Any]] = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": KEY}},
        {"type": "thinking", "thinking": KEY, "signature": "s"},
    ]
    assert mask_content(content, 7) is content


@pytest.mark.parametrize(
    "texts",
    [
        [KEY[:40], KEY[40:]],
        ["the password is", f"{PASSWORD}, remember it"],
        [PEM[:100], PEM[100:]],
    ],
)
def test_a_credential_in_two_blocks_is_masked_in_both(texts: list[str]) -> None:
    masked = mask_content([{"type": "text", "text": text} for text in texts], 7)
    left = "".join(block["text"] for block in masked if isinstance(block, dict))
    for secret in (KEY[6:30], KEY[-20:], PASSWORD, BODY[:30], BODY[-30:]):
        assert secret not in left


SECRETS = [KEY, TOKENS["aws key"], TOKENS["jwt"], PEM, f"DB_PASSWORD={PASSWORD}", f"postgres://app:{PASSWORD}@db/x"]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_cut_leaves_no_half_of_a_credential(secret: str, share: float) -> None:
    whole = {"type": "tool_result", "tool_use_id": "t", "content": f"{'x ' * 50}{secret}\n{'y ' * 500}"}
    kept = 100 + int(share * len(secret))
    cut = truncate_result(whole, kept, lambda _: MARKER)
    assert cut is not None
    masked = Masker().mask_cut([cut], [whole], 7)
    value = secret.removeprefix("DB_PASSWORD=").removeprefix("postgres://app:").removesuffix("@db/x")
    text = masked[0]["content"] if isinstance(masked[0], dict) else ""
    assert text.endswith(MARKER)
    for start in range(0, len(value) - 8, 4):
        assert value[start : start + 8] not in text.replace(PEM.split("\n", 1)[0], "")


@pytest.mark.parametrize("secret", [KEY, TOKENS["aws key"], TOKENS["jwt"]])
def test_a_cut_in_the_middle_leaves_no_half_at_its_end(secret: str) -> None:
    whole = f"{'x ' * 50}{secret} {'y ' * 50}"
    at = whole.index(secret) + len(secret) // 2
    masked = Masker().mask_cut(f"{whole[:20]} [... 90 characters ...] {whole[at:]}", whole, 7)
    assert isinstance(masked, str)
    assert secret[-8:] not in masked
    assert "m7]" in masked


def test_what_stays_as_it_came_is_not_touched_beside_what_was_cut() -> None:
    kept = {"type": "text", "text": f"my key is {KEY}"}
    whole = {"type": "tool_result", "tool_use_id": "t", "content": f"{KEY} " * 50}
    cut = {"type": "tool_result", "tool_use_id": "t", "content": f"{KEY} {MARKER}"}
    masked = Masker().mask_anew([cut, kept], [whole, kept], 7)
    assert masked == [{**cut, "content": f"{MARK} {MARKER}"}, kept]


def test_what_was_masked_is_masked_where_a_model_repeats_it_without_its_name() -> None:
    masker = Masker()
    masker.mask_text(f"DB_PASSWORD={PASSWORD}\n", 4)
    assert masker.mask_known(f"They log in with {PASSWORD} now.") == "They log in with [secret: password, m4] now."
    assert masker.mask_known("They use " + KEY) == "They use [secret: anthropic key]"


def test_a_credential_that_has_another_in_it_is_masked_whole() -> None:
    masker = Masker()
    masker.mask_text(f"DB_PASSWORD={KEY[13:40]}\n", 4)
    masker.mask_text(f"K={KEY}", 5)
    assert masker.mask_known(f"It is {KEY} now.") == "It is [secret: anthropic key, m5] now."
    assert masker.mask_known(f"It is {KEY[:12]}-{KEY} now.").count("[secret") == 1


def test_different_credentials_are_counted_once_each() -> None:
    masker = Masker()
    masker.mask_text(f"{KEY} {KEY}", 1)
    masker.mask_content([{"type": "text", "text": f"{KEY} and my card {CARD}"}], 2)
    assert masker.counts == {"anthropic key": 1, "card number": 1}


def test_a_mark_is_no_value_and_no_citation() -> None:
    text = f"- The key is {mark_for('aws key', 1234)} [m12]."
    assert has_mark(text)
    assert "m1234" not in values(text)
    assert mark_for("aws key", 1234) in strip_citations(text)
    assert "secret" not in without_marks(text)


def test_nesting_without_end_is_no_reason_to_fail() -> None:
    value: Any = KEY
    for _ in range(5_000):
        value = [value]
    assert KEY not in repr(mask_content([{"type": "tool_use", "id": "t", "name": "x", "input": {"a": value}}], 7))
