"""`palimpsest export`: a conversation with its whole history as JSON lines, which `palimpsest import` takes back.

It reads the database and not the API: all lines are of one moment, which no request could hold a connection for as long
as its reader takes, and a history may be larger than what the API takes in one body.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from actions.export_file import write_export
from cli.output import failed, noted
from cli.progress import counting
from runtime import ids
from store.archive import exports
from store.engine import owner_engine, transaction
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO
    from uuid import UUID

    from sqlalchemy import Engine

    from runtime.settings import Settings
    from store.tenants.tenants import Tenant


def run_export(settings: Settings, conversation: str, out: Path | None, *, tenant: str | None) -> int:
    """Write a conversation to a file, or to stdout; 1 if there is no such one.

    The file appears when it is whole, readable by its owner alone: it holds everything that was said.
    """
    identifier = ids.parse("conv", conversation)
    engine = owner_engine(settings.database_url.get_secret_value())
    try:
        owner = _owner(engine, identifier, tenant) if identifier else None
        if owner is None or identifier is None:
            return failed(_missing(engine, conversation, tenant))
        with (
            counting("Exporting") as progress,
            transaction(engine, owner.id, one_moment=True) as connection,
            _file(out) as file,
        ):
            lines = write_export(connection, owner.id, identifier, file, progress)
    except BrokenPipeError:
        raise
    except OSError as error:
        return failed(f"{out or 'stdout'}: {error.strerror}")
    finally:
        engine.dispose()
    if out is not None:
        noted(f"wrote {lines:,} lines to {out}")
    return 0


def _owner(engine: Engine, conversation_id: UUID, name: str | None) -> Tenant | None:
    """Return whose conversation it is; row-level security shows each tenant's to itself alone."""
    with engine.begin() as connection:
        candidates = tenants.named(connection, name)
    for each in candidates:
        with transaction(engine, each.id) as connection:
            if exports.conversation(connection, each.id, conversation_id) is not None:
                return each
    return None


def _missing(engine: Engine, conversation: str, name: str | None) -> str:
    with engine.begin() as connection:
        if name is not None and not tenants.named(connection, name):
            return f"there is no tenant {name!r}"
    return f"there is no conversation {conversation!r}" + (f" of the tenant {name!r}" if name else "")


@contextmanager
def _file(out: Path | None) -> Iterator[IO[bytes]]:
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with (
        _ending_in_order(),
        tempfile.NamedTemporaryFile(dir=out.parent, prefix=f".{out.name}.", delete=False) as file,
    ):
        unfinished = Path(file.name)
        try:
            yield file
            file.flush()
            unfinished.replace(out)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Have SIGTERM end the process by way of what clears up: what was said would stay behind in an unfinished file."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
