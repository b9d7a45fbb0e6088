"""The ledger of rules: which texts stay in the context word for word, since when, and until when."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, patch
from litestar.params import PathParameter

from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.rules import change_rule, ledger_of, list_rules
from actions.types.pins import RuleChange, RuleList, RuleOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from runtime.http.problem_types import EVERY_BODY

RuleId = Annotated[str, PathParameter(description="A rule's id.")]


@get(
    "/conversations/{conversation_id:str}/rules",
    guards=[requires("context:read")],
    summary="List rules",
    responses=problems("not_found"),
)
async def read_rules(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> RuleList:
    """List every rule there ever was, pinned or detected, in force or withdrawn, in the order of their messages."""
    conversation = id_or_not_found("conv", conversation_id)
    caller = caller_of(request)
    return RuleList(await list_rules(*await caller.run(ledger_of, conversation, caller)))


@patch(
    "/conversations/{conversation_id:str}/rules/{rule_id:str}",
    guards=[requires("turns:write", "context:read")],
    summary="Withdraw or keep a rule",
    operation_class=operation(RuleChange, example=examples.RULE_CHANGE),
    responses={
        200: answers(RuleOut, "The rule as it is now."),
        **problems(*EVERY_BODY, "not_found", "pins_full"),
    },
)
async def decide_rule(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, rule_id: RuleId
) -> RuleOut:
    """Withdraw a rule, put it in force again, or keep one that a user may have asked to forget, at once."""
    wanted = await read_body(request, RuleChange)
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    return await change_rule(caller, conversation, id_or_not_found("rule", rule_id), wanted)
