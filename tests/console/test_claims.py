"""The page of a summary's claims: its lines, and beside the one that was clicked the originals it rests on."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.console.test_pages import HOSTILE
from tests.console.test_summary import POLICY, WINDOW
from tests.support import talk
from tests.support.service.console_client import signed_in, text_of
from tests.support.service.in_process import Chat, Workers
from tests.support.service.running_api import conversation_at
from worker.summarizers.base import Answer, Spent
from worker.summarizers.staged import StagedSummarizer

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

ANSWER: Final = """## Facts
The carrier Kestrel Lines has contract KL-20417 [m2].
A warehouse <b>in Osaka</b> was rented for 48 months [m3]."""


class Model:
    name = "anthropic"
    model = "claude-haiku-4-5"
    context_tokens = WINDOW

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        assert system
        assert prompt
        assert max_tokens
        return Answer(ANSWER, "end_turn", Spent(1, 1_000, 100))


class Told(NamedTuple):
    """A conversation with a summary by that model, at version 1."""

    page: str


@pytest.fixture(scope="module")
def told(service: Service) -> Told:
    path = service.conversation(policy=POLICY)
    identifier = conversation_at(path)
    hostile = HOSTILE.replace("\ud7ff", "")
    said = talk.request(f"Our carrier, Kestrel Lines, signed contract KL-20417 today. {hostile}")
    service.append(path, talk.request("Help with freight."), talk.answer("Gladly."), said, talk.answer("Noted."))
    service.append(path, *talk.exchanges(10, 220))
    with Chat(service.settings, service.tenant_id) as chat:
        Workers(chat, StagedSummarizer(Model())).settle(identifier)
    return Told(f"/console/conversations/{path.rpartition('/')[2]}")


def test_a_click_on_a_line_shows_its_originals_with_what_bears_it_out_marked(service: Service, told: Told) -> None:
    with signed_in(service, {"audit:read"}) as client:
        assert f'href="{told.page}/snapshots/1/claims"' in client.get(f"{told.page}/snapshots").text
        whole = client.get(f"{told.page}/snapshots/1/claims").text
        href = re.search(r'href="([^"]+)"[^>]*>The carrier Kestrel Lines has contract', whole)
        assert href is not None
        chosen = client.get(html.unescape(href[1]).partition("#")[0]).text
    assert "No line is chosen" in whole
    assert "m2" in text_of(whole)
    originals = chosen.partition('id="originals"')[2]
    assert "Message 2" in text_of(originals)
    marks = [html.unescape(mark) for mark in re.findall(r"<mark>(.*?)</mark>", originals)]
    assert any("KL-20417" in mark for mark in marks)
    assert any("Kestrel Lines" in mark for mark in marks)
    assert not any("Our" in mark.split() for mark in marks)
    for hostile in ("<script>alert", "<img src=x"):
        assert hostile not in chosen


def test_an_unsupported_line_stands_out(service: Service, told: Told) -> None:
    with signed_in(service) as client:
        whole = client.get(f"{told.page}/snapshots/1/claims").text
        line = re.search(r'<li id="line-(\d+)" class="claim claim-unsupported[^"]*">(.*?)</li>', whole, re.DOTALL)
        assert line is not None
        chosen = client.get(f"{told.page}/snapshots/1/claims", params={"line": line[1]}).text
    assert "Osaka" in line[2]
    assert ">unsupported<" in line[2]
    assert "<b>in Osaka" not in whole
    assert "bears this line out" in text_of(chosen)
    assert "<mark>" not in chosen


def test_what_is_not_there_is_not_found(service: Service, told: Told) -> None:
    with signed_in(service) as client:
        assert client.get(f"{told.page}/snapshots/9/claims").status_code == 404
        assert client.get(f"{told.page}/snapshots/1/claims", params={"line": 99}).status_code == 404
        assert client.get("/console/conversations/conv_0/snapshots/1/claims").status_code == 404
