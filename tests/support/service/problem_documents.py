"""What every error answer has to look like (RFC 9457)."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")


def problem(response: httpx2.Response, status: int, code: str, pointer: str | None = None) -> dict[str, Any]:
    """Return the problem document of a response, which has to be whole."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"].endswith(f"#{code.replace('_', '-')}")
    assert document["title"] == HTTPStatus(status).phrase
    assert document["status"] == status
    assert document["detail"]
    assert document["code"] == code
    assert REQUEST_ID.fullmatch(document["request_id"])
    assert response.headers.get_list("request-id") == [document["request_id"]]
    assert document.get("pointer") == pointer, document
    return document
