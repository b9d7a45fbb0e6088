"""Bring a database to a revision of the schema."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import stamina
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from migrations.revisions import is_unreleased
from store.engine import owner_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTEMPTS: Final = 10
"""Times a migration tries to have its locks; each waits for 4 seconds at most, see migrations/env.py."""
LONGEST_WAIT_SECONDS: Final = 10.0
"""Most seconds between two attempts: long enough for whoever queued behind the last one."""

NEWEST: Final = "head"
"""The newest revision that there is."""
SCRIPTS: Path = Path(__file__).parent
"""Where the revisions are."""


class UnreleasedSchemaError(CommandError):
    """A database has a schema of before the first release."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"this database has the schema {revision} of before the first release, and no revision leads on from "
            "there; migrate a new, empty database, and take the conversations along with `palimpsest export` of the "
            "code that this one was made with and `palimpsest import` of this code"
        )


class NewerSchemaError(CommandError):
    """A database has a schema that this release does not know, of a newer one."""

    def __init__(self, revision: str, known: str | None) -> None:
        super().__init__(f"the schema is at revision {revision!r}, of a newer release: this one knows {known}")
        self.revision = revision


class UnknownRevisionError(CommandError):
    """A revision that this release does not have."""

    def __init__(self, revision: str, known: list[str]) -> None:
        super().__init__(
            f"there is no revision {revision!r}: this release has {', '.join(known)}. `palimpsest migrate` alone "
            "brings the schema to the newest"
        )


def configuration(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration for a connection; without one, to read the revisions."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    return config


class AppliedRevision(NamedTuple):
    """A revision, and what it does."""

    revision: str
    what: str


class Upgrade(NamedTuple):
    """The revisions before and after (None = no schema), and the steps between them, the oldest first."""

    before: str | None
    after: str | None
    steps: list[AppliedRevision]


def upgrade(database_url: str, revision: str = NEWEST, *, attempts: int = ATTEMPTS) -> Upgrade:
    """Migrate the database to `revision`, as the login of its URL. Several processes may do so at once.

    If tables are in use and cannot be locked, the revision under way is tried again, `attempts` times in all; then
    OperationalError is raised. Raises UnknownRevisionError for a `revision` that does not exist, UnreleasedSchemaError
    for a schema of before the first release, and NewerSchemaError for one of a newer release.
    """
    scripts = ScriptDirectory.from_config(configuration())
    known = [script.revision for script in scripts.walk_revisions()][::-1]
    if revision not in {NEWEST, *known}:
        raise UnknownRevisionError(revision, known)
    with _connected(database_url) as connection:
        before = current_revision(connection)
    refuse_unreleased(before)
    if before is not None and before not in known:
        raise NewerSchemaError(before, scripts.get_current_head())
    for attempt in stamina.retry_context(
        on=_is_in_use, attempts=attempts, timeout=None, wait_initial=0.5, wait_max=LONGEST_WAIT_SECONDS
    ):
        with attempt, _connected(database_url) as connection:
            command.upgrade(configuration(connection), revision)
    with _connected(database_url) as connection:
        after = current_revision(connection)
        passed = [] if after == before else list(scripts.iterate_revisions(after, before))
    return Upgrade(before, after, [AppliedRevision(script.revision, script.doc) for script in reversed(passed)])


def _is_in_use(error: Exception) -> bool:
    return isinstance(error, DBAPIError) and isinstance(error.orig, LockNotAvailable | DeadlockDetected)


def refuse_unreleased(revision: str | None) -> None:
    """Raise UnreleasedSchemaError for a revision of before the first release."""
    if revision is not None and is_unreleased(revision):
        raise UnreleasedSchemaError(revision)


def is_past(done: Upgrade, revision: str) -> bool:
    """Return whether nothing was done because the database is past `revision` already."""
    scripts = ScriptDirectory.from_config(configuration())
    wanted = scripts.get_revision(revision)
    return not done.steps and wanted is not None and wanted.revision != done.after


@contextmanager
def _connected(database_url: str) -> Iterator[Connection]:
    engine = owner_engine(database_url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def current_revision(connection: Connection) -> str | None:
    """Return the revision a database is at, None before the first."""
    if connection.scalar(text("select to_regclass('alembic_version')")) is None:
        return None
    revision: str | None = connection.scalar(text("select version_num from alembic_version"))
    return revision
