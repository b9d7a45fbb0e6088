"""Refusals of media: the oldest images give way, and every word stays."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.refusing.test_refusals import ask, heads, shared
from tests.support.blocks import png
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Asked, Says, Sends

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway.conftest import Room

__all__ = ["shared"]

COUNT: Final = 12
PICTURE: Final = re.compile(r"iVBORw0KGgo")
WORDINGS: Final = {
    "Anthropic": "Too much media: 0 document pages + 12 images > 6",
    "Meta": "request contains 12 images, exceeding the maximum of 6 allowed per request",
    "Azure": "Exceeded maximum number of images (6) allowed in the request.",
    "vLLM": "At most 6 image(s) may be provided in one prompt.",
    "Mistral": "Too many images in request. Max is 6.",
}


def picture(shape: str, number: int, side: int, size: int) -> list[dict[str, Any]]:
    data = png(side, 50, size)
    match shape:
        case "messages":
            block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
            return [block, {"type": "text", "text": f"#photo {number}."}]
        case "chat":
            url = {"url": f"data:image/png;base64,{data}"}
            return [{"type": "image_url", "image_url": url}, {"type": "text", "text": f"#photo {number}."}]
    return [
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
        {"type": "input_text", "text": f"#photo {number}."},
    ]


def shown(
    room: Room, shape: str, session: str, side: Callable[[int], int] = lambda n: 60 + n, size: int = 40
) -> Chatter:
    """Return a conversation with COUNT pictures that is stored."""
    chat = Chatter(room, shape, **{"x-session-id": session})
    room.providers.model = lambda _: Says("#seen")
    for number in range(COUNT):
        content = [*picture(shape, number, side(number), size)]
        chat.rows += [{"role": "user", "content": content}, *chat.answer(Says(f"#seen {number}."))]
    chat.rows.append({"role": "user", "content": f"{session} before"})
    chat.send(stream=False)
    room.eventually_stored(chat.name, len(chat.rows))
    return chat


def pictures(asked: Asked) -> int:
    return len(PICTURE.findall(json.dumps(asked.rows)))


def holds_every_word(asked: Asked) -> bool:
    text = json.dumps(asked.rows)
    return all(f"#photo {number}." in text and f"#seen {number}." in text for number in range(COUNT))


def refuses(text: str, is_refused: Callable[[Asked], bool], status: int = 400) -> Callable[[Asked], Says | Sends]:
    body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": text}}).encode()
    return lambda asked: Sends(status, "application/json", body) if is_refused(asked) else Says("#well")


@pytest.mark.parametrize("shape", list(PATHS))
@pytest.mark.parametrize("who", WORDINGS)
def test_images_over_a_count_give_way_the_oldest_first(room: Room, shape: str, who: str) -> None:
    chat = shown(room, shape, f"count {shape} {who}")
    room.providers.model = refuses(WORDINGS[who], lambda asked: pictures(asked) > 6)
    answer, asked = ask(chat, "go on")
    assert (answer.status_code, [pictures(each) > 6 for each in asked]) == (200, [True, False])
    assert pictures(asked[1]) > 0
    assert holds_every_word(asked[1])
    eventually(lambda: heads(room, chat.name) == [1, 1])
    again, asked_again = ask(chat, "go on")
    assert (again.status_code, len(asked_again)) == (200, 1)


def test_images_that_are_too_wide_give_way_alone(room: Room) -> None:
    chat = shown(room, "messages", "wide", side=lambda number: 2_400 if number == 2 else 100)
    text = "At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels"
    room.providers.model = refuses(text, lambda asked: pictures(asked) == COUNT)
    answer, asked = ask(chat, "go on")
    assert answer.status_code == 200
    assert pictures(asked[1]) == COUNT - 1
    assert holds_every_word(asked[1])


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (413, "Payload Too Large"),
        (400, "total message size 60000 exceeds limit 40000"),
        (500, "http: request body too large"),
    ],
)
def test_bytes_are_taken_from_images_before_words(room: Room, status: int, text: str) -> None:
    chat = shown(room, "chat", f"bytes {status}", size=6_000)
    room.providers.model = refuses(text, lambda asked: len(asked.raw) > 80_000, status)
    answer, asked = ask(chat, "go on")
    assert answer.status_code == 200
    assert 0 < pictures(asked[1]) < COUNT
    assert holds_every_word(asked[1])


def test_images_whose_size_nobody_knows_give_way_by_a_share(room: Room) -> None:
    chat = shown(room, "chat", "share")
    text = "messages.8.content.0.image.source.base64: image exceeds 5 MB maximum: 6150000 bytes > 5242880 bytes"
    room.providers.model = refuses(text, lambda asked: pictures(asked) > 8)
    answer, asked = ask(chat, "go on")
    assert answer.status_code == 200
    assert 0 < pictures(asked[1]) <= 8
    assert holds_every_word(asked[1])


def test_media_that_are_not_there_cannot_give_way(room: Room) -> None:
    chat = Chatter(room, "chat", **{"x-session-id": "no media"})
    room.providers.model = lambda _: Says("#well")
    chat.ask("no picture", stream=False)
    room.eventually_stored(chat.name, 2)
    room.providers.model = refuses("Too many images in request. Max is 8.", lambda _: True)
    answer, asked = ask(chat, "go on")
    assert (answer.status_code, len(asked)) == (400, 1)
    assert heads(room, chat.name) == [0]
