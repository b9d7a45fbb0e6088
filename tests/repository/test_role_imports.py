"""What each role loads when it starts: what only others need would be held in memory by each of its processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

WEB: Final = ("litestar", "uvicorn", "jinja2")
MODELS: Final = ("anthropic", "openai", "httpx2")
ASYNCHRONOUS: Final = ("asyncpg", "sqlalchemy.orm", "sqlalchemy.ext.asyncio")
TRACES: Final = ("runtime.otel", "opentelemetry.exporter")

ABSENT: Final = {
    "worker.process.lifecycle": (
        *WEB,
        *MODELS,
        *ASYNCHRONOUS,
        *TRACES,
        "alembic",
        "worker.sweeping.webhooks",
        "gateway",
    ),
    "cli.local.serve": (
        *WEB,
        *MODELS,
        "asyncpg",
        "psycopg",
        "pydantic",
        "structlog",
        "alembic",
        "sqlalchemy",
        "redis",
        "celery",
        "store",
        "worker",
        "api",
    ),
    "api.start": (*TRACES, "anthropic", "openai", "alembic", "celery.worker.consumer", "worker", "gateway", "mcp"),
}
MAKES: Final = {"api.start": "api.start.create_app()"}
"""What a role makes before its first request, where that has been seen to load more than the role needs."""


@pytest.mark.parametrize("entry", ABSENT)
def test_a_role_loads_nothing_of_the_others(entry: str) -> None:
    look = f"import json, sys, cli.main, {entry}; {MAKES.get(entry, 'pass')}; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    loaded = set(json.loads(output))
    assert entry in loaded
    assert sorted(loaded & set(ABSENT[entry])) == []
