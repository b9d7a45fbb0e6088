"""Bodies with more in them than is read pass unread, at once, and keep nobody waiting."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from actions.input.strict_json import WITHOUT_SETTINGS
from gateway.body_limits import MAX_ROWS, exceeds_limits
from tests.gateway.chatter import PATHS, Chatter
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.gateway.conftest import Room

LIMITS: Final = WITHOUT_SETTINGS.limits
KEYS: Final = b",".join(b'"%d":1' % number for number in range(LIMITS.object_keys + 1))
WAIT_SECONDS: Final = 4.0
"""Most that another request takes on a loaded machine while such a body is there; it was 7 to 36 s. The providers of
these tests read it with the same interpreter."""


def listed(row: bytes, count: int) -> bytes:
    return b"[" + b",".join([row] * count) + b"]"


@pytest.mark.parametrize(
    ("fits", "exceeds"),
    [
        (listed(b"{}", MAX_ROWS), listed(b"{}", MAX_ROWS + 1)),
        (listed(b"1", MAX_ROWS), listed(b"1", MAX_ROWS + 1)),
        (listed(listed(b"1", 100), 4_000), listed(listed(b"1", 100), 5_000)),
        (b"[" * 199 + b"]" * 199, b"[" * 200 + b"]" * 200),
        (b"{" + KEYS.rpartition(b",")[0] + b"}", b"{" + KEYS + b"}"),
        (json.dumps(["[{:,"] * 1_000 + ['\\"[{,', "\\", '"'] * 300).encode(), listed(b'"\\"",[]', 300_000)),
        (json.dumps(["a, b: [c] {d} " * 60_000]).encode(), b":" * 3_000_000),
    ],
)
def test_bodies_at_a_limit_and_over_it(fits: bytes, exceeds: bytes) -> None:
    assert not exceeds_limits(b'{"messages":' + fits + b"}", LIMITS)
    assert exceeds_limits(b'{"messages":' + exceeds + b"}", LIMITS)


@pytest.mark.parametrize("body", [b"", b"]]]]", b"[" * 100, b'"' * 3_000_001, b'"\\"' * 500_000, b"\\" * 1_000_000])
def test_what_is_no_json_is_counted_too(body: bytes) -> None:
    began = time.process_time()
    exceeds_limits(body, LIMITS)
    assert time.process_time() - began < WAIT_SECONDS


CROWDED: Final = {
    "rows": b'{"model":"m","%s":' + listed(b"{}", 500_000) + b"}",
    "numbers": b'{"model":"m","%s":' + listed(b"1", 1_000_000) + b"}",
    "metadata": b'{"model":"m","metadata":{"a":' + listed(b"1", 4_000_000) + b'},"%s":[]}',
    "keys": b'{"model":"m","metadata":{' + KEYS + b'},"%s":[{"role":"user","content":"x"}]}',
}


@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("name", CROWDED)
def test_a_crowded_body_passes_as_it_came(room: Room, shape: str, name: str) -> None:
    body = CROWDED[name].replace(b"%s", b"input" if shape == "responses" else b"messages")
    before = len(room.providers.asked)
    answer = room.client.post(PATHS[shape], content=body)
    assert answer.headers["x-palimpsest-outcome"] == "failed_open"
    assert [asked.raw for asked in room.providers.asked[before:]] == [body]


def test_crowded_bodies_keep_no_other_request_waiting(room: Room) -> None:
    chat = Chatter(room, "messages")
    chat.ask("before")
    bodies = [CROWDED[name].replace(b"%s", b"messages") for name in ("rows", "keys")]
    with ThreadPoolExecutor(2) as pool, room.gateway.client(room.tenant.key) as client:
        sent = [pool.submit(client.post, "/v1/messages", content=bodies[number % 2]) for number in range(6)]
        slowest = 0.0
        while not all(each.done() for each in sent):
            began = time.monotonic()
            assert room.client.get("/healthz").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        assert {each.result().headers["x-palimpsest-outcome"] for each in sent} == {"failed_open"}
    assert slowest < WAIT_SECONDS
    chat.ask("after")
    assert chat.outcome == "unchanged"


def test_guardrails_leave_crowded_bodies_as_they_are(room: Room) -> None:
    texts = {"input_type": "request", "texts": [0] * 2_000_000, "structured_messages": []}
    answer = room.client.post("/beta/litellm_basic_guardrail_api", content=json.dumps(texts).encode())
    assert (answer.json(), answer.headers["x-palimpsest-outcome"]) == ({"action": "NONE"}, "failed_open")


COUNTED: Final = {
    "/v1/messages": CROWDED["rows"].replace(b"%s", b"messages"),
    "/beta/litellm_basic_guardrail_api": b'{"input_type":"request","texts":' + listed(b"1", 2_000_000) + b"}",
}


@pytest.mark.parametrize("path", COUNTED)
def test_why_is_counted(room: Room, path: str) -> None:
    def over_limits() -> float:
        lines = room.client.get("/metrics").text.splitlines()
        name = 'palimpsest_gateway_failed_open_total{why="limits"}'
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    before = over_limits()
    assert room.client.post(path, content=COUNTED[path]).headers["x-palimpsest-outcome"] == "failed_open"
    eventually(lambda: over_limits() == before + 1)


def test_a_long_history_within_the_limits_is_read(room: Room) -> None:
    rows: list[Any] = [{"role": "assistant" if at % 2 else "user", "content": f"long {at}"} for at in range(3_000)]
    chat = Chatter(room, "messages")
    chat.rows = rows
    chat.ask("and now?")
    assert chat.outcome == "unchanged"
    assert len(room.providers.asked[-1].rows) == 3_001
