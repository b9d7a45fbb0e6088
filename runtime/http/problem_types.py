"""Every type of problem that the API answers with: its status, what a caller does about it, and an example."""

from __future__ import annotations

from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

TRY_AGAIN: Final = "Try again; an Idempotency-Key keeps a turn from being stored twice."
PROBLEM_BASE: Final = "/docs/problems#"
"""What the URI of a type begins with, relative to the API's own (RFC 9457 allows that); its end is the code."""
EVERY_CALL: Final = ("unauthenticated", "forbidden", "invalid", "rate_limited", "internal", "unavailable")
"""What each call with a key may be answered with: unknown query parameters are invalid everywhere."""
EVERY_BODY: Final = ("malformed_json", "body_incomplete", "body_too_slow", "body_too_large")
"""What each call that has a body may be answered with besides."""
BEFORE_A_ROUTE: Final = (
    "bad_request",
    "method_not_allowed",
    "url_too_long",
    "unsupported_media_type",
    "head_too_large",
)
"""What no operation answers with: such a request comes to none."""


class ProblemType(NamedTuple):
    """One type; `detail` and `members` are those of its example."""

    status: int
    remedy: str
    detail: str
    members: Mapping[str, Any] = MappingProxyType({})


PROBLEM_TYPES: Final = {
    "bad_request": ProblemType(400, "Send a request that HTTP allows.", "Invalid HTTP request received."),
    "malformed_json": ProblemType(
        400, "Send JSON; `detail` says where it ends being that.", "The body is not valid JSON: truncated (byte 17)"
    ),
    "body_incomplete": ProblemType(
        400, "The connection ended before the body did: send it again.", "The connection ended before the body did."
    ),
    "bad_cursor": ProblemType(
        400,
        "Use an id from the list itself, and one of `after_id` and `before_id`.",
        "after_id is not an id of this list.",
        {"pointer": "after_id"},
    ),
    "bad_idempotency_key": ProblemType(
        400, "Send a key of 1 to 255 characters.", "An Idempotency-Key has 1 to 255 characters."
    ),
    "unauthenticated": ProblemType(
        401,
        "Send a key that exists, has not expired and was not revoked.",
        "A valid API key is needed: Authorization: Bearer <key>, or x-api-key.",
    ),
    "forbidden": ProblemType(
        403, "Use a key with the scope that `detail` names.", "This key has not the scope turns:write."
    ),
    "cross_site": ProblemType(
        403,
        "The console takes changes from its own pages only.",
        "This form was not sent from a page of this console.",
    ),
    "not_found": ProblemType(
        404, "Nothing has this id, or it is another tenant's: both look the same.", "There is no such resource."
    ),
    "method_not_allowed": ProblemType(405, "The path takes other methods: see `Allow`.", "Method Not Allowed"),
    "body_too_slow": ProblemType(408, "Send it again, without a pause.", "Nothing came of the body for 60 seconds."),
    "conflict": ProblemType(409, "The resource has changed meanwhile: read it again.", "Conflict"),
    "unexpected_seq": ProblemType(
        409,
        "Somebody else appended: `next_seq` has the place that is free now.",
        "The next seq of this conversation is 4.",
        {"pointer": "/expected_next_seq", "next_seq": 4},
    ),
    "superseded": ProblemType(
        409,
        "What the call names was replaced by an edit: read the conversation again.",
        "This version shows messages that were replaced since.",
        {"pointer": "/version"},
    ),
    "external_id_taken": ProblemType(
        409,
        "Another conversation has this `external_id`.",
        "A conversation has this external_id.",
        {"pointer": "/external_id"},
    ),
    "compaction_running": ProblemType(
        409,
        "Wait for the run that `run_id` names, then ask again.",
        "Another run of this conversation has not ended yet; wait for it, then ask again.",
        {"run_id": "run_0197f0c2a1b37c5d8e4f60718293a4b5"},
    ),
    "overflow_exhausted": ProblemType(
        409,
        "Three smaller contexts were refused: look for what else the call sends.",
        "The context was made smaller 3 times in a row without a turn between, and was refused again.",
    ),
    "cannot_shrink": ProblemType(
        409,
        "Nothing is left to take away: shorten system prompt, tools or the message itself.",
        "Nothing more may be left out: the last request and its newest round stay.",
    ),
    "not_the_history": ProblemType(
        409,
        "`detail` says what the model refused: ask for less output, or change what else the call sends.",
        "The model refused the output that was asked for: a smaller context would be refused as well.",
    ),
    "not_empty": ProblemType(
        409,
        "The console's demo is for an installation without conversations.",
        "The demo is for an installation that has no conversations yet.",
    ),
    "used_form": ProblemType(
        409,
        "Look at the console's list of keys: the form may have been sent before.",
        "Keys were made since this form was opened; look at the list first.",
    ),
    "run_not_dead": ProblemType(409, "Only dead runs are retried.", "Only a dead run can be retried."),
    "run_active": ProblemType(
        409,
        "The conversation has another run that has not ended: retry after it.",
        "Another run of this conversation has not ended yet.",
    ),
    "already_rotated": ProblemType(
        409,
        "`detail` names the key that took this one's place.",
        "This key was rotated before; key_0197f0c2a1b37c5d8e4f60718293a4b5 replaces it.",
    ),
    "too_many_keys": ProblemType(409, "Revoke a key first.", "A tenant has at most 1,000 keys in force; revoke some."),
    "too_many_pins": ProblemType(409, "Take a pin off first.", "A conversation has at most 100 pins."),
    "pins_full": ProblemType(
        409,
        "Take a pin off first, or pin a shorter text: all pins together have a limit.",
        "The pins have more than 2,000 tokens (pinned_max_tokens).",
    ),
    "too_many_webhooks": ProblemType(409, "Remove a webhook first.", "A tenant has at most 20 webhooks."),
    "body_too_large": ProblemType(
        413, "Send less, or raise the limit that `detail` names.", "Request Entity Too Large"
    ),
    "url_too_long": ProblemType(414, "Send a shorter URL.", "A URL has at most 16,384 bytes."),
    "unsupported_media_type": ProblemType(415, "Send `application/json`.", "Unsupported Media Type"),
    "invalid": ProblemType(
        422,
        "Mend the field or parameter at `pointer`.",
        "Expected `int` >= 0",
        {"pointer": "/replace_from"},
    ),
    "idempotency_key_reused": ProblemType(
        422,
        "The key was used with another body: use a new one for a new turn.",
        "This Idempotency-Key was used with another body.",
    ),
    "rate_limited": ProblemType(
        429, "Wait for as long as `Retry-After` says.", "This key may make 600 requests in 60 seconds."
    ),
    "head_too_large": ProblemType(
        431, "Send fewer or shorter headers.", "A request's line and headers have at most 65,536 bytes."
    ),
    "internal": ProblemType(
        500,
        "A fault of the service: report it with the `request_id`.",
        "Something went wrong here; the log has the request's id.",
    ),
    "unavailable": ProblemType(
        503,
        "The database is away or busy, or as many bytes are under way here as may be: after `Retry-After` send it "
        "again, a turn with its Idempotency-Key.",
        f"The database is busy or can't be reached. {TRY_AGAIN}",
    ),
}
"""By code, in the order of their statuses."""


def problem_type(code: str) -> str:
    """Return the URI of a type."""
    return PROBLEM_BASE + code.replace("_", "-")


def example_of(code: str) -> dict[str, Any]:
    """Return a problem document as the API would send it."""
    kind = PROBLEM_TYPES[code]
    return {
        "type": problem_type(code),
        "title": HTTPStatus(kind.status).phrase,
        "status": kind.status,
        "detail": kind.detail,
        "code": code,
        "request_id": "req_0197f0c2a1b37c5d8e4f60718293a4b6",
        **kind.members,
    }
