"""The API: routes, what surrounds every request, and what runs beside them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, get
from litestar.response import Redirect

from actions.services import Services
from api.console.demo.player import demo_player
from api.console.router import console_router
from api.http.middleware import surround
from api.http.problems import EXCEPTION_HANDLERS
from api.http.routing import OwnRouter
from api.routes import (
    branches,
    compactions,
    comparisons,
    context,
    context_blocks,
    conversations,
    health,
    mcp,
    messages,
    overflow,
    pins,
    recall,
    rules,
    runs,
    snapshots,
    turns,
)
from api.routes.administration import dead_letters, erasures, keys, tenant, usage, webhooks
from api.schema.documentation import RawSchemaPlugin
from api.schema.openapi_document import SECURITY, openapi_config
from runtime.http.access_log import AccessLog
from runtime.http.security_headers import SecurityHeaders
from runtime.settings import read_once

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from runtime.settings import Settings


def create_app(settings: Settings | None = None) -> Litestar:
    """Return the ASGI application."""
    settings = settings or read_once()
    return furnished(routed(settings.max_body_bytes), settings)


def furnished(app: Litestar, settings: Settings) -> Litestar:
    """Return the application that `routed` made, with the services that its routes share and what surrounds them."""
    services = app.state.services = Services(settings)
    app.asgi_handler = surround(
        app,
        services.metrics,
        SecurityHeaders(settings.hsts_seconds),
        services.under_way,
        AccessLog(settings.access_log),
    )
    return app


def routed(max_body_bytes: int) -> Litestar:
    """Return the application's routes, none of which takes a body of more bytes; they have no services yet."""
    v1 = OwnRouter(
        "/v1",
        route_handlers=[
            conversations.create_conversation,
            conversations.list_conversations,
            conversations.get_conversation,
            conversations.change_conversation,
            erasures.erase_conversation,
            erasures.erase_user,
            erasures.erase_any_user,
            erasures.export_user,
            erasures.export_any_user,
            erasures.list_erasures,
            turns.append_turn,
            context.assemble_payload,
            pins.pin_message,
            pins.list_pins,
            pins.unpin,
            rules.read_rules,
            rules.decide_rule,
            comparisons.compare_versions,
            comparisons.bisect_text,
            branches.restore_snapshot,
            branches.fork_conversation,
            compactions.compact,
            overflow.report_overflow,
            context.read_context,
            recall.recall_originals,
            recall.recall_originals_of_user,
            recall.recall_originals_of_any_user,
            recall.list_recalls,
            recall.read_recall_tool,
            messages.list_messages,
            messages.get_message,
            context_blocks.list_context_blocks,
            context_blocks.get_context_block,
            runs.list_runs,
            runs.get_run,
            dead_letters.list_all_runs,
            dead_letters.retry_run,
            dead_letters.retry_runs,
            snapshots.list_snapshots,
            snapshots.get_snapshot,
            snapshots.list_claims,
            snapshots.diff_snapshot,
            tenant.get_tenant,
            tenant.change_tenant,
            tenant.get_policy_preset,
            usage.get_usage,
            keys.list_keys,
            keys.create_key,
            keys.rotate_key,
            keys.revoke_key,
            webhooks.create_webhook,
            webhooks.list_webhooks,
            webhooks.remove_webhook,
            webhooks.list_deliveries,
            webhooks.retry_delivery,
        ],
        security=SECURITY,
    )
    return Litestar(
        route_handlers=[
            v1,
            mcp.answer_mcp,
            console_router(),
            health.healthz,
            health.readyz,
            health.metrics,
            openapi_document,
            show_console,
        ],
        lifespan=[_services, demo_player],
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=max_body_bytes,
        openapi_config=openapi_config(),
        plugins=[RawSchemaPlugin()],
        logging_config=None,
    )


@asynccontextmanager
async def _services(app: Litestar) -> AsyncIterator[None]:
    services: Services = app.state.services
    await services.start()
    try:
        yield
    finally:
        await services.stop()


@get("/openapi.json", include_in_schema=False, sync_to_thread=False)
def openapi_document(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Answer with the OpenAPI document."""
    return request.app.openapi_schema.to_schema()


@get("/", include_in_schema=False, sync_to_thread=False)
def show_console() -> Redirect:
    """Lead a browser on to the console."""
    return Redirect("/console", status_code=307)
