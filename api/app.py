"""The API: routes, what surrounds every request, and what runs beside them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, Router, get
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import SwaggerRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from api.documentation import RawSchemaPlugin
from api.middleware import surround
from api.problems import EXCEPTION_HANDLERS
from api.routes import branches, context, conversations, health, messages, payload, runs, snapshots, turns
from api.services import Services
from store.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def create_app(settings: Settings | None = None) -> Litestar:
    """Return the ASGI application."""
    settings = settings or Settings()
    services = Services(settings)

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        app.state.services = services
        await services.start()
        try:
            yield
        finally:
            await services.stop()

    v1 = Router(
        "/v1",
        route_handlers=[
            conversations.create_conversation,
            conversations.list_conversations,
            conversations.get_conversation,
            conversations.change_conversation,
            turns.append_turn,
            payload.assemble_payload,
            branches.restore_snapshot,
            branches.fork_conversation,
            context.read_context,
            messages.list_messages,
            messages.get_message,
            runs.list_runs,
            runs.get_run,
            snapshots.list_snapshots,
            snapshots.get_snapshot,
            snapshots.diff_snapshot,
        ],
        security=[{"key": []}],
    )
    app = Litestar(
        route_handlers=[v1, health.healthz, health.readyz, health.metrics, openapi_document],
        lifespan=[lifespan],
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=settings.max_body_bytes,
        openapi_config=_openapi(),
        plugins=[RawSchemaPlugin()],
        logging_config=None,
    )
    app.asgi_handler = surround(app, services.metrics)
    return app


@get("/openapi.json", include_in_schema=False, sync_to_thread=False)
def openapi_document(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Answer with the OpenAPI document."""
    return request.app.openapi_schema.to_schema()


def _openapi() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Palimpsest",
        version=version("palimpsest"),
        description="Asynchronous background compaction for multi-user chat on Claude.",
        path="/docs",
        render_plugins=[SwaggerRenderPlugin(path="/")],
        openapi_router=None,
        components=Components(
            security_schemes={"key": SecurityScheme(type="http", scheme="bearer", description="An API key.")}
        ),
    )
