"""Every connection to Postgres is encrypted where its URL says so; the broker's URL may be one of TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psycopg
import pytest
from pydantic import SecretStr

from cli.local import embedded
from cli.local.embedded import EmbeddedPostgres
from migrations.run import upgrade
from runtime.broker import celery_app
from runtime.settings import Settings
from store.engine import service_engine
from tests.conftest import make_tenant
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

ENCRYPTED = """
select application_name from pg_stat_ssl join pg_stat_activity using (pid)
where ssl and datname = current_database() and backend_type = 'client backend'
"""
UNENCRYPTED = """
select application_name from pg_stat_ssl join pg_stat_activity using (pid)
where not ssl and datname = current_database() and backend_type = 'client backend'
"""


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres) -> Iterator[tuple[str, Path]]:
    """A Postgres server with a certificate of its own for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    with psycopg.connect(postgres.url) as connection:
        (data,) = connection.execute("show data_directory").fetchone() or ("",)
    with TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        key, certificate = Path(made, "server.key"), Path(made, "server.crt")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        # The server may run as another user than the tests.
        os.chown(key, Path(data).stat().st_uid, -1)
        for path, mode in ((key, 0o600), (certificate, 0o644), (Path(made), 0o755)):
            path.chmod(mode)
        with_tls = {"ssl": "on", "ssl_key_file": str(key), "ssl_cert_file": str(certificate)}
        for name, value in with_tls.items():
            patch.setitem(embedded._POSTGRES_SETTINGS, name, value)
        with EmbeddedPostgres(durable=False) as own:
            upgrade(own.url)
            yield own.url, certificate


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_every_connection_is_encrypted_where_the_url_asks_for_it(server: tuple[str, Path], mode: str) -> None:
    plain, certificate = server
    settings = Settings(
        database_url=SecretStr(f"{plain}?sslmode={mode}&sslrootcert={certificate}"),
        broker_url=SecretStr("rediss://localhost:1/0?ssl_cert_reqs=required"),
        summarizer="none",
    )
    tenant = make_tenant(settings.database_url.get_secret_value(), f"acme {mode}")
    with running_api(settings) as api, api.client(tenant.key) as client:
        response = client.post("/v1/conversations", json={})
        assert response.status_code == 201, response.text
        path = f"/v1/conversations/{response.json()['id']}"
        turn = {"messages": [{"role": "user", "content": "Hello."}]}
        assert client.post(f"{path}/turns", json=turn).status_code == 201
        assert client.get(f"{path}/context").status_code == 200
        engine = service_engine(settings, "worker")
        with engine.connect() as connection, psycopg.connect(plain, autocommit=True) as plainly:
            connection.exec_driver_sql("select")
            names = {name for (name,) in plainly.execute(ENCRYPTED)}
            assert names >= {"palimpsest-api", "palimpsest-worker"}
            assert {name for (name,) in plainly.execute(UNENCRYPTED) if name.startswith("palimpsest")} == set()
        engine.dispose()


def test_a_server_that_cannot_be_verified_is_not_talked_to(server: tuple[str, Path]) -> None:
    plain, _ = server
    settings = Settings(database_url=SecretStr(f"{plain}?sslmode=verify-full"), summarizer="none")
    tenant = make_tenant(plain, "nobody's")
    with running_api(settings) as api, api.client(tenant.key) as client:
        for path in ("/v1/conversations", f"/v1/conversations/conv_{'0' * 32}/context"):
            assert client.get(path).status_code == 503


def test_the_brokers_url_may_be_one_of_tls() -> None:
    settings = Settings(broker_url=SecretStr("rediss://:secret@redis.example:6380/0?ssl_cert_reqs=required"))
    with celery_app(settings, "test").connection_for_write() as connection:
        assert connection.transport.driver_type == "redis"
        assert connection.ssl
