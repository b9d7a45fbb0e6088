"""Rows of handles: contexts of conversations with `recall_handles` against the same without, over HTTP."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench import data
from bench.load.http_load import load, store_turn
from bench.measure import Row, interleave, pair
from bench.rows.http import context_request

if TYPE_CHECKING:
    from bench.measure import Sample
    from bench.plan import Plan
    from bench.servers import Api

ROUNDS: Final = 12
RESULT_CHARS: Final = 1_000
CAPPED_CHARS: Final = 60_000
"""Characters of the result that is longer than `max_tool_result_chars` by default."""


def handles(plan: Plan) -> list[Row]:
    """GET a context with handles, against without: one passed on as it is stored, and one with a capped result."""
    servers, api = plan.servers, plan.servers.api()
    each = plan.conversations // 100
    groups = [data.Group(data.HANDLES + 1_000_000 * number, each) for number in range(4)]
    with servers.connect() as connection:
        for group in groups[:2]:
            data.add_compacted(connection, servers.tenant_id, group, messages=48)
        for group in groups[2:]:
            data.add_conversations(connection, servers.tenant_id, group)
        for group in (groups[0], groups[2]):
            data.set_policy(connection, group, {"recall_handles": True})
    body = data.json_text({"messages": _tool_rounds()})
    for group in groups[2:]:
        store_turn(api, group, body)
    return [
        _row(plan, api, "handles-context", "GET …/context, 40 KB snapshot + 8 messages", groups[:2]),
        _row(plan, api, "handles-capped", "GET …/context, 12 tool results, one over the cap", groups[2:]),
    ]


def _row(plan: Plan, api: Api, name: str, what: str, groups: list[data.Group]) -> Row:
    def side(group: data.Group) -> Sample:
        return load(plan.servers, api, context_request(), group, plan.seconds)

    sides = {"on": partial(side, groups[0]), "off": partial(side, groups[1])}
    samples = interleave(sides, plan.rounds, warmed=plan.servers.analyze)
    return Row(
        name=name,
        what=what,
        measured="recall_handles on",
        reference="off",
        unit="/s",
        samples=pair(samples, "on", "off"),
    )


def _tool_rounds() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": data.prose(400)}]
    for number in range(ROUNDS):
        call = {"type": "tool_use", "id": f"t{number}", "name": "search", "input": {"query": data.prose(40)}}
        text = data.prose(RESULT_CHARS if number else CAPPED_CHARS)
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return [*messages, {"role": "assistant", "content": data.prose(1_000)}]
