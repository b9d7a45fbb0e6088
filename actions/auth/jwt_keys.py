"""The public keys that tokens are signed with (a JWKS, RFC 7517): fetched off the request path, and kept."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import jwt
import msgspec
import structlog

from actions.background.ending import end

log = structlog.get_logger()

REFRESH_SECONDS: Final = 300.0
"""Seconds after which the keys are fetched again; for so long a key that the issuer took back is still good."""
RETRY_SECONDS: Final = 10.0
"""Seconds between two attempts while they fail, and between two for keys that are not known."""
FETCH_SECONDS: Final = 5.0
"""Seconds that one fetch may take in all, and so the longest that a request waits for one."""
MAX_BYTES: Final = 1 << 20
"""Bytes of a JWKS; ordinary ones have some thousand."""
MIN_RSA_BITS: Final = 2_048
"""RFC 7518, 3.3."""

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Final = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""What may be signed with a key of this type and curve: with no secret that both sides would have to know."""
ASYMMETRIC: Final = frozenset(name for names in _ALGORITHMS.values() for name in names)


class NoKeysError(Exception):
    """No key set could be had so far."""


class SigningKey(NamedTuple):
    """A public key, and the algorithms that it may be used with."""

    key: Any
    algorithms: tuple[str, ...]


class _Set(msgspec.Struct):
    keys: list[dict[str, Any]]


class JwtKeys:
    """The key set of one issuer, from a file or a URL.

    What was had once stays in use for as long as no newer one can be had.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._keys: dict[str | None, SigningKey] | None = None
        self._fetch_ended = float("-inf")
        self._fetching: asyncio.Task[bool] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to fetch, now and from time to time."""
        self._task = asyncio.create_task(self._fetch_regularly())

    async def stop(self) -> None:
        """End."""
        for task in (self._task, self._fetching):
            await end(task)

    async def find(self, kid: str | None) -> SigningKey | None:
        """Return the key that a token names; a token that names none means the only one.

        A name that is not known has the set fetched again, if that was not just done: the issuer may have changed keys.
        Raise NoKeysError.
        """
        if self._known(kid) is None and (
            self._fetching is not None or time.monotonic() - self._fetch_ended >= RETRY_SECONDS
        ):
            await self._fetch()
        if self._keys is None:
            raise NoKeysError
        return self._known(kid)

    def _known(self, kid: str | None) -> SigningKey | None:
        if not self._keys:
            return None
        return next(iter(self._keys.values())) if kid is None and len(self._keys) == 1 else self._keys.get(kid)

    async def _fetch_regularly(self) -> None:
        while True:
            seconds = REFRESH_SECONDS if await self._fetch() else RETRY_SECONDS
            await asyncio.sleep(seconds)

    async def _fetch(self) -> bool:
        """Fetch the set, or wait for a fetch that is under way; tell whether it came."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_once())
        # A request that is given up does not take the fetch with it: others wait for the same.
        return await asyncio.shield(self._fetching)

    async def _fetch_once(self) -> bool:
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                document = await _read(self._source)
            self._keys = await asyncio.to_thread(signing_keys, document)
        except Exception as error:  # noqa: BLE001 - whatever it is, the set that is there stays in use
            log.warning("jwks.unavailable", error=type(error).__name__, kept=len(self._keys or ()))
            return False
        else:
            log.info("jwks.fetched", keys=len(self._keys))
            return True
        finally:
            self._fetch_ended = time.monotonic()
            self._fetching = None


def signing_keys(document: bytes) -> dict[str | None, SigningKey]:
    """Return the keys of a JWKS that verify signatures, by their names; raise ValueError if it is none."""
    keys: dict[str | None, SigningKey] = {}
    for entry in msgspec.json.decode(document, type=_Set).keys:
        kid = entry.get("kid")
        key = _signing_key(entry)
        if key is not None and (kid is None or isinstance(kid, str)):
            keys.setdefault(kid, key)
    return keys


def _signing_key(entry: dict[str, Any]) -> SigningKey | None:
    """Return the key of one entry, None for one that is for something else, too weak, or not public."""
    kind, curve = str(entry.get("kty")), entry.get("crv")
    possible = _ALGORITHMS.get((kind, str(curve) if curve else None), ())
    algorithms = tuple(name for name in possible if entry.get("alg", name) == name)
    operations = entry.get("key_ops")
    for_signatures = entry.get("use", "sig") == "sig" and (not isinstance(operations, list) or "verify" in operations)
    if not algorithms or not for_signatures or "d" in entry:
        return None
    try:
        key = jwt.PyJWK(entry, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return None if kind == "RSA" and key.key_size < MIN_RSA_BITS else SigningKey(key, algorithms)


async def _read(source: str) -> bytes:
    if "://" not in source:
        return await asyncio.to_thread(_read_file, Path(source))
    # Made in a thread, because it reads the certificates that it trusts.
    client = await asyncio.to_thread(httpx2.AsyncClient, timeout=FETCH_SECONDS)
    # Not compressed: a small answer could become a very large one.
    async with client, client.stream("GET", source, headers={"accept-encoding": "identity"}) as answer:
        answer.raise_for_status()
        document = bytearray()
        async for part in answer.aiter_raw():
            document += part
            _check_size(document)
        return bytes(document)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        document = file.read(MAX_BYTES + 1)
    _check_size(document)
    return document


def _check_size(document: bytes | bytearray) -> None:
    if len(document) > MAX_BYTES:
        raise ValueError(f"a JWKS of more than {MAX_BYTES} bytes")
