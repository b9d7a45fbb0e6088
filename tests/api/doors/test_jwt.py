"""Bearer tokens of an identity provider: which are taken, which are not, and where their keys come from."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, uuid5

import jwt
import msgspec
import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from pydantic import ValidationError
from structlog.testing import capture_logs

from actions.auth import jwt_keys, principals
from actions.auth.jwt_keys import ASYMMETRIC, JwtKeys, NoKeysError, signing_keys
from actions.auth.jwt_tokens import JwtTokens
from actions.services import Services
from runtime import ids
from runtime.settings import Settings
from store import hot_path
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.servers.jwks_server import AUDIENCE, ISSUER, PRIVATE, jwks_server, key_set, private, public, token
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    import httpx2

    from tests.conftest import Tenant
    from tests.support.servers.jwks_server import JwksServer
    from tests.support.service.running_api import RunningApi, Service

ALL: Final = tuple(public(algorithm) for algorithm in PRIVATE)
HOUR: Final = 3_600


def ask(api: RunningApi, presented: str, path: str = "/v1/conversations", **options: Any) -> httpx2.Response:
    with api.client(presented) as client:
        return client.request(options.pop("method", "GET"), path, **options)


def with_tokens(settings: Settings, source: str, **fields: Any) -> Settings:
    jwt_settings = {"jwt_jwks": source, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, **fields}
    return Settings(**{**settings.model_dump(), **jwt_settings})


@pytest.fixture(scope="module")
def api(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    """An API that takes tokens, on the module's database; the keys are in a file."""
    path = tmp_path_factory.mktemp("jwks") / "jwks.json"
    path.write_bytes(key_set(*ALL))
    with running_api(with_tokens(service.settings, str(path))) as made:
        yield made


class TestTaken:
    @pytest.mark.parametrize("algorithm", sorted(PRIVATE))
    def test_by_algorithm(self, api: RunningApi, algorithm: str) -> None:
        # Entries with the same key under two names: RS256 and PS384 of one RSA key.
        assert ask(api, token(algorithm, tenant="acme", scope="context:read")).status_code == 200

    def test_the_tenant_by_name_or_by_id(self, api: RunningApi, service: Service) -> None:
        service.conversation(external_id="ours")
        for tenant in ("acme", ids.external("ten", service.tenant_id)):
            listed = ask(api, token(tenant=tenant, scope="context:read"), "/v1/conversations?external_id=ours")
            assert len(listed.json()["data"]) == 1
        rival = ask(api, token(tenant="rival", scope="context:read"), "/v1/conversations?external_id=ours")
        assert rival.json()["data"] == []

    @pytest.mark.parametrize(
        ("claim", "may"),
        [
            ("context:read", {"context:read"}),
            ("openid  context:read audit:read", {"context:read", "audit:read"}),
            (["profile", "audit:read", 7, None], {"audit:read"}),
            ("admin", {"context:read", "audit:read", "admin"}),
            ("", set()),
            ([], set()),
            (None, set()),
            (True, set()),
            ({"context:read": True}, set()),
            ("context:read,audit:read CONTEXT:READ", set()),
        ],
    )
    def test_scopes(self, api: RunningApi, claim: object, may: set[str]) -> None:
        calls = {"context:read": "/v1/conversations", "audit:read": "/v1/runs", "admin": "/v1/tenant"}
        presented = token(tenant="acme", scope=claim)
        answers = {scope: ask(api, presented, path) for scope, path in calls.items()}
        assert {scope for scope, answer in answers.items() if answer.status_code == 200} == may
        for scope in calls.keys() - may:
            problem(answers[scope], 403, "forbidden")

    def test_what_issuers_vary_in(self, api: RunningApi) -> None:
        for claims in ({"aud": ["other", AUDIENCE]}, {"nbf": None}, {"iat": None, "sub": None}, {"exp": HOUR + 4e9}):
            assert ask(api, token(tenant="acme", scope="context:read", **claims)).status_code == 200
        # Clocks that are a few seconds apart.
        drifted: list[dict[str, Any]] = [{"nbf": int(time.time()) + 5}, {"exp": int(time.time()) - 1}]
        for drift in drifted:
            assert ask(api, token(tenant="acme", scope="context:read", **drift)).status_code == 200

    def test_in_the_other_header(self, api: RunningApi) -> None:
        with api.client() as client:
            headers = {"x-api-key": token(tenant="acme", scope="context:read")}
            assert client.get("/v1/conversations", headers=headers).status_code == 200

    def test_keys_are_taken_as_before(self, api: RunningApi, service: Service) -> None:
        key = service.client.headers["authorization"].removeprefix("Bearer ")
        assert ask(api, key).status_code == 200

    def test_the_tenants_policy_is_applied(self, api: RunningApi, service: Service) -> None:
        admin = token(tenant="policied", scope="admin")
        make_tenant(service.database_url, "policied")
        changed = ask(api, admin, "/v1/tenant", method="PATCH", json={"policy": {"input_token_budget": 1_234}})
        assert changed.status_code == 200
        made = ask(api, admin, "/v1/conversations", method="POST", json={})
        assert made.json()["policy"]["input_token_budget"] == 1_234

    def test_an_erasure_tells_whose_token_it_was(self, api: RunningApi) -> None:
        admin = token(tenant="acme", scope="admin", sub="operator")
        made = ask(api, admin, "/v1/conversations", method="POST", json={}).json()["id"]
        erased = ask(api, admin, f"/v1/conversations/{made}", method="DELETE")
        assert erased.status_code < 300
        records = ask(api, admin, f"/v1/erasures?conversation_id={made}").json()["data"]
        assert records[0]["key_id"] == ids.external("key", uuid5(NAMESPACE_URL, f"{ISSUER}#operator"))


def b64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def by_hand(header: object, claims: object, sign: Callable[[bytes], bytes] = lambda _: b"signature") -> str:
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims)]
    signed = ".".join(map(b64, parts))
    return f"{signed}.{b64(sign(signed.encode()))}"


def signed(claims: object) -> str:
    """Return a token with a good signature, whatever it says."""
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return jwt.PyJWS().encode(payload, PRIVATE["ES256"], "ES256", {"kid": "ES256"})


def claims_of(**changes: Any) -> dict[str, Any]:
    payload = token(tenant="acme", scope="admin", **changes).split(".")[1]
    parsed: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return parsed


def hmac_with(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda signed: hmac.new(secret, signed, hashlib.sha256).digest()


def forged() -> dict[str, str]:
    """Return tokens that must not be taken, by what is wrong with them."""
    now = int(time.time())
    good = token(tenant="acme", scope="admin")
    head, body, signature = good.split(".")
    pem = PRIVATE["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    other_body = b64(json.dumps(claims_of(sub="another")).encode())

    def bad(**claims: Any) -> str:
        return token(**({"tenant": "acme", "scope": "admin"} | claims))

    return {
        "no algorithm": by_hand({"alg": "none", "typ": "JWT"}, claims_of(), lambda _: b""),
        "no algorithm, in capitals": by_hand({"alg": "NONE"}, claims_of()),
        "no algorithm, with a key": by_hand({"alg": "none", "kid": "RS256"}, claims_of(), lambda _: b""),
        "no header of that kind": by_hand({"kid": "RS256"}, claims_of()),
        "an algorithm that is a list": by_hand({"alg": ["RS256"], "kid": "RS256"}, claims_of()),
        "public key as a secret": by_hand({"alg": "HS256", "kid": "RS256"}, claims_of(), hmac_with(pem)),
        "JWKS entry as a secret": by_hand(
            {"alg": "HS256", "kid": "RS256"}, claims_of(), hmac_with(public("RS256")["n"].encode())
        ),
        "its own key": by_hand({"alg": "ES256", "jwk": public("ES256")}, claims_of()),
        "another algorithm than the key's": token("RS256", headers={"kid": "ES256"}, tenant="acme", scope="admin"),
        "another key": token("ES256", headers={"kid": "ES384"}, tenant="acme", scope="admin"),
        "a key that nobody knows": token("ES256", headers={"kid": "nobody's"}, tenant="acme", scope="admin"),
        "no key, of several": by_hand({"alg": "ES256"}, claims_of()),
        "a kid that is no text": by_hand({"alg": "ES256", "kid": 7}, claims_of()),
        "a kid that is an object": by_hand({"alg": "ES256", "kid": {"a": []}}, claims_of()),
        "something critical": token(headers={"crit": ["exp"]}, tenant="acme", scope="admin"),
        "another signature": f"{head}.{body}.{signature[:-4]}AAAA",
        "no signature": f"{head}.{body}.",
        "another body": f"{head}.{other_body}.{signature}",
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.{signature}",
        "a deep header": by_hand(b"[" * 11_000, claims_of()),
        "a header that is a list": by_hand([], claims_of()),
        "too long": bad(filler="x" * 20_000),
        "expired": bad(exp=now - 60),
        "no expiry": bad(exp=None),
        "an expiry that is no number": bad(exp="tomorrow"),
        "an expiry that is infinite": bad(exp=float("inf")),
        "an expiry that is no number at all": bad(exp=float("nan")),
        "an expiry that is a text": signed({**claims_of(), "exp": str(now + HOUR)}),
        "an expiry that is true": signed({**claims_of(), "exp": True}),
        "an expiry that never comes": signed({**claims_of(), "exp": 1e308}),
        "an expiry of many digits": signed({**claims_of(), "exp": 10**300}),
        "an expiry after the year 9999": signed({**claims_of(), "exp": 253_402_300_800}),
        "a beginning that is a text": signed({**claims_of(), "nbf": str(now - HOUR)}),
        "a beginning before time": signed({**claims_of(), "nbf": -1e308}),
        "a beginning that is a list": signed({**claims_of(), "nbf": [now]}),
        "an issue that is a text": signed({**claims_of(), "iat": str(now - HOUR)}),
        "an issue that is false": signed({**claims_of(), "iat": False}),
        "an id that is a number": signed({**claims_of(), "jti": 7}),
        "an id that is an object": signed({**claims_of(), "jti": {"a": "b"}}),
        "no subject, said": signed({**claims_of(), "sub": None}),
        "an audience with a number": signed({**claims_of(), "aud": [AUDIENCE, 7]}),
        "an audience that is an object": signed({**claims_of(), "aud": {AUDIENCE: 1}}),
        "not yet": bad(nbf=now + HOUR),
        "issued in the future": bad(iat=now + HOUR),
        "another issuer": bad(iss="https://other.example"),
        "no issuer": bad(iss=None),
        "another audience": bad(aud="another"),
        "no audience": bad(aud=None),
        "an audience that is a number": signed({**claims_of(), "aud": 1}),
        "issuers": signed({**claims_of(), "iss": [ISSUER]}),
        "a subject that is a number": signed({**claims_of(), "sub": 7}),
        "no tenant": bad(tenant=None),
        "an empty tenant": bad(tenant=""),
        "a tenant that does not exist": bad(tenant="nobody"),
        "an id of no tenant": bad(tenant=ids.external("ten", ids.new_id())),
        "tenants": bad(tenant=["acme"]),
        "NUL": bad(tenant="acme\0"),
        "half a character": bad(tenant="acme\ud800"),
        "claims that are a list": signed([]),
        "claims that are no JSON": signed(b"{"),
        "deep claims": signed(b'{"a":' * 5_000),
    }


FORGED: Final = forged()


@pytest.mark.parametrize("what", FORGED)
def test_what_is_refused(api: RunningApi, what: str) -> None:
    refused = ask(api, FORGED[what])
    with api.client() as client:
        nothing = client.get("/v1/conversations")
    own = {"request_id"}
    told, expected = problem(refused, 401, "unauthenticated"), problem(nothing, 401, "unauthenticated")
    assert {k: v for k, v in told.items() if k not in own} == {k: v for k, v in expected.items() if k not in own}
    assert refused.headers["www-authenticate"] == "Bearer"


def settings_for(source: str, **fields: Any) -> Settings:
    return Settings(jwt_jwks=source, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, **fields)


@given(
    text=st.one_of(
        st.text(max_size=200),
        st.lists(st.binary(max_size=60), min_size=2, max_size=4).map(lambda parts: ".".join(map(b64, parts))),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=9),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["alg", "kid", "b64"]), inner),
            max_leaves=6,
        ).map(lambda header: by_hand(header, {"tenant": "acme"})),
    )
)
@example(text="")
@example(text="..")
def test_no_token_is_an_error(text: str) -> None:
    async def verify() -> object:
        tokens = JwtTokens(settings_for("/nowhere"))
        tokens.keys._keys = signing_keys(key_set(*ALL))
        tokens.keys._fetch_ended = time.monotonic()
        return await tokens.verify(text)

    assert asyncio.run(verify()) is None


class TestKeySets:
    def test_what_signs_nothing_is_left_out(self) -> None:
        weak = RSAAlgorithm.to_jwk(rsa.generate_private_key(65_537, 1_024).public_key(), as_dict=True)  # noqa: S505 - that is the point
        bitcoin = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256K1()).public_key(), as_dict=True)
        entries = [
            {"kty": "oct", "kid": "shared", "k": b64(b"secret" * 8)},
            {"kty": "oct", "kid": "shared 2", "k": b64(b"secret" * 8), "alg": "RS256"},
            private("RS256"),
            private("ES256") | {"kid": "another"},
            public("RS256", kid="for encryption", use="enc"),
            public("RS256", kid="also", alg="RSA-OAEP"),
            public("RS256", kid="secret's", alg="HS256"),
            public("RS256", kid="none's", alg="none"),
            public("RS256", kid="wraps", key_ops=["wrapKey"]),
            public("RS256", kid=7),
            public("ES256", kid="broken", x="AAAA"),
            public("ES256", kid="mixed", crv="P-384"),
            {**weak, "kid": "weak"},
            {**bitcoin, "kid": "bitcoin"},
            {"kty": "EC", "kid": "empty"},
            {},
            public("ES256", kid="good", key_ops=["verify"]),
            public("ES384", kid="good"),
        ]
        assert list(signing_keys(key_set(*entries))) == ["good"]
        assert signing_keys(key_set(*entries))["good"].algorithms == ("ES256",)
        assert signing_keys(key_set()) == {}

    @pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": [1]}', b"<html>", b"\xff"])
    def test_what_is_no_key_set(self, document: bytes) -> None:
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            signing_keys(document)

    @given(
        st.lists(
            st.dictionaries(
                st.sampled_from(["kty", "crv", "alg", "use", "kid", "key_ops", "n", "e", "x", "y", "k"]),
                st.sampled_from(["RSA", "EC", "OKP", "oct", "P-256", "Ed25519", "RS256", "HS256", "sig", "AQAB", ""])
                | st.none()
                | st.integers()
                | st.lists(st.text(max_size=3), max_size=2),
            ),
            max_size=4,
        )
    )
    def test_no_entry_is_an_error(self, entries: Sequence[dict[str, Any]]) -> None:
        for key in signing_keys(key_set(*entries)).values():
            assert set(key.algorithms) <= ASYMMETRIC

    def test_only_what_is_asymmetric(self) -> None:
        assert not [name for name in ASYMMETRIC if name.startswith("HS") or name.lower() == "none"]


class Fetching:
    """A key set in an event loop of its own."""

    def __init__(self, source: str) -> None:
        self.runner = asyncio.Runner()
        self.keys = JwtKeys(source)

    def find(self, kid: str | None) -> object:
        return self.run(lambda: self.keys.find(kid))

    def run(self, call: Callable[[], Awaitable[Any]]) -> Any:
        async def within() -> Any:
            return await call()

        return self.runner.run(within())

    def close(self) -> None:
        self.run(self.keys.stop)
        self.runner.close()


@pytest.fixture
def jwks() -> Iterator[JwksServer]:
    with jwks_server(key_set(public("ES256"))) as served:
        yield served


@pytest.fixture
def fetching(jwks: JwksServer) -> Iterator[Fetching]:
    made = Fetching(jwks.url)
    yield made
    made.close()


class TestFetching:
    def test_a_new_key_is_looked_for_but_not_for_every_token(
        self, jwks: JwksServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert fetching.find("ES256")
        jwks.body = key_set(public("ES384"))
        assert fetching.find("ES384") is None, "too soon"
        assert jwks.asked == 1
        monkeypatch.setattr(jwt_keys, "RETRY_SECONDS", 0.0)
        assert fetching.find("ES384")
        assert fetching.find("ES256") is None, "taken back"
        asked = jwks.asked
        monkeypatch.setattr(jwt_keys, "RETRY_SECONDS", 60.0)
        for number in range(50):
            assert fetching.find(f"invented {number}") is None
        assert jwks.asked == asked

    def test_those_who_wait_share_one_fetch(self, jwks: JwksServer, fetching: Fetching) -> None:
        async def many() -> list[object]:
            return list(await asyncio.gather(*(fetching.keys.find("ES256") for _ in range(20))))

        assert all(fetching.run(many))
        assert jwks.asked == 1

    def test_who_gives_up_does_not_take_the_fetch_along(self, jwks: JwksServer, fetching: Fetching) -> None:
        async def given_up() -> object:
            impatient = asyncio.create_task(fetching.keys.find("ES256"))
            await asyncio.sleep(0)
            patient = asyncio.create_task(fetching.keys.find("ES256"))
            await asyncio.sleep(0)
            impatient.cancel()
            return await patient

        assert fetching.run(given_up)
        assert jwks.asked == 1

    def test_a_token_without_a_name_means_the_only_key(
        self, jwks: JwksServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert fetching.find(None)
        jwks.body = key_set(public("ES256"), public("ES384"))
        monkeypatch.setattr(jwt_keys, "RETRY_SECONDS", 0.0)
        assert fetching.find("ES384")
        assert fetching.find(None) is None

    @pytest.mark.parametrize("trouble", ["status", "redirect", "size", "compressed", "html", "hangs", "gone"])
    def test_what_was_had_stays_in_use(
        self, jwks: JwksServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch, trouble: str
    ) -> None:
        assert fetching.find("ES256")
        good = jwks.body
        monkeypatch.setattr(jwt_keys, "RETRY_SECONDS", 0.0)
        match trouble:
            case "status":
                jwks.status = 500
            case "redirect":
                jwks.status, jwks.headers = 302, {"location": jwks.url}
            case "size":
                jwks.body = good + b" " * jwt_keys.MAX_BYTES
            case "compressed":
                jwks.headers = {"content-encoding": "gzip"}
                jwks.body = b"\x1f\x8b" + bytes(1_000)
            case "html":
                jwks.body = b"<html>Sign in</html>"
            case "hangs":
                monkeypatch.setattr(jwt_keys, "FETCH_SECONDS", 0.2)
                jwks.hangs = True
            case "gone":
                fetching.keys._source = "http://127.0.0.1:1/jwks.json"
        asked = jwks.asked
        with capture_logs() as told:
            assert fetching.find("ES384") is None
        assert [entry["event"] for entry in told] == ["jwks.unavailable"]
        assert jwks.asked == asked + (trouble != "gone")
        assert fetching.find("ES256")
        # Well again.
        jwks.status, jwks.headers, jwks.hangs, jwks.body = 200, {}, False, key_set(public("ES384"))
        fetching.keys._source = jwks.url
        assert fetching.find("ES384")

    def test_fetched_from_time_to_time(
        self, jwks: JwksServer, fetching: Fetching, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jwt_keys, "REFRESH_SECONDS", 0.02)

        async def start() -> None:
            fetching.keys.start()

        fetching.run(start)
        assert fetching.find("ES256")
        jwks.body = key_set(public("ES384"))
        eventually(lambda: fetching.find("ES256") is None)

    def test_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "jwks.json"
        fetching = Fetching(str(path))
        with pytest.raises(NoKeysError):
            fetching.find("ES256")
        monkeypatch.setattr(jwt_keys, "RETRY_SECONDS", 0.0)
        path.write_bytes(key_set(public("ES256")) + b" " * jwt_keys.MAX_BYTES)
        with pytest.raises(NoKeysError):
            fetching.find("ES256")
        path.write_bytes(key_set(public("ES256")))
        assert fetching.find("ES256")
        fetching.close()

    def test_before_any_was_had(self, service: Service, jwks: JwksServer, monkeypatch: pytest.MonkeyPatch) -> None:
        jwks.status = 503
        presented = token(tenant="acme", scope="context:read")
        key = service.client.headers["authorization"].removeprefix("Bearer ")
        monkeypatch.setattr(jwt_keys, "RETRY_SECONDS", 0.02)
        with running_api(with_tokens(service.settings, jwks.url)) as api:
            away = ask(api, presented)
            problem(away, 503, "unavailable")
            assert away.headers["retry-after"] == "10"
            assert ask(api, key).status_code == 200
            problem(ask(api, FORGED["public key as a secret"]), 401, "unauthenticated")
            jwks.status = 200
            eventually(lambda: ask(api, presented).status_code == 200)

    def test_one_that_hangs_holds_up_neither_start_nor_keys_nor_end(self, service: Service, jwks: JwksServer) -> None:
        jwks.hangs = True
        key = service.client.headers["authorization"].removeprefix("Bearer ")
        with running_api(with_tokens(service.settings, jwks.url)) as api:
            eventually(lambda: jwks.asked == 1)
            assert ask(api, key).status_code == 200
            api.stop()


class TestRemembered:
    def test_no_longer_than_it_is_valid(
        self, make_settings: Callable[..., Settings], tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "jwks.json"
        path.write_bytes(key_set(*ALL))
        settings = with_tokens(make_settings(), str(path), jwt_leeway_seconds=0)
        clock = SimpleNamespace(now=1_000.0)
        monkeypatch.setattr(principals, "time", SimpleNamespace(monotonic=lambda: clock.now))
        monkeypatch.setattr(principals, "REMEMBERED_SECONDS", 1e9)
        presented = token(tenant="acme", scope="audit:read", exp=int(time.time()) + HOUR)

        async def within() -> None:
            services = Services(settings)
            pool = await hot_path.open_pool(settings)
            made = principals.Authenticator(pool, {}, services.last_used, services.tokens)
            found = await made.authenticate(presented)
            assert found is not None
            assert (found.tenant_id, found.scopes) == (tenant.id, frozenset({"audit:read"}))
            made._tokens = None
            clock.now += HOUR - 120
            assert await made.authenticate(presented) is found, "remembered"
            clock.now += 120
            assert await made.authenticate(presented) is None
            assert services.last_used._used == {}
            await services.tokens.keys.stop()  # type: ignore[union-attr] # set up above
            await pool.close()
            await services.engine.dispose()

        asyncio.run(within())


@pytest.mark.parametrize(
    "fields",
    [
        {"jwt_issuer": None},
        {"jwt_audience": None},
        {"jwt_audience": ""},
        {"jwt_jwks": None},
        {"jwt_jwks": "ftp://identity.example/jwks.json"},
        {"jwt_leeway_seconds": 61},
    ],
)
def test_settings_that_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**{"jwt_jwks": "jwks.json", "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, **fields})


def test_off_by_default(service: Service) -> None:
    assert Services(Settings()).tokens is None
    problem(ask(service.api, token(tenant="acme", scope="admin")), 401, "unauthenticated")


def test_tenants_are_found_by_nothing_but_name_and_id(service: Service) -> None:
    with psycopg.connect(service.database_url) as connection:
        rows = connection.execute(
            "select count(*) from (select tenant_of_token(null, null) union all"
            " select tenant_of_token(%s, 'acme')) as found",
            [ids.new_id()],
        ).fetchone()
    assert rows == (0,)
