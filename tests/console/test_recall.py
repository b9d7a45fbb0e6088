"""Searching a conversation's originals in the console: what is found, where it is marked, and what is written down."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import pytest

from tests.console.test_pages import HOSTILE, show
from tests.support.service.console_client import CSP, links, signed_in, text_of
from tests.support.service.in_process import SMALL
from tests.support.service.in_process_worker import work
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.support.service.running_api import Service

SECRET = "The garage opens with 4711-B."
_MARK = re.compile(r'<a class="found" href="([^"]+)"><rect x="([\d.]+)" y="\d+" width="([\d.]+)"')


@pytest.fixture
def client(service: Service) -> Iterator[httpx2.Client]:
    with signed_in(service, ["audit:read"]) as found:
        yield found


@pytest.fixture
def path(service: Service) -> str:
    """A conversation whose beginning has left the context, and which would break a page that shows it as it came."""
    conversation = service.conversation(policy=SMALL | {"compaction_enabled": False, "max_conversation_messages": 10})
    service.append(
        conversation, {"role": "user", "content": SECRET}, {"role": "assistant", "content": f"Noted. {HOSTILE}"}
    )
    service.append(conversation, *exchanges(30, 100))
    work(service.settings, conversation)
    return conversation


def page_of(path: str) -> str:
    return f"/console{path.removeprefix('/v1')}"


def test_what_left_the_context_is_found_marked_and_led_to(service: Service, client: httpx2.Client, path: str) -> None:
    overview = show(client, page_of(path))
    assert f'action="{page_of(path)}/recall"' in overview
    assert 'class="found"' not in overview
    page = show(client, f"{page_of(path)}/recall", q="how does the garage open?")
    assert SECRET in text_of(page)
    assert "not in the context" in page
    marks = _MARK.findall(page)
    assert marks[0][0] == f"{page_of(path)}/messages/0"
    assert len(marks) == len(re.findall(r'<h2 id="m', page))
    assert all(float(width) > 0 for _, _, width in marks)
    last = re.findall(r'data-x="([\d.]+)" data-seq="(\d+)"', page)[-1]
    newest = _MARK.findall(show(client, f"{page_of(path)}/recall", q=f"m{last[1]}"))
    (x, width) = map(float, newest[0][1:])
    assert x < float(last[0]) < x + width
    assert SECRET in text_of(show(client, f"{page_of(path)}/messages/0"))
    for link in {link for link in links(page) if "/messages/" in link}:
        show(client, link)


@pytest.mark.parametrize("words", ["garage", "m0", "m0-m1", r"/\d{4}-[A-Z]/", " [m0] "])
def test_by_words_by_place_and_by_pattern(client: httpx2.Client, path: str, words: str) -> None:
    page = show(client, f"{page_of(path)}/recall", q=words)
    assert SECRET in text_of(page)
    assert f'value="{html.escape(words.strip())}"' in page


@pytest.mark.parametrize("words", ["/(/", "m0-m9999999", "m999", "x\x01y"])
def test_what_cannot_be_looked_for_is_said(client: httpx2.Client, path: str, words: str) -> None:
    answer = client.get(f"{page_of(path)}/recall", params={"q": words})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert 'aria-describedby="refused"' in answer.text


def test_nothing_of_it_is_run(client: httpx2.Client, path: str) -> None:
    for words in (HOSTILE, "noted", "m1"):
        answer = client.get(f"{page_of(path)}/recall", params={"q": words[:500]})
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == CSP
        for hostile in ("<script>alert", "<img src=x", "onerror=alert(1)>", "</textarea>{{", "49</pre>", " style="):
            assert hostile not in answer.text


def test_it_is_written_down_as_the_consoles_and_no_regret(service: Service, client: httpx2.Client, path: str) -> None:
    show(client, f"{page_of(path)}/recall", q="garage")
    show(client, f"{page_of(path)}/recall")
    listed = service.client.get(f"{path}/recalls").json()
    assert [(each["asked"], each["origin"]) for each in listed["data"]] == [("garage", "console")]
    assert listed["wanted"] == listed["regret"] == []


def test_another_tenants_is_not_found(service: Service, path: str) -> None:
    with signed_in(service) as ours:
        for unknown in (path[:-4] + "0000", "/v1/conversations/nothing"):
            assert ours.get(f"{page_of(unknown)}/recall", params={"q": "garage"}).status_code == 404
