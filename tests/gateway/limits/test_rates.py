"""Rate limits at every door of the gateway: one tenant's are used up, and another's are not touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import make_tenants
from tests.fuzz.gateway_doors import BODIES, GUARDRAIL
from tests.gateway.conftest import room_on

if TYPE_CHECKING:
    from runtime.settings import Settings

RELAYED: Final = "/v1/messages/count_tokens"
DOORS: Final = (*sorted(BODIES), RELAYED)


@pytest.mark.parametrize("path", DOORS)
def test_every_door_counts(module_settings: Settings, path: str) -> None:
    url = module_settings.database_url.get_secret_value()
    attacker, victim = make_tenants(url, f"attacker {path}", f"victim {path}")
    body = BODIES.get(path, BODIES["/v1/messages"])[0]
    with room_on(module_settings, attacker, rate_limit_tenant="3/minute") as room:
        statuses = [room.client.post(path, json=body).status_code for _ in range(6)]
        asked = len(room.providers.asked)
        with room.gateway.client(victim.key) as other:
            assert other.post(path, json=body).status_code not in {429, 503}
    refused = 503 if path == GUARDRAIL else 429  # LiteLLM goes on without a guardrail after a 503
    assert statuses[3:] == [refused] * 3
    assert refused not in statuses[:3]
    assert asked <= 3
