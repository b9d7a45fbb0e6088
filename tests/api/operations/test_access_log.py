"""The access log: one line for each request, without what was asked or said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import structlog
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from runtime.http.access_log import AccessLog
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.service.running_api import Service

CANARY = "zqxjkv"


def requests_logged(call: Callable[[], object]) -> list[dict[str, Any]]:
    with capture_logs([merge_contextvars]) as logs:
        call()
    return [dict(each) for each in logs if each["event"] == "request.answered"]


def test_a_turn_is_logged_with_its_route_tenant_and_request_id(service: Service) -> None:
    path = service.conversation()
    body = {"messages": [{"role": "user", "content": CANARY}]}
    answers = []
    (line,) = requests_logged(lambda: answers.append(service.client.post(f"{path}/turns", json=body)))
    (answer,) = answers
    route = "/v1/conversations/{conversation_id}/turns"
    assert (line["method"], line["route"], line["status"]) == ("POST", route, 201)
    assert line["request_id"] == answer.headers["request-id"]
    assert line["tenant_id"] == str(service.tenant_id)
    assert line["ms"] > 0
    assert CANARY not in str(line)


def test_neither_queries_nor_names_in_paths_are_logged(service: Service) -> None:
    lines = requests_logged(
        lambda: (
            service.client.get(f"/v1/conversations?user_ref={CANARY}"),
            service.client.get(f"/v1/conversations/{CANARY}"),
            service.client.get(f"/{CANARY}?{CANARY}"),
        )
    )
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/v1/conversations", 200),
        ("/v1/conversations/{conversation_id}", 404),
        ("unmatched", 404),
    ]
    assert CANARY not in str(lines)


def test_a_request_without_a_key_has_no_tenant(service: Service) -> None:
    (line,) = requests_logged(lambda: service.client.get("/v1/tenant", headers={"authorization": "Bearer no"}))
    assert (line["status"], line["tenant_id"]) == (401, None)


@pytest.mark.parametrize("probe", ["/healthz", "/readyz", "/metrics"])
def test_probes_are_not_logged(service: Service, probe: str) -> None:
    assert requests_logged(lambda: service.client.get(probe)) == []


def test_it_can_be_turned_off(service: Service) -> None:
    with running_api(service.settings.model_copy(update={"access_log": False})) as api:
        assert requests_logged(lambda: httpx2.get(f"{api.url}/v1/tenant")) == []
    assert len(requests_logged(lambda: service.client.get("/v1/tenant"))) == 1


def test_a_log_that_takes_nothing_fails_no_request(tmp_path: Path) -> None:
    before = structlog.get_config()
    file = (tmp_path / "log").open("w")
    file.close()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file), cache_logger_on_first_use=False)
    try:
        AccessLog(is_on=True).add("GET", "/v1/conversations", 200, 0.01, None)
    finally:
        structlog.configure(**before)
