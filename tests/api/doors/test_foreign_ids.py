"""Another tenant's id is answered exactly as one that nobody has: the same bytes, after the same statements."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from runtime import ids
from tests.conftest import make_tenants
from tests.fuzz.planted import Planted
from tests.support.service.documented_answers import PREFIXES, routes
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from cli.local.embedded import EmbeddedPostgres
    from runtime.settings import Settings

NUMBERS: Final = {"seq", "version", "position"}
HELLO: Final = [{"role": "user", "content": "Hello."}]
BODIES: Final[dict[tuple[str, str], list[Any]]] = {
    ("PATCH", "/v1/conversations/{conversation_id}"): [{"model": "claude-haiku-4-5"}, {"policy": {}}],
    ("POST", "/v1/conversations/{conversation_id}/turns"): [
        {"messages": HELLO},
        {"messages": HELLO, "expected_next_seq": 0},
        {"messages": HELLO, "replace_from": 0},
        {"messages": HELLO, "context": [{"source": "a", "text": "b"}]},
    ],
    ("POST", "/v1/conversations/{conversation_id}/context"): [{"user_message": "Hello."}],
    ("POST", "/v1/conversations/{conversation_id}/pins"): [{"seq": 0}, {"seq": 99}],
    ("PATCH", "/v1/conversations/{conversation_id}/rules/{rule_id}"): [{"in_force": False}, {"in_force": True}],
    ("POST", "/v1/conversations/{conversation_id}/restore"): [{"version": 1}, {"version": 99}],
    ("POST", "/v1/conversations/{conversation_id}/fork"): [{"through_seq": 0}],
    ("POST", "/v1/conversations/{conversation_id}/compactions"): [{}, {"dry_run": True}],
    ("POST", "/v1/conversations/{conversation_id}/overflow"): [{}],
    ("POST", "/v1/conversations/{conversation_id}/comparisons"): [{"versions": [0, 1], "seq": 0}],
    ("POST", "/v1/conversations/{conversation_id}/bisect"): [{"text": "plover"}],
    ("POST", "/v1/conversations/{conversation_id}/recall"): [
        {"query": "plover"},
        {"ref": "m0"},
        {"ref": "m99"},
        {"pattern": "plover"},
    ],
}
QUERIES: Final = [
    *((path, name, "conv") for path in ("/v1/conversations", "/v1/erasures") for name in ("after_id", "before_id")),
    ("/v1/erasures", "conversation_id", "conv"),
    *(("/v1/runs", name, "run") for name in ("after_id", "before_id")),
    *(("/v1/webhook-deliveries", name, "evt") for name in ("after_id", "before_id")),
    ("/v1/conversations", "external_id", ""),
    ("/v1/conversations", "user_ref", ""),
    ("/v1/exports", "user_ref", ""),
]
STATEMENT: Final = re.compile(
    r"LOG:  (?:statement|execute [^:]*): (.*?)(?=\n\S+ \S+ \S* ?\[\d+\] |\n\d{4}-|\Z)", re.DOTALL
)
OTHERS: Final = re.compile(
    r"listen |processes|pg_catalog|'jit'|select 1\b|pg_advisory|assemblies|turn_usages|rate_limits_since|key_in_force"
    r"|^(?:begin|commit);$",
    re.IGNORECASE,
)
"""What the process does beside its requests, its transactions' ends among them, and which key it is now and then;
what the driver asks a connection once, too."""


class Doors(NamedTuple):
    """A tenant with something of everything, and another who tries its ids."""

    planted: Planted
    stranger: httpx2.Client
    log: Any

    def answer(self, method: str, path: str, body: Any) -> tuple[Any, ...]:
        """Return everything an answer consists of, but what differs from request to request."""
        given = {} if body is None else {"json": body}
        answer = self.stranger.request(method, path, **given)
        own = {"request-id", "date"}
        headers = sorted((name, value) for name, value in answer.headers.items() if name not in own)
        return answer.status_code, headers, answer.text.replace(answer.headers["request-id"], "")

    def statements(self, method: str, path: str, body: Any) -> list[str]:
        """Return what the database was asked for an answer, without values."""
        before = len(self.log.read_bytes())
        self.answer(method, path, body)
        written = self.log.read_bytes()[before:].decode()
        return [text for text in map(str.strip, STATEMENT.findall(written)) if not OTHERS.search(text)]


@pytest.fixture(scope="module")
def doors(postgres: EmbeddedPostgres, module_settings: Settings) -> Iterator[Doors]:
    url = module_settings.database_url.get_secret_value()
    name = sql.Identifier(str(make_url(url).database))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(sql.SQL("alter database {} set log_statement = 'all'").format(name))
    owner, other = make_tenants(url, "acme", "rival")
    with running_api(module_settings) as api, api.client(owner.key) as client, api.client(other.key) as stranger:
        planted = Planted(module_settings, owner.id, client)
        yield Doors(planted, stranger, postgres.directory / "server.log")


ROUTES: Final = [
    (method, path) for method, path in routes() if method != "HEAD" and path.startswith("/v1/") and "_id}" in path
]
"""Those that take an id."""


def pairs(doors: Doors, method: str, path: str) -> Iterator[tuple[str, str, Any]]:
    """Yield a foreign path and one that nobody has, with each body."""
    names = re.findall(r"\{(\w+)\}", path)
    assert set(names) <= set(PREFIXES) | NUMBERS, "a parameter of which this test does not know what it names"
    theirs, nobodys = path, path
    for name in names:
        if name in NUMBERS:
            theirs, nobodys = (text.replace(f"{{{name}}}", "0") for text in (theirs, nobodys))
            continue
        prefix = PREFIXES[name]
        items = sorted(each for each in doors.planted.ids if each.startswith(f"{prefix}_"))
        assert items, f"nothing was planted whose id begins with {prefix}_"
        theirs = theirs.replace(f"{{{name}}}", items[0])
        nobodys = nobodys.replace(f"{{{name}}}", ids.external(prefix, ids.new_id()))
    usual: list[Any] = [{}] if method in {"POST", "PATCH"} else [None]
    for body in BODIES.get((method, path), usual):
        yield theirs, nobodys, body


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_foreign_id_answers_as_a_missing_one(doors: Doors, method: str, path: str) -> None:
    for theirs, nobodys, body in pairs(doors, method, path):
        foreign, missing = doors.answer(method, theirs, body), doors.answer(method, nobodys, body)
        assert foreign == missing
        assert foreign[0] == 404, foreign
        # The first two calls have had what each connection asks once prepared.
        executed = doors.statements(method, theirs, body)
        assert executed == doors.statements(method, nobodys, body)
        assert executed, "nothing was asked, so nothing was compared"
    assert doors.planted.changed() == set()


@pytest.mark.parametrize(("path", "name", "prefix"), QUERIES)
def test_a_foreign_id_in_a_query_answers_as_a_missing_one(doors: Doors, path: str, name: str, prefix: Any) -> None:
    if prefix:
        theirs = next(each for each in sorted(doors.planted.ids) if each.startswith(f"{prefix}_"))
        nobodys = ids.external(prefix, ids.new_id())
    else:
        theirs, nobodys = f"{name}-{doors.planted.canary}", f"{name}-{'0' * len(doors.planted.canary)}"
    foreign = doors.answer("GET", f"{path}?{name}={theirs}", None)
    missing = doors.answer("GET", f"{path}?{name}={nobodys}", None)
    assert foreign[:2] == missing[:2]
    assert foreign[2].replace(theirs, nobodys) == missing[2]
    assert doors.statements("GET", f"{path}?{name}={theirs}", None) == doors.statements(
        "GET", f"{path}?{name}={nobodys}", None
    )


def test_the_owner_still_has_everything(doors: Doors) -> None:
    assert doors.planted.changed() == set()
    assert not doors.planted.reads_differently()


def test_a_foreign_key_is_refused_as_a_missing_one(doors: Doors) -> None:
    (key,) = [each for each in doors.planted.ids if each.startswith("key_")][:1]
    url = str(doors.stranger.base_url)
    with doors.stranger.__class__(base_url=url, timeout=30) as nobody:
        wrong = [f"{key}.{'A' * 43}", f"{ids.external('key', ids.new_id())}.{'A' * 43}"]
        answers = [nobody.get("/v1/tenant", headers={"authorization": f"Bearer {each}"}) for each in wrong]
    texts = [answer.text.replace(answer.headers["request-id"], "") for answer in answers]
    assert texts[0] == texts[1]
    assert [answer.status_code for answer in answers] == [401, 401]


def test_a_context_is_one_statement_and_a_payload_two(doors: Doors) -> None:
    made = doors.stranger.post("/v1/conversations", json={"system": "Be brief.", "tools": [{"name": "look"}]})
    path = f"/v1/conversations/{made.json()['id']}"
    turn = {"messages": [{"role": "user", "content": "Where is it?"}]}
    assert doors.stranger.post(f"{path}/turns", json=turn).status_code == 201
    for method, body, functions in (
        ("GET", None, ["read_context"]),
        ("POST", {"user_message": "And now?"}, ["read_beside_context", "read_context"]),
    ):
        doors.statements(method, f"{path}/context", body)
        asked = doors.statements(method, f"{path}/context", body)
        assert [re.findall(r"from (\w+)\(", each) for each in asked] == [[each] for each in functions]


def test_the_log_is_read_as_it_is_written(doors: Doors) -> None:
    asked = doors.statements("GET", "/v1/tenant", None)
    assert any("set_config" in each for each in asked)
    assert all("LOG:" not in each and "DETAIL" not in each for each in asked)
