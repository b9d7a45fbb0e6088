"""Values that every provider refuses, and what is served in their place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.messages import acceptable, message_facts
from compaction.repair import repair
from compaction.text.malformed import NO_MEDIA, is_json_object, read_arguments, repair_data_url, repair_media
from compaction.view import ViewMessage
from tests.support.blocks import png

PIXEL = png(1, 1, 40)
JPEG = "/9j/4AAQSkZJRgABAQAAAQABAAD"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"path": "/a"}', {"path": "/a"}),
        ("", {}),
        ("  ", {}),
        ("null", {}),
        ('"null"', {}),
        ('"{\\"path\\": \\"/a\\"}"', {"path": "/a"}),
        ('"\\"{\\\\\\"n\\\\\\": 1}\\""', {"n": 1}),
        ("{'path': '/a', 'all': True, 'none': None}", {"path": "/a", "all": True, "none": None}),
        ("\"{'path': '/a'}\"", {"path": "/a"}),
        ('{"x": NaN}', {"x": None}),
        ('{"x": -Infinity}', {"x": None}),
        ('{"text": "two\nlines\t"}', {"text": "two\nlines\t"}),
        ('{"path": "/a", "text": "He said ', {"arguments": '{"path": "/a", "text": "He said '}),
        ("[1, 2]", {"arguments": "[1, 2]"}),
        ("3", {"arguments": "3"}),
        ("look it up", {"arguments": "look it up"}),
        ('{"a": 1}{"b": 2}', {"arguments": '{"a": 1}{"b": 2}'}),
        ("__import__('os')", {"arguments": "__import__('os')"}),
    ],
)
def test_arguments_are_read_as_the_object_that_they_mean(text: str, arguments: dict[str, Any]) -> None:
    assert read_arguments(text) == arguments


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_text_becomes_an_object_and_stays_it(text: str) -> None:
    arguments = read_arguments(text)
    written = json.dumps(arguments)
    assert is_json_object(written)
    assert read_arguments(written) == arguments


@pytest.mark.parametrize("given", [None, 3, ["a"], "{}", "[1]"])
def test_a_call_without_an_object_as_input_is_served_with_one(given: Any) -> None:
    call = {"type": "tool_use", "id": "a", "name": "look", "input": given}
    assert not message_facts("assistant", [call]).sound
    view = [
        ViewMessage("user", "go", 0),
        ViewMessage("assistant", [call], 1),
        ViewMessage("user", [{"type": "tool_result", "tool_use_id": "a", "content": "x"}], 2),
    ]
    mended, repairs = repair(view)
    assert mended[1].content == [{**call, "input": read_arguments(given)}]
    assert mended[2] == view[2]
    assert repairs.warnings() == ["1 tool call(s) have arguments that are no JSON object and are served as one"]


@pytest.mark.parametrize(
    ("named", "data", "served"),
    [
        ("image/jpg", "AAAA", "image/jpeg"),
        ("IMAGE/PNG", "AAAA", "image/png"),
        ("image/png; charset=utf-8", "AAAA", "image/png"),
        ("image/png", JPEG, "image/jpeg"),
        ("image/jpeg", PIXEL, "image/png"),
        ("", PIXEL, "image/png"),
        ("image/png", f"data:image/jpg;base64,{JPEG}", "image/jpeg"),
    ],
)
def test_a_media_type_fits_the_data(named: str, data: str, served: str) -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": named, "data": data}}
    mended = acceptable("user", block)
    assert mended is not None
    assert mended["source"] == {"type": "base64", "media_type": served, "data": data.rpartition(",")[2]}
    assert acceptable("user", mended) is mended
    inside = acceptable("user", {"type": "tool_result", "tool_use_id": "a", "content": [block]})
    assert inside is not None
    assert inside["content"] == [mended]


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "image/png", "data": ""},
        {"type": "base64", "media_type": "image/png", "data": " \n"},
        {"type": "base64", "media_type": "image/png"},
        {"type": "base64", "media_type": "image/png", "data": "data:image/png;base64,"},
        {"type": "base64", "media_type": "image/svg+xml", "data": "PHN2Zz4="},
        {"type": "base64", "media_type": "text/html", "data": "PGh0bWw+"},
        {"type": "url", "url": ""},
    ],
)
def test_a_text_stands_for_an_image_that_cannot_be_read(source: dict[str, Any]) -> None:
    block = {"type": "image", "source": source}
    assert acceptable("user", block) == {"type": "text", "text": NO_MEDIA}
    _, repairs = repair([ViewMessage("user", [block, {"type": "text", "text": "what is it?"}], 0)])
    assert repairs.repaired_media == 1


def test_media_that_is_whole_stays_the_same_object() -> None:
    for source in (
        {"type": "base64", "media_type": "image/png", "data": "AAAA"},
        {"type": "base64", "media_type": "image/bmp", "data": "Qk0="},
        {"type": "url", "url": "https://example.com/a.png"},
        {"type": "file", "file_id": "file_1"},
    ):
        block = {"type": "image", "source": source}
        assert repair_media(block) is block


@pytest.mark.parametrize(
    ("url", "served"),
    [
        ("https://example.com/a", "https://example.com/a"),
        ("data:image/jpg;base64,AAAA", "data:image/jpeg;base64,AAAA"),
        (f"data:image/png;base64,{JPEG}", f"data:image/jpeg;base64,{JPEG}"),
        ("data:image/png;base64,", None),
        ("", None),
        (None, None),
    ],
)
def test_a_data_url_fits_its_data(url: Any, served: str | None) -> None:
    assert repair_data_url(url) == served
