"""What compaction costs over a long conversation: bytes written, tokens that a model reads, prompt cache lost."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import SecretStr

from bench.measure import Row, Sample, Target, progress
from store.conversations import conversations
from tests.support.long_conversation import play, turns
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.service.in_process import Chat, Workers
from worker.summarizers.anthropic import AnthropicModel
from worker.summarizers.extractive import ExtractiveSummarizer
from worker.summarizers.staged import StagedSummarizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.plan import Plan
    from bench.servers import Servers
    from tests.support.long_conversation import Kind, Played
    from worker.summarizers import Summarizer

TURNS: Final = 2_000
_CHARS_A_TOKEN: Final = 4
_TABLES: Final = """
    select coalesce(sum(pg_table_size(oid)), 0) from pg_class
    where relkind = 'r' and relnamespace = 'public'::regnamespace
"""


class _Cost(NamedTuple):
    """What a stretch of a conversation cost."""

    appended: int
    written: int
    """Bytes of write-ahead log."""
    tables: int
    """Bytes by which the tables grew, indexes left out."""
    read_by_model: int
    """Tokens."""
    snapshots: int


def amortization(plan: Plan) -> list[Row]:
    """Play 2,000 turns of talk and of an agent with the default policy, and of one cut sparingly; nothing is timed."""
    count = 100 if plan.short else TURNS
    rows: list[Row] = []
    with _no_page_images(plan.servers), LoopbackModel() as model:
        settings = plan.servers.settings.model_copy(
            update={"anthropic_api_key": SecretStr("sk-bench"), "anthropic_base_url": model.url}
        )
        with Chat(settings, plan.servers.tenant_id) as chat:
            asking = StagedSummarizer(AnthropicModel(settings))
            kinds: tuple[tuple[Kind, str, str, dict[str, Any]], ...] = (
                ("agent", "turns of an agent", "", {}),
                ("agent", "turns of an agent that is cut sparingly", "-sparing", {"tool_results_growth_ratio": 0.6}),
                ("chat", "turns of talk", "-chat", {}),
            )
            for kind, what, suffix, policy in kinds:
                progress(f"  {count:,} {what}")
                rows += _rows(plan.servers, chat, kind, count, f"{count:,} {what}", suffix, policy, asking)
    return rows


def _rows(
    servers: Servers,
    chat: Chat,
    kind: Kind,
    count: int,
    what: str,
    suffix: str,
    policy: dict[str, Any],
    asking: Summarizer,
) -> list[Row]:
    half, whole, last = _played(servers, chat, kind, count, policy, ExtractiveSummarizer())
    asked_half, asked, _ = _played(servers, chat, kind, count, policy, asking)
    second = _Cost(*(end - middle for end, middle in zip(whole, half, strict=True)))
    second_asked = _Cost(*(end - middle for end, middle in zip(asked, asked_half, strict=True)))
    details = {
        "of table": whole.tables,
        "snapshots": whole.snapshots,
        "ratio of the second half": second.written / second.appended,
    }
    spent = {
        "ratio of the second half": second_asked.read_by_model * _CHARS_A_TOKEN / second_asked.appended,
    }
    cache = last.cache
    sent = cache.read + cache.written
    kept = {"lost": cache.lost / _CHARS_A_TOKEN, "calls that lost some": cache.breaks}
    return [
        Row(
            name=f"written-bytes{suffix}",
            what=f"bytes written over {what}, compaction included",
            measured="write-ahead log, without page images",
            reference="appended",
            unit=" B",
            samples=[(Sample(whole.written, details), Sample(whole.appended))],
            target=Target("<=", 2.5),
        ),
        Row(
            name=f"summary-input{suffix}",
            what=f"tokens that summaries read over {what}",
            measured="model input",
            reference="appended",
            unit="",
            samples=[(Sample(asked.read_by_model, spent), Sample(asked.appended / _CHARS_A_TOKEN))],
            target=Target("<=", 1.3),
        ),
        Row(
            name=f"prompt-cache{suffix}",
            what=f"tokens of input over {what}, one call a turn",
            measured="read from the prompt cache",
            reference="sent",
            unit="",
            samples=[(Sample(cache.read / _CHARS_A_TOKEN, kept), Sample(sent / _CHARS_A_TOKEN))],
        ),
    ]


def _played(
    servers: Servers, chat: Chat, kind: Kind, count: int, policy: dict[str, Any], summarizer: Summarizer
) -> tuple[_Cost, _Cost, Played]:
    """Play a conversation; return what its first half cost, what the whole did, and what it came to."""
    with chat.database.transaction(chat.tenant_id) as connection:
        conversation = conversations.create(connection, chat.tenant_id, {"policy": policy})[0].id
    before = _position(servers)
    costs: list[_Cost] = []
    states: list[Played] = []
    for state in play(chat, Workers(chat, summarizer), conversation, turns(kind, count)):
        if state.turns in {count // 2, count}:
            now = _position(servers)
            read, snapshots = chat.query(
                """
                select (select coalesce(sum(s.model_input_tokens), 0)
                        from run_steps as s join runs as r on r.id = s.run_id where r.conversation_id = :c),
                       (select count(*) from snapshots where conversation_id = :c)
                """,
                c=conversation,
            )[0]
            costs.append(_Cost(state.appended, now[0] - before[0], now[1] - before[1], int(read), int(snapshots)))
            states.append(state)
    half, whole = costs
    return half, whole, states[-1]


def _position(servers: Servers) -> tuple[int, int]:
    """Return the bytes of write-ahead log so far and those of all tables."""
    with servers.connect() as connection:
        log = connection.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
        tables = connection.execute(_TABLES).fetchone()
    return int(log[0]) if log else 0, int(tables[0]) if tables else 0


@contextmanager
def _no_page_images(servers: Servers) -> Iterator[None]:
    """Keep whole pages out of the log: how many there are depends on when the last checkpoint was."""
    with servers.connect() as connection:
        connection.execute("alter system set full_page_writes = off")
        connection.execute("select pg_reload_conf()")
        connection.execute("checkpoint")
        try:
            yield
        finally:
            connection.execute("alter system reset full_page_writes")
            connection.execute("select pg_reload_conf()")
