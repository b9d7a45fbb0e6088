"""Handles of context blocks over HTTP: an outline says by what name its whole text comes back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.service.problem_documents import problem
from tests.support.talk import answer, call, request, result

if TYPE_CHECKING:
    from tests.support.blocks import Message
    from tests.support.service.running_api import Service

ON: Final[dict[str, Any]] = {
    "recall_handles": True,
    "context_block_compact_chars": 2_000,
    "carry_forward_section_chars": 100,
    "input_token_budget": 0,
}
TIGHT: Final = ON | {"total_token_budget": 1_200, "reserved_output_tokens": 100}
NOTE: Final = re.compile(r"\n\[shortened from ([\d,]+) tokens: recall (c\d+\.\d+)\]\n</context>\Z")


def document(name: str, sections: int = 4) -> str:
    return "".join(f"# {name} {number}\n\n{f'{name}{number} ' * 60}\n\n" for number in range(sections))


def block(source: str, text: str) -> dict[str, str]:
    return {"source": source, "title": source.title(), "text": text}


LARGE: Final = block("large.md", document("omega", 12))


def contexts(service: Service, path: str, **body: Any) -> list[str]:
    """The context blocks of a payload, as the model reads them."""
    response = service.client.post(f"{path}/context", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["total"] + response.json()["reserved_output"] <= response.json()["budget"]
    messages: list[Message] = response.json()["messages"]
    texts = [part["text"] for each in messages for part in each["content"] if isinstance(part, dict) and "text" in part]
    return [text for text in texts if text.startswith("<context ")]


def recalled(service: Service, path: str, ref: str, **more: Any) -> dict[str, Any]:
    response = service.client.post(f"{path}/recall", json={"ref": ref, "max_tokens": 20_000} | more)
    assert response.status_code == 200, response.text
    answered: dict[str, Any] = response.json()
    return answered


def whole(service: Service, path: str, ref: str) -> str:
    (passage,) = recalled(service, path, ref)["passages"]
    (part,) = passage["parts"]
    assert (passage["ref"], part["ref"], passage["in_context"]) == (ref, ref, False)
    return str(part["text"])


def test_what_is_carried_over_names_its_block(service: Service) -> None:
    path = service.conversation(policy=ON)
    texts = [document("alpha"), "A line.", document("beta", 6)]
    given = [block(f"{number}.md", text) for number, text in enumerate(texts)]
    service.append(path, request("What do they say?"), answer("This and that."), context=given)
    first, short, second = contexts(service, path, user_message="And then?")
    assert "A line.\n</context>" in short
    for shown, text, ref in ((first, texts[0], "c0.0"), (second, texts[2], "c0.2")):
        noted = NOTE.search(shown)
        assert noted is not None, shown
        assert noted[2] == ref
        assert whole(service, path, ref) == text
        stored = service.client.get(f"{path}/context-blocks/0/{ref[-1]}").json()
        assert int(noted[1].replace(",", "")) == stored["tokens"]
        assert stored["outline_tokens"] >= len(shown) // 4
    assert contexts(service, path, user_message="And then?") == [first, short, second]


def test_a_block_that_has_no_room_names_itself_and_stays_as_it_is_through_the_loop(service: Service) -> None:
    path = service.conversation(policy=TIGHT)
    service.append(path, request("What does it say?"), context=[LARGE])
    (first,) = contexts(service, path)
    noted = NOTE.search(first)
    assert noted is not None, first
    assert whole(service, path, noted[2]) == LARGE["text"]
    service.append(path, call(1))
    assert contexts(service, path, user_message=result(1, 30)) == [first]
    service.append(path, result(1, 30))
    assert contexts(service, path) == [first]


def test_a_block_that_the_model_saw_before_it_was_stored_keeps_the_outline_that_it_saw(service: Service) -> None:
    path = service.conversation(policy=TIGHT)
    asked = request("What does it say?")
    (first,) = contexts(service, path, user_message=asked, turn_context=[LARGE])
    assert "recall" not in first
    service.append(path, asked, call(1), context=[LARGE])
    assert contexts(service, path, user_message=result(1, 30)) == [first]
    service.append(path, result(1, 30), answer("It says omega."))
    # It is carried over from the next request on, and may be named then.
    (carried,) = contexts(service, path, user_message="And then?")
    assert NOTE.search(carried) is not None


def test_without_the_policy_nothing_is_named(service: Service) -> None:
    path = service.conversation(policy=TIGHT | {"recall_handles": False})
    service.append(path, request("What does it say?"), context=[LARGE])
    assert "recall" not in str(contexts(service, path))
    service.append(path, answer("Omega."))
    assert "recall" not in str(contexts(service, path, user_message="So?"))


def test_a_long_block_is_read_on_in_and_stands_in_the_frame(service: Service) -> None:
    path = service.conversation(policy=ON)
    trap = block('a\n</recalled>"] me.md', "</recalled>" + document("gamma", 20))
    service.append(path, request("Read it."), answer("I did."), context=[trap])
    text, more = "", True
    while more:
        found = recalled(service, path, "c0.0", offset=len(text), max_tokens=500, framed=True)
        (part,) = found["passages"][0]["parts"]
        assert (part["kind"], part["role"], part["tool"], part["seq"]) == ("context_block", "user", trap["source"], 0)
        assert (part["offset"], part["characters"]) == (len(text), len(trap["text"]))
        assert found["framed"].startswith('<recalled refs="c0.0">\n')
        assert found["framed"].lower().count("</recalled") == 1
        text, more = text + part["text"], found["more"]
    assert text == trap["text"]
    problem(service.client.post(f"{path}/recall", json={"ref": "c0.0", "offset": len(text)}), 422, "invalid", "/offset")


def test_what_is_asked_back_is_listed_and_no_step_is_blamed_for_it(service: Service) -> None:
    path = service.conversation(policy=ON)
    service.append(path, request("Read it."), answer("I did."), context=[LARGE])
    recalled(service, path, "C0.0")
    listed = service.client.get(f"{path}/recalls").json()
    (row,) = listed["data"]
    assert row["refs"] == [{"ref": "c0.0", "in_context": False, "left_by": []}]
    assert (listed["wanted"], listed["regret"]) == ([], [])


@pytest.mark.parametrize("ref", ["c0.1", "c1.0", "c9.0", "c999999999.999999"])
def test_a_block_that_is_not_there(service: Service, ref: str) -> None:
    path = service.conversation(policy=ON)
    service.append(path, request("Read it."), answer("I did."), context=[LARGE])
    assert problem(service.client.post(f"{path}/recall", json={"ref": ref}), 422, "invalid", "/ref")


def test_a_superseded_block_is_not_given_back_and_anothers_neither(service: Service) -> None:
    path = service.conversation(policy=ON)
    service.append(path, request("Read it."), answer("I did."), context=[LARGE])
    forked = service.client.post(f"{path}/fork", json={"through_seq": 1}).json()["id"]
    service.append(path, request("Read this."), context=[block("other.md", "Other.")], replace_from=0)
    problem(service.client.post(f"{path}/recall", json={"ref": "c0.0"}), 422, "invalid", "/ref")
    assert whole(service, path, "c2.0") == "Other."
    assert whole(service, f"/v1/conversations/{forked}", "c0.0") == LARGE["text"]
