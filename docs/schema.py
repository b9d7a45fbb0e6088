#!/usr/bin/env python3
"""Prints migrations/schema.sql from a database that it makes and migrates; `make docs` writes the file."""

from __future__ import annotations

import sys

from cli.local.embedded import EmbeddedPostgres
from migrations.describe import schema_text
from migrations.run import upgrade
from store.engine import owner_engine


def page() -> str:
    """Return the schema as SQL."""
    with EmbeddedPostgres(durable=False) as server:
        upgrade(server.url)
        engine = owner_engine(server.url)
        with engine.connect() as connection:
            schema = schema_text(connection)
        engine.dispose()
    return schema


if __name__ == "__main__":
    sys.stdout.write(page())
