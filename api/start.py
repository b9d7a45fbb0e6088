"""Starting the API's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

from api.http_protocol import BoundedHttp

if TYPE_CHECKING:
    from typing import Any

    from store.settings import Settings


def run_api(settings: Settings, *, host: str | None, port: int | None, workers: int) -> None:
    """Serve HTTP until SIGTERM or SIGINT, then finish what is under way."""
    uvicorn.run(
        "api.app:create_app",
        factory=True,
        host=host or settings.host,
        port=port or settings.port,
        workers=workers,
        **server_options(settings),
        server_header=False,
        timeout_graceful_shutdown=20,
        timeout_keep_alive=30,
    )


def server_options(settings: Settings) -> dict[str, Any]:
    """Return how uvicorn reads requests and what it logs, wherever it runs."""
    return {
        "loop": "uvloop",
        "http": BoundedHttp,
        "h11_max_incomplete_event_size": settings.max_head_bytes,
        "access_log": False,
        "log_config": None,
    }
