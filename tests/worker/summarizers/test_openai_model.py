"""The client of Chat Completions: what it sends, and servers that know less of the API."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from compaction.policy import ModelPrices, Policy
from compaction.shapes.usage import TokenUsage
from compaction.windows import LOW_CONTEXT_WINDOW
from runtime.settings import Settings
from tests.support.servers.loopback_chat import CHAT_FAULTS, Dialect, choice, raw, too_long
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import hang_up, max_tokens, ok, status
from tests.worker.summarizers.models import QUESTION, SECRET, ask, fail
from tests.worker.summarizers.models import openai_model as model
from worker.summarizers.anthropic import AnthropicModel
from worker.summarizers.asking import LONGEST_WAIT_SECONDS
from worker.summarizers.base import Spent, SummaryError, chosen_by
from worker.summarizers.breaker import CircuitBreaker
from worker.summarizers.openai import THINKING_TOKENS, OpenAIModel, billed


def sent_of(server: LoopbackModel, name: str) -> list[Any]:
    return [each.body.get(name) for each in server.requests]


@pytest.mark.requirement("S8")
def test_an_answer_with_what_it_cost(server: LoopbackModel) -> None:
    server.then(ok(" the text \n", output_tokens=9), max_tokens("half a te"))
    asked = model(server)
    answer = ask(asked)
    (sent,) = server.requests
    assert sorted(sent.body) == ["max_tokens", "messages", "model", "temperature"]
    assert (sent.body["max_tokens"], sent.body["temperature"], sent.body["model"]) == (300, 0, "gpt-6-luna")
    assert sent.body["messages"] == [
        {"role": "system", "content": "Write the summary."},
        {"role": "user", "content": QUESTION},
    ]
    assert sent.headers["authorization"] == f"Bearer {SECRET}"
    price = (Decimal("0.10") * sent.input_tokens + Decimal("0.50") * 9) / 1_000_000
    assert answer == ("the text", "end_turn", Spent(1, sent.input_tokens, 9, price))
    assert ask(asked)[:2] == ("half a te", "max_tokens")
    assert (asked.name, asked.model, asked.context_tokens) == ("openai", "gpt-6-luna", 1_050_000)


def test_what_was_cached_is_a_part_of_the_prompt_and_cheaper(server: LoopbackModel) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30, "output_tokens": 1}
    server.then(ok("text", usage=usage))
    cost = Decimal("0.10") * 10 + Decimal("0.01") * 200 + Decimal("0.125") * 30 + Decimal("0.50")
    assert ask(model(server)).spent == Spent(1, 240, 1, cost / 1_000_000)
    assert billed(TokenUsage(240, 1, 200, 30)) == (10, 1, 30, 0, 200)


@pytest.mark.parametrize(
    "usage",
    [None, 7, {}, {"prompt_tokens": "5", "completion_tokens": 1}, {"prompt_tokens": -1, "completion_tokens": 1}],
)
def test_servers_without_usage_leave_tokens_and_money_unknown(server: LoopbackModel, usage: Any) -> None:
    server.then(choice({"content": "text"}, usage=usage))
    assert ask(model(server)) == ("text", "end_turn", Spent(1))


def test_a_server_of_ones_own_needs_no_key_and_finishes_for_no_reason(server: LoopbackModel) -> None:
    server.then(choice({"content": "text"}, None))
    assert ask(model(server, OPENAI_API_KEY=None, summarizer_model="gemma3:4b")).text == "text"
    assert server.requests[0].headers["authorization"] == "Bearer none"


# What servers do not know --------------------------------------------------------------------------------------------


def test_the_limit_goes_by_the_name_that_a_server_knows() -> None:
    """Others than OpenAI are asked by the older name first: they would ignore the newer one without a word."""
    with LoopbackModel(dialect=Dialect(limits=frozenset({"max_completion_tokens"}))) as server:
        answer = ask(model(server, summarizer_model="knows-the-newer"))
        assert answer.spent.calls == 2
        ask(model(server, summarizer_model="knows-the-newer"))
        assert sent_of(server, "max_tokens") == [300, None, None]
        assert sent_of(server, "max_completion_tokens") == [None, 300, 300]
    with LoopbackModel(dialect=Dialect(limits=frozenset({"max_tokens"}))) as server:
        assert ask(model(server, summarizer_model="knows-the-older")).spent.calls == 1


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (None, "max_completion_tokens"),
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("https://ours.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://notopenai.com/v1", "max_tokens"),
        ("http://localhost:11434/v1", "max_tokens"),
    ],
)
def test_openai_itself_is_asked_by_the_newer_name(url: str | None, name: str) -> None:
    asked = OpenAIModel(Settings(OPENAI_BASE_URL=url))  # type: ignore[call-arg] # the SDK's own name
    assert asked.limit_name == name


def test_a_model_that_takes_no_temperature_is_asked_without() -> None:
    with LoopbackModel(dialect=Dialect(temperature=False)) as server:
        assert ask(model(server, summarizer_model="reasons")).spent.calls == 2
        assert ask(model(server, summarizer_model="reasons")).spent.calls == 1
        assert sent_of(server, "temperature") == [0.0, None, None]


def test_a_template_without_a_role_system_reads_it_before_the_text() -> None:
    with LoopbackModel(dialect=Dialect(system=False)) as server:
        assert ask(model(server, summarizer_model="gemma-2-9b-it")).spent.calls == 2
        assert server.requests[-1].body["messages"] == [
            {"role": "user", "content": f"Write the summary.\n\n{QUESTION}"}
        ]


def test_a_server_that_knows_none_of_it_is_asked_once_for_each() -> None:
    dialect = Dialect(frozenset({"max_completion_tokens"}), temperature=False, system=False)
    with LoopbackModel(dialect=dialect) as server:
        assert ask(model(server, summarizer_model="knows-nothing")).spent.calls == 4
        assert sorted(server.requests[-1].body) == ["max_completion_tokens", "messages", "model"]


def test_a_refusal_of_both_names_is_one(server: LoopbackModel) -> None:
    server.default = status(400, "Unrecognized request argument supplied: max_tokens, max_completion_tokens")
    error = fail(model(server, summarizer_model="knows-neither"))
    assert (error.code, error.spent.calls) == ("model_rejected", 2)


def test_a_window_that_names_the_limit_is_no_unknown_name(server: LoopbackModel) -> None:
    server.default = status(
        400,
        "'max_tokens' is too large: 300. This model's maximum context length is 4096 tokens and your request has 4000"
        " input tokens (300 > 4096 - 4000). Unsupported.",
    )
    error = fail(model(server, summarizer_model="small"))
    assert (error.code, error.spent.calls) == ("prompt_too_long", 1)


# What models think ---------------------------------------------------------------------------------------------------


def test_what_was_thought_is_no_part_of_the_answer(server: LoopbackModel) -> None:
    server.then(
        choice({"content": "so", "reasoning_content": "hm"}),
        choice({"content": "<think>\nhm\n</think>\n\nso"}),
        choice({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "so"}]}),
    )
    assert [ask(model(server)).text for _ in range(3)] == ["so"] * 3


def test_a_thought_that_the_template_has_opened_is_no_part_of_the_answer(server: LoopbackModel) -> None:
    quoting = "The template ends thoughts with </think>.\n<think>\nas here\n</think>\nso"
    server.then(choice({"content": "Hm, the user.\n\nWell.\n</think>\n\nso"}), choice({"content": quoting}))
    assert [ask(model(server)).text for _ in range(2)] == ["so", quoting]


def test_thoughts_that_took_all_of_the_room_have_more_of_it_from_then_on(server: LoopbackModel) -> None:
    server.then(choice({"content": None, "reasoning_content": "hm"}, "length"))
    for most, given in ((300, 300), (300, 300 + THINKING_TOKENS), (4_096, 4_096 + THINKING_TOKENS)):
        ask(model(server, summarizer_model="gpt-6-thinks"), most)
        assert server.requests[-1].body["max_tokens"] == given
    server.then(choice({"content": ""}, "length"))
    for given in (300, 300 + LOW_CONTEXT_WINDOW // 4):
        ask(model(server, summarizer_model="small-and-thinks"))
        assert server.requests[-1].body["max_tokens"] == given


def test_no_more_is_asked_for_than_a_model_may_write(server: LoopbackModel) -> None:
    ask(model(server, summarizer_model="gpt-4o-mini"), 50_000)
    assert server.requests[-1].body["max_tokens"] == 16_384


# Prompts that are too long -------------------------------------------------------------------------------------------


def test_a_prompt_that_was_read_in_part_is_too_long(server: LoopbackModel) -> None:
    """Ollama drops the beginning of what its `num_ctx` has no room for, and says nothing but how much it has read."""
    usage = {"prompt_tokens": 2_050, "completion_tokens": 9}
    server.then(choice({"content": "of the end alone"}, usage=usage))
    with pytest.raises(SummaryError) as caught:
        model(server).ask("rules", "word " * 20_000, max_tokens=300)
    assert (caught.value.code, caught.value.spent.input_tokens) == ("prompt_too_long", 2_050)
    # What is counted without what was in its cache is no sign of that.
    server.then(choice({"content": "fine"}, usage={"prompt_tokens": 120, "completion_tokens": 9}))
    assert model(server).ask("rules", "word " * 20_000, max_tokens=300).text == "fine"


def test_the_servers_own_words_for_a_prompt_over_the_window() -> None:
    with LoopbackModel(context_tokens=100) as server:
        with pytest.raises(SummaryError, match="prompt_too_long"):
            model(server).ask("rules", "x" * 2_000, max_tokens=300)
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 2_000}])
        assert caught.value.code == "context_length_exceeded"
        client.close()


# Waiting, and the circuit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seconds"), [("429 quota", 600), ("402 of DeepSeek", 600), ("patience", 240)])
def test_what_every_call_would_meet_with_opens_the_circuit_at_once(
    server: LoopbackModel, broker_url: str, name: str, seconds: int
) -> None:
    server.then(CHAT_FAULTS[name].step() if name in CHAT_FAULTS else status(429, retry_after=240))
    assert seconds > LONGEST_WAIT_SECONDS

    def circuit() -> CircuitBreaker:
        return CircuitBreaker(
            broker_url, f"openai {name}", failures=9, cooldown=30, longest=600, probe_seconds=50,
            clock=lambda: 1_700_000_000.0, jitter=lambda: 0.0,
        )  # fmt: skip

    fail(model(server, circuit()))
    assert fail(model(server, circuit())).detail == f"the model is not asked for another {seconds} s"
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["403 for this model", "401 of LiteLLM for this model"])
def test_a_model_that_the_key_is_not_for_stops_no_other_one(server: LoopbackModel, broker_url: str, name: str) -> None:
    circuit = CircuitBreaker(broker_url, f"openai {name}", failures=2, cooldown=30, longest=600, probe_seconds=50)
    asked = model(server, circuit, summarizer_models=["gpt-4o"])
    server.then(CHAT_FAULTS[name].step())
    assert fail(chosen_by(asked, Policy(summarizer_model="gpt-4o"))).code == "model_rejected"
    assert ask(asked).text


def test_each_provider_has_its_own_circuit() -> None:
    settings = Settings(ANTHROPIC_API_KEY="a", OPENAI_API_KEY="b")  # type: ignore[call-arg] # the SDKs' own names
    assert CircuitBreaker.of(settings, "anthropic").id != CircuitBreaker.of(settings, "openai").id


# Other models by a policy --------------------------------------------------------------------------------------------


def test_a_policy_chooses_a_model_that_the_installation_allows(server: LoopbackModel) -> None:
    asked = model(server, summarizer_models=["gpt-4o-mini"])
    assert chosen_by(asked, Policy()) is asked
    chosen = chosen_by(asked, Policy(summarizer_model="gpt-4o-mini"))
    assert (chosen.model, chosen.context_tokens, chosen.name) == ("gpt-4o-mini", 128_000, "openai")
    ask(chosen)
    assert sent_of(server, "model") == ["gpt-4o-mini"]
    error = fail(chosen_by(asked, Policy(summarizer_model="gpt-6.2-astra")))
    assert (error.code, error.spent) == ("model_rejected", Spent(0))
    assert len(server.requests) == 1
    anything = model(server, summarizer_models=["*"])
    assert ask(chosen_by(anything, Policy(summarizer_model="gpt-6.2-astra"))).text


def test_a_policy_prices_what_nobody_else_does(server: LoopbackModel) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 1_000_000}
    server.default = choice({"content": "text"}, usage=usage)
    free = ModelPrices(input=0, output=0)
    policy = Policy(model_prices={"ours": ModelPrices(input=0.2, output=0.8), "gpt-6-luna": free})
    own = model(server, summarizer_model="ours-7b")
    assert ask(own).spent.cost_usd is None
    assert ask(chosen_by(own, policy)).spent.cost_usd == Decimal(1)
    # Not what the installation or the list says: a tenant's budget is counted by that.
    assert ask(chosen_by(model(server), policy)).spent.cost_usd == Decimal("0.95")


def test_the_model_of_a_summarizer_is_its_own_where_none_is_named() -> None:
    assert OpenAIModel(Settings()).model == "gpt-6-luna"
    assert AnthropicModel(Settings()).model == "claude-haiku-4-5"
    assert Settings(summarizer="extractive").chosen_model is None
    assert Settings(summarizer="openai").chosen_model == "gpt-6-luna"
    assert Settings(summarizer="openai", summarizer_model="ours").chosen_model == "ours"


# The server itself ---------------------------------------------------------------------------------------------------


def test_the_sdk_reads_what_the_loopback_answers(server: LoopbackModel) -> None:
    server.then(ok("one", output_tokens=2), too_long(9, 8), hang_up(), raw(200, {"object": "chat.completion"}))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:

        def call() -> ChatCompletion:
            return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])

        answer = call()
        ChatCompletion.model_validate(answer.model_dump(), strict=True)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one", "stop")
        assert answer.usage is not None
        assert (answer.usage.completion_tokens, answer._request_id) == (2, "req_loopback_000000")
        with pytest.raises(openai.BadRequestError, match="maximum context length is 8 tokens"):
            call()
        with pytest.raises(openai.APIConnectionError):
            call()
        with pytest.raises(openai.BadRequestError, match="answers no open call"):
            client.chat.completions.create(model="m", messages=[{"role": "tool", "tool_call_id": "x", "content": "no"}])
