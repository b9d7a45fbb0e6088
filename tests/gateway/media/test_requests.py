"""Media through the gateway: no request has more than its model takes, and the client's history stays as it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.support.blocks import png

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room


@pytest.fixture(scope="module")
def shared(module_settings: Settings) -> Iterator[Room]:
    """A gateway with the default policy."""
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "acme")
    with room_on(module_settings, tenant) as room:
        yield room


def picture(shape: str, number: int) -> list[dict[str, Any]]:
    data = png(60 + number, 50, 40)
    match shape:
        case "messages":
            block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
            return [block, {"type": "text", "text": f"#photo {number}"}]
        case "chat":
            url = {"url": f"data:image/png;base64,{data}"}
            return [{"type": "image_url", "image_url": url}, {"type": "text", "text": f"#photo {number}"}]
    return [
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
        {"type": "input_text", "text": f"#photo {number}"},
    ]


@pytest.mark.parametrize("shape", list(PATHS))
def test_a_request_goes_on_with_the_newest_images_that_its_model_takes(shared: Room, shape: str) -> None:
    client = Chatter(shared, shape, **{"x-session-id": f"media-{shape}"})
    client.fields = {"model": "pixtral-12b"}
    for number in range(11):
        client.ask(picture(shape, number))
        rows = json.dumps(shared.providers.asked[-1].rows)
        assert rows.count("iVBORw0KGgo") == min(8, number + 1)
        assert client.outcome == ("compacted" if number >= 8 else "unchanged")
        assert f"#photo {number}" in rows
        assert "#photo 0" in rows
    assert "stored but not shown, recall m4.0]" in rows
    client.ask("And now?")
    assert json.dumps(shared.providers.asked[-1].rows).count("iVBORw0KGgo") == 8
