"""Recall over HTTP: originals by words, by reference and by pattern, whatever the context still has of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from actions import recall as action
from store.recall import material, originals
from tests.support.service.in_process import SMALL
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.support.service.running_api import Service

SECRET = "The garage opens with 4711-B."


def said(service: Service, path: str, **asked: Any) -> dict[str, Any]:
    answer = service.client.post(f"{path}/recall", json=asked)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def texts(found: dict[str, Any]) -> list[str]:
    return [part["text"] for passage in found["passages"] for part in passage["parts"]]


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.fixture
def path(service: Service) -> str:
    """A conversation of a tool call and some talk."""
    conversation = service.conversation()
    call = {"type": "tool_use", "id": "toolu_1", "name": "flights", "input": {"to": "LIS"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "TP 1363, 07:05\n" + "TP 99, late\n" * 300}
    service.append(
        conversation,
        message("user", SECRET),
        message("assistant", "I will remember that."),
        message("user", "Find me a flight to Lisbon."),
        message("assistant", [{"type": "text", "text": "I look."}, call]),
        message("user", [result]),
        message("assistant", "TP 1363 leaves at 07:05."),
    )
    return conversation


def test_words_find_what_was_said_and_what_belongs_to_it(service: Service, path: str) -> None:
    found = said(service, path, query="how does the garage open?")
    first = found["passages"][0]
    assert first["parts"][0] == {
        "ref": "m0.0",
        "seq": 0,
        "role": "user",
        "kind": "text",
        "tool": None,
        "created_at": first["parts"][0]["created_at"],
        "text": SECRET,
        "offset": 0,
        "characters": len(SECRET),
    }
    assert first["ref"] == f"m{first['first_seq']}-m{first['last_seq']}"
    assert first["in_context"]
    assert found["searched"] == 6
    assert found["tokens"] <= 2_000
    assert "framed" not in found


@pytest.mark.parametrize("kind", ["query", "pattern"])
def test_nothing_after_the_last_message_that_is_searched_is_given(service: Service, path: str, kind: str) -> None:
    assert said(service, path, **{kind: "garage"})["passages"][0]["last_seq"] > 0
    (passage,) = said(service, path, through_seq=0, **{kind: "garage"})["passages"]
    assert (passage["first_seq"], passage["last_seq"]) == (0, 0)


def test_a_result_comes_with_its_call_and_the_name_of_its_tool(service: Service, path: str) -> None:
    (passage,) = said(service, path, query="1363 07:05", max_tokens=300)["passages"]
    kinds = {part["kind"]: part for part in passage["parts"]}
    assert kinds["tool_use"]["tool"] == kinds["tool_result"]["tool"] == "flights"
    assert kinds["tool_result"]["text"].startswith("TP 1363")
    assert len(kinds["tool_result"]["text"]) < kinds["tool_result"]["characters"]


def test_a_reference_gives_the_whole_and_goes_on(service: Service, path: str) -> None:
    whole = "TP 1363, 07:05\n" + "TP 99, late\n" * 300
    text, offset = "", 0
    while offset < len(whole):
        found = said(service, path, ref="m4.0", offset=offset, max_tokens=300)
        (part,) = found["passages"][0]["parts"]
        assert (part["offset"], part["characters"], part["tool"]) == (offset, len(whole), "flights")
        assert found["more"] == (offset + len(part["text"]) < len(whole))
        text += part["text"]
        offset = len(text)
    assert text == whole
    ranged = said(service, path, ref="m0-m3")
    assert [passage["ref"] for passage in ranged["passages"]] == ["m0-m3"]
    assert texts(ranged)[:3] == [SECRET, "I will remember that.", "Find me a flight to Lisbon."]
    assert said(service, path, ref="m3.1")["passages"][0]["parts"][0]["kind"] == "tool_use"
    assert said(service, path, ref="m4-m900")["passages"][0]["last_seq"] == 5


def test_a_pattern_finds_the_newest_first(service: Service, path: str) -> None:
    found = said(service, path, pattern=r"\d{4}-[A-Z]\.|leaves at", limit=1)
    assert found["passages"][0]["last_seq"] == 5
    assert found["more"]
    assert SECRET in texts(said(service, path, pattern=r"\d{4}-[A-Z]"))
    assert said(service, path, pattern="(?i)GARAGE", from_seq=1)["passages"] == []


def test_what_compaction_took_out_is_had_back(service: Service) -> None:
    path = service.conversation(policy=SMALL | {"compaction_enabled": False, "max_conversation_messages": 10})
    service.append(path, message("user", "Hello."), message("assistant", SECRET))
    service.append(path, *exchanges(30, 100))
    work(service.settings, path)
    context = service.client.get(f"{path}/context").json()
    assert SECRET not in json.dumps(context["messages"])
    found = said(service, path, query="garage opens 4711-B")
    (passage,) = [passage for passage in found["passages"] if passage["first_seq"] <= 1 <= passage["last_seq"]]
    assert SECRET in texts(found)
    assert not passage["in_context"]
    assert not said(service, path, ref="m1")["passages"][0]["in_context"]
    assert said(service, path, ref=f"m{context['last_seq']}")["passages"][0]["in_context"]


@pytest.fixture(params=["conversation", "tenant"])
def with_handles(service: Service, path: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The conversation with a small budget, recall handles on for itself or for all of its tenant."""
    policy = {"input_token_budget": 500, "tool_result_retention_chars": 50, "min_savings_tokens": 1}
    assert service.client.patch(path, json={"policy": policy | {"compaction_enabled": False}}).status_code == 200
    owner = path if request.param == "conversation" else "/v1/tenant"
    assert service.client.patch(owner, json={"policy": {"recall_handles": True}}).status_code == 200
    yield path
    service.client.patch(owner, json={"policy": {"recall_handles": None}})


def test_what_a_handle_names_is_had_back(service: Service, with_handles: str) -> None:
    path = with_handles
    call = {"type": "tool_use", "id": "toolu_2", "name": "hotels", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_2", "content": "Nothing."}
    service.append(path, message("user", "And hotels?"), message("assistant", [call]), message("user", [result]))
    work(service.settings, path)
    (cut,) = service.client.get(f"{path}/context").json()["messages"][4]["content"]
    handle = re.search(r'\n\[flights "LIS", ([\d,]+) more characters: recall (m4\.0)\]\[truncated', cut["content"])
    assert handle is not None, cut
    (whole,) = texts(said(service, path, ref=handle[2]))
    kept = cut["content"][: handle.start()]
    assert whole.startswith(kept)
    assert int(handle[1].replace(",", "")) == len(whole) - len(kept)


def test_superseded_messages_are_never_given(service: Service, path: str) -> None:
    service.append(path, message("user", "The garage now opens with 9999-Z."))
    service.append(path, message("user", "Never mind."), replace_from=6)
    for asked in ({"query": "garage 9999-Z"}, {"pattern": "9999"}, {"ref": "m5-m7"}):
        assert not any("9999-Z" in text for text in texts(said(service, path, **asked)))
    problem(service.client.post(f"{path}/recall", json={"ref": "m6"}), 422, "invalid", "/ref")


def test_erased_messages_are_gone(service: Service, path: str) -> None:
    assert said(service, path, query="garage")["passages"]
    assert service.client.delete(path).status_code == 200
    for asked in ({"query": "garage"}, {"ref": "m0"}, {"pattern": "garage"}):
        problem(service.client.post(f"{path}/recall", json=asked), 404, "not_found")


def test_what_recall_gave_is_not_found_again(service: Service, path: str) -> None:
    framed = said(service, path, query="garage", framed=True)["framed"]
    assert framed.startswith("<recalled refs=")
    assert SECRET in framed
    call = {"type": "tool_use", "id": "toolu_2", "name": "recall", "input": {"query": "garage"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_2", "content": framed}
    service.append(path, message("user", "And?"), message("assistant", [call]), message("user", [result]))
    for asked in ({"query": "garage opens"}, {"pattern": "garage"}, {"ref": "m6-m8"}):
        assert not any(text.startswith("<recalled") for text in texts(said(service, path, **asked)))
    problem(service.client.post(f"{path}/recall", json={"ref": "m8"}), 422, "invalid", "/ref")


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({}, "/query"),
        ({"query": "a", "ref": "m1"}, "/ref"),
        ({"query": "a", "pattern": "b"}, "/pattern"),
        ({"query": ""}, "/query"),
        ({"query": " \n"}, "/query"),
        ({"query": "a" * 100_000}, "/query"),
        ({"query": "a " * 10_000}, "/query"),
        ({"query": "a\x00b"}, "/query"),
        ({"query": "a\x1b[31m"}, "/query"),
        ({"pattern": "("}, "/pattern"),
        ({"pattern": "a{1000}{1000}"}, "/pattern"),
        ({"pattern": "(?=a)"}, "/pattern"),
        ({"pattern": "a" * 1_001}, "/pattern"),
        ({"ref": "12"}, "/ref"),
        ({"ref": "m99"}, "/ref"),
        ({"ref": "m0.7"}, "/ref"),
        ({"ref": "m0-m1000000"}, "/ref"),
        ({"ref": "m999999999"}, "/ref"),
        ({"ref": "m0", "offset": 10_000}, "/offset"),
        ({"query": "a", "offset": 1}, "/offset"),
        ({"ref": "m0-m2", "offset": 1}, "/offset"),
        ({"ref": "m0", "from_seq": 1}, "/from_seq"),
        ({"query": "a", "from_seq": 2, "through_seq": 1}, "/through_seq"),
        ({"query": "a", "max_tokens": 0}, "/max_tokens"),
        ({"query": "a", "max_tokens": 20_001}, "/max_tokens"),
        ({"query": "a", "limit": 0}, "/limit"),
    ],
)
def test_bad_input_is_a_problem_with_its_place(
    service: Service, path: str, asked: dict[str, Any], pointer: str
) -> None:
    assert problem(service.client.post(f"{path}/recall", json=asked), 422, "invalid", pointer)


def test_nothing_of_what_is_asked_is_logged(
    service: Service, path: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for asked in ({"query": "plover garage"}, {"pattern": "plover|garage"}, {"pattern": "plover("}, {"ref": "plover"}):
        service.client.post(f"{path}/recall", json=asked)
    out, err = capfd.readouterr()
    assert "plover" not in out + err + caplog.text


@pytest.mark.parametrize("query", ["?!", "…", "the of and", "a" * 16_000, "x y " * 4_000, "🦜", "\n\t."])
def test_words_that_find_nothing_find_nothing(service: Service, path: str, query: str) -> None:
    found = said(service, path, query=query)
    assert found["tokens"] <= 2_000


def test_a_pattern_has_its_time(service: Service, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "SEARCH_SECONDS", 0.0)
    found = said(service, path, pattern="garage")
    assert (found["searched"], found["more"], found["passages"]) == (1, True, [])


def test_only_the_newest_bytes_are_read(service: Service, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "MOST_READ_BYTES", 100)
    assert said(service, path, query="garage lisbon 07:05")["searched"] < 6
    monkeypatch.setattr(originals, "MOST_READ_BYTES", 100)
    assert said(service, path, pattern=".")["searched"] < 6
    monkeypatch.setattr(originals, "PAGE_BYTES", 100)
    assert said(service, path, ref="m0-m5")["more"]


def test_a_range_whose_end_was_replaced_has_no_more(service: Service, path: str) -> None:
    last = service.client.get(path).json()["last_seq"]
    service.append(path, message("user", "Never mind."), replace_from=last - 2)
    found = said(service, path, ref=f"m0-m{last}")
    assert [part["seq"] for passage in found["passages"] for part in passage["parts"]][-1] == last - 3
    assert not found["more"]
    assert not said(service, path, ref=f"m0-m{last + 50}")["more"]


def test_any_number_of_times_is_asked_for_at_once(service: Service, path: str) -> None:
    assert texts(said(service, path, query=" ".join(f"{days} days ago" for days in range(999)) + " today"))
    assert texts(said(service, path, query="yesterday or today"))


def test_a_pattern_that_takes_long_ends_with_its_time(
    service: Service, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.append(path, message("user", "we walk by the river " * 40_000))
    monkeypatch.setattr(action, "SEARCH_SECONDS", 0.1)
    found = said(service, path, pattern="(?:[a-z ]{0,30}){0,30}[QX][0-9]")
    assert (found["passages"], found["more"]) == ([], True)


def test_times_are_those_of_the_messages(service: Service, path: str) -> None:
    assert said(service, path, query="yesterday")["passages"] == []
    assert texts(said(service, path, query="today"))


@pytest.mark.parametrize("shape", ["messages", "chat", "responses"])
def test_the_tools_definition_is_the_same_bytes(service: Service, shape: str) -> None:
    one, other = (service.client.get("/v1/recall-tool", params={"shape": shape}) for _ in range(2))
    assert one.content == other.content
    tool = one.json()
    function = tool["function"] if shape == "chat" else tool
    assert function["name"] == "recall"
    schema = function["input_schema" if shape == "messages" else "parameters"]
    assert set(schema["properties"]) == {"query", "ref", "pattern", "offset"}
    assert service.client.get("/v1/recall-tool").json() == service.client.get("/v1/recall-tool?shape=messages").json()
    problem(service.client.get("/v1/recall-tool?shape=other"), 422, "invalid", "shape")


def test_handles_are_on_where_the_tool_is_declared_and_nobody_has_set_them(service: Service) -> None:
    tool = service.client.get("/v1/recall-tool").json()

    def handles(answer: httpx2.Response) -> Any:
        return answer.json()["policy"]["recall_handles"]

    declared = service.client.post("/v1/conversations", json={"tools": [tool]})
    assert handles(declared) is True
    assert handles(service.client.post("/v1/conversations", json={})) is False
    chosen = {"tools": [tool], "policy": {"recall_handles": False}}
    assert handles(service.client.post("/v1/conversations", json=chosen)) is False
    path = service.conversation(policy={})
    assert handles(service.client.patch(path, json={"tools": [tool]})) is True
