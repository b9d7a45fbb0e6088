"""`palimpsest import`: a conversation that was exported, in this installation, as a new one.

It writes the database and not the API: runs, costs and snapshots are what an audit goes by, so that no tenant's key may
write any that never were. All of it is one transaction.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.exc import DataError, IntegrityError, InternalError

from cli.archive.export_file import ExportFileError, check, rows
from cli.output import failed, noted, print_json
from cli.progress import reading
from compaction.overrides import in_force
from runtime import ids
from store.archive import imports
from store.archive.imports import ErasedError, Names
from store.conversations import conversations
from store.engine import owner_engine, transaction
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import IO
    from uuid import UUID

    from sqlalchemy import Connection

    from cli.archive.export_file import Checked, Row
    from runtime.settings import Settings

MOST_TOKENS = 1_000_000_000
"""Tokens of a conversation's input; an integer column of Postgres holds about twice as many, for what comes later."""
ROWS_AT_A_TIME = 100
"""Rows that are written by one statement; a snapshot, which may have megabytes, by one of its own."""


class Imported(NamedTuple):
    """What an import made."""

    id: UUID
    external_id: str | None
    messages: int
    snapshots: int
    runs: int


class TakenError(Exception):
    """A conversation has the external_id that was asked for."""


def run_import(settings: Settings, path: Path, tenant: str, *, external_id: str | None, as_json: bool) -> int:
    """Import a file, `-` for stdin, and print the new conversation's id; 1, and nothing written, if it is bad."""
    engine = owner_engine(settings.database_url.get_secret_value())
    try:
        with _opened(path) as opened, reading(opened, "Checking and importing") as file:
            checked = check(file)
            with engine.begin() as connection:
                owner = tenants.find_tenant(connection, tenant)
                policy = tenants.settings_of(connection, owner.id).policy if owner else {}
            if owner is None:
                return failed(f"there is no tenant {tenant!r}")
            with transaction(engine, owner.id) as connection:
                imported = write(
                    connection, owner.id, checked, file, (settings.policy, policy), external_id=external_id
                )
    except ExportFileError as error:
        return failed(f"{path}: {error}")
    except OSError as error:
        return failed(f"{path}: {error.strerror}")
    except ErasedError:
        return failed(f"{path}: this conversation was erased here, and is not brought back")
    except TakenError:
        return failed(f"another conversation has the external_id {external_id!r}")
    finally:
        engine.dispose()
    _tell(imported, checked.conversation.get("external_id") if external_id is None else None, as_json=as_json)
    return 0


def write(
    connection: Connection,
    tenant_id: UUID,
    checked: Checked,
    file: IO[bytes],
    policies: tuple[Mapping[str, Any], Mapping[str, Any]],
    *,
    external_id: str | None = None,
) -> Imported:
    """Write a checked file's conversation; `policies` are the overrides of installation and tenant.

    Without an `external_id` it has that of the export, if no other conversation has it. Raises ExportFileError,
    ErasedError and TakenError; the transaction has to be given up then.
    """
    names = Names.of(tenant_id, runs=(run["id"] for run in checked.runs), blocks=checked.blocks, pins=checked.pins)
    conversation = checked.conversation
    wanted = external_id or conversation.get("external_id")
    number = 2
    try:
        if not imports.begin(connection, names, conversation, checked.runs, external_id=wanted):
            if external_id is not None:
                raise TakenError
            wanted = None
            imports.begin(connection, names, conversation, checked.runs, external_id=None)
        file.seek(0)
        for number, kind, portion in _portions(file):  # noqa: B007 - it tells where an error was met
            imports.add(connection, names, kind, portion)
        own = conversation.get("policy", {})
        policy = in_force(*policies, own, model=conversation.get("model")).policy
        imports.finish(connection, names, conversation, checked.runs, checked.steps, policy=policy)
        # As checks read it, beside others' of any tenant: what they cannot read would keep those from being checked.
        (state,) = conversations.check_states(connection, [names.conversation])
    except (DataError, IntegrityError, InternalError) as error:
        reason = str(error.orig).splitlines()[0]
        raise ExportFileError(number, f"the database refused this, or what follows it: {reason}") from None
    if not 0 <= state.estimated <= MOST_TOKENS:
        raise ExportFileError(2, f"its counts come to {state.estimated:,} tokens, which no conversation has")
    return Imported(names.conversation, wanted, checked.messages, checked.snapshots, len(checked.runs))


def _portions(file: IO[bytes]) -> Iterator[tuple[int, str, list[Row]]]:
    """Yield rows of one kind together, with the number of their first line; runs and their steps are held already."""
    held: list[Row] = []
    first, of = 0, ""
    for number, kind, row in rows(file):
        if kind in {"run", "run_step"}:
            continue
        if held and (kind != of or len(held) >= (1 if of == "snapshot" else ROWS_AT_A_TIME)):
            yield first, of, held
            held = []
        if not held:
            first, of = number, kind
        held.append(row)
    if held:
        yield first, of, held


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that can be read twice."""
    if str(path) != "-":
        with path.open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        yield copy


def _tell(imported: Imported, had: str | None, *, as_json: bool) -> None:
    name = ids.external("conv", imported.id)
    if as_json:
        print_json({**imported._asdict(), "id": name})
    else:
        print(name)  # noqa: T201 - the command's output
        noted(f"imported {imported.messages:,} messages, {imported.snapshots:,} snapshots and {imported.runs:,} runs")
    if had is not None and imported.external_id is None:
        noted(f"another conversation has its external_id {had!r}: this one has none")
