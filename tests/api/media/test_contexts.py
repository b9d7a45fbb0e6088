"""Media in contexts over HTTP: the limits of the model hold in every shape, and what gave way can be had back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.blocks import pdf, pdf_block, png, text_block
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.talk import chat

if TYPE_CHECKING:
    from runtime.settings import Settings
    from tests.support.service.running_api import Service

ROOM: Final = {"compaction_threshold_tokens": 10_000_000, "total_token_budget": 10_000_000, "input_token_budget": 0}
MARKS: Final = {"messages": '"type":"image"', "chat": '"type":"image_url"', "responses": '"type":"input_image"'}
DOCUMENTS: Final = {"messages": '"type":"document"', "chat": '"type":"file"', "responses": '"type":"input_file"'}
BY_ID: Final = {"type": "document", "source": {"type": "file", "file_id": "file_9x"}}
FIELDS: Final = {"messages": "messages", "chat": "messages", "responses": "items"}


def image(shape: str, width: int = 40, height: int = 30) -> dict[str, Any]:
    url = f"data:image/png;base64,{png(width, height, 60)}"
    match shape:
        case "messages":
            source = {"type": "base64", "media_type": "image/png", "data": png(width, height, 60)}
            return {"type": "image", "source": source}
        case "chat":
            return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "input_image", "image_url": url}


def document(shape: str, pages: int) -> dict[str, Any]:
    url = f"data:application/pdf;base64,{pdf(pages)}"
    match shape:
        case "messages":
            return pdf_block(pages, title="offer.pdf")
        case "chat":
            return {"type": "file", "file": {"filename": "offer.pdf", "file_data": url}}
    return {"type": "input_file", "filename": "offer.pdf", "file_data": url}


def words(shape: str, text: str) -> dict[str, Any]:
    return {"type": "input_text" if shape == "responses" else "text", "text": text}


def turn(shape: str, number: int, *media: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {"role": "user", "content": [*media, words(shape, f"#photo {number}")]}
    return [asked, {"role": "assistant", "content": f"#seen {number}"}]


def served(service: Service, path: str, shape: str) -> tuple[str, dict[str, Any]]:
    """Return a context's messages as compact JSON, and the whole answer."""
    body = service.client.get(f"{path}/context").json()
    return json.dumps(body[FIELDS[shape]], separators=(",", ":")), body


@pytest.mark.parametrize("shape", ["messages", "chat", "responses"])
def test_a_context_has_no_more_images_than_the_model_takes(service: Service, shape: str) -> None:
    path = service.conversation(model="pixtral-12b", policy=ROOM)
    for number in range(11):
        service.append(path, *turn(shape, number, image(shape)), shape=shape)
    text, body = served(service, path, shape)
    assert text.count(MARKS[shape]) == 8
    assert text.index("recall m4.0") < text.index(MARKS[shape])
    assert "[image, PNG, 40 x 30 px, about 117 bytes: stored but not shown, recall m0.0]" in text
    assert all(f"#photo {number}" in text for number in range(11))
    assert any("messages 0, 2, 4" in warning for warning in body["warnings"])
    payload = service.client.post(
        f"{path}/context", json={"user_message": {"role": "user", "content": [image(shape)]}, "shape": shape}
    ).json()
    assert json.dumps(payload[FIELDS[shape]], separators=(",", ":")).count(MARKS[shape]) == 8
    if shape == "messages":
        assert problems(body["messages"]) == []
    # The originals are all there.
    stored = service.client.get(f"{path}/messages?limit=100").text
    assert stored.count("iVBORw0KGgo") == (11 if shape == "messages" else 22)


@pytest.mark.parametrize("shape", ["messages", "chat", "responses"])
def test_a_context_has_no_more_pages_than_the_model_takes(service: Service, shape: str) -> None:
    path = service.conversation(model="claude-sonnet-4-5", policy=ROOM)
    for number in range(3):
        service.append(path, *turn(shape, number, document(shape, 60)), shape=shape)
    text, body = served(service, path, shape)
    assert text.count(DOCUMENTS[shape]) == 1
    assert '[document \\"offer.pdf\\", PDF, 60 pages, ' in text
    assert any("messages 0, 2" in warning for warning in body["warnings"])


def test_one_image_that_is_too_large_for_many_makes_no_context_invalid(service: Service) -> None:
    path = service.conversation(model="claude-sonnet-4-5", policy=ROOM)
    for number in range(24):
        width = 2_400 if number == 2 else 1_200
        service.append(path, *turn("messages", number, image("messages", width, 900)))
    text, _ = served(service, path, "messages")
    assert text.count(MARKS["messages"]) == 23
    assert "2,400 x 900 px" in text


def test_zero_is_no_limit_and_what_is_within_is_served_byte_for_byte(service: Service) -> None:
    path = service.conversation(policy={**ROOM, "max_context_images": 0, "max_context_document_pages": 0})
    sent = [message for number in range(30) for message in turn("messages", number, image("messages"), pdf_block(9))]
    for at in range(0, 60, 20):
        service.append(path, *sent[at : at + 20])
    assert service.client.get(f"{path}/context").json()["messages"] == sent


@pytest.mark.parametrize(
    "medium", [pdf_block(40), {"type": "document", "source": {"type": "file", "file_id": "file_9x"}}]
)
def test_media_of_the_first_message_leave_with_a_summary_and_can_be_had_back(
    service: Service, module_settings: Settings, medium: dict[str, Any]
) -> None:
    path = service.conversation(policy={"compaction_threshold_tokens": 3_000, "protected_tail_messages": 2})
    service.append(path, {"role": "user", "content": [medium, text_block("#What does it say of the bridge?")]})
    service.append(path, {"role": "assistant", "content": "It is closed."}, *chat(4, 200))
    work(module_settings, path)
    first = service.client.get(f"{path}/context").json()["messages"][0]["content"]
    assert [block["type"] for block in first] == ["text"] * len(first)
    assert first[0]["text"].endswith(": stored but not shown, recall m0.0]")
    assert first[1]["text"] == "#What does it say of the bridge?"
    passage = service.client.post(f"{path}/recall", json={"ref": "m0.0"}).json()["passages"][0]
    (part,) = passage["parts"]
    assert part["kind"] == "document"
    assert part["text"].startswith("document")
    assert part["text"].endswith("; beside it: #What does it say of the bridge?")


def test_images_are_recalled_by_their_names_and_with_the_nearest_words(service: Service) -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://files.example.com/boiler-77.png?sig=x"}}
    path = service.conversation()
    service.append(
        path, *chat(2, 50), {"role": "user", "content": [by_url]}, {"role": "assistant", "content": "#A pump."}
    )
    found = service.client.post(f"{path}/recall", json={"query": "picture of the boiler"}).json()["passages"]
    assert found[0]["last_seq"] >= 4
    (part,) = service.client.post(f"{path}/recall", json={"ref": "m4.0"}).json()["passages"][0]["parts"]
    assert part["text"] == (
        "image at https://files.example.com/boiler-77.png?sig=x (boiler 77 png); beside it: #A pump."
    )


def test_a_run_makes_texts_of_media_over_a_limit_for_good_and_says_so(
    service: Service, module_settings: Settings
) -> None:
    path = service.conversation(model="pixtral-12b", policy={**ROOM, "compaction_threshold_tokens": 50})
    for number in range(11):
        service.append(path, *turn("messages", number, image("messages")))
    work(module_settings, path)
    (run,) = service.client.get(f"{path}/runs").json()["data"]
    step = service.client.get(f"/v1/runs/{run['id']}").json()["steps"][0]
    assert (step["name"], step["state"]) == ("media", "committed")
    assert "the context had 11 images" in step["detail"]
    text, _ = served(service, path, "messages")
    assert text.count(MARKS["messages"]) <= 8


def test_media_that_are_too_new_for_a_summary_leave_where_the_budget_asks_for_it(
    service: Service, module_settings: Settings
) -> None:
    path = service.conversation(model="claude-opus-4-6")
    for number in range(3):
        service.append(path, *turn("messages", number, pdf_block(60)))
    work(module_settings, path)
    text, body = served(service, path, "messages")
    assert text.count(DOCUMENTS["messages"]) == 1
    assert all(f"#photo {number}" in text for number in range(3))
    assert body["warnings"] == []
    runs = service.client.get(f"{path}/runs").json()["data"]
    steps = [step for run in runs for step in service.client.get(f"/v1/runs/{run['id']}").json()["steps"]]
    assert ("media", "committed") in {(step["name"], step["state"]) for step in steps}
