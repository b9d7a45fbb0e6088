"""Whatever id is shown anywhere, in a page, an answer, a table or a log line, leads to what it stands for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest

from store.console.find import wanted
from tests.support import talk
from tests.support.service.console_client import key_of, query, sign_in, signed_in, text_of
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.support.service.running_api import Service

POLICY = {"compaction_threshold_tokens": 1_000, "min_savings_tokens": 50, "protected_tail_messages": 2}


class Known(NamedTuple):
    """Ids as the API gave them; `request` is the one that led to the run."""

    conversation: str
    run: str
    request: str
    erased: str
    erasure_request: str


@pytest.fixture(scope="module")
def known(service: Service) -> Known:
    path = service.conversation(policy=POLICY, external_id="found <b>")
    done = service.client.post(f"{path}/turns", json={"messages": talk.exchanges(12, 100)})
    work(service.settings, path)
    run = service.client.get(f"{path}/runs").json()["data"][0]
    assert run["request_id"] == done.headers["request-id"]
    erased = service.conversation()
    gone = service.client.delete(erased)
    return Known(
        path.rpartition("/")[2], run["id"], run["request_id"], erased.rpartition("/")[2], gone.headers["request-id"]
    )


@pytest.fixture
def client(service: Service) -> Iterator[httpx2.Client]:
    with signed_in(service) as found:
        yield found


def led_to(client: httpx2.Client, words: str, path: str = "/console/find") -> str:
    answer = client.get(path, params={"q": words})
    assert answer.status_code == 303, text_of(answer.text)
    return answer.headers["location"]


def spellings(identifier: str) -> list[str]:
    """Return every way in which an id is written: whole, as lists shorten it, as logs have it."""
    prefix, digits = identifier.split("_")
    return [
        identifier,
        identifier.upper(),
        f" {identifier}\n",
        f'"{identifier}"',
        f"{prefix}_…{digits[-8:]}",
        f"…{digits[-8:]}",
        digits,
        digits[-8:],
        str(UUID(digits)),
        f"{prefix}_{UUID(digits)}",
    ]


def test_a_conversation_and_a_run_are_found_however_their_id_is_written(client: httpx2.Client, known: Known) -> None:
    for words in spellings(known.run):
        assert led_to(client, words) == f"/console/runs/{known.run}", words
    for words in spellings(known.conversation):
        assert led_to(client, words) == f"/console/conversations/{known.conversation}", words
    assert led_to(client, known.run, "/console/conversations") == f"/console/runs/{known.run}"


def test_a_request_leads_to_what_it_did(client: httpx2.Client, known: Known) -> None:
    for words in spellings(known.request):
        assert led_to(client, words) == f"/console/runs/{known.run}", words
    response = client.get("/console/find", params={"q": known.erasure_request})
    assert "erasure" in text_of(response.text)
    assert known.erasure_request in response.text
    assert "erasure" in text_of(client.get("/console/find", params={"q": known.erased}).text)


def test_every_id_that_a_page_shows_is_found(service: Service, known: Known) -> None:
    with signed_in(service) as client:
        conversation = f"/console/conversations/{known.conversation}"
        assert client.post(f"{conversation}/compact", data={"strategy": "drop"}).status_code == 303
        pages = ("/console/operators", "/console/keys", conversation, f"/console/runs/{known.run}", "/console/runs")
        names = set()
        for path in pages:
            names |= set(re.findall(r"\b[a-z]{3,4}_(?:[0-9a-f]{32}|…[0-9a-f]{8})", text_of(client.get(path).text)))
        # The last line of a page is the request's that answered it: it has done nothing that is kept.
        own = {each for each in names if each.startswith("req_") and "…" not in each}
        assert {each.partition("_")[0] for each in names - own} == {"conv", "run", "key", "req"}
        for each in names - own:
            answer = client.get("/console/find", params={"q": each})
            location = answer.headers.get("location", "")
            assert answer.status_code == 200 or not location.startswith("/console/conversations?"), each


def test_an_action_and_a_key_are_first_in_their_list(service: Service) -> None:
    with signed_in(service) as client:
        ((action, key),) = query(service, "select id, key_id from operator_actions order by id desc limit 1")
        location = led_to(client, f"act_{action.hex}")
        assert location.endswith(f"#act_{action.hex}")
        rows = re.findall(r'<tr id="(act_[0-9a-f]{32})"', client.get(location).text)
        assert rows[0] == f"act_{action.hex}"
        location = led_to(client, key.hex)
        assert re.findall(r'<tr id="(key_[0-9a-f]{32})"', client.get(location).text)[0] == f"key_{key.hex}"
    with signed_in(service, {"audit:read"}) as reader:
        told = reader.get("/console/find", params={"q": f"key_{key.hex}"})
        assert told.status_code == 200
        assert "admin" in told.text


def test_what_is_no_id_or_nobodys_is_looked_for_among_names(
    service: Service, client: httpx2.Client, known: Known
) -> None:
    for words in (
        "found",
        "",
        "deadbeef",
        "run_deadbeef",
        f"run_{uuid4().hex}",
        "xyz_" + "0" * 32,
        "日本",
    ):
        location = urlsplit(led_to(client, words))
        assert location.path == "/console/conversations"
        assert parse_qs(location.query).get("q", [""]) == [words]
        assert client.get(location.geturl()).status_code == 200
    for words in ("\0", "x" * 513):
        assert client.get("/console/find", params={"q": words}).status_code == 422
    with sign_in(service, key_of(service.stranger)) as stranger:
        for words in (known.run, known.conversation, known.request, known.run[-8:], known.erased):
            assert led_to(stranger, words).startswith("/console/conversations?")


@pytest.mark.parametrize("words", ["", "a", "1234567", "g" * 32, "0" * 33, "-" * 20, "run_", "x_" + "0" * 32, "٣" * 32])
def test_words_that_are_no_id(words: str) -> None:
    assert wanted(words) is None


def test_a_reason_is_a_choice_and_a_link(service: Service, client: httpx2.Client, known: Known) -> None:
    path = service.conversation()
    service.append(path, *talk.exchanges(3, 20))
    asked = service.client.post(f"{path}/compactions", json={"strategy": "tool_results"}).json()["run_id"]
    work(service.settings, path)
    run = service.client.get(f"/v1/runs/{asked}").json()
    assert (run["state"], run["reason"]) == ("skipped", "nothing_to_cut")
    link = 'href="/console/runs?reason=nothing_to_cut"'
    for page in (f"/console/runs/{asked}", "/console/runs", f"/console{path.removeprefix('/v1')}"):
        assert link in client.get(page).text, page
    listed = client.get("/console/runs", params={"reason": "nothing_to_cut"}).text
    assert '<option value="nothing_to_cut" selected>nothing to cut</option>' in listed
    assert asked in listed
    assert known.run not in listed
    # A step's reason finds its run too, also where the run has another one.
    query(service, "update runs set reason = 'not_smaller' where id = %s returning 1", UUID(asked[4:]))
    assert asked in client.get("/console/runs", params={"reason": "nothing_to_cut"}).text
    own = client.get("/console/runs", params={"reason": "of-a-plugin <b>"}).text
    assert '<option value="of-a-plugin &lt;b&gt;" selected>' in own
