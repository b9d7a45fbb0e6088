"""The button of an empty installation: the demo's conversation is played once, by admins, and becomes real data."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from api.demo.player import EXTERNAL_ID
from api.demo.story import job_search
from tests.console_client import key_of, query, sign_in, signed_in, text_of
from tests.eventually import eventually
from tests.in_process_worker import work

if TYPE_CHECKING:
    from tests.running_api import Service

BUTTON = "Play the demo conversation"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches here."""
    monkeypatch.setattr("api.demo.player.PACE_SECONDS", 0)


def stored(service: Service, identifier: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    after: int | None = None
    while True:
        parameters = {"limit": 100} | ({} if after is None else {"after": after})
        page = service.client.get(f"/v1/conversations/{identifier}/messages", params=parameters).json()
        found += [(each["role"], each["content"]) for each in page["data"]]
        if not page["has_more"]:
            return found
        after = page["last_id"]


def test_the_demo_is_played_once_and_compacted_like_anything_else(service: Service) -> None:
    told = [(each["role"], each["content"]) for turn in job_search().turns for each in turn.messages]
    with sign_in(service, key_of(service.client)) as client:
        for path in ("/console", "/console/conversations"):
            assert BUTTON in client.get(path).text
        done = client.post("/console/demo")
        assert done.status_code == 303
        page = done.headers["location"]
        (identifier,) = re.findall(r"conv_[0-9a-f]{32}", page)
        again = client.post("/console/demo")
        assert again.headers["location"] == page
        eventually(lambda: len(stored(service, identifier)) == len(told), 60)
        assert stored(service, identifier) == told
        work(service.settings, f"/v1/conversations/{identifier}")
        shown = text_of(client.get(page).text)
        assert EXTERNAL_ID in shown
        assert f"tokens in {len(told)} messages" in shown
        assert "v1" in shown
        assert BUTTON not in client.get("/console").text
    actions = query(service, "select action, outcome from operator_actions where action = 'demo'")
    assert actions == [("demo", "done")]


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
