"""The whole service on one machine: embedded servers, migrations, an API key, API, workers and beat."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, TextIO

from cli.local.embedded import EmbeddedError, EmbeddedStack, free_port
from cli.local.preparation import ServiceError, one_line, prepare, revoke
from cli.local.processes import COMMAND, Supervisor
from runtime.defaults import GATEWAY_PORT, SERVICE_ROLE
from runtime.http.listening import CannotListenError, check_port_is_free
from runtime.summarizers import DEFAULT_MODELS, provider_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import FrameType


__all__ = ["RunningService", "ServiceError", "ServiceStoppedError", "run_serve", "running_service"]

_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  looked up, not bound
"""Where a server that listens on all addresses of a kind is asked from here."""
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.05
_STOP_SECONDS = 10.0  # then workers are killed; their leases expire and the work is done again
_WATCH_SECONDS = 0.5
_EVERY_PART = "gateway, API, beat, workers, Redis and Postgres"
"""What is stopped, for people."""
_STOP_ORDER = ("gateway", "api", "beat", "checks", "summaries")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSWORD = re.compile(r":[^:@/]*@")
"""The password of a URL, with what stands around it."""
_PARTS: dict[str, list[str]] = {
    "api": ["api"],
    "gateway": ["gateway"],
    "checks": ["worker", "--queues", "checks"],
    "summaries": ["worker", "--queues", "summaries"],
    "beat": ["beat"],
}


class ServiceStoppedError(ServiceError):
    """It was asked to stop before it was ready."""


@dataclass(frozen=True, slots=True)
class RunningService:
    """What a client of a running service needs to know, and what `serve` prints."""

    url: str
    gateway_url: str
    """The base URL for clients that know nothing of the service."""
    host: str
    """The address that it listens on."""
    api_key: str
    console_ticket: str
    """What signs a browser in once, with the key; it is not good for long."""
    database_url: str
    broker_url: str
    summarizer: str
    """`anthropic`, `extractive` or `none`."""
    model: str
    """The summarizer for people: which one, and whether a real model is behind it."""
    store: str
    """Where the data is, for people."""
    supervisor: Supervisor
    stack: EmbeddedStack

    def check(self) -> None:
        """Raise ServiceError when a part has ended for good."""
        if reason := self.supervisor.failure or self.stack.ended():
            raise ServiceError(reason)


@contextlib.contextmanager
def running_service(
    *,
    port: int = 0,
    data_dir: Path | None = None,
    summarizer: str | None = None,
    durable: bool = True,
    environ: Mapping[str, str] | None = None,
    log: TextIO | None = None,
    stopping: threading.Event | None = None,
) -> Iterator[RunningService]:
    """Run the service for the length of the block, ready when it is entered; all of it is gone afterwards.

    `port` 0 is any free one. Without `data_dir` the data is temporary. `environ` is what the parts see of the
    environment, this process's own by default; URLs of Postgres and Redis in it are used instead of embedded
    servers. Not `durable` suits tests. `log` is where the parts' output goes, stderr by default. Setting
    `stopping` ends a start that is under way with ServiceStoppedError. Raises ServiceError or EmbeddedError,
    with nothing left behind.
    """
    given = dict(os.environ if environ is None else environ)
    stopping = stopping or threading.Event()
    host = given.get("PALIMPSEST_HOST") or "127.0.0.1"
    chosen_port = _claim_port(host, port)
    ports = {"api": chosen_port, "gateway": _gateway_port(given, host, port)}
    with contextlib.ExitStack() as running:
        stack = running.enter_context(EmbeddedStack.from_environment(data_dir, durable=durable, environ=given))
        started = "Postgres and Redis"
        _check(stopping, started)
        is_own = not given.get("PALIMPSEST_DATABASE_URL")
        prepared = prepare(stack.database_url, data_dir, is_own=is_own)
        if data_dir is None and not is_own:
            # The database stays, and nobody could find a key again that opens everything.
            running.callback(revoke, stack.database_url, prepared.api_key)
        _check(stopping, started)
        name = summarizer or given.get("PALIMPSEST_SUMMARIZER") or _default_summarizer(given)
        env = given | {
            "PALIMPSEST_DATABASE_URL": prepared.parts_url,
            **({"PALIMPSEST_DATABASE_ROLE": SERVICE_ROLE} if is_own else {}),
            "PALIMPSEST_BROKER_URL": stack.broker_url,
            "PALIMPSEST_SUMMARIZER": name,
            "PALIMPSEST_HOST": host,
            "PALIMPSEST_PORT": str(chosen_port),
            "PYTHONUNBUFFERED": "1",
        }
        supervisor = Supervisor(log=log)
        running.callback(supervisor.stop, _STOP_ORDER, grace=_STOP_SECONDS)
        for part, arguments in _PARTS.items():
            own = ["--port", str(ports[part])] if part in ports else []
            supervisor.start(part, [*COMMAND, *arguments, *own], env)
        reachable = _REACHABLE.get(host, host)
        for answering in ports.values():
            _await_ready(reachable, answering, supervisor, stopping)
        supervisor.keep_running()
        stack.keep_running(supervisor.note)
        yield RunningService(
            url=_url(reachable, chosen_port),
            gateway_url=_url(reachable, ports["gateway"]),
            host=host,
            api_key=prepared.api_key,
            console_ticket=prepared.console_ticket,
            database_url=stack.database_url,
            broker_url=stack.broker_url,
            summarizer=name,
            model=_describe_model(name, given),
            store=_describe_store(data_dir, given),
            supervisor=supervisor,
            stack=stack,
        )


def run_serve(port: int, data_dir: Path | None, summarizer: str | None, *, show_keys: bool = False) -> int:
    """Run in the foreground until SIGINT or SIGTERM; answer the exit status, 0 or 1.

    Once ready it prints one JSON line on stdout and a few lines for people on stderr. On a terminal both are without
    keys and passwords unless `show_keys`. A second signal does not wait for an orderly end.
    """
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        with running_service(port=port, data_dir=data_dir, summarizer=summarizer, stopping=stopping) as service:
            _announce(service, show_keys=show_keys)
            while not stopping.wait(_WATCH_SECONDS):
                service.check()
        sys.stderr.write(f"palimpsest: stopped: {_EVERY_PART}\n")
    except ServiceStoppedError as stopped:
        sys.stderr.write(f"palimpsest: {stopped}\n")
        return 0
    except (ServiceError, EmbeddedError) as error:
        sys.stderr.write(f"palimpsest: {error}\n")
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _announce(service: RunningService, *, show_keys: bool) -> None:
    fields = ("url", "api_key", "database_url", "broker_url", "gateway_url")
    ready: dict[str, str | None] = {field: getattr(service, field) for field in fields}
    if sys.stdout.isatty() and not show_keys:
        ready["api_key"] = None
        for field in ("database_url", "broker_url"):
            ready[field] = _PASSWORD.sub(":***@", ready[field] or "")
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    key = service.api_key if show_keys else "$PALIMPSEST_KEY"
    lines = {
        "API": f"{service.url}  ({_describe_reach(service.host)})",
        "Console": f"{service.url}/console/sign-in?ticket={service.console_ticket}",
        "Gateway": f"{service.gateway_url}  (base URL for clients of Messages; with /v1 for those of OpenAI's APIs)",
        "Docs": f"{service.url}/docs, metrics: {service.url}/metrics",
        "Store": service.store,
        "Model": service.model,
        "Key": service.api_key if show_keys else "not shown; --show-keys shows it, and the console makes others",
        "Try": f"curl -s {shlex.quote(f'{service.url}/v1/conversations')} -H \"authorization: Bearer {key}\" -d '{{}}'",
    }
    sys.stderr.write("".join(f"{label:<8}{text}\n" for label, text in lines.items()))
    sys.stderr.flush()


def _claim_port(host: str, port: int) -> int:
    """Answer the port, or a free one for 0. Raises ServiceError early for one that is taken."""
    if port == 0:
        return free_port()
    try:
        check_port_is_free(host, port)
    except CannotListenError as error:
        raise ServiceError(str(error)) from None
    return port


def _gateway_port(given: Mapping[str, str], host: str, port: int) -> int:
    """Answer the gateway's port: the one that the environment names, else any free one where its own is taken."""
    named = given.get("PALIMPSEST_GATEWAY_PORT", "")
    if named.isdigit():
        return _claim_port(host, int(named))
    if port == 0:
        return free_port()
    try:
        return _claim_port(host, GATEWAY_PORT)
    except ServiceError:
        return free_port()


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _await_ready(host: str, port: int, supervisor: Supervisor, stopping: threading.Event) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        if supervisor.failed.is_set():
            raise ServiceError(supervisor.failure)
        _check(stopping, _EVERY_PART)
        answer = _readiness(host, port)
        if answer == "200":
            return
        if time.monotonic() > deadline:
            raise ServiceError(f"not ready after {_READY_SECONDS:g} s, /readyz: {answer}")
        supervisor.failed.wait(_POLL_SECONDS)


def _readiness(host: str, port: int) -> str:
    """Ask /readyz once; `200`, or what is not right yet."""
    # By hand, as Redis is asked: a client of the standard library would be held for as long as the service runs.
    try:
        with socket.create_connection((host, port), 5.0) as connection, connection.makefile("rb") as answers:
            connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            head, _, body = answers.read().decode(errors="replace").partition("\r\n\r\n")
    except OSError as error:
        return one_line(error)
    status = head.partition("\r\n")[0].partition(" ")[2]
    return "200" if status.startswith("200") else f"{status} {body}"


def _check(stopping: threading.Event, started: str) -> None:
    if stopping.is_set():
        raise ServiceStoppedError(f"stopped before it was ready: {started}")


def _describe_reach(host: str) -> str:
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return "from this machine alone" if is_local else f"from wherever {host} is reached, without TLS"


def _default_summarizer(environ: Mapping[str, str]) -> str:
    return "anthropic" if environ.get("ANTHROPIC_API_KEY") else "extractive"


def _describe_model(name: str, environ: Mapping[str, str]) -> str:
    if (provider := provider_of(name)) is not None:
        model = environ.get("PALIMPSEST_SUMMARIZER_MODEL") or DEFAULT_MODELS[provider]
        at = environ.get(f"{provider.upper()}_BASE_URL")
        return f"{model}, a real model" + (f", at {at}" if at else "")
    if name == "extractive":
        return "extractive, no model is called (set ANTHROPIC_API_KEY for written summaries)"
    if name == "none":
        return "none: older exchanges are dropped instead of summarized"
    return f"{name}, installed beside the service"


def _describe_store(data_dir: Path | None, environ: Mapping[str, str]) -> str:
    if environ.get("PALIMPSEST_DATABASE_URL"):
        return "the database of PALIMPSEST_DATABASE_URL"
    if data_dir is not None:
        return f"{data_dir.absolute()}, kept"
    return "temporary, lost when this ends (--data-dir keeps it)"
