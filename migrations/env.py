"""Alembic's environment: one migration at a time, and never in anyone's way for long."""

from __future__ import annotations

import time
from typing import Final

from alembic import context
from sqlalchemy import Connection, text

from store.tables import metadata

LOOK_SECONDS: Final = 0.2


def run(connection: Connection) -> None:
    """Run the migrations on a connection, each in a transaction of its own."""
    # Asked again and again: an index that is built concurrently waits for every statement under way, also for one that
    # waits for this lock.
    while not connection.scalar(text("select pg_try_advisory_lock(hashtext('palimpsest.migrations'))")):
        connection.commit()
        time.sleep(LOOK_SECONDS)
    # A migration that cannot have its lock at once must not queue every reader and writer behind itself. Set after
    # the lock above: waiting for another process's migration is in nobody's way.
    connection.execute(text("set lock_timeout = '4s'"))
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_server_default=True,
        transaction_per_migration=True,
    )
    try:
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(text("select pg_advisory_unlock(hashtext('palimpsest.migrations'))"))
        connection.commit()


run(context.config.attributes["connection"])
