"""What waits besides checks, and what models have been asked so far, over all tenants and as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from sqlalchemy import text

from runtime.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from sqlalchemy import Connection

Kind = Literal[Queue.CHECKS, Queue.SUMMARIES, "budget", "overdue", "webhooks"]
"""Queued runs by their queue; summaries that wait for another day's budget, and those of them whose day has come;
deliveries of webhooks that are due."""


class Waits(NamedTuple):
    """How many wait, and the seconds for which the oldest of them has; 0 where none does."""

    number: int
    oldest_seconds: float


class Asked(NamedTuple):
    """What the audit has of model calls since the first day; it outlives every process."""

    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal


def waiting(connection: Connection) -> Mapping[Kind, Waits]:
    """Return what waits, each kind there is."""
    return {
        row.kind: Waits(row.waiting, row.oldest_seconds)
        for row in connection.execute(text("select * from waiting_work()"))
    }


def asked(connection: Connection) -> Asked:
    """Return what models were asked, and what that has cost."""
    return Asked(*connection.execute(text("select * from model_totals()")).one())
