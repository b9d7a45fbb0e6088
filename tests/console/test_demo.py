"""The button of an empty installation: the demo's conversation is played once, by admins, and becomes real data."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from api.console.demo.player import EXTERNAL_ID
from api.console.demo.story import job_search
from tests.support.eventually import eventually
from tests.support.processes import Product, product
from tests.support.service.console_client import key_of, query, sign_in, sign_in_to, signed_in, text_of
from tests.support.service.in_process_worker import work
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.service.running_api import Service

__all__ = ["product"]

BUTTON = "Play the demo conversation"
GO_ON = "Play the rest"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches here."""
    monkeypatch.setattr("api.console.demo.player.PACE_SECONDS", 0)


def story() -> list[tuple[str, Any]]:
    return [(each["role"], each["content"]) for turn in job_search().turns for each in turn.messages]


def stored(client: httpx2.Client, identifier: str) -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    after: int | None = None
    while True:
        parameters = {"limit": 100} | ({} if after is None else {"after": after})
        page = client.get(f"/v1/conversations/{identifier}/messages", params=parameters).json()
        items += [(each["role"], each["content"]) for each in page["data"]]
        if not page["has_more"]:
            return items
        after = page["last_id"]


def test_the_demo_is_played_once_and_compacted_like_anything_else(service: Service) -> None:
    told = story()
    with sign_in(service, key_of(service.client)) as client:
        for path in ("/console", "/console/conversations"):
            assert BUTTON in client.get(path).text
        done = client.post("/console/demo")
        assert done.status_code == 303
        page = done.headers["location"]
        (identifier,) = re.findall(r"conv_[0-9a-f]{32}", page)
        again = client.post("/console/demo")
        assert again.headers["location"] == page
        eventually(lambda: len(stored(service.client, identifier)) == len(told), 60)
        assert stored(service.client, identifier) == told
        work(service.settings, f"/v1/conversations/{identifier}")
        response = text_of(client.get(page).text)
        assert EXTERNAL_ID in response
        assert f"tokens in {len(told)} messages" in response
        assert "v1" in response
        assert BUTTON not in client.get("/console").text
    actions = query(service, "select action, outcome from operator_actions where action = 'demo'")
    assert actions == [("demo", "done")]


@pytest.mark.slow
def test_what_a_killed_process_left_is_played_to_the_end_by_another(
    product: Product, tenant: Tenant, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = story()
    with product.api() as api, api.client(tenant.key) as client, sign_in_to(api.url, tenant.key) as console:
        page = console.post("/console/demo").headers["location"].partition("?")[0]
        identifier = page.rpartition("/")[2]
        eventually(lambda: len(stored(client, identifier)) > 10, 60)
        response = console.get(page).text
        assert "is being played here" in response
        assert GO_ON not in response
        api.kill()
    settings = make_settings(broker_url=product.env["PALIMPSEST_BROKER_URL"])
    with running_api(settings) as one, running_api(settings) as other, one.client(tenant.key) as client:
        left = stored(client, identifier)
        assert 10 < len(left) < len(told)
        assert left == told[: len(left)]
        with sign_in_to(one.url, tenant.key) as console, sign_in_to(other.url, tenant.key) as elsewhere:
            # So soon after the last message any process may be the one that plays.
            monkeypatch.setattr("api.console.demo.player.QUIET_SECONDS", 3600)
            assert GO_ON not in console.get(page).text
            console.post("/console/demo")
            assert stored(client, identifier) == left
            monkeypatch.setattr("api.console.demo.player.QUIET_SECONDS", 0)
            assert GO_ON in console.get(page).text
            for each in (console, elsewhere, console, elsewhere):
                assert each.post("/console/demo").headers["location"].startswith(page)
            eventually(lambda: len(stored(client, identifier)) == len(told), 60)
            eventually(lambda: "is being played here" not in console.get(page).text + elsewhere.get(page).text)
            assert GO_ON not in console.get(page).text
            console.post("/console/demo")
            actions = text_of(console.get("/console/operators").text)
            assert "demo continued" in actions
        assert stored(client, identifier) == told


def test_the_demo_does_not_go_on_where_somebody_else_wrote(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.console.demo.player.QUIET_SECONDS", 0)
    first, second, *_ = job_search().turns
    mine = [{"role": each["role"], "content": "Mine."} for each in second.messages]
    body = service.stranger.post("/v1/conversations", json={"external_id": EXTERNAL_ID}).json()
    path = f"/v1/conversations/{body['id']}"
    page = f"/console/conversations/{body['id']}"
    with sign_in(service, key_of(service.stranger)) as client:
        for messages, goes_on in ((list(first.messages), True), (mine, False)):
            service.stranger.post(f"{path}/turns", json={"messages": messages})
            assert (GO_ON in client.get(page).text) == goes_on
        client.post("/console/demo")
    assert len(stored(service.stranger, body["id"])) == len(first.messages) + len(mine)
    service.stranger.delete(path)


def test_the_demo_is_not_played_into_data_of_others(service: Service) -> None:
    service.stranger.post("/v1/conversations", json={})
    with sign_in(service, key_of(service.stranger)) as client:
        refused = client.post("/console/demo")
        assert refused.status_code == 409
        assert "has no conversations yet" in text_of(refused.text)
        listed = service.stranger.get("/v1/conversations").json()["data"]
        assert [each.get("external_id") for each in listed] == [None]


def test_only_admins_play_it(service: Service) -> None:
    with signed_in(service, {"audit:read"}) as client:
        assert client.post("/console/demo").status_code == 403
        assert client.post("/console/demo", headers={"sec-fetch-site": "cross-site"}).status_code == 403
        assert BUTTON not in client.get("/console").text


def test_the_story_survives_json() -> None:
    story = job_search()
    assert json.loads(json.dumps(story.turns)) == [[each.label, list(each.messages)] for each in story.turns]
