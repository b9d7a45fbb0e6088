"""Other paths of the providers: relayed whole, both ways, by the provider's key, and to nothing else."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import pytest

from runtime import ids
from tests.conftest import make_tenant
from tests.gateway.chatter import Chatter
from tests.gateway.conftest import PROVIDER_KEY, gateway_settings, room_on
from tests.gateway.running_gateway import running_gateway
from tests.gateway.test_compacting import SHORT, calls_a_tool, talk
from tests.support.servers.loopback_providers import LoopbackProviders

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from runtime.settings import Settings
    from tests.conftest import Tenant

PIECE: Final = b"0123456789abcdef" * 65_536
PIECES: Final = 48


class _Echo(BaseHTTPRequestHandler):
    """Says what it was asked; with `pieces` in the query, a long answer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        digest, size = hashlib.sha256(), 0
        for part in self._parts():
            digest.update(part)
            size += len(part)
        said = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "size": size,
            "sha256": digest.hexdigest(),
        }
        answer = json.dumps(said).encode()
        count = PIECES if "pieces" in self.path else 1
        self.send_response(202)
        self.send_header("content-length", str(len(answer) if count == 1 else count * len(PIECE)))
        self.send_header("x-of-the-provider", "kept")
        self.end_headers()
        for _ in range(count):
            self.wfile.write(answer if count == 1 else PIECE)

    do_GET = do_DELETE = do_POST  # noqa: N815 - the names that the server looks for

    def _parts(self) -> Iterator[bytes]:
        if "content-length" in self.headers:
            left = int(self.headers["content-length"])
            while left and (part := self.rfile.read(min(left, 65_536))):
                left -= len(part)
                yield part
            return
        while self.headers.get("transfer-encoding") and (size := int(self.rfile.readline(), 16)):
            yield self.rfile.read(size)
            self.rfile.readline()


@contextmanager
def echoing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def tenant(module_settings: Settings) -> Tenant:
    return make_tenant(module_settings.database_url.get_secret_value(), "relaying")


@pytest.fixture(scope="module")
def client(module_settings: Settings, tenant: Tenant) -> Iterator[httpx2.Client]:
    """A client of a gateway before a provider that echoes."""
    with LoopbackProviders() as providers, echoing() as url:
        settings = gateway_settings(module_settings, providers, anthropic_base_url=url, openai_base_url=f"{url}/v1")
        with running_gateway(settings) as gateway, gateway.client(tenant.key) as own:
            yield own


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/responses/input_tokens"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("POST", "/v1/conversations/conv_1/items"),
        ("GET", "/v1/chat/completions/chatcmpl-1/messages"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/moderations"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/v1/images/edits"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files/file-1/content"),
        ("POST", "/v1/uploads/upload_1/parts"),
        ("POST", "/v1/batches/batch_1/cancel"),
        ("POST", "/v1/vector_stores/vs_1/search"),
    ],
)
def test_path_of_openai_is_relayed(client: httpx2.Client, tenant: Tenant, method: str, path: str) -> None:
    body = b'{"model": "m",  "input": "x"}' if method == "POST" else b""
    answer = client.request(method, f"{path}?a=b%20c", content=body, headers={"x-own": "kept", "x-palimpsest-a": "no"})
    said = answer.json()
    assert (answer.status_code, answer.headers["x-of-the-provider"]) == (202, "kept")
    assert (said["method"], said["path"]) == (method, f"{path}?a=b%20c")
    assert said["sha256"] == hashlib.sha256(body).hexdigest()
    assert (said["headers"]["authorization"], said["headers"]["x-own"]) == (f"Bearer {PROVIDER_KEY}", "kept")
    assert tenant.key not in json.dumps(said)
    assert "x-palimpsest" not in json.dumps(said)
    assert answer.headers["x-palimpsest-outcome"] == "unchanged"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/messages/batches/msgbatch_1/results"),
        ("POST", "/v1/messages/batches/msgbatch_1/cancel"),
        ("DELETE", "/v1/messages/batches/msgbatch_1"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files/file_1"),
    ],
)
def test_path_of_anthropic_is_relayed(client: httpx2.Client, tenant: Tenant, method: str, path: str) -> None:
    headers = {"authorization": "", "x-api-key": tenant.key, "anthropic-version": "2023-06-01"}
    said = client.request(method, path, headers=headers).json()
    assert (said["method"], said["path"]) == (method, path)
    assert said["headers"]["x-api-key"] == PROVIDER_KEY
    assert tenant.key not in json.dumps(said)


def test_files_of_any_size_pass_both_ways(client: httpx2.Client) -> None:
    whole = hashlib.sha256(PIECE * PIECES).hexdigest()
    said = client.post("/v1/files", content=(PIECE for _ in range(PIECES))).json()
    assert (said["size"], said["sha256"]) == (len(PIECE) * PIECES, whole)
    said = client.post("/v1/files", content=PIECE * PIECES).json()
    assert (said["size"], said["headers"]["content-length"]) == (len(PIECE) * PIECES, str(len(PIECE) * PIECES))
    digest = hashlib.sha256()
    with client.stream("GET", "/v1/files/file-1/content?pieces") as answer:
        for piece in answer.iter_raw():
            digest.update(piece)
    assert digest.hexdigest() == whole


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/vector_stores"])
def test_list_of_what_all_tenants_have_needs_a_key_of_ones_own(
    client: httpx2.Client, tenant: Tenant, path: str
) -> None:
    assert client.get(path).status_code == 403
    said = client.get(path, headers={"authorization": "Bearer sk-own", "x-palimpsest-key": tenant.key}).json()
    assert said["headers"]["authorization"] == "Bearer sk-own"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/organization/admin_api_keys"),
        ("GET", "/v1/organization/users"),
        ("GET", "/v1/responses/%2e%2e/files"),
        ("GET", "/v1/responses/%2e%2e"),
        ("DELETE", "/v1/models/m"),
        ("PUT", "/v1/embeddings"),
        ("POST", "/v1/fine_tuning/jobs"),
    ],
)
def test_nothing_else_is_reached_with_the_providers_key(client: httpx2.Client, method: str, path: str) -> None:
    answer = client.build_request(method, "/")
    answer.url = answer.url.copy_with(raw_path=path.encode())
    assert client.send(answer).status_code == 404


def test_nobody_is_relayed_without_a_key(client: httpx2.Client) -> None:
    answer = client.post("/v1/embeddings", json={}, headers={"authorization": "Bearer sk-of-somebody"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_compaction_by_the_provider_reads_the_clients_own_history(module_settings: Settings) -> None:
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "codex")
    with room_on(module_settings, tenant, policy=SHORT) as room:
        room.providers.model = calls_a_tool
        chat = Chatter(room, "responses", **{"session-id": "codex session"})
        talk(chat, 12, "to be compacted by codex")
        room.eventually_stored(chat.name, len(chat.rows))
        room.compact(chat.name)
        chat.ask("shorter by our head")
        assert chat.outcome == "compacted"
        name, count = chat.name, len(chat.rows)
        room.eventually_stored(name, count)
        sent = [*chat.rows, {"type": "compaction_trigger"}]
        chat.send(rows=sent)
        assert (chat.outcome, room.providers.asked[-1].rows) == ("unchanged", sent)
        compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
        chat.rows = [*chat.rows[count - 3 : count], compaction, {"role": "user", "content": "go on"}]
        chat.send()
        assert chat.name != name
        room.eventually_stored(chat.name, len(chat.rows))
        (about,) = room.query("select metadata from conversations where id = %s", ids.parse("conv", chat.name))
        assert about["metadata"]["gateway"]["branch_of"] == name
        assert len(room.stored(name)) == count
