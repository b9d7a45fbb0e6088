"""Bring a database to a revision of the schema."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from store.engine import owner_engine

if TYPE_CHECKING:
    from collections.abc import Iterator


def configuration(connection: Connection) -> Config:
    """Return Alembic's configuration for a connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config


def upgrade(database_url: str, revision: str = "head") -> None:
    """Migrate the database upwards, as the login of its URL. Safe to run from several processes at once."""
    with _connected(database_url) as connection:
        command.upgrade(configuration(connection), revision)


def downgrade(database_url: str, revision: str) -> None:
    """Migrate the database downwards."""
    with _connected(database_url) as connection:
        command.downgrade(configuration(connection), revision)


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
