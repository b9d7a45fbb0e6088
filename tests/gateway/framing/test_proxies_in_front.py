"""Proxies in front that forward `Upgrade`: no body is taken for a request, and clients that offer h2c keep theirs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import httpx2
import pytest

from cli.local.embedded_server import free_port
from tests.conftest import make_tenant
from tests.gateway.conftest import room_on
from tests.gateway.framing.test_protocol_offers import OFFERS, SMUGGLED, Server, statuses
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runtime.settings import Settings
    from tests.gateway.conftest import Room

START_SECONDS: Final = 20
# nginx as ingress-nginx has it: the offer and the connection's header go on.
CONFIGURATIONS: Final = {
    "nginx": """
        daemon off; pid {folder}/nginx.pid; error_log stderr;
        events {{}}
        http {{
          access_log off; client_max_body_size 32m;
          client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
          uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
          map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
          upstream gateway {{ server 127.0.0.1:{to}; keepalive 1; }}
          server {{
            listen 127.0.0.1:{port};
            location / {{
              proxy_pass http://gateway; proxy_http_version 1.1; proxy_request_buffering off;
              proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
            }}
          }}
        }}
    """,
    "haproxy": """
defaults
  mode http
  timeout connect 10s
  timeout client 30s
  timeout server 30s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  http-reuse always
  server s 127.0.0.1:{to}
""",
    "caddy": """
{{
  admin off
  auto_https off
}}
http://:{port} {{
  bind 127.0.0.1
  reverse_proxy 127.0.0.1:{to}
}}
""",
    "traefik": """
entryPoints: {{web: {{address: "127.0.0.1:{port}"}}}}
providers: {{file: {{filename: "{folder}/routes.yaml"}}}}
""",
}
_ROUTES: Final = """
http:
  routers: {{all: {{rule: "PathPrefix(`/`)", service: gateway}}}}
  services: {{gateway: {{loadBalancer: {{servers: [{{url: "http://127.0.0.1:{to}"}}]}}}}}}
"""


@contextmanager
def proxy(name: str, folder: Path, to: str) -> Iterator[str]:
    """Run a proxy before a port; yield its URL. Skips the test where the program is not installed."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    port = free_port()
    file = folder / ("traefik.yaml" if name == "traefik" else name)
    file.write_text(CONFIGURATIONS[name].format(folder=folder, port=port, to=to))
    (folder / "routes.yaml").write_text(_ROUTES.format(to=to))
    arguments = {
        "nginx": ["-p", str(folder), "-c", str(file)],
        "haproxy": ["-db", "-f", str(file)],
        "caddy": ["run", "--adapter", "caddyfile", "--config", str(file)],
        "traefik": [f"--configFile={file}"],
    }[name]
    log = folder / "log"
    own = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with (
        log.open("wb") as to_log,
        subprocess.Popen([program, *arguments], cwd=folder, stdout=to_log, stderr=to_log, env=own) as process,
    ):
        try:
            eventually(lambda: _listens(port) or process.poll() is not None, START_SECONDS)
            assert process.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def behind(module_settings: Settings) -> Iterator[Room]:
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "behind")
    with room_on(module_settings, tenant) as room:
        yield room


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_nobody_elses_request_comes_out_of_a_body(behind: Room, tmp_path: Path, name: str) -> None:
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a victim's"}]}).encode()
    with proxy(name, tmp_path, behind.gateway.url.rpartition(":")[2]) as url:
        front = Server(url, behind.tenant.key, "/v1/messages", body)
        harmless = front.request(*OFFERS["h2c"], body=body)
        hostile = front.request(*OFFERS["h2c"], body=front.request(body=b'{"smuggled":'))
        head = len(hostile) - len(front.request(body=b'{"smuggled":'))
        behind.providers.asked.clear()
        for cut in (1, head - 1, head, head + 1, len(hostile) - 1):
            with front.connected() as connection, httpx2.Client(base_url=url) as victim:
                connection.sendall(hostile[:cut])
                connection.sendall(hostile[cut:])
                assert statuses(connection, 1) == [400]
                # On the proxy's connection that the hostile one has used.
                headers = {"authorization": f"Bearer {behind.tenant.key}"}
                answer = victim.post("/v1/messages", content=body, headers=headers)
                assert answer.status_code == 200
            with front.connected() as connection:
                connection.sendall(harmless)
                assert statuses(connection, 1) == [200]
        assert {asked.raw for asked in behind.providers.asked} == {body}
        assert len(behind.providers.asked) == 10
        assert SMUGGLED not in b"".join(asked.raw for asked in behind.providers.asked)
