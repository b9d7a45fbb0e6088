"""The console's routes, and what they answer when something is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Request, Response

from api.console.assets import get_asset
from api.console.claims import pages as claims
from api.console.forms import FORM_BYTES, without_blanks
from api.console.pages import HEADERS, error_page, is_fragment, redirect
from api.console.routes import (
    context,
    conversations,
    demo,
    find,
    keys,
    operate,
    overview,
    recall,
    retries,
    runs,
    setup,
    sign_in,
    snapshots,
    spending,
    webhooks,
)
from api.console.sessions import SignInNeededError
from api.http.problems import EXCEPTION_HANDLERS
from api.http.routing import OwnRouter

if TYPE_CHECKING:
    from collections.abc import Callable


def console_router() -> OwnRouter:
    """Return the router of the console."""
    handlers: dict[int | type[Exception], Callable[..., Response[bytes]]] = dict.fromkeys(
        EXCEPTION_HANDLERS, error_page
    )
    return OwnRouter(
        "/console",
        route_handlers=[
            get_asset,
            sign_in.show_sign_in,
            sign_in.sign_in,
            sign_in.sign_out,
            overview.show_overview,
            overview.show_health,
            overview.show_operators,
            find.find,
            conversations.list_conversations,
            conversations.show_conversation,
            context.show_context,
            context.show_message,
            context.show_written,
            recall.show_recall,
            snapshots.list_snapshots,
            snapshots.show_diff,
            snapshots.show_bisect,
            claims.show_claims,
            runs.list_runs,
            retries.show_retries,
            retries.retry_runs,
            runs.show_run,
            runs.show_summary,
            setup.show_setup,
            setup.export_conversation,
            setup.show_erasure,
            setup.erase_conversation,
            webhooks.list_webhooks,
            webhooks.create_webhook,
            webhooks.show_removal,
            webhooks.remove_webhook,
            webhooks.retry_delivery,
            operate.preview_restore,
            operate.restore,
            operate.show_compact,
            operate.compact,
            operate.retry,
            demo.play_demo,
            spending.show_spending,
            keys.list_keys,
            keys.show_new_key,
            keys.create_key,
            keys.show_rotation,
            keys.rotate_key,
            keys.show_revocation,
            keys.revoke_key,
            overview.find_nothing,
        ],
        middleware=[without_blanks],
        # Whoever signs in has shown no key yet.
        request_max_body_size=FORM_BYTES,
        exception_handlers={**handlers, SignInNeededError: _lead_to_sign_in},
    )


def _lead_to_sign_in(request: Request[Any, Any, Any], error: SignInNeededError) -> Response[bytes]:
    if is_fragment(request):
        # A part of a page cannot be the form: the whole page has to go there.
        return Response(b"", status_code=401, headers={**HEADERS, "hx-redirect": error.sign_in_path})
    return redirect(error.sign_in_path)
