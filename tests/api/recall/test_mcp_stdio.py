"""`palimpsest mcp` with lines on its stdin that no client of MCP writes: each is answered or ignored."""

from __future__ import annotations

import json
import subprocess
import sys
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, Final

import pytest

from tests.support.mcp_clients import TIMEOUT

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

SECRET: Final = "The garage opens with 4711-B."
HELLO: Final[dict[str, Any]] = {
    "jsonrpc": "2.0",
    "id": "hello",
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}
READY: Final = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(identifier: Any, method: str = "tools/call", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identifier, "method": method, "params": params}


ODD: Final[tuple[bytes, ...]] = (
    b"",
    b"no JSON",
    b"{",
    b"[]",
    b"null",
    b"7",
    b'"text"',
    b"\xff\xfe\x00",
    b"[" * 100_000 + b"]" * 100_000,
    b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":"\\ud83d","method":"ping"}',
    b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}',
    b'{"jsonrpc":"2.0","id":5,"result":{}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"hello"}}',
    *(
        json.dumps(each).encode()
        for each in (
            call(1, "tools/none"),
            call(2, name="none", arguments={}),
            call(3, name="recall", arguments=["query"]),
            call(4, name="recall", arguments={"query": 5}),
            call(5, name="recall", arguments={"ref": "m0", "conversation": "conv_0"}),
            call(6, name="recall", arguments={"query": "w" * 4_000_000}),
            call(7, name="recall", arguments={"pattern": "(a+)+$" * 50}),
            call(8, "resources/read", uri="file:///etc/passwd"),
            call(9, "resources/read", uri="palimpsest://conv_0/m0"),
            call(10, "resources/list", cursor="-1"),
            call(11, "prompts/list"),
        )
    ),
)


def talk(
    service: Service, conversation: str, lines: list[bytes], *awaited: str
) -> tuple[list[dict[str, Any]], str, int]:
    """Write lines to the command; return its answers until those `awaited` have come, its stderr and its exit code."""
    key = service.client.headers["authorization"].removeprefix("Bearer ")
    environment = {"PALIMPSEST_URL": service.api.url, "PALIMPSEST_KEY": key}
    command = [sys.executable, "-m", "cli.main", "mcp", conversation]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        Thread(target=_write, args=(process.stdin, lines), daemon=True).start()
        answers = []
        for line in process.stdout:
            answers.append(json.loads(line))
            if {each.get("id") for each in answers}.issuperset(awaited):
                break
        _, errors = process.communicate(timeout=TIMEOUT)
    assert key not in errors.decode()
    return answers, errors.decode(), process.returncode


def _write(stdin: IO[bytes], lines: list[bytes]) -> None:
    for line in lines:
        stdin.write(line + b"\n")
    stdin.flush()


def test_odd_lines_are_answered_or_ignored(service: Service) -> None:
    made = service.conversation()
    service.append(made, {"role": "user", "content": SECRET}, {"role": "assistant", "content": "Noted."})
    hello = [json.dumps(each).encode() for each in (HELLO, READY)]
    last = json.dumps(call("last", name="recall", arguments={"ref": "m0"})).encode()
    answers, errors, code = talk(service, made.rpartition("/")[2], [*hello, *ODD, last], "last")
    by_id = {json.dumps(each.get("id")): each for each in answers}
    assert SECRET in json.dumps(by_id['"last"'])
    assert code == 0
    assert "Traceback" not in errors
    for number in (1, 2, 8, 9, 10, 11):
        assert "error" in by_id[str(number)]
    for number in (4, 5, 6):
        assert by_id[str(number)]["result"]["isError"]
    assert all(SECRET not in json.dumps(each) for each in answers if each.get("id") != "last")


@pytest.mark.parametrize("name", ["conv_" + "0" * 32, "nothing", "../../keys"])
def test_an_unknown_conversation_has_nothing(service: Service, name: str) -> None:
    hello = [json.dumps(each).encode() for each in (HELLO, READY)]
    asked = [call("a", name="recall", arguments={"ref": "m0"}), call("b", "resources/list")]
    answers, errors, _ = talk(service, name, [*hello, *(json.dumps(each).encode() for each in asked)], "a", "b")
    assert "Traceback" not in errors
    by_id = {each.get("id"): each for each in answers}
    assert by_id["a"]["result"]["isError"]
    assert "error" in by_id["b"]
