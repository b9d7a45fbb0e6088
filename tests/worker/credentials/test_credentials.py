"""Credentials go to no summarizer and into nothing that compaction writes; originals keep them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from compaction.view import MARKER
from store.conversations import conversations
from tests.domain.credentials.samples import CARD, JWT, PASSWORD, PEM, TOKENS, mixed
from tests.support.messages_api import problems
from tests.support.servers.loopback_compaction import compacted
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok
from tests.support.service.in_process import SMALL, Workers
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.support.blocks import Message
    from tests.support.service.in_process import Chat

AZURE: Final = mixed(40)
SECRETS: Final = {
    "anthropic": TOKENS["anthropic key"],
    "github": TOKENS["github token"],
    "pem": PEM.split("\n")[1],
    "password": PASSWORD,
    "jwt": JWT,
    "card": CARD,
    "url": "s3cr3tpw",
    "input": AZURE,
}
RULE: Final = f"From now on always log in with the password {PASSWORD}."
ENVIRONMENT: Final = "\n".join(
    [
        "PATH=/usr/bin",
        f"ANTHROPIC_API_KEY={TOKENS['anthropic key']}",
        f"GITHUB_TOKEN={TOKENS['github token']}",
        "DATABASE_URL=postgres://app:s3cr3tpw@db.internal:5432/app",
        f"Authorization: Bearer {JWT}",
    ]
)


def talk(prefix: str = "") -> list[Message]:
    """Return messages with credentials in results, inputs and words, and exchanges after them."""
    call = {"type": "tool_use", "id": "t1", "name": "login", "input": {"user": "bob", "password": AZURE}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": ENVIRONMENT}
    return [
        {"role": "user", "content": f"Deploy the service with care.{prefix}"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": "I have seen the environment."},
        {"role": "user", "content": f"{RULE} My card is {CARD}."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": f"Here is the key:\n{PEM}"},
        {"role": "assistant", "content": "Thanks."},
        *exchanges(14, 200),
    ]


@pytest.fixture
def model() -> Iterator[LoopbackModel]:
    with LoopbackModel() as running:
        yield running


def product(chat: Chat, model: LoopbackModel, summarizer: str) -> Chat:
    fields: dict[str, Any] = {"summarizer": summarizer, "breaker_failures": 0}
    if summarizer.startswith("anthropic"):
        fields |= {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "sk-test"}
    return chat.renew(**fields)


def written(chat: Chat, conversation: UUID) -> str:
    """Return all that is stored of a conversation besides its messages and the ledger as it was entered."""
    tables = {
        "snapshots": "messages, summary, pins::text, claims::text",
        "run_steps": "detail, error",
        "context_blocks": "outline, summary",
    }
    parts: list[Any] = []
    for table, columns in tables.items():
        own = (
            "run_id in (select id from runs where conversation_id = :c)"
            if table == "run_steps"
            else "conversation_id = :c"
        )
        parts += chat.query(f"select {columns} from {table} where {own}", c=conversation)  # noqa: S608 - constants
    return json.dumps([[str(value) for value in row] for row in parts], ensure_ascii=False)


def found_in(text: str) -> set[str]:
    return {name for name, secret in SECRETS.items() if secret in text or json.dumps(secret)[1:-1] in text}


@pytest.mark.parametrize("summarizer", ["anthropic", "anthropic-native", "extractive"])
def test_credentials_go_to_no_summarizer_and_into_nothing_that_is_written(
    chat: Chat, model: LoopbackModel, summarizer: str
) -> None:
    asking = product(chat, model, summarizer)
    conversation = asking.begin({"input_token_budget": 0})
    asking.append(conversation, talk())
    if summarizer == "anthropic-native":
        model.default = compacted()
    Workers(asking).settle(conversation)
    assert asking.row(conversation).head_version >= 1
    assert found_in("".join(received.raw.decode() for received in model.requests)) == set()
    assert bool(model.requests) == summarizer.startswith("anthropic")
    context = asking.context(conversation)
    assert found_in(json.dumps(context["messages"])) == set()
    assert problems(context["messages"]) == []
    assert found_in(written(asking, conversation)) == set()
    assert found_in(json.dumps(asking.originals(conversation))) == SECRETS.keys()


def test_the_frame_shows_a_rule_with_a_mark_of_its_message(chat: Chat, model: LoopbackModel) -> None:
    asking = product(chat, model, "extractive")
    conversation = asking.begin({"input_token_budget": 0})
    asking.append(conversation, talk())
    shown = "From now on always log in with the password [secret: password, m4]."
    assert len(asking.context(conversation)["rules"]["ids"]) == 1
    workers = Workers(asking)
    for _ in range(3):
        workers.settle(conversation)
        context = asking.context(conversation)
        assert len(context["rules"]["ids"]) == 1
        assert json.dumps(context["messages"]).count(shown) == 1
        asking.append(conversation, exchanges(14, 200, start=14))
    assert asking.row(conversation).head_version >= 2


def test_what_is_masked_is_counted_and_no_reason_to_fail(chat: Chat, model: LoopbackModel) -> None:
    asking = product(chat, model, "extractive")
    conversation = asking.begin({"input_token_budget": 0})
    asking.append(conversation, talk())
    Workers(asking).settle(conversation)
    run = asking.run(conversation)
    assert run.state == "committed"
    details = " ".join(filter(None, (step.detail for step in asking.steps(run.id))))
    assert (
        "credentials masked (1 anthropic key, 1 card number, 1 github token, 1 jwt, 3 password, 1 private key)"
        in details
    )


@pytest.mark.parametrize("summarizer", ["anthropic", "extractive"])
def test_the_policy_keeps_them(chat: Chat, model: LoopbackModel, summarizer: str) -> None:
    asking = product(chat, model, summarizer)
    conversation = asking.begin({"input_token_budget": 0, "secrets": "keep"})
    asking.append(conversation, talk())
    Workers(asking).settle(conversation)
    if model.requests:
        assert found_in("".join(received.raw.decode() for received in model.requests)) >= {"anthropic", "password"}
    assert PASSWORD in json.dumps(asking.context(conversation)["messages"])


def test_what_a_summarizer_says_of_a_credential_all_the_same_is_masked(chat: Chat, model: LoopbackModel) -> None:
    asking = product(chat, model, "anthropic")
    conversation = asking.begin({"input_token_budget": 0})
    asking.append(conversation, talk())
    said = "".join(f"- The {name} is {secret} [m2].\n" for name, secret in SECRETS.items())
    model.default = ok(
        "## Request and constraints\n- Deploy the service with care, always log in with the password [m0, m4].\n"
        "## Decisions\nNone.\n"
        "## Facts\n- The environment has PATH=/usr/bin, ANTHROPIC_API_KEY, GITHUB_TOKEN, and a DATABASE_URL at "
        f"db.internal:5432 [m2].\n{said}"
        "## Results and scores\nNone.\n"
        "## Status and next steps\n- I have seen the environment; request 10 and answer 10 are done [m28].\n"
    )
    Workers(asking).settle(conversation)
    run = asking.run(conversation)
    assert (run.state, asking.snapshot(conversation, 1).summarizer) == ("committed", "anthropic")
    assert "[secret: anthropic key, m2]" in asking.snapshot(conversation, 1).summary
    assert found_in(written(asking, conversation)) == set()
    assert found_in(json.dumps(asking.context(conversation)["messages"])) == set()


def test_a_signed_summary_with_a_credential_is_not_used(chat: Chat, model: LoopbackModel) -> None:
    asking = product(chat, model, "anthropic-native")
    with asking.database.transaction(asking.tenant_id) as connection:
        fields = {"policy": SMALL | {"input_token_budget": 0}, "system": f"The token is {TOKENS['gitlab token']}."}
        row, _ = conversations.create(connection, asking.tenant_id, fields)
    conversation = row.id
    asking.append(conversation, talk())
    model.then(compacted(f"They deploy with {TOKENS['npm token']}."))
    Workers(asking).settle(conversation)
    assert TOKENS["gitlab token"] not in "".join(received.raw.decode() for received in model.requests)
    assert asking.row(conversation).head_version == 1
    assert TOKENS["npm token"] not in written(asking, conversation)
    steps = [(step.name, step.state, step.reason) for step in asking.steps(asking.run(conversation).id)]
    assert ("summary", "skipped", "summary_rejected") in steps


@pytest.mark.parametrize("kept", [300, 345, 360, 400])
def test_a_cut_result_has_neither_a_credential_nor_half_of_one(chat: Chat, kept: int) -> None:
    conversation = chat.begin(
        {"compaction_threshold_tokens": 100_000, "input_token_budget": 1_500, "tool_result_retention_chars": kept}
    )
    token = TOKENS["github token"]
    messages: list[Message] = []
    for number in range(4):
        call = {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": {"command": "env"}}
        text = f"{'x ' * 165}T={token}\n{'y ' * 1_500}"
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text}
        messages += [
            {"role": "user", "content": f"Step {number} with {token}"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": "Seen."},
        ]
    chat.append(conversation, messages)
    Workers(chat, None).settle(conversation)
    context = chat.context(conversation)["messages"]
    cut = [
        block["content"]
        for message in context
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_result" and block["content"].endswith(MARKER)
    ]
    assert len(cut) == 3
    for text in cut:
        assert token[:12] not in text
        assert kept < 340 or "[secret: github token, m" in text
    # What stays as it came is not touched.
    assert [message["content"] for message in context if message["content"] == f"Step 0 with {token}"]
    assert json.dumps(context).count(token) == 5


def test_credentials_of_the_first_message_stay_its_own_and_go_to_nobody_else(chat: Chat, model: LoopbackModel) -> None:
    asking = product(chat, model, "anthropic")
    conversation = asking.begin({"input_token_budget": 0})
    first = TOKENS["stripe key"]
    asking.append(conversation, talk(f" The key is {first}."))
    Workers(asking).settle(conversation)
    assert asking.row(conversation).head_version == 1
    assert first not in "".join(received.raw.decode() for received in model.requests)
    opening = asking.context(conversation)["messages"][0]["content"]
    assert opening.startswith(f"Deploy the service with care. The key is {first}.")
    assert opening.count(first) == 1


def test_a_fork_has_the_same_marks(chat: Chat, model: LoopbackModel) -> None:
    asking = product(chat, model, "extractive")
    conversation = asking.begin({"input_token_budget": 0})
    asking.append(conversation, talk())
    asking.append(conversation, [{"role": "user", "content": "Once more"}], replace_from=len(talk()) - 2)
    Workers(asking).settle(conversation)
    text = json.dumps(asking.context(conversation)["messages"])
    assert "[secret: anthropic key, m2]" in text
    assert "[secret: password, m4]" in text
    assert found_in(text) == set()
