"""A client that talks through a gateway of its own: what it sent, what the model received, and what has to be so."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg.rows import dict_row
from pydantic import SecretStr

from runtime import ids
from tests.clients.gateway.asked_model import AskedModel
from tests.clients.gateway.recorder import NUMBER, Recorder
from tests.conftest import make_tenant
from tests.gateway.running_gateway import running_gateway
from tests.support.eventually import eventually
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.settings import Settings
    from tests.clients.every_api_model import Request
    from tests.clients.gateway.recorder import Exchange

POLICY: Final = {
    "input_token_budget": 2_000,
    "compaction_threshold_tokens": 3_000,
    "min_savings_tokens": 100,
    "protected_tail_messages": 2,
}
"""Compacts after a few rounds."""
STORED: Final = (
    "select seq, role, content from messages where conversation_id = %s and superseded_at is null order by seq"
)
HEADINGS: Final = ("client", "requests", "rows", "tokens of rows", "of all requests", "outcomes", "convs", "branches")


@dataclass(frozen=True)
class Measured:
    """What a client sent and what the model received of it, messages or items alone; tokens by characters / 4."""

    client: str
    requests: int
    rows_sent: int
    """Of the longest request, as the next three."""
    rows_received: int
    tokens_sent: int
    tokens_received: int
    all_tokens_sent: int
    all_tokens_received: int
    outcomes: dict[str, int]
    conversations: int
    branches: int

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table that is printed."""
        return (
            self.client,
            str(self.requests),
            f"{self.rows_sent} → {self.rows_received}",
            f"{self.tokens_sent:,} → {self.tokens_received:,}",
            f"{self.all_tokens_sent:,} → {self.all_tokens_received:,}",
            ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items())),
            str(self.conversations),
            str(self.branches),
        )


class Talk(NamedTuple):
    """A client's talk with a model through a gateway."""

    recorder: Recorder
    model: AskedModel
    settings: Settings
    key: str
    stored: Callable[[str], list[dict[str, Any]]]
    """Returns the messages of a conversation that are in force."""

    def pairs(self) -> list[tuple[Exchange, Request]]:
        """Return each answered request as it was sent and as the model received it."""
        received = {each.query.rpartition(f"{NUMBER}=")[2]: each for each in self.model.requests}
        return [(each, received[str(each.number)]) for each in self.recorder.asked]

    def conversations(self) -> list[str]:
        """Return the conversations, in the order of their first requests."""
        return list(dict.fromkeys(each.conversation for each in self.recorder.asked))

    def said(self, conversation: str) -> str:
        """Return all that is stored of a conversation, as JSON text."""
        return json.dumps([each["content"] for each in self.stored(conversation)])

    def main(self) -> str:
        """Return the conversation that most requests are of."""
        ((name, _),) = Counter(each.conversation for each in self.recorder.asked).most_common(1)
        return name

    def branches(self) -> dict[str, str]:
        """Return what each conversation that is a branch went on from."""
        names = [ids.parse("conv", each) for each in self.conversations()]
        rows = self.query("select id, metadata from conversations where id = any(%s)", names)
        about = {ids.external("conv", row["id"]): row["metadata"].get("gateway", {}) for row in rows}
        return {name: each["branch_of"] for name, each in about.items() if "branch_of" in each}

    def query(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Ask the database as its owner."""
        return _query(self.settings, statement, *values)

    def check(self) -> None:
        """Assert what has to be so whatever a client does."""
        assert [each.problems for each in self.model.requests if each.problems] == []
        for sent, received in self.pairs():
            assert _rows(received)[-1] == sent.rows[-1], "the newest is not there"
            assert received.answered == sent.answered, "the answer is not what the model said"
            if sent.outcome != "compacted":
                assert received.body == sent.body
            assert sent.outcome in {"compacted", "unchanged"}

    def measured(self, client: str) -> Measured:
        """Return what the client sent and what the model received."""
        pairs = self.pairs()
        rows = [(sent.rows, _rows(received)) for sent, received in pairs]
        sent, received = max(rows, key=lambda pair: len(pair[0]))
        return Measured(
            client=client,
            requests=len(pairs),
            rows_sent=len(sent),
            rows_received=len(received),
            tokens_sent=_tokens(sent),
            tokens_received=_tokens(received),
            all_tokens_sent=sum(_tokens(each) for each, _ in rows),
            all_tokens_received=sum(_tokens(each) for _, each in rows),
            outcomes=dict(Counter(each.outcome for each, _ in pairs)),
            conversations=len(self.conversations()),
            branches=len(self.branches()),
        )


@contextmanager
def talk(
    settings: Settings,
    client: str,
    call: Callable[[list[str], int], tuple[str, dict[str, Any]] | None],
    *,
    is_strict: bool = True,
    policy: dict[str, Any] = POLICY,
) -> Iterator[Talk]:
    """Run a gateway before a model of all APIs, for a tenant of the client's own."""
    tenant = make_tenant(settings.database_url.get_secret_value(), client)
    with AskedModel(call, is_strict=is_strict) as model:
        own = settings.model_copy(
            update={
                "anthropic_base_url": model.url,
                "openai_base_url": f"{model.url}/v1",
                "anthropic_api_key": SecretStr("sk-provider"),
                "openai_api_key": SecretStr("sk-provider"),
                "gateway_patience_seconds": 20.0,
                "policy": policy,
            }
        )

        def stored(conversation: str) -> list[dict[str, Any]]:
            return _query(own, STORED, ids.parse("conv", conversation))

        worked: dict[str, int] = {}

        def work_is_done(conversations: list[str]) -> None:
            # The conversation is made when the first turn is stored.
            for conversation in conversations:
                newest = eventually(partial(stored, conversation), 20)[-1]["seq"]
                if worked.get(conversation) != newest:
                    worked[conversation] = newest
                    work(own, f"/v1/conversations/{conversation}")

        with running_gateway(own) as gateway, Recorder(gateway.url, work_is_done) as recorder:
            yield Talk(recorder, model, own, tenant.key, stored)


def table(clients: list[Measured]) -> str:
    """Return what clients sent and the model received as a table."""
    every = [HEADINGS, *(each.cells() for each in clients)]
    widths = [max(len(row[at]) for row in every) for at in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every
    )


def _query(settings: Settings, statement: str, *values: object) -> list[dict[str, Any]]:
    with psycopg.connect(settings.database_url.get_secret_value(), row_factory=dict_row) as connection:
        return connection.execute(statement.encode(), values).fetchall()


def _rows(received: Request) -> list[Any]:
    rows: list[Any] = received.body["input" if received.shape == "responses" else "messages"]
    return rows


def _tokens(rows: list[Any]) -> int:
    """Return the tokens of messages or items, by the rule of four characters a token."""
    return len(json.dumps(rows, ensure_ascii=False)) // 4
