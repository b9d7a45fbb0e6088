"""The service that a command talks to: one that runs somewhere, or its own for as long as the command takes."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOG_LINES: Final = 20
"""Lines of the parts' own log that an error shows."""


class Endpoint(NamedTuple):
    """Where a service is; the database and the gateway are known only of one's own."""

    url: str
    key: str
    database_url: str | None = None
    gateway_url: str = ""


class UnavailableError(Exception):
    """No service could be started; the message is for people."""


@contextlib.contextmanager
def service_at(url: str | None, key: str | None, environ: Mapping[str, str] | None = None) -> Iterator[Endpoint]:
    """Yield the service at `url`, or one that is started here and gone after the block.

    `environ` is what it sees of the environment, this process's own by default. What its parts log goes to a temporary
    file: it would be written across a progress bar. Raises UnavailableError with the last of it when the start fails.
    """
    if url is not None:
        yield Endpoint(url, key or "")
        return
    from cli.local.embedded import EmbeddedError  # noqa: PLC0415  a service elsewhere needs none of it
    from cli.local.serve import ServiceError, running_service  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+", prefix="palimpsest-", suffix=".log"))
        try:
            with Console(stderr=True).status("Starting Postgres, Redis, API and workers"):
                service = stack.enter_context(running_service(environ=environ, log=log))
        except (ServiceError, EmbeddedError) as error:
            log.seek(0)
            tail = "".join(log.readlines()[-LOG_LINES:])
            raise UnavailableError(f"{error}\n{tail}".rstrip()) from error
        yield Endpoint(service.url, service.api_key, service.database_url, service.gateway_url)
