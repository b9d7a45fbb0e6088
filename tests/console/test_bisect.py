"""The console's answer to "was it compaction?": the step that lost a text, and the rules that no step may lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.console.test_pages import HOSTILE, show
from tests.support.service.console_client import links, signed_in, text_of
from tests.support.service.in_process import SMALL
from tests.support.service.in_process_worker import work
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.support.service.running_api import Service

SECRET = "The garage opens with 4711-B."
RULE = "From now on, never open the garage at night."


@pytest.fixture
def client(service: Service) -> Iterator[httpx2.Client]:
    with signed_in(service, ["audit:read"]) as found:
        yield found


def test_the_step_that_lost_a_text_is_a_click_away(service: Service, client: httpx2.Client) -> None:
    path = service.conversation(policy=SMALL | {"compaction_enabled": False, "max_conversation_messages": 10})
    settled = {"role": "assistant", "content": f"Noted. {HOSTILE}"}
    service.append(path, {"role": "user", "content": f"Hello {HOSTILE}"}, settled)
    service.append(path, {"role": "user", "content": f"{SECRET} {RULE}"}, settled)
    service.append(path, *exchanges(30, 100))
    work(service.settings, path)
    address = f"/console{path.removeprefix('/v1')}/bisect"
    page = show(client, f"{address}?q=4711-B")
    loss = service.client.post(f"{path}/bisect", json={"text": "4711-B"}).json()["loss"]
    assert f"Lost in version {loss['version']}" in text_of(page)
    assert "m2 was dropped" in text_of(page)
    assert f"/console/runs/{loss['run_id']}" in links(page)
    assert any(link.endswith(f"/diff?from={loss['parent_version']}&to={loss['version']}") for link in links(page))
    assert RULE in text_of(page)
    assert "Never lost" in text_of(show(client, f"{address}?q=never+open+the+garage"))
    assert "Never said" in text_of(show(client, f"{address}?q=zebra"))
    plain = show(client, address)
    assert RULE in text_of(plain)
    assert HOSTILE not in show(client, f"{address}?q={HOSTILE.replace('#', '%23').replace('&', '%26')}")
