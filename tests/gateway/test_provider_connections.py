"""Calls of providers on real sockets: whatever pieces an answer comes in, wherever it breaks, whoever waits."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import httpcore2
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.doors import CHAT, DoorError
from gateway.providers import calls
from gateway.providers.answers import CutOffError
from gateway.providers.calls import MOST_WAITING_BYTES, PIECE_BYTES, ProviderCalls
from gateway.providers.upstreams import Provider
from runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

    from gateway.providers.answers import ProviderAnswer

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK: Final = b"HTTP/1.1 200 OK\r\n"
SIZED: Final = OK + b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"


class Loopback:
    """A provider by its bytes: each connection is served by `serve`, what came before that is kept."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.heads: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read a request; return its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        _, is_sized, rest = head.partition(b"content-length: ")
        return await reader.readexactly(int(rest.split(b"\r\n")[0])) if is_sized else b""


@asynccontextmanager
async def provider(
    answers: Callable[[Loopback, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
    **fields: Any,
) -> AsyncIterator[tuple[Loopback, ProviderCalls]]:
    """Serve on loopback, and have what calls it."""
    loopback = Loopback(lambda reader, writer: answers(loopback, reader, writer))
    server = await asyncio.start_server(loopback, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    loopback.url = f"{'https' if context else 'http'}://127.0.0.1:{port}/v1"
    own = ProviderCalls(Settings(**{"gateway_upstream_seconds": 20.0, **fields}))
    try:
        yield loopback, own
    finally:
        await own.close()
        server.close()


async def post(own: ProviderCalls, loopback: Loopback, body: bytes = b"{}", method: str = "POST") -> ProviderAnswer:
    headers = [(b"x-kept", b"yes"), (b"content-length", b"%d" % len(body))]
    return await own.send(method, Provider(loopback.url, None, "OPENAI_BASE_URL"), CHAT, b"a=b%20c%2f", headers, body)


async def whole(answer: ProviderAnswer) -> bytes:
    try:
        return b"".join([piece async for piece in answer.pieces()])
    finally:
        answer.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 30))


def saying(*answers: bytes) -> Any:
    """Return what answers one request of each connection after the other, and closes it."""

    async def serve(loopback: Loopback, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await loopback.request(reader)
            writer.write(answer)
            await writer.drain()

    return serve


def chunked(body: bytes, sizes: list[int]) -> bytes:
    parts = []
    for size in sizes:
        part, body = body[:size], body[size:]
        parts += [b"%x\r\n%b\r\n" % (len(part), part)] if part else []
    parts += [b"%x\r\n%b\r\n" % (len(body), body)] if body else []
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n\r\n"


@given(
    body=st.binary(max_size=300),
    framing=st.sampled_from(["sized", "chunked", "closed"]),
    sizes=st.lists(st.integers(1, 40), max_size=5),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    hinted=st.booleans(),
)
def test_answer_is_the_same_in_whatever_pieces(
    body: bytes, framing: str, sizes: list[int], cuts: list[int], hinted: bool
) -> None:
    match framing:
        case "sized":
            raw = OK + b"X-One: 1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        case "chunked":
            raw = chunked(body, sizes)
        case _:
            raw = OK + b"Connection: close\r\n\r\n" + body
    raw = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * hinted + raw

    async def serve(loopback: Loopback, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await loopback.request(reader)
        places = sorted({0, *(cut for cut in cuts if cut < len(raw)), len(raw)})
        for start, end in pairwise(places):
            writer.write(raw[start:end])
            await writer.drain()
            await asyncio.sleep(0)

    async def test() -> None:
        async with provider(serve) as (loopback, own):
            answer = await post(own, loopback)
            assert answer.status == 200
            assert b"link" not in dict(answer.headers)
            assert await whole(answer) == body

    run(test())


def test_request_is_written_as_it_is_to_be() -> None:
    async def test() -> None:
        async with provider(saying(SIZED)) as (loopback, own):
            answer = await post(own, loopback, b'{"a":1}')
            assert answer.headers == [(b"content-type", b"text/plain"), (b"content-length", b"5")]
            assert await whole(answer) == b"hello"
        netloc = loopback.url.split("/")[2].encode()
        first, *headers = loopback.heads[0].lower().removesuffix(b"\r\n\r\n").split(b"\r\n")
        assert first == b"post /v1/chat/completions?a=b%20c%2f http/1.1"
        assert sorted(headers) == [b"content-length: 7", b"host: " + netloc, b"x-kept: yes"]

    run(test())


@pytest.mark.parametrize("value", [b"a\r\nx-more: 1", b"a\nb", b"a\rb", b"a\0b"])
def test_header_is_one_line(value: bytes) -> None:
    async def test() -> None:
        async with provider(saying(SIZED)) as (loopback, own):
            with pytest.raises(DoorError, match="ValueError"):
                await own.send("POST", Provider(loopback.url, None, "OPENAI_BASE_URL"), CHAT, b"", [(b"x", value)], b"")
        assert not loopback.heads

    run(test())


def test_connection_is_kept_for_the_next_call() -> None:
    async def test() -> None:
        async with provider(saying(SIZED, chunked(b"again", []), SIZED)) as (loopback, own):
            for _ in range(3):
                assert len(await whole(await post(own, loopback))) == 5
            assert loopback.connections == 1

    run(test())


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        SIZED + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother",
    ],
)
def test_connection_is_not_kept(answer: bytes) -> None:
    """What a provider closes, or sends unasked, is nobody's answer."""

    async def test() -> None:
        async with provider(saying(answer, SIZED)) as (loopback, own):
            for _ in range(2):
                assert await whole(await post(own, loopback)) == b"hello"
            assert loopback.connections == 2

    run(test())


def test_connection_that_was_left_early_is_not_kept() -> None:
    async def serve(loopback: Loopback, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await loopback.request(reader)
        writer.write(OK + b"Content-Length: 9\r\n\r\nhello" if loopback.connections == 1 else SIZED)
        await reader.read()

    async def test() -> None:
        async with provider(serve) as (loopback, own):
            answer = await post(own, loopback)
            assert await anext(answer.pieces()) == b"hello"
            answer.close()
            answer.close()
            assert await whole(await post(own, loopback)) == b"hello"
            assert loopback.connections == 2

    run(test())


def test_connection_that_nobody_takes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "KEPT_SECONDS", 0.01)
    ended: list[bytes] = []

    async def serve(loopback: Loopback, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await loopback.request(reader)
        writer.write(SIZED)
        ended.append(await reader.read())
        is_ended.set()

    is_ended = asyncio.Event()

    async def test() -> None:
        async with provider(serve) as (loopback, own):
            await whole(await post(own, loopback))
            await is_ended.wait()
            assert ended == [b""]

    run(test())


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\nContent", b"SSH-2.0-OpenSSH\r\n", OK + b"X: %b\r\n\r\n" % (b"y" * 300_000)]
)
def test_what_is_no_answer_is_an_error(raw: bytes) -> None:
    async def test() -> None:
        async with provider(saying(raw)) as (loopback, own):
            with pytest.raises(DoorError) as raised:
                await post(own, loopback)
            assert raised.value.status == 502

    run(test())


@pytest.mark.parametrize(
    "raw", [OK + b"Content-Length: 9\r\n\r\nhello", OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"]
)
def test_answer_that_breaks_breaks_after_what_came(raw: bytes) -> None:
    async def test() -> None:
        async with provider(saying(raw)) as (loopback, own):
            answer = await post(own, loopback)
            pieces = answer.pieces()
            assert await anext(pieces) == b"hello"
            with pytest.raises(CutOffError):
                await anext(pieces)
            answer.close()

    run(test())


def test_answer_of_many_headers_is_one() -> None:
    many = b"".join(b"X-Ratelimit-%d: %d\r\n" % (number, number) for number in range(500))

    async def test() -> None:
        async with provider(saying(SIZED.replace(b"\r\n", b"\r\n" + many, 1))) as (loopback, own):
            answer = await post(own, loopback)
            assert (b"x-ratelimit-499", b"499") in answer.headers
            assert await whole(answer) == b"hello"

    run(test())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_answers_without_a_body(method: str) -> None:
    raw = SIZED.partition(b"hello")[0] if method == "HEAD" else b"HTTP/1.1 204 No Content\r\n\r\n"

    async def test() -> None:
        async with provider(saying(raw)) as (loopback, own):
            answer = await own.send(method, Provider(loopback.url, None, "OPENAI_BASE_URL"), CHAT, b"", [], b"")
            assert answer.status == (200 if method == "HEAD" else 204)
            assert await whole(answer) == b""

    run(test())


def test_refusal_comes_before_the_end_of_a_large_request() -> None:
    async def serve(loopback: Loopback, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loopback.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await never.wait()

    never = asyncio.Event()

    async def test() -> None:
        async with provider(serve) as (loopback, own):
            answer = await post(own, loopback, b"x" * (100 * PIECE_BYTES))
            assert (answer.status, await whole(answer)) == (413, b"no")
            never.set()

    run(test())


def test_large_request_arrives_whole() -> None:
    body = bytes(range(256)) * (PIECE_BYTES // 32)
    came: list[bytes] = []

    async def serve(loopback: Loopback, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            came.append(await loopback.request(reader))
            writer.write(SIZED)

    async def test() -> None:
        async with provider(serve) as (loopback, own):
            for _ in range(2):
                assert await whole(await post(own, loopback, body)) == b"hello"
            assert came == [body, body]
            assert loopback.connections == 1

    run(test())


def test_answer_waits_for_its_reader() -> None:
    """Of an answer that nobody takes only a little is read."""
    size = 64 * 1024 * 1024
    sent = 0
    waits = asyncio.Event()

    async def serve(loopback: Loopback, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await loopback.request(reader)
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size)
        for _ in range(size // 65_536):
            writer.write(bytes(65_536))
            nonlocal sent
            sent += 65_536
            stalled = asyncio.get_running_loop().call_later(0.2, waits.set)
            await writer.drain()
            stalled.cancel()
        waits.set()

    async def test() -> None:
        async with provider(serve) as (loopback, own):
            answer = await post(own, loopback)
            pieces = answer.pieces()
            most = len(await anext(pieces))
            await waits.wait()
            assert sent < size // 2
            count = most
            async for piece in pieces:
                most = max(most, len(piece))
                count += len(piece)
            answer.close()
            assert count == size
            assert most <= MOST_WAITING_BYTES + 256 * 1024

    run(test())


def test_provider_that_says_nothing_is_given_up() -> None:
    async def serve(loopback: Loopback, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await loopback.request(reader)
        if len(loopback.heads) > 1:
            writer.write(OK + b"Content-Length: 9\r\n\r\nhello")
        await reader.read()

    async def test() -> None:
        async with provider(serve, gateway_upstream_seconds=0.1) as (loopback, own):
            with pytest.raises(DoorError) as raised:
                await post(own, loopback)
            assert raised.value.status == 504
            answer = await post(own, loopback)
            with pytest.raises(CutOffError):
                await whole(answer)

    run(test())


def test_provider_that_nobody_finds_is_away() -> None:
    async def test() -> None:
        own = ProviderCalls(Settings())
        with pytest.raises(DoorError) as raised:
            await own.send("POST", Provider("http://nobody.invalid/v1", None, "OPENAI_BASE_URL"), CHAT, b"", [], b"")
        assert raised.value.status == 502
        assert raised.value.detail == (
            "The provider at nobody.invalid:80 can't be reached: no host of this name is found. "
            "The gateway's OPENAI_BASE_URL says where it is."
        )
        await own.close()

    run(test())


def test_certificate_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "server.key", tmp_path / "server.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate, key)
    # The tests read the machine's certificates once.
    fresh: Any = httpcore2.default_ssl_context
    monkeypatch.setattr(httpcore2, "default_ssl_context", fresh.__wrapped__)

    async def test(*, is_trusted: bool) -> None:
        async with provider(saying(SIZED, SIZED), served) as (loopback, own):
            if is_trusted:
                for _ in range(2):
                    assert await whole(await post(own, loopback, b"x" * (3 * PIECE_BYTES))) == b"hello"
                assert loopback.connections == 1
            else:
                with pytest.raises(DoorError, match="its certificate is not trusted"):
                    await post(own, loopback)

    run(test(is_trusted=False))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    run(test(is_trusted=True))


def test_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with provider(saying(chunked(b"by way of it", [3]))) as (loopback, _):
            monkeypatch.setenv("http_proxy", loopback.url.removesuffix("/v1"))
            own = ProviderCalls(Settings())
            away = Provider("http://model.example/v1", None, "OPENAI_BASE_URL")
            answer = await own.send("POST", away, CHAT, b"", [(b"content-length", b"2")], b"{}")
            assert (answer.status, await whole(answer)) == (200, b"by way of it")
            assert loopback.heads[0].startswith(b"POST http://model.example/v1/chat/completions HTTP/1.1\r\n")
            assert b"\r\nhost: model.example\r\n" in loopback.heads[0].lower()
            await own.close()

    run(test())


@pytest.mark.parametrize(("value", "sent"), [("Grüße".encode(), "Grüße".encode()), (b"Gr\xfc", "Grü".encode())])
def test_header_of_other_letters_goes_on(value: bytes, sent: bytes) -> None:
    async def test() -> None:
        async with provider(saying(SIZED)) as (loopback, own):
            headers = [(b"x-title", value), (b"content-length", b"2")]
            await whole(
                await own.send("POST", Provider(loopback.url, None, "OPENAI_BASE_URL"), CHAT, b"", headers, b"{}")
            )
            assert b"x-title: " + sent + b"\r\n" in loopback.heads[0]

    run(test())
