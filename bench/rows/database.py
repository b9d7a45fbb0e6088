"""The row at the database: an append with everything that the product asks of it, against one with nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import data
from bench.load.reference import Statement, append_statement, call
from bench.measure import Row, Target, interleave, pair

if TYPE_CHECKING:
    from bench.plan import Plan

_SCRIPT: Final = Path(__file__).with_name("bare_append.sql")


def database(plan: Plan) -> list[Row]:
    """Append with row-level security, idempotency and due check, against the same without them: bare_append.sql."""
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
    whole = append_statement(servers.tenant_id, body)
    bare = _bare(whole)
    with servers.checks_cleared():
        samples = interleave(
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
            samples=pair(samples, "all on", "bare"),
            target=Target(">=", 0.85),
        )
    ]


def _bare(whole: Statement) -> Statement:
    """Return the call of the bare function: the same arguments, without a key."""
    if whole.key is None:
        raise ValueError("an append without an idempotency key is no append with everything on")
    arguments = [None if index in {whole.key, whole.key + 1} else each for index, each in enumerate(whole.arguments)]
    return Statement(whole.query.replace(" append_turn(", " bench.append_turn("), arguments, whole.conversation, None)
