"""What the API counts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.running_api import Service

TURNS = "/v1/conversations/{conversation_id}/turns"
CONTEXT = "/v1/conversations/{conversation_id}/context"
HELLO = {"role": "user", "content": "Hello."}


def metrics(service: Service) -> dict[tuple[str, ...], float]:
    """Return every sample: its name and its labels' values."""
    with service.api.client() as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    families = text_string_to_metric_families(answer.text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_requests_are_counted_by_route_and_status(service: Service) -> None:
    path = service.conversation()
    before = metrics(service)
    service.append(path, HELLO)
    service.client.post(f"{path}/turns", json={})
    service.client.post(f"/v1/conversations/conv_{'0' * 32}/turns", json={"messages": [HELLO]})
    service.client.get(f"{path}/context")
    service.client.head(f"{path}/context")
    service.client.get("/nothing/like/this")
    service.client.delete(f"{path}/turns")

    def gained(*key: str) -> float:
        return metrics(service)[key] - before.get(key, 0)

    name, seconds = "palimpsest_http_requests_total", "palimpsest_http_request_duration_seconds_count"
    for status in ("201", "422", "404"):
        assert gained(name, "POST", TURNS, status) == 1
    assert gained(seconds, "POST", TURNS) == 3
    assert gained(name, "GET", CONTEXT, "200") == 1
    assert gained(name, "HEAD", CONTEXT, "200") == 1
    assert gained(name, "GET", "unmatched", "404") == 1
    assert gained(name, "DELETE", "unmatched", "405") == 1


def test_turns_and_wakeups_are_counted(service: Service) -> None:
    path = service.conversation()
    before = metrics(service)
    for _ in range(3):
        headers = {"idempotency-key": "k"}
        assert service.client.post(f"{path}/turns", json={"messages": [HELLO]}, headers=headers).status_code == 201
    service.append(path, HELLO)
    after = metrics(service)
    assert after["palimpsest_turns_total", "appended"] - before["palimpsest_turns_total", "appended"] == 2
    assert after["palimpsest_turns_total", "replayed"] - before["palimpsest_turns_total", "replayed"] == 2
    eventually(
        lambda: metrics(service)["palimpsest_wakeups_total", "sent"] > before["palimpsest_wakeups_total", "sent"]
    )


def test_no_label_names_a_conversation_a_tenant_or_a_path(service: Service) -> None:
    service.append(service.conversation(user_ref="somebody"), HELLO)
    labels = {value for _, *values in metrics(service) for value in values}
    assert not any(re.search(r"[0-9a-f]{32}|somebody|acme|like", value) for value in labels)
    assert "process_cpu_seconds_total" in {name for name, *_ in metrics(service)}
