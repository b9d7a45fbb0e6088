"""Bodies of every door of the gateway, changed: passed on as they came, answered, or refused in the door's words."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from tests.conftest import Tenant
from tests.fuzz.structure import changed_bytes, changed_documents
from tests.fuzz.turns import as_json
from tests.gateway.conftest import gateway_settings
from tests.gateway.running_gateway import running_gateway
from tests.support.servers.loopback_providers import LoopbackProviders, Says

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2
    from hypothesis.strategies import SearchStrategy

    from tests.support.service.running_api import Service

GUARDRAIL: Final = "/beta/litellm_basic_guardrail_api"
COMPRESS: Final = "/v1/compress"
_CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
_CHAT: Final = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "look"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a line\n" * 300},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "and on"},
]
_MESSAGES: Final = [
    {"role": "user", "content": [{"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {"a": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "found"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]},
]
_ITEMS: Final = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk"},
    {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "found"},
]
_TRACE: Final = {"litellm_call_id": "call", "litellm_trace_id": "trace-of-it", "request_headers": {"x-session-id": "x"}}
BODIES: Final[dict[str, list[dict[str, Any]]]] = {
    "/v1/messages": [
        {"model": "m", "max_tokens": 9, "messages": _MESSAGES, "metadata": {"user_id": '{"session_id":"s"}'}},
    ],
    "/v1/chat/completions": [{"model": "m", "messages": _CHAT, "user": "u", "stream": True}],
    "/v1/responses": [{"model": "m", "input": _ITEMS, "previous_response_id": None}, {"model": "m", "input": "text"}],
    GUARDRAIL: [
        {"input_type": "request", "structured_messages": _CHAT, "request_data": {"user_api_key_hash": "h"}, **_TRACE},
        {"input_type": "response", "texts": ["done"], "tool_calls": [_CALL], "request_data": {}, **_TRACE},
    ],
    COMPRESS: [{"messages": _CHAT[:4], "model": "m", "config": {"mode": "ccr"}}],
}


def door_bodies() -> SearchStrategy[tuple[str, bytes]]:
    """Draw paths, each with a body, changed or not."""
    doors = st.sampled_from(sorted(BODIES))
    return doors.flatmap(
        lambda path: st.tuples(
            st.just(path),
            changed_bytes(changed_documents(st.sampled_from(BODIES[path])).map(as_json)),
        )
    )


class GatewayDoors:
    """A gateway before loopback providers, and what its doors must do whatever comes."""

    def __init__(self, client: httpx2.Client, providers: LoopbackProviders) -> None:
        self._client = client
        self._providers = providers
        self.statuses: Counter[tuple[str, int]] = Counter()

    def answered_or_refused(self, drawn: tuple[str, bytes]) -> None:
        """Assert that a body passes as it came, or is answered, or refused in the words of its door."""
        path, body = drawn
        del self._providers.asked[:]
        answer = self._client.post(path, content=body, headers={"content-type": "application/json"})
        self.statuses[path, answer.status_code] += 1
        # The loopback provider falls over what a real one would refuse: it ends the connection.
        ours = {200, 400} if path in {GUARDRAIL, COMPRESS} else {200, 400, 502}
        assert answer.status_code in ours, (answer.status_code, answer.text)
        if answer.status_code != 200:
            assert answer.json()["error"]
        elif path == GUARDRAIL:
            assert answer.json()["action"] in {"NONE", "GUARDRAIL_INTERVENED"}
        elif path == COMPRESS:
            assert len(answer.json()["messages"]) == len(json.loads(body)["messages"])
        if path in {GUARDRAIL, COMPRESS}:
            assert not self._providers.asked
        elif self._providers.asked:
            # Nothing of it was compacted: it goes on byte for byte.
            assert self._providers.asked[-1].raw == body


@contextmanager
def gateway_doors(service: Service) -> Iterator[GatewayDoors]:
    """Run a gateway on the service's database, with the key of its client."""
    key = str(service.client.headers["authorization"]).removeprefix("Bearer ")
    tenant = Tenant(service.tenant_id, key)
    with (
        LoopbackProviders(lambda _: Says("fine")) as providers,
        running_gateway(gateway_settings(service.settings, providers)) as gateway,
        gateway.client(tenant.key) as client,
    ):
        yield GatewayDoors(client, providers)
