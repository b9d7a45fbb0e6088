"""Large bodies: neither reading one nor making a payload of it is work for the thread that answers everybody."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from tests.support.service.running_api import Service

PAGE: Final = {"source": "page", "text": "<h2>Head</h2><p>Some text and <b>more</b></p>" * 15_000}
CASES: Final[dict[str, tuple[str, dict[str, Any], int, str]]] = {
    "a payload is assembled": ("context", {"turn_context": [PAGE]}, 200, "compaction.text.outline"),
    "another body is read": (
        "fork",
        {"through_seq": 0, "more": [{"a": 1}] * 100_000},
        422,
        "actions.input.strict_json",
    ),
}


def modules(frame: FrameType | None) -> Iterator[str]:
    """Yield the modules of a stack."""
    while frame is not None:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back


@pytest.mark.parametrize("name", CASES)
def test_the_loop_is_left_free_while(service: Service, name: str) -> None:
    call, body, status, at_work = CASES[name]
    url, content = f"{service.conversation()}/{call}", json.dumps(body)
    seen = set()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(service.client.post, url, content=content, headers={"content-type": "application/json"})
        while not sent.done():
            for thread, frame in sys._current_frames().items():
                if at_work in modules(frame):
                    seen.add(thread == service.api.thread.ident)
    assert sent.result().status_code == status
    assert seen == {False}
