"""An identity provider on the loopback address: keys, tokens signed with them, and the JWKS over HTTP."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ISSUER: Final = "https://identity.example"
AUDIENCE: Final = "palimpsest"
_RSA: Final = rsa.generate_private_key(65_537, 2_048)
PRIVATE: Final[dict[str, Any]] = {
    "RS256": _RSA,
    "PS384": _RSA,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
"""A private key for each of these algorithms."""


def public(algorithm: str, **fields: Any) -> dict[str, Any]:
    """Return the entry of a JWKS for the key of an algorithm; its name is the algorithm's unless given."""
    key = PRIVATE[algorithm].public_key()
    kind: Any = {"R": RSAAlgorithm, "P": RSAAlgorithm}.get(algorithm[0], ECAlgorithm)
    entry = (OKPAlgorithm if algorithm == "EdDSA" else kind).to_jwk(key, as_dict=True)
    return {**entry, "kid": algorithm, "use": "sig", **fields}


def private(algorithm: str) -> dict[str, Any]:
    """Return the entry of a JWKS that gives its private key away."""
    key = PRIVATE[algorithm]
    kind: Any = {"R": RSAAlgorithm, "E": ECAlgorithm}[algorithm[0]]
    entry: dict[str, Any] = kind.to_jwk(key, as_dict=True)
    return {**entry, "kid": algorithm, "key_ops": ["verify", "sign"]}


def key_set(*entries: dict[str, Any]) -> bytes:
    """Return a JWKS."""
    return json.dumps({"keys": entries}).encode()


def token(algorithm: str = "ES256", *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    """Return a signed token, valid for an hour unless `claims` say otherwise; a claim that is None is left out."""
    now = int(time.time())
    given = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 3_600, "nbf": now - 5, "iat": now - 5, "sub": "somebody"}
    payload = {name: value for name, value in (given | claims).items() if value is not None}
    return jwt.encode(payload, PRIVATE[algorithm], algorithm, {"kid": algorithm, **(headers or {})})


class JwksServer:
    """Answers every GET with `body` and `status`; `asked` counts them."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked = 0
        self.hangs = False
        """Whether an answer begins and does not end before the server does."""
        self.ending = Event()
        self.url = ""


@contextmanager
def jwks_server(body: bytes) -> Iterator[JwksServer]:
    """Serve a JWKS."""
    served = JwksServer(body)

    class Answering(QuietHandler):
        def do_GET(self) -> None:
            served.asked += 1
            self.send_response(served.status)
            for name, value in served.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(served.body) + served.hangs))
            self.end_headers()
            try:
                self.wfile.write(served.body)
                if served.hangs:
                    self.wfile.flush()
                    served.ending.wait(60)
            except OSError:
                pass

    with ThreadedServer(Answering) as server:
        served.url = f"{server.url}/jwks.json"
        try:
            yield served
        finally:
            served.ending.set()
