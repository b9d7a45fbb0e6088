"""The process that sees to a service's database: asked in JSON on stdin, it tells in JSON on stdout what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from cli.local.local_tenant import api_key, console_ticket, revoke, service_url
from cli.local.preparation import ServiceError, one_line
from migrations.run import upgrade
from store.tenants.logins import LoginError


def main() -> None:
    """Do what is asked; what cannot be done is told as `error`."""
    asked = json.load(sys.stdin)
    try:
        told = _revoked(asked) if "revoke" in asked else _prepared(asked)
    except ServiceError as error:
        told = {"error": str(error)}
    except (SQLAlchemyError, CommandError, LoginError) as error:
        told = {"error": f"the database cannot be prepared: {one_line(error)}"}
    print(json.dumps(told))  # noqa: T201 - what it is asked for


def _prepared(asked: dict[str, Any]) -> dict[str, str]:
    url = asked["database_url"]
    upgrade(url)
    key = api_key(url, None if asked["data_dir"] is None else Path(asked["data_dir"]))
    return {
        "api_key": key,
        "console_ticket": console_ticket(url, key),
        "parts_url": service_url(url) if asked["is_own"] else url,
    }


def _revoked(asked: dict[str, Any]) -> dict[str, str]:
    revoke(asked["database_url"], asked["revoke"])
    return {}


if __name__ == "__main__":
    main()
