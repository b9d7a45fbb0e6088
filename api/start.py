"""Starting the API's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from store.settings import Settings


def run_api(settings: Settings, *, host: str | None, port: int | None, workers: int) -> None:
    """Serve HTTP until SIGTERM or SIGINT, then finish what is under way."""
    uvicorn.run(
        "api.app:create_app",
        factory=True,
        host=host or settings.host,
        port=port or settings.port,
        workers=workers,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=20,
        timeout_keep_alive=30,
    )
