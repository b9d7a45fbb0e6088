"""`palimpsest tenants`: who there is, and what the operator allows each of them."""

from __future__ import annotations

import sys
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cli.tables import columns, money_of_calls, print_table
from runtime import ids
from runtime.settings import read_rate_limit
from store.engine import owner_engine
from store.tenants import budgets, limits, tenants
from store.tenants.budgets import Budget

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from runtime.settings import Settings
    from store.tenants.budgets import Today
    from store.tenants.limits import TenantLimits

DEFAULT: Final = "default"
"""The word for the installation's limit."""
NONE: Final = "none"
"""The word for no limit."""
LEAST_USD: Final = Decimal("0.000001")
MOST_USD: Final = Decimal(100_000_000)
"""Between which the database keeps a sum of money."""


class Changes(NamedTuple):
    """The options of the command, as they were given; None = leave it as it is."""

    rate_limit_key: str | None = None
    rate_limit_tenant: str | None = None
    daily_model_tokens: str | None = None
    daily_model_cost_usd: str | None = None


def run_list(settings: Settings, *, as_json: bool) -> int:
    """List the tenants."""
    with owner_engine(settings.database_url.get_secret_value()).begin() as connection:
        rows = tenants.named(connection)
    if as_json:
        print(msgspec.json.encode([{"id": ids.external("ten", each.id), "name": each.name} for each in rows]).decode())  # noqa: T201
        return 0
    table = columns(("id", "name"))
    for each in rows:
        table.add_row(ids.external("ten", each.id), each.name)
    print_table(table)
    return 0


def run_limits(settings: Settings, tenant: str, changes: Changes, *, as_json: bool) -> int:
    """Change a tenant's limits as far as options say so, and print those in force and what is spent of them.

    Raises ValueError for a value that is none.
    """
    values = {name: _READERS[name](name, text) for name, text in changes._asdict().items() if text is not None}
    with owner_engine(settings.database_url.get_secret_value()).begin() as connection:
        owner = tenants.find_tenant(connection, tenant)
        if owner is None:
            print(f"palimpsest: there is no tenant {tenant!r}", file=sys.stderr)  # noqa: T201
            return 1
        own = limits.set_limits(connection, owner.id, values) if values else limits.limits_of(connection, owner.id)
        today = budgets.today(connection, owner.id, Budget.of(settings))
    if as_json:
        print(msgspec.json.encode(_document(settings, tenant, own, today)).decode())  # noqa: T201
    else:
        print_table(_table(settings, own, today))
    return 0


def _document(settings: Settings, tenant: str, own: TenantLimits, today: Today) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "limits": {name: getattr(own, name) for name in Changes._fields},
        "in_force": {name: _in_force(settings, own, name) for name in Changes._fields},
        "today": {
            "day": today.day,
            "tokens": today.spent.tokens,
            "cost_usd": today.known_cost_usd,
            "unpriced_calls": today.unpriced_calls,
            "waiting_summaries": today.waiting,
            "resets_at": today.resets_at,
        },
    }


def _table(settings: Settings, own: TenantLimits, today: Today) -> Table:
    table = columns(("limit", "in force", "set for", "spent today"), numbers=("in force", "spent today"))
    usd = today.known_cost_usd
    money = money_of_calls(None if usd is None else f"{usd:.6f}", today.calls, today.unpriced_calls)
    spent = {"daily_model_tokens": f"{today.spent.tokens:,}", "daily_model_cost_usd": money}
    for name in Changes._fields:
        whose = "the installation" if getattr(own, name) is None else "this tenant"
        table.add_row(name, str(_in_force(settings, own, name) or NONE), whose, spent.get(name, ""))
    return table


def _in_force(settings: Settings, own: TenantLimits, name: str) -> Any:
    value = getattr(own, name)
    return (getattr(settings, name) if value is None else value) or None


def _rate(name: str, text: str) -> str | None:
    if text == DEFAULT:
        return None
    try:
        return "" if text == NONE else read_rate_limit(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _tokens(name: str, text: str) -> int | None:
    amount = _amount(name, text)
    if amount is not None and (amount != int(amount) or amount >= 2**63):
        raise ValueError(f"{name}: a whole number")
    return None if amount is None else int(amount)


def _cost(name: str, text: str) -> Decimal | None:
    amount = _amount(name, text)
    # What has no room in its column would be rounded to 0, which is no limit.
    if amount and not LEAST_USD <= amount < MOST_USD:
        raise ValueError(f"{name}: from {LEAST_USD} to under {MOST_USD:,}, {DEFAULT} or {NONE}")
    return amount


def _amount(name: str, text: str) -> Decimal | None:
    if text == DEFAULT:
        return None
    try:
        amount = Decimal(0 if text == NONE else text)
    except InvalidOperation:
        raise ValueError(f"{name}: a number, {DEFAULT} or {NONE}") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{name}: a number from 0 on")
    return amount


_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "rate_limit_key": _rate,
    "rate_limit_tenant": _rate,
    "daily_model_tokens": _tokens,
    "daily_model_cost_usd": _cost,
}
