"""Alembic's environment: one migration at a time, which never blocks services for long."""

from __future__ import annotations

import time
from typing import Final

from alembic import context
from sqlalchemy import Connection, text

from migrations.run import refuse_unreleased
from runtime.settings import Settings
from store.engine import owner_engine
from store.tables import metadata

LOOK_SECONDS: Final = 0.2


def run(connection: Connection) -> None:
    """Run the migrations on a connection, each in a transaction of its own."""
    # Polled: an index that is built concurrently waits for every statement under way, also for one that waits for this
    # lock.
    while not connection.scalar(text("select pg_try_advisory_lock(hashtext('palimpsest.migrations'))")):
        connection.commit()
        time.sleep(LOOK_SECONDS)
    # A migration that waits for a table's lock blocks every reader and writer behind it, so it gives up soon. Set after
    # the lock above, which blocks only other migrations.
    connection.execute(text("set lock_timeout = '4s'"))
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_server_default=True,
        transaction_per_migration=True,
    )
    refuse_unreleased(context.get_context().get_current_revision())
    try:
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(text("select pg_advisory_unlock(hashtext('palimpsest.migrations'))"))
        connection.commit()


connection: Connection | None = context.config.attributes.get("connection")
if connection is not None:
    run(connection)
else:
    # Alembic's own command.
    engine = owner_engine(Settings().database_url.get_secret_value())
    try:
        with engine.connect() as opened:
            run(opened)
    finally:
        engine.dispose()
