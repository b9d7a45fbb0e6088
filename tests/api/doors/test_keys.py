"""API keys: made, scoped, expiring, rotated and revoked, by HTTP and by command; and when they were last used."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import typer
from psycopg.errors import RestrictViolation
from structlog.testing import capture_logs
from typer.testing import CliRunner

from actions.auth import principals
from actions.auth.principals import Authenticator
from actions.background import last_used
from actions.background.last_used import LastUsed
from actions.services import Services
from cli.installation.keys import (
    Wanted,
    read_expiry,
    read_overlap,
    read_scopes,
    run_create,
    run_list,
    run_revoke,
    run_rotate,
)
from cli.main import app
from runtime import ids
from store import hot_path
from store.engine import service_engine, transaction
from store.tenants import api_keys
from store.tenants.api_keys import SCOPES, USUAL, AlreadyReplacedError, TooManyKeysError
from tests.conftest import make_tenants
from tests.support.eventually import eventually
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from uuid import UUID

    import httpx2
    from sqlalchemy import Engine

    from actions.auth.principals import Principal
    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.service.running_api import Service

DAY = timedelta(days=1)
LOCKED = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def make(service: Service, **fields: Any) -> dict[str, Any]:
    answer = service.client.post("/v1/keys", json={"name": "test", "scopes": ["context:read"], **fields})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def rotate(service: Service, key_id: str, **fields: Any) -> dict[str, Any]:
    answer = service.client.post(f"/v1/keys/{key_id}/rotate", json=fields)
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def listed(service: Service, key_id: str) -> dict[str, Any]:
    records: list[dict[str, Any]] = service.client.get("/v1/keys", params={"limit": 100}).json()["data"]
    (row,) = (each for each in records if each["id"] == key_id)
    return row


def ask(service: Service, key: str, path: str = "/v1/conversations") -> httpx2.Response:
    with service.api.client(key) as client:
        return client.get(path)


def at(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


class TestByHttp:
    def test_a_key_is_shown_once_and_works_at_once(self, service: Service) -> None:
        answer = service.client.post("/v1/keys", json={"name": "reader", "scopes": ["audit:read", "context:read"]})
        assert answer.headers["cache-control"] == "no-store"
        body = answer.json()
        key = body.pop("key")
        assert key.startswith(f"{body['id']}.")
        assert len(key.partition(".")[2]) >= 43
        assert body == {
            "id": body["id"],
            "name": "reader",
            "scopes": ["context:read", "audit:read"],
            "created_at": body["created_at"],
            "expires_at": None,
            "last_used_at": None,
            "revoked_at": None,
            "replaced_by": None,
        }
        assert ask(service, key).status_code == 200
        problem(ask(service, key, "/v1/tenant"), 403, "forbidden")
        response = service.client.get("/v1/keys", params={"limit": 100})
        assert listed(service, body["id"]) == body
        assert key.partition(".")[2] not in response.text
        with psycopg.connect(service.database_url) as connection:
            stored = connection.execute("select k::text from api_keys as k").fetchall()
        assert not [row for (row,) in stored if key.partition(".")[2] in row]

    def test_a_key_may_be_allowed_everything(self, service: Service) -> None:
        assert make(service, scopes=[*SCOPES])["scopes"] == [*SCOPES]

    @pytest.mark.parametrize(
        ("fields", "pointer"),
        [
            ({"name": ""}, "/name"),
            ({"name": "x" * 201}, "/name"),
            ({"scopes": []}, "/scopes"),
            ({"scopes": ["everything"]}, "/scopes/0"),
            ({"scopes": "admin"}, "/scopes"),
            ({"scopes": [*SCOPES, "admin"]}, "/scopes"),
            ({"expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
            ({"expires_at": "2199-01-01T00:00:00"}, "/expires_at"),
            ({"expires_at": "9999-12-31T23:59:59-23:00"}, "/expires_at"),
            ({"expires_at": "0001-01-01T00:00:00+23:00"}, "/expires_at"),
            ({"expires_at": "90d"}, "/expires_at"),
            ({"secret": "my own"}, "/secret"),
        ],
    )
    def test_what_is_refused(self, service: Service, fields: dict[str, Any], pointer: str) -> None:
        answer = service.client.post("/v1/keys", json={"name": "test", "scopes": ["admin"], **fields})
        assert problem(answer, 422, "invalid", pointer)

    @pytest.mark.parametrize(
        ("fields", "pointer"),
        [
            ({"overlap_seconds": -1}, "/overlap_seconds"),
            ({"overlap_seconds": 30 * 86_400 + 1}, "/overlap_seconds"),
            ({"expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
            ({"name": "another"}, "/name"),
        ],
    )
    def test_rotations_that_are_refused(self, service: Service, fields: dict[str, Any], pointer: str) -> None:
        made = make(service)
        problem(service.client.post(f"/v1/keys/{made['id']}/rotate", json=fields), 422, "invalid", pointer)
        assert listed(service, made["id"])["replaced_by"] is None

    def test_pages_run_from_the_newest(self, service: Service) -> None:
        items = [make(service)["id"] for _ in range(5)][::-1]
        first = service.client.get("/v1/keys", params={"limit": 2}).json()
        assert [row["id"] for row in first["data"]] == items[:2]
        assert first["has_more"]
        assert (first["first_id"], first["last_id"]) == (items[0], items[1])
        second = service.client.get("/v1/keys", params={"limit": 2, "after_id": first["last_id"]}).json()
        assert [row["id"] for row in second["data"]] == items[2:4]
        back = service.client.get("/v1/keys", params={"limit": 2, "before_id": items[3]}).json()
        assert [row["id"] for row in back["data"]] == items[1:3]
        problem(service.client.get("/v1/keys", params={"after_id": "conv_1"}), 400, "bad_cursor", "after_id")

    def test_revoked_at_once_in_the_process_that_was_asked(self, service: Service) -> None:
        made = make(service)
        assert ask(service, made["key"]).status_code == 200
        assert service.client.delete(f"/v1/keys/{made['id']}").status_code == 204
        problem(ask(service, made["key"]), 401, "unauthenticated")
        assert at(listed(service, made["id"])["revoked_at"]) <= datetime.now(UTC)
        problem(service.client.delete(f"/v1/keys/{made['id']}"), 404, "not_found")
        problem(service.client.post(f"/v1/keys/{made['id']}/rotate", json={}), 404, "not_found")

    def test_rotation_leaves_no_gap(self, service: Service) -> None:
        old = make(service, name="bot", scopes=["turns:write"], expires_at=(datetime.now(UTC) + 90 * DAY).isoformat())
        new = rotate(service, old["id"], overlap_seconds=3_600)
        assert (new["name"], new["scopes"]) == ("bot", ["turns:write"])
        for key in (old["key"], new["key"]):
            problem(ask(service, key), 403, "forbidden")  # known, and without context:read
        shown = listed(service, old["id"])
        assert shown["replaced_by"] == new["id"]
        assert timedelta(0) < at(shown["expires_at"]) - at(new["created_at"]) <= timedelta(hours=1)
        assert abs(at(new["expires_at"]) - at(new["created_at"]) - 90 * DAY) < timedelta(minutes=5)
        again = service.client.post(f"/v1/keys/{old['id']}/rotate", json={})
        assert new["id"] in problem(again, 409, "already_rotated")["detail"]

    def test_rotation_without_overlap(self, service: Service) -> None:
        old = make(service)
        assert ask(service, old["key"]).status_code == 200
        until = datetime.now(UTC) + 7 * DAY
        new = rotate(service, old["id"], overlap_seconds=0, expires_at=until.isoformat())
        problem(ask(service, old["key"]), 401, "unauthenticated")
        assert ask(service, new["key"]).status_code == 200
        assert at(new["expires_at"]) == until

    def test_a_key_that_expires_sooner_than_the_overlap_does_so(self, service: Service) -> None:
        soon = datetime.now(UTC) + timedelta(hours=1)
        old = make(service, expires_at=soon.isoformat())
        assert rotate(service, old["id"])["expires_at"]
        assert at(listed(service, old["id"])["expires_at"]) == soon

    def test_keys_of_others_are_none(self, service: Service) -> None:
        made = make(service)
        missing = ids.external("key", ids.new_id())
        answers = []
        for key_id in (made["id"], missing, "key_nonsense", "conv_1"):
            answers.append(service.stranger.delete(f"/v1/keys/{key_id}"))
            answers.append(service.stranger.post(f"/v1/keys/{key_id}/rotate", json={}))
        assert {problem(answer, 404, "not_found")["detail"] for answer in answers} == {"There is no such resource."}
        assert made["id"] not in service.stranger.get("/v1/keys", params={"limit": 100}).text
        assert ask(service, made["key"]).status_code == 200

    def test_what_was_done_is_logged_without_the_key(self, service: Service) -> None:
        with capture_logs() as told:
            made = make(service)
            new = rotate(service, made["id"])
            service.client.delete(f"/v1/keys/{new['id']}")
        events = [entry for entry in told if entry["event"].startswith("key.")]
        assert [entry["event"] for entry in events] == ["key.created", "key.rotated", "key.revoked"]
        asking = service.client.headers["authorization"].removeprefix("Bearer ").partition(".")[0]
        assert {ids.external("key", uuid_of(entry["by"])) for entry in events} == {asking}
        for key in (made["key"], new["key"]):
            assert key.partition(".")[2] not in json.dumps(told, default=str)

    def test_no_more_than_so_many(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        first = make(service)
        monkeypatch.setattr(api_keys, "MAXIMUM", 1)
        wanted = {"name": "test", "scopes": ["context:read"]}
        problem(service.client.post("/v1/keys", json=wanted), 409, "too_many_keys")
        problem(service.client.post(f"/v1/keys/{first['id']}/rotate", json={}), 409, "too_many_keys")
        assert listed(service, first["id"])["expires_at"] is None


def test_whoever_has_as_many_keys_as_may_be_can_rotate_them(
    engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "MAXIMUM", 2)
    with transaction(engine, tenant.id) as connection:
        first, _ = api_keys.create(connection, tenant.id, "first")
        with pytest.raises(TooManyKeysError):
            api_keys.create(connection, tenant.id, "one more")
        own, _ = api_keys.split(tenant.key) or (first.id, "")
        assert api_keys.rotate(connection, tenant.id, own, DAY)
        made = api_keys.rotate(connection, tenant.id, first.id, DAY)
        assert made
        # A key may be rotated again and again, each for a while beside the next: not without end.
        with pytest.raises(TooManyKeysError):
            api_keys.rotate(connection, tenant.id, made[0].id, DAY)


@pytest.mark.parametrize("role", ["palimpsest_service", ""])
def test_what_was_revoked_stays_so_whoever_asks(database_url: str, tenant: Tenant, role: str) -> None:
    """Also to the service's own role, and to the tables' owner: to open a key again would leave no trace."""
    with psycopg.connect(database_url, options=f"-c role={role}" if role else "", autocommit=True) as connection:
        connection.execute("select set_config('app.tenant_id', %s, false)", (str(tenant.id),))
        connection.execute("update api_keys set expires_at = now() + interval '1 hour'")
        for later in ("null", "now() + interval '2 hours'"):
            with pytest.raises(RestrictViolation, match="never made longer"):
                connection.execute(f"update api_keys set expires_at = {later}".encode())  # noqa: S608 - above
        connection.execute("update api_keys set expires_at = now(), revoked_at = now()")
        for other in ("null", "now() + interval '1 hour'"):
            with pytest.raises(RestrictViolation, match="stays revoked"):
                connection.execute(f"update api_keys set revoked_at = {other}".encode())  # noqa: S608 - above
        connection.execute(
            "insert into console_sessions (token_hash, tenant_id, key_id, expires_at, ended_at)"
            " select 'x', tenant_id, id, now() + interval '1 hour', now() from api_keys"
        )
        with pytest.raises(RestrictViolation, match="stays so"):
            connection.execute("update console_sessions set ended_at = null")


def test_two_that_make_the_last_key_at_once(
    engine: Engine, tenant: Tenant, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "MAXIMUM", 2)

    def make_last() -> None:
        with transaction(engine, tenant.id) as connection:
            api_keys.create(connection, tenant.id, "last")

    with ThreadPoolExecutor(1) as pool, psycopg.connect(database_url, autocommit=True) as looking:
        with transaction(engine, tenant.id) as connection:
            api_keys.create(connection, tenant.id, "last")
            other = pool.submit(make_last)
            eventually(lambda: other.done() or looking.execute(LOCKED).fetchall())
        with pytest.raises(TooManyKeysError):
            other.result()


def uuid_of(text: str) -> UUID:
    parsed = ids.parse("key", "key_" + text.replace("-", ""))
    assert parsed is not None
    return parsed


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that remembered keys go by."""
    made = Clock()
    monkeypatch.setattr(principals, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture
def engine(make_settings: Callable[..., Settings]) -> Iterator[Engine]:
    made = service_engine(make_settings(), "test")
    yield made
    made.dispose()


class Asking:
    """An authenticator on the test's database, asked one key after the other."""

    def __init__(self, settings: Settings) -> None:
        self._runner = asyncio.Runner()
        self._services = Services(settings)
        self._pool = self.run(hot_path.open_pool(settings))
        self.last_used = LastUsed(self._services.run_without_tenant)
        self.authenticator = Authenticator(self._pool, {}, self.last_used)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(call)

    def who(self, key: str) -> Principal | None:
        found: Principal | None = self.run(self.authenticator.authenticate(key))
        return found

    def write(self) -> None:
        """Write what is collected, as the end of the process does."""

        async def write() -> None:
            self.last_used.start()
            await self.last_used.stop()
            self.last_used = LastUsed(self._services.run_without_tenant)
            self.authenticator._last_used = self.last_used

        self.run(write())

    def close(self) -> None:
        self.run(self._pool.close())
        self.run(self._services.engine.dispose())
        self._runner.close()


@pytest.fixture
def asking(make_settings: Callable[..., Settings]) -> Iterator[Asking]:
    made = Asking(make_settings())
    yield made
    made.close()


class TestRemembered:
    def test_no_longer_than_until_it_expires(
        self, asking: Asking, engine: Engine, tenant: Tenant, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(principals, "REMEMBERED_SECONDS", 1e9)
        with transaction(engine, tenant.id) as connection:
            row, key = api_keys.create(connection, tenant.id, "short", expires_at=datetime.now(UTC) + 4 * DAY)
        assert asking.who(key) is not None
        with transaction(engine, tenant.id) as connection:
            assert api_keys.revoke(connection, tenant.id, row.id)
        clock.now += 3 * 86_400
        assert asking.who(key) is not None, "remembered"
        clock.now += 86_400
        assert asking.who(key) is None

    def test_five_seconds_at_most(self, asking: Asking, engine: Engine, tenant: Tenant, clock: Clock) -> None:
        identifier, _ = api_keys.split(tenant.key) or (None, "")
        assert identifier is not None
        assert asking.who(tenant.key) is not None
        with transaction(engine, tenant.id) as connection:
            assert api_keys.revoke(connection, tenant.id, identifier)
        clock.now += 4.9
        assert asking.who(tenant.key) is not None
        clock.now += 0.1
        assert asking.who(tenant.key) is None

    def test_a_key_that_is_remembered_asks_nobody(
        self, asking: Asking, tenant: Tenant, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = asking.who(tenant.key)
        monkeypatch.setattr(hot_path, "find_api_key", None)
        monkeypatch.setattr(asking.last_used, "note", None)
        assert asking.who(tenant.key) is found is not None

    def test_not_what_was_read_before_a_change(
        self, asking: Asking, engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The key is revoked while the answer to a look-up is on its way."""
        find = hot_path.find_api_key

        async def find_and_revoke(pool: hot_path.Pool, key_id: UUID) -> hot_path.KeyRow | None:
            row = await find(pool, key_id)
            with transaction(engine, tenant.id) as connection:
                api_keys.revoke(connection, tenant.id, key_id)
            asking.authenticator.forget(tenant.id)
            return row

        monkeypatch.setattr(hot_path, "find_api_key", find_and_revoke)
        assert asking.who(tenant.key) is not None
        assert asking.who(tenant.key) is None

    def test_whatever_is_wrong_costs_the_same(
        self, asking: Asking, engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One look-up, one comparison."""
        with transaction(engine, tenant.id) as connection:
            row, revoked = api_keys.create(connection, tenant.id, "revoked")
            api_keys.revoke(connection, tenant.id, row.id)
            _, expired = api_keys.create(connection, tenant.id, "expired", expires_at=datetime.now(UTC) - DAY)
        calls: list[str] = []

        def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*arguments: Any) -> Any:
                calls.append(name)
                return call(*arguments)

            return counting

        monkeypatch.setattr(hot_path, "find_api_key", counted("look-up", hot_path.find_api_key))
        monkeypatch.setattr(principals, "secret_matches", counted("comparison", api_keys.secret_matches))
        unknown = f"{ids.external('key', ids.new_id())}.{'x' * 43}"
        for key in (unknown, tenant.key + "x", revoked, expired):
            calls.clear()
            assert asking.who(key) is None
            assert calls == ["look-up", "comparison"]


def uses(database_url: str) -> dict[str, datetime | None]:
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("select id, last_used_at from api_keys").fetchall()
    return {ids.external("key", identifier): used for identifier, used in rows}


class TestLastUsed:
    def test_written_when_the_process_ends(self, make_settings: Callable[..., Settings], database_url: str) -> None:
        used, other = make_tenants(database_url, "acme", "rival")
        before = datetime.now(UTC)
        with running_api(make_settings()) as api, api.client(used.key) as client:
            for _ in range(20):
                assert client.get("/v1/conversations").status_code == 200
            assert client.get("/v1/conversations", headers={"authorization": f"Bearer {other.key}x"}).status_code == 401
            assert set(uses(database_url).values()) == {None}, "a request wrote it"
        found = uses(database_url)
        when = found[used.key.partition(".")[0]]
        assert when is not None
        assert before - timedelta(seconds=1) < when <= datetime.now(UTC)
        assert found[other.key.partition(".")[0]] is None

    def test_written_from_time_to_time(
        self, make_settings: Callable[..., Settings], tenant: Tenant, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(last_used, "INTERVAL_SECONDS", 0.05)
        with running_api(make_settings()) as api, api.client(tenant.key) as client:
            assert client.get("/v1/conversations").status_code == 200
            eventually(lambda: uses(database_url)[tenant.key.partition(".")[0]])

    def test_once_a_minute_at_most(self, asking: Asking, tenant: Tenant, database_url: str, clock: Clock) -> None:
        def use() -> Any:
            clock.now += 10  # no longer remembered
            assert asking.who(tenant.key) is not None
            asking.write()
            with psycopg.connect(database_url) as connection:
                return connection.execute("select xmin::text, last_used_at from api_keys").fetchone()

        first = use()
        assert first[1] is not None
        assert use() == first
        with psycopg.connect(database_url) as connection:
            connection.execute("update api_keys set last_used_at = now() - interval '61 seconds'")
        assert use()[1] > first[1]

    def test_never_set_back(self, engine: Engine, tenant: Tenant, database_url: str) -> None:
        """A process that was held up tells of a use that another one's was after."""
        (identifier, _) = api_keys.split(tenant.key) or (None, "")
        assert identifier is not None
        with transaction(engine, None) as connection:
            api_keys.note_uses(connection, {identifier: 0.0})
        first = uses(database_url)
        with transaction(engine, None) as connection:
            api_keys.note_uses(connection, {identifier: 3_600.0, ids.new_id(): 1.0})
        assert uses(database_url) == first

    def test_nobody_waits_for_another_process(self, engine: Engine, tenant: Tenant, database_url: str) -> None:
        (identifier, _) = api_keys.split(tenant.key) or (None, "")
        assert identifier is not None
        with psycopg.connect(database_url) as other:
            other.execute("update api_keys set last_used_at = null where id = %s", [identifier])
            with transaction(engine, None) as connection:
                connection.exec_driver_sql("set local lock_timeout = '5s'")
                api_keys.note_uses(connection, {identifier: 0.0})
            other.rollback()
        assert set(uses(database_url).values()) == {None}

    def test_what_could_not_be_written_waits_for_the_next_batch(
        self, asking: Asking, tenant: Tenant, database_url: str
    ) -> None:
        function = "function note_key_uses(uuid[], double precision[])"
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(f"revoke execute on {function} from palimpsest_service".encode())
            assert asking.who(tenant.key) is not None
            with capture_logs() as told:
                asking.run(asking.last_used._write())
            assert [(entry["event"], entry["count"]) for entry in told] == [("key_uses.not_written", 1)]
            assert set(uses(database_url).values()) == {None}
            connection.execute(f"grant execute on {function} to palimpsest_service".encode())
        asking.write()
        assert None not in uses(database_url).values()


class TestByCommand:
    @pytest.fixture
    def settings(self, make_settings: Callable[..., Settings]) -> Settings:
        return make_settings()

    @pytest.fixture
    def made(self, settings: Settings, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        wanted = Wanted("bot", read_scopes("turns:write, context:read"), read_expiry("90d"))
        assert run_create(settings, "acme", wanted, as_json=True) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    def rows(self, settings: Settings, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        assert run_list(settings, "acme", as_json=True) == 0
        document: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return document

    def test_created_and_listed(
        self, settings: Settings, made: dict[str, Any], asking: Asking, capsys: pytest.CaptureFixture[str]
    ) -> None:
        principal = asking.who(made["key"])
        assert principal is not None
        assert principal.scopes == {"turns:write", "context:read"}
        asking.write()
        (row,) = self.rows(settings, capsys)
        assert "key" not in row
        assert (row["id"], row["name"], row["scopes"]) == (made["id"], "bot", ["turns:write", "context:read"])
        assert row["last_used_at"]
        assert row["revoked_at"] is None
        assert abs(at(row["expires_at"]) - at(row["created_at"]) - 90 * DAY) < timedelta(minutes=5)
        assert run_list(settings, "acme", as_json=False) == 0
        table = capsys.readouterr().out
        assert "scopes" in table
        assert "last used" in table

    def test_rotated_and_revoked(
        self, settings: Settings, made: dict[str, Any], asking: Asking, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_rotate(settings, "acme", made["key"], read_overlap("24h"), None, as_json=True) == 0
        new = json.loads(capsys.readouterr().out)
        old, fresh = self.rows(settings, capsys)
        assert old["replaced_by"] == fresh["id"] == new["id"]
        assert fresh["scopes"] == old["scopes"]
        assert timedelta(0) < at(old["expires_at"]) - at(fresh["created_at"]) <= DAY
        assert asking.who(made["key"]) is not None
        assert asking.who(new["key"]) is not None
        assert run_rotate(settings, "acme", made["id"], DAY, None, as_json=True) == 1
        assert new["id"] in capsys.readouterr().err
        assert run_revoke(settings, "acme", new["id"]) == 0
        assert run_revoke(settings, "acme", new["id"]) == 1
        assert run_rotate(settings, "acme", new["id"], DAY, None, as_json=True) == 1
        assert "is not in force any more" in capsys.readouterr().err
        assert self.rows(settings, capsys)[1]["revoked_at"]

    def test_the_tenant_of_a_key_is_found(
        self, settings: Settings, made: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = Wanted("other", frozenset(SCOPES), None)
        assert run_create(settings, "other", other, as_json=False) == 0
        capsys.readouterr()
        assert run_rotate(settings, None, made["id"], DAY, None, as_json=True) == 0
        assert json.loads(capsys.readouterr().out)["tenant"] == "acme"
        assert run_list(settings, None, as_json=True) == 0
        assert [row["tenant"] for row in json.loads(capsys.readouterr().out)] == ["acme", "acme", "other"]
        assert run_revoke(settings, None, made["id"]) == 0
        assert run_revoke(settings, "other", made["id"]) == 1
        assert f"there is no key {made['id']} of the tenant 'other'" in capsys.readouterr().err
        secret = "nothing.to-be-shown"
        assert run_revoke(settings, None, secret) == 1
        assert "to-be-shown" not in capsys.readouterr().err

    def test_tenants_that_are_none(self, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
        nobody = ids.external("key", ids.new_id())
        assert run_list(settings, "nobody", as_json=False) == 1
        assert run_revoke(settings, "nobody", nobody) == 1
        assert run_rotate(settings, "nobody", nobody, DAY, None, as_json=False) == 1
        assert capsys.readouterr().err.count("there is no tenant 'nobody'") == 3

    def test_no_tenant_is_named_like_anothers_id(
        self, settings: Settings, database_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = ids.external("ten", ids.new_id())
        assert run_create(settings, name, Wanted("default", frozenset(SCOPES), None), as_json=False) == 1
        assert "not a name" in capsys.readouterr().err
        with psycopg.connect(database_url) as connection:
            assert connection.execute("select count(*) from tenants where name = %s", [name]).fetchone() == (0,)

    @pytest.mark.parametrize(
        ("options", "scopes", "life"),
        [
            ([], ["turns:write", "context:read"], timedelta(days=90)),
            (["--admin"], list(USUAL), timedelta(days=90)),
            (["--admin", "--expires", "never"], list(USUAL), None),
            (["--scopes", "audit:read", "--expires", "1d"], ["audit:read"], DAY),
        ],
    )
    def test_a_key_is_for_a_chat_backend_unless_its_options_say_more(
        self,
        settings: Settings,
        database_url: str,
        monkeypatch: pytest.MonkeyPatch,
        options: list[str],
        scopes: list[str],
        life: timedelta | None,
    ) -> None:
        monkeypatch.setattr("cli.main.read_settings", lambda: settings)
        done = CliRunner().invoke(app, ["keys", "create", "--tenant", "acme", *options])
        assert done.exit_code == 0
        with psycopg.connect(database_url) as connection:
            (row,) = connection.execute("select scopes, expires_at - created_at from api_keys").fetchall()
        assert row[0] == scopes
        assert (row[1] and row[1].total_seconds()) == (life and pytest.approx(life.total_seconds(), abs=60))

    def test_a_rotated_key_expires_as_its_options_say(
        self, settings: Settings, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cli.main.read_settings", lambda: settings)
        done = CliRunner().invoke(app, ["keys", "create", "--tenant", "acme"])
        overlap = ["keys", "rotate", "--tenant", "acme", done.output.strip(), "--overlap", "0s", "--expires", "1d"]
        assert CliRunner().invoke(app, overlap).exit_code == 0
        with psycopg.connect(database_url) as connection:
            rows = connection.execute("select expires_at - now() from api_keys order by id").fetchall()
        assert rows[0][0] <= timedelta(0) < rows[1][0] <= DAY

    @pytest.mark.parametrize(
        "arguments",
        [
            ["create", "--scopes", "everything"],
            ["create", "--scopes", ","],
            ["create", "--expires", "soon"],
            ["create", "--expires", "0d"],
            ["create", "--expires", "999999w"],
            ["create", "--expires", "2020-01-01T00:00:00Z"],
            ["create", "--expires", "2199-01-01T00:00:00"],
            ["create", "--expires", "9999-12-31T23:59:59-23:00"],
            ["rotate", "key_1", "--overlap", "-1h"],
            ["rotate", "key_1", "--overlap", "forever"],
        ],
    )
    def test_bad_usage(self, arguments: list[str]) -> None:
        done = CliRunner().invoke(app, ["keys", *arguments, "--tenant", "acme"])
        assert done.exit_code == 2, done.output
        assert arguments[-2] in done.output

    def test_scopes_and_admin_exclude_each_other(self) -> None:
        done = CliRunner().invoke(app, ["keys", "create", "--tenant", "acme", "--scopes", "audit:read", "--admin"])
        assert done.exit_code == 2
        assert "not both" in done.output

    def test_times_are_read_as_they_are_meant(self) -> None:
        assert read_overlap("0s") == timedelta(0)
        assert read_overlap("90m") == timedelta(minutes=90)
        assert read_expiry(None) is None
        found = read_expiry("2100-01-31T00:00:00+01:00")
        assert found is not None
        assert abs(found - datetime.fromisoformat("2100-01-30T23:00:00+00:00")) < timedelta(seconds=1)
        with pytest.raises(typer.BadParameter):
            read_expiry("٣d")  # digits of another script


def test_the_store_says_what_it_refuses(engine: Engine, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    (identifier, _) = api_keys.split(tenant.key) or (None, "")
    assert identifier is not None
    with transaction(engine, tenant.id) as connection:
        made = api_keys.rotate(connection, tenant.id, identifier, DAY)
        assert made is not None
        with pytest.raises(AlreadyReplacedError) as refusal:
            api_keys.rotate(connection, tenant.id, identifier, DAY)
        assert refusal.value.replaced_by == made[0].id
        assert api_keys.rotate(connection, tenant.id, ids.new_id(), DAY) is None
        monkeypatch.setattr(api_keys, "MAXIMUM", 2)
        with pytest.raises(TooManyKeysError):
            api_keys.create(connection, tenant.id, "one more")
        assert api_keys.revoke(connection, tenant.id, made[0].id)
        api_keys.create(connection, tenant.id, "one more")
