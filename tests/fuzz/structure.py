"""JSON documents changed at some places of their structure, and their text at some bytes."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tests.fuzz.turns import ODD_VALUES, as_json, places, values

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

_SPOILERS = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\n",
    b"\r\n",
    b'"',
    b"{",
    b"]",
    b",",
    b"\\u0000",
    b"\\ud800",
    b"1e999",
)


def change_anywhere(draw: DrawFn, document: Any) -> None:
    """Change an array or an object at one place."""
    entries = list(places(document))
    if not entries:
        return
    holder, name = entries[draw(st.integers(0, len(entries) - 1))]
    value = holder[name]
    match draw(st.sampled_from(["replace", "odd", "remove", "double", "swap", "number"])):
        case "replace":
            holder[name] = draw(values())
        case "odd":
            # A copy: the next change may be inside it.
            holder[name] = deepcopy(draw(st.sampled_from(ODD_VALUES)))
        case "remove":
            del holder[name]
        case "double" if isinstance(holder, list):
            holder.insert(name, json.loads(json.dumps(value)))
        case "swap":
            other, at = entries[draw(st.integers(0, len(entries) - 1))]
            # By value: a place inside the other would make a circle.
            holder[name], other[at] = json.loads(json.dumps(other[at])), json.loads(json.dumps(value))
        case "number" if isinstance(value, int):
            holder[name] = value + draw(st.sampled_from([-1, 1, 2**31, -(2**31), 2**63]))


@st.composite
def changed_documents(draw: DrawFn, documents: st.SearchStrategy[Any], *, most: int = 4) -> Any:
    """Draw documents with up to so many changes."""
    document = json.loads(json.dumps(draw(documents)))
    for _ in range(draw(st.integers(0, most))):
        change_anywhere(draw, document)
    return document


@st.composite
def changed_bytes(draw: DrawFn, texts: st.SearchStrategy[bytes], *, most: int = 2) -> bytes:
    """Draw texts of which some are cut, or have bytes put in or left out."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, len(text)))
        end = draw(st.sampled_from([at, at + 1, at + 20, len(text)]))
        text = text[:at] + draw(st.sampled_from([b"", *_SPOILERS])) + text[end:]
    return text


def json_lines(items: list[Any]) -> bytes:
    """Return JSON, one value a line."""
    return b"".join(as_json(item) + b"\n" for item in items)
