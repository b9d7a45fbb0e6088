"""With the database away, silent or slow, requests go through as they came, and what was missed is caught up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr
from sqlalchemy import make_url

from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.support.servers.tcp_gate import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room
    from tests.support.servers.tcp_gate import Gate

SHAPES = tuple(PATHS)
PATIENCE = 0.5


@pytest.fixture(scope="module")
def gated(module_settings: Settings) -> Iterator[tuple[Room, Gate]]:
    """A gateway whose way to the database, and to Redis, can be shut."""
    url = make_url(module_settings.database_url.get_secret_value())
    tenant = make_tenant(url.render_as_string(hide_password=False), "acme")
    with gate(url.port or 5432) as way:
        behind = SecretStr(url.set(port=way.port).render_as_string(hide_password=False))
        nowhere = SecretStr("redis://127.0.0.1:1/0")
        settings = module_settings.model_copy(update={"database_url": behind, "broker_url": nowhere})
        with room_on(settings, tenant, gateway_patience_seconds=PATIENCE) as room:
            yield room._replace(settings=module_settings), way


@pytest.mark.parametrize("how", ["shut", "silence"])
def test_requests_go_through_and_are_caught_up(gated: tuple[Room, Gate], how: str) -> None:
    room, way = gated
    chats = [Chatter(room, shape, **{"x-session-id": f"{how} {shape}"}) for shape in SHAPES]
    for chat in chats:
        chat.ask(f"{how} before")
        assert chat.outcome == "unchanged"
        room.eventually_stored(chat.name, 2)
    names = [chat.name for chat in chats]
    try:
        getattr(way, how)()
        for chat in chats:
            sent = [*chat.rows, {"role": "user", "content": f"{how} meanwhile"}]
            chat.ask(f"{how} meanwhile")
            assert chat.outcome == "failed_open"
            assert room.providers.asked[-1].rows == sent
        assert room.client.get("/healthz").status_code == 200
    finally:
        way.open()
    room.eventually_back()
    for chat, name in zip(chats, names, strict=True):
        chat.ask(f"{how} after")
        assert (chat.outcome, chat.name) == ("unchanged", name)
        stored = room.eventually_stored(name, 6)
        assert f"{how} meanwhile" in json.dumps([row["content"] for row in stored])


def test_key_that_nobody_knows_yet(gated: tuple[Room, Gate]) -> None:
    room, way = gated
    other = make_tenant(room.settings.database_url.get_secret_value(), "late")
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "late"}]}
    try:
        way.shut()
        with room.gateway.client(other.key) as client:
            answer = client.post("/v1/messages", json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            own = {"x-api-key": "sk-of-the-client", "authorization": "", "x-palimpsest-key": other.key}
            answer = client.post("/v1/messages", json=body, headers=own)
            assert answer.status_code == 200
            assert answer.headers["x-palimpsest-outcome"] == "failed_open"
            assert room.providers.asked[-1].headers["x-api-key"] == "sk-of-the-client"
    finally:
        way.open()
