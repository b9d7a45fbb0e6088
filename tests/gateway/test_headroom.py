"""Headroom's calls: as many rows out as in, results cut under names, and originals that do not expire."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import ids
from tests.conftest import make_tenant
from tests.gateway.conftest import room_on

if TYPE_CHECKING:
    from tests.gateway.conftest import Room


def result(text: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def long(about: str) -> str:
    return f"begin of {about} {uuid4()} " + "a line of output\n" * 500 + f"end of {about}"


def compress(room: Room, rows: list[Any]) -> dict[str, Any]:
    answer = room.client.post("/v1/compress", json={"messages": rows, "model": "m", "config": {"mode": "ccr"}})
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    assert len(said["messages"]) == len(rows)
    return said


def retrieve(room: Room, name: str) -> str:
    answer = room.client.get(f"/v1/retrieve/{name}")
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["original_content"]
    return text


def conversation_of(room: Room, name: str) -> list[str]:
    rows = room.query("select conversation_id from gateway_prefixes where key = %s", bytes.fromhex(name))
    return [ids.external("conv", row["conversation_id"]) for row in rows]


def test_results_are_cut_and_come_back(room: Room) -> None:
    texts = [long("one"), long("two")]
    rows = [{"role": "user", "content": long("asked")}, result(texts[0]), result("short"), result(texts[1])]
    said = compress(room, rows)
    cut = said["messages"]
    assert (cut[0], cut[2]) == (rows[0], rows[2])
    assert len(said["ccr_hashes"]) == 2
    for at, text in zip((1, 3), texts, strict=True):
        (name,) = [each for each in said["ccr_hashes"] if f"hash={each}]" in cut[at]["content"]]
        assert len(name) == 24
        assert len(cut[at]["content"]) < 1_000
        assert cut[at]["content"].startswith(text[:400])
        assert cut[at]["content"].endswith(text[-200:])
        assert retrieve(room, name) == text
    assert said["tokens_before"] - said["tokens_after"] == said["tokens_saved"] > 3_000
    assert said["compression_ratio"] == pytest.approx(said["tokens_after"] / said["tokens_before"])
    metrics = room.client.get("/metrics").text
    assert 'palimpsest_gateway_requests_total{door="compress",outcome="compacted"}' in metrics


def test_query_has_back_what_of_a_long_original_is_about_it(room: Room) -> None:
    rows = [f"row {number}: the pump in hall {number} is at {number * 3} bar" for number in range(2_000)]
    rows[1_234] = "row 1234: the turbine was serviced by Ingrid"
    text = "\n".join(rows)
    (name,) = compress(room, [result(text)])["ccr_hashes"]
    asked = retrieve(room, f"{name}?query=who+serviced+the+turbine%3F")
    assert rows[1_234] in asked
    assert len(asked) < 2_000 * 4 + 500
    left_out = [int(count.replace(",", "")) for count in re.findall(r"\[([\d,]+) characters left out\]", asked)]
    kept = re.sub(r"\n\[[\d,]+ characters left out\]\n", "", asked)
    assert len(kept) + sum(left_out) == len(text)
    assert retrieve(room, f"{name}?query=xylophone") == text
    assert retrieve(room, f"{name}?query=") == retrieve(room, name) == text
    assert retrieve(room, f"{name}?query=%ff%00") == text


def test_rows_that_are_sent_again_come_out_the_same_and_are_stored_once(room: Room) -> None:
    rows = [result(long("first"), 1)]
    once = compress(room, rows)
    rows = [{"role": "user", "content": "and on"}, *rows, result(long("second"), 2)]
    again = compress(room, rows)
    assert again["messages"][1] == once["messages"][0]
    (name,) = once["ccr_hashes"]
    (conversation,) = conversation_of(room, name)
    other = next(each for each in again["ccr_hashes"] if each != name)
    assert conversation_of(room, other) == [conversation]
    assert len(room.stored(conversation)) == 2
    # What is cut is not cut again.
    assert compress(room, again["messages"])["messages"] == again["messages"]


def test_history_of_somebody_else_with_one_result_the_same(room: Room) -> None:
    shared = long("a page")
    first = compress(room, [result(shared), result(long("mine"))])
    second = compress(room, [result(shared), result(long("another's"))])
    (both,) = set(first["ccr_hashes"]) & set(second["ccr_hashes"])
    (mine,) = set(first["ccr_hashes"]) - {both}
    (others,) = set(second["ccr_hashes"]) - {both}
    assert conversation_of(room, mine) != conversation_of(room, others)


def test_results_that_the_model_is_yet_to_read_stay(room: Room) -> None:
    calls = [{"id": "call_0", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    rows = [{"role": "user", "content": "x"}, asked, result(long("old")), asked, result(long("new"))]
    cut = compress(room, rows)["messages"]
    assert cut[2] != rows[2]
    assert cut[4] == rows[4]


def test_parts_of_a_result_are_one_text(room: Room) -> None:
    parts = [{"type": "text", "text": long("first part")}, {"type": "text", "text": long("second part")}]
    said = compress(room, [{"role": "tool", "tool_call_id": "c", "content": parts}])
    assert "".join(part["text"] for part in said["messages"][0]["content"]).endswith("end of second part")
    assert retrieve(room, said["ccr_hashes"][0]) == "".join(part["text"] for part in parts)


def test_nothing_of_another_tenant(room: Room) -> None:
    text = long("ours")
    (name,) = compress(room, [result(text)])["ccr_hashes"]
    stranger = make_tenant(room.settings.database_url.get_secret_value(), "stranger")
    with room.gateway.client(stranger.key) as client:
        answer = client.get(f"/v1/retrieve/{name}")
        assert answer.status_code == 404
        assert answer.json() == client.get(f"/v1/retrieve/{'0' * 24}").json()
        # The same text is stored for each of them, and erased for each.
        theirs = room._replace(client=client, tenant=stranger)
        assert compress(theirs, [result(text)])["ccr_hashes"] == [name]
        assert retrieve(theirs, name) == text
        room.erase(room.conversation_of_tenant(name))
        assert retrieve(theirs, name) == text
    assert room.client.get(f"/v1/retrieve/{name}").status_code == 404


def test_originals_go_with_their_conversation_and_come_again(room: Room) -> None:
    text = long("erased")
    (name,) = compress(room, [result(text)])["ccr_hashes"]
    room.erase(room.conversation_of_tenant(name))
    assert room.client.get(f"/v1/retrieve/{name}").status_code == 404
    assert compress(room, [result(text)])["ccr_hashes"] == [name]
    assert retrieve(room, name) == text


def test_originals_stay_when_the_conversation_is_looked_after(room: Room) -> None:
    rows = [result(long(f"result {number}") + "x" * 40_000, number) for number in range(12)]
    said = compress(room, rows)
    conversation = room.conversation_of_tenant(said["ccr_hashes"][0])
    room.compact(conversation)
    (row,) = room.query("select head_version from conversations where id = %s", ids.parse("conv", conversation))
    assert row["head_version"] == 0
    assert {retrieve(room, name) for name in said["ccr_hashes"]} == {row["content"] for row in rows}


@pytest.mark.parametrize("name", ["", "0" * 24, "0" * 23, "0" * 25, "G" * 24, "%00" * 24, "A" * 24])
def test_names_that_nothing_has(room: Room, name: str) -> None:
    answer = room.client.get(f"/v1/retrieve/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b"{}", b'{"messages":5}', b'{"messages":null}', b'"text"'])
def test_what_is_no_request(room: Room, body: bytes) -> None:
    answer = room.client.post("/v1/compress", content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_keys_are_asked_for(room: Room) -> None:
    with room.gateway.client() as client:
        assert client.post("/v1/compress", json={"messages": []}).status_code == 401
        assert client.get(f"/v1/retrieve/{'0' * 24}").status_code == 401


@pytest.mark.parametrize("bad", ["a\x00b", "cut \ud83d"])
def test_what_cannot_be_stored_is_not_cut(room: Room, bad: str) -> None:
    rows = [result(bad + long("bad")), result(long("good"))]
    body = json.dumps({"messages": rows}).encode()
    answer = room.client.post("/v1/compress", content=body)
    if "\x00" in bad:
        cut = answer.json()["messages"]
        assert (cut[0], len(answer.json()["ccr_hashes"])) == (rows[0], 1)
        assert cut[1] != rows[1]
    else:
        assert answer.status_code == 400


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inside, max_size=3),
    max_leaves=5,
)
CONTENT: Final = st.one_of(
    st.builds("".join, st.lists(st.sampled_from(["a line\n" * 200, "ü", "x" * 900, " "]), max_size=4)),
    st.lists(st.builds(lambda n: {"type": "text", "text": "part " * n}, st.integers(0, 400)), max_size=3),
    JSON,
)
ROWS: Final = st.lists(
    st.one_of(
        st.builds(
            lambda role, content, name: {"role": role, "content": content, "tool_call_id": name, "name": name},
            st.sampled_from(["user", "assistant", "tool", "tool", "function", "system"]),
            CONTENT,
            st.sampled_from(["call_1", "call 2", ""]),
        ),
        JSON,
    ),
    max_size=6,
)


def test_whatever_rows_as_many_come_out_and_what_is_cut_comes_back(room: Room) -> None:
    with room_on(room.settings, room.tenant) as own:

        @settings(max_examples=40)
        @given(rows=ROWS)
        def holds(rows: list[Any]) -> None:
            said = compress(own, rows)
            for row, cut in zip(rows, said["messages"], strict=True):
                if row == cut:
                    continue
                assert row["role"] in {"tool", "function"}
                assert {**row, "content": None} == {**cut, "content": None}
                assert len(json.dumps(cut)) < len(json.dumps(row))
                (name,) = [each for each in said["ccr_hashes"] if f"hash={each}]" in json.dumps(cut)]
                content = row["content"]
                whole = content if isinstance(content, str) else "".join(part["text"] for part in content)
                assert retrieve(own, name) == whole

        holds()
