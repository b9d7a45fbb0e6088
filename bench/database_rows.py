"""The row at the database: an append with everything that the product asks of it, against one with nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from api.bodies import read_turn
from bench import data
from bench.measure import Row, Target, interleave, pair
from bench.reference import Statement, append_statement, call

if TYPE_CHECKING:
    from bench.plan import Plan

_SCRIPT: Final = Path(__file__).with_name("bare_append.sql")
_QUERY: Final = "select * from bench.append_turn($1, $2, $3, $4, $5, $6, $7)"


def database(plan: Plan) -> list[Row]:
    """Append with row-level security, idempotency and due check, against the bare function of bare_append.sql."""
    servers, body = plan.servers, data.turn_body()
    group = data.Group(data.APPENDS, plan.conversations)
    with servers.connect() as connection:
        data.add_conversations(connection, servers.tenant_id, group)
        connection.execute(_SCRIPT.read_text())
        connection.execute(
            "insert into bench.conversations (id, tenant_id) select id, tenant_id from conversations "
            "where id between %s and %s",
            [data.conversation_id(group.first), data.conversation_id(group.first + group.size - 1)],
        )
        connection.execute("analyze conversations, bench.conversations")
    whole, bare = append_statement(servers.tenant_id, body), _bare_statement(body)
    with servers.checks_cleared():
        found = interleave(
            {
                "all on": lambda: call(servers, whole, group, plan.seconds, pgbench=plan.pgbench),
                "bare": lambda: call(servers, bare, group, plan.seconds, pgbench=plan.pgbench, role=None),
            },
            plan.rounds,
            warmed=servers.analyze,
        )
    return [
        Row(
            name="database",
            what="append at the database",
            measured="row security, idempotency, due check",
            reference="none of them",
            unit="/s",
            samples=pair(found, "all on", "bare"),
            target=Target(">=", 0.85),
        )
    ]


def _bare_statement(body: str) -> Statement:
    turn = read_turn(body.encode())
    messages = turn.facts.messages
    arguments = (
        data.conversation_id(0),
        [message.role for message in messages],
        turn.contents,
        [message.tokens for message in messages],
        [message.is_request for message in messages],
        [message.has_thinking for message in messages],
        sum(message.tokens for message in messages),
    )
    return Statement(_QUERY, arguments, 0, None)
