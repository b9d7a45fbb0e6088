"""The whole schema: importing this has the tables and indexes of every module in `metadata`."""

from __future__ import annotations

from store import (
    batch_tables,
    budget_tables,
    console_tables,
    context_tables,
    erasure_tables,
    housekeeping,
    processes,
    webhook_tables,
)
from store.tables import metadata

__all__ = [
    "batch_tables",
    "budget_tables",
    "console_tables",
    "context_tables",
    "erasure_tables",
    "housekeeping",
    "metadata",
    "processes",
    "webhook_tables",
]
