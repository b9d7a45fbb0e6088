"""What calls cost: list prices, the installation's, and a tenant's for what nobody else knows."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from compaction.policy import ModelPrices, Policy, PolicyError, merge
from compaction.windows import WINDOWS, window_of
from runtime.settings import Settings
from runtime.token_prices import TokenPrices
from tests.support.servers.loopback_steps import ok
from worker.summarizers.anthropic import AnthropicModel
from worker.summarizers.base import Answer, Spent
from worker.summarizers.list_prices import PRICES, listed_name
from worker.summarizers.prices import BilledTokens, PriceTable, cost, prices_of

if TYPE_CHECKING:
    from tests.support.servers.loopback_model import LoopbackModel


def model(server: LoopbackModel, **fields: Any) -> AnthropicModel:
    given: dict[str, Any] = {"ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": server.url}
    return AnthropicModel(Settings(**given | fields))


def ask(asked: AnthropicModel) -> Answer:
    return asked.ask("rules", "text", max_tokens=300)


@pytest.mark.parametrize(
    ("name", "usage", "usd"),
    [
        ("claude-haiku-4-5-20251001", BilledTokens(1_000_000, 1_000_000), "6"),
        ("claude-sonnet-4-5", BilledTokens(1_000, 100), "0.0045"),
        ("claude-opus-4-6", BilledTokens(0, 0, 1_000_000, 1_000_000, 1_000_000), "16.75"),
        ("claude-fable-5-1", BilledTokens(cache_read=1_000_000), "0.25"),
        ("claude-fable-5", BilledTokens(cache_read=1_000_000), "1"),
        ("claude-opus-5-5", BilledTokens(cache_read=1_000_000), "0.2"),
        ("claude-sonnet-5-5", BilledTokens(cache_read=1_000_000), "0.1"),
        ("claude-haiku-5-5", BilledTokens(100_000, 1_000), "0.0105"),
        ("claude-haiku-5-5", BilledTokens(100_000, 1_000, cache_read=1), "0.05250005"),
        ("claude-opus-4-20250514", BilledTokens(output=1_000_000), "75"),
        ("anthropic/claude-opus-4.6", BilledTokens(1_000_000), "5"),
        ("Claude-Sonnet-5[1m]", BilledTokens(1_000_000), "2"),
        ("gpt-6.2-sol", BilledTokens(100_000, 1_000, 10_000, 0, 100_000), "0.245"),
        ("gpt-6.2-sol", BilledTokens(172_001, 1_000, 0, 0, 100_000), "0.723004"),
        ("openai/gpt-6-luna", BilledTokens(200_000, 1_000_000), "0.52"),
        ("gpt-5.4-mini-2026-03-17", BilledTokens(1_000_000), "0.75"),
        ("gpt-5.4", BilledTokens(100_000), "0.25"),
        ("models/gemini-3.8-flash", BilledTokens(1_000_000, 1_000_000, 0, 0, 1_000_000), "4.575"),
        ("gemini-3.1-pro-preview", BilledTokens(200_000), "0.4"),
        ("gemini-3.1-pro-preview", BilledTokens(200_001), "0.800004"),
        ("gemini-2.5-flash-lite-preview-09-2025", BilledTokens(1_000_000), "0.1"),
        ("kimi-k3", BilledTokens(cache_read=1_000_000), "0.3"),
        ("glm-5.2", BilledTokens(output=1_000_000), "4.4"),
    ],
)
def test_list_prices(name: str, usage: BilledTokens, usd: str) -> None:
    assert cost(name, usage) == Decimal(usd)


@pytest.mark.parametrize(
    "name",
    [
        "gpt-6.9-sol",
        "gpt-6-lunatic",
        "gpt-5.4-mini-high",
        "gpt-5.6-sol",
        "z-ai/glm-5.2",
        "our-gpt-6-luna",
        "gemini-9-flash",
        "",
        "gemma",
        "claude",
        "claude-opus-5-9",
        "claude-opus-5x",
        "claude-fable-5-2",
        "us.anthropic.claude-opus-5",
        "anthropic/claude-opus-4.6-fast",
    ],
)
def test_a_price_that_is_not_known_is_not_guessed(name: str) -> None:
    assert cost(name, BilledTokens(1, 1)) is None


def test_every_model_costs_more_to_write_than_to_read() -> None:
    for name, prices in PRICES.items():
        for each in filter(None, (prices, prices.long_prompt)):
            assert each.cache_read < each.input <= each.cache_write_5m <= each.cache_write_1h < each.output, name
        if prices.long_prompt:
            assert prices.input < prices.long_prompt.input, name
            assert prices.output < prices.long_prompt.output, name
            assert 0 < (prices.long_prompt_tokens or 0) < window_of(name, 0), name


def test_every_model_with_a_price_has_a_window() -> None:
    assert WINDOWS
    assert {name for name in PRICES if not window_of(name, 0)} == set()
    assert {name for name in PRICES if listed_name(name) != name} == set()


def test_a_tenants_prices_come_last() -> None:
    policy = merge(
        {
            "model_prices": {
                "ours": {"input": 0.2, "output": 0.8},
                "ours-large": {"input": 1, "output": 2, "cache_read": 0, "cache_write": 1},
                "gpt-6-luna": {"input": 0, "output": 0},
                "theirs": {"input": 0, "output": 0},
            }
        }
    )
    table = PriceTable.of(
        Settings(summarizer_prices={"theirs": TokenPrices(input=Decimal(3), output=Decimal(3))}), policy
    )
    million = BilledTokens(1_000_000, 1_000_000, 1_000_000, 0, 1_000_000)
    assert cost("Ours-7b", million, table) == Decimal("0.2") + Decimal("0.8") + Decimal("0.25") + Decimal("0.02")
    assert cost("ours-large-1", million, table) == 1 + 2 + 1 + 0
    assert cost("gpt-6-luna", BilledTokens(200_000), table) == Decimal("0.02")
    assert cost("theirs", BilledTokens(1_000_000), table) == 3
    assert prices_of("nobodys", table) is None
    assert Policy(model_prices={"m": ModelPrices(input=1, output=2)}) == merge(
        {"model_prices": {"m": {"input": 1, "output": 2}}}
    )


@pytest.mark.parametrize(
    "prices",
    [
        {"m": {"input": 1}},
        {"m": {"input": -1, "output": 1}},
        {"m": {"input": "1", "output": 1}},
        {"m": {"input": 1, "output": 1, "cash": 1}},
        {"": {"input": 1, "output": 1}},
        {f"m{number}": {"input": 1, "output": 1} for number in range(101)},
        [],
    ],
)
def test_a_tenants_prices_that_are_none_are_refused(prices: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        merge({"model_prices": prices})
    assert caught.value.field == "model_prices"


def test_own_prices_go_before_the_list(server: LoopbackModel, monkeypatch: pytest.MonkeyPatch) -> None:
    table = (
        '{"gemma": {"input": 1, "output": "0"}, "gemma-3": {"input": "0.5", "output": 2, "cache_read": 0},'
        ' "Claude-Haiku": {"input": 3, "output": 3, "long_prompt_tokens": 10,'
        ' "long_prompt": {"input": 6, "output": 6}}}'
    )
    monkeypatch.setenv("PALIMPSEST_SUMMARIZER_PRICES", table)
    own = PriceTable.of(Settings())
    million = BilledTokens(1_000_000, 1_000_000, 1_000_000, 1_000_000, 1_000_000)
    assert cost("gemma-2", million, own) == 1 + 0 + Decimal("1.25") + 2 + Decimal("0.1")
    assert cost("gemma-3-270m", million, own) == Decimal("0.5") + 2 + Decimal("0.625") + 1 + 0
    assert cost("claude-haiku-4-5", BilledTokens(10), own) == Decimal("0.00003")
    assert cost("claude-haiku-4-5", BilledTokens(11), own) == Decimal("0.000066")
    assert cost("claude-sonnet-4-5", BilledTokens(1_000_000), own) == 3
    server.then(ok("text", usage={"input_tokens": 1_000_000, "output_tokens": 500_000}))
    asked = model(server, summarizer_model="gemma-3-270m", summarizer_temperature=None)
    assert ask(asked).spent == Spent(1, 1_000_000, 500_000, Decimal("1.5"))


def test_hourly_cache_writes_cost_more(server: LoopbackModel) -> None:
    usage = {
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_creation_input_tokens": 3_000_000,
        "cache_creation": {"ephemeral_5m_input_tokens": 2_000_000, "ephemeral_1h_input_tokens": 1_000_000},
    }
    server.then(ok("text", usage=usage))
    assert ask(model(server)).spent == Spent(1, 3_000_000, 0, Decimal("4.5"))


@pytest.mark.parametrize(
    "usage", [None, 7, {}, {"input_tokens": "5", "output_tokens": 1}, {"input_tokens": -1, "output_tokens": 1}]
)
def test_usage_that_is_none_leaves_tokens_and_money_unknown(server: LoopbackModel, usage: Any) -> None:
    server.then(ok("text", usage=usage))
    assert ask(model(server)) == ("text", "end_turn", Spent(1))


@pytest.mark.parametrize(
    "prices",
    [
        {"output": 1},
        {"input": -1, "output": 1},
        {"input": "NaN", "output": 1},
        {"input": 1, "output": 1, "cash": 1},
        {"input": 1, "output": 1, "long_prompt_tokens": 5},
    ],
)
def test_prices_that_are_none_are_refused(prices: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TokenPrices.model_validate(prices)
