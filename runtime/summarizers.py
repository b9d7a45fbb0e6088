"""Summarizers by their names: whose API each speaks, where that is, and what its models cost."""

from __future__ import annotations

from decimal import Decimal
from importlib.metadata import entry_points
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, model_validator

SUMMARIZERS: Final = ("anthropic", "anthropic-batch", "anthropic-native", "openai", "extractive", "none")
"""Those that come with the service; others are installed next to it."""
Provider = Literal["anthropic", "openai"]
"""Whose API a summarizer speaks, whoever answers it."""
DEFAULT_MODELS: Final[dict[Provider, str]] = {"anthropic": "claude-haiku-4-5", "openai": "gpt-6-luna"}
"""Models that are asked where none is named: small ones of who made the API."""
ANY_MODEL: Final = "*"
SUMMARIZER_GROUP: Final = "palimpsest.summarizers"
"""Entry points in this group name summarizers: callables that are given the settings and return one."""


def provider_of(summarizer: str) -> Provider | None:
    """Return whose API a summarizer speaks, None for one that asks no model of ours."""
    if summarizer == "openai":
        return "openai"
    return "anthropic" if summarizer in SUMMARIZERS and summarizer.startswith("anthropic") else None


def summarizer_names() -> tuple[str, ...]:
    """Return the names of the summarizers: the service's own, then those that are installed next to it."""
    return (*SUMMARIZERS, *sorted(entry_points(group=SUMMARIZER_GROUP).names))


Price = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


class TokenPrices(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """USD for a million tokens of each kind.

    What is left out of the cache's prices follows the input's, as Claude's list prices do: writes at 1.25 times (five
    minutes) and twice (an hour) of it, reads at a tenth. Prompts of more than `long_prompt_tokens` tokens, cached ones
    counted, pay the prices of `long_prompt` throughout.
    """

    input: Price
    output: Price
    cache_write_5m: Price = Decimal(0)
    cache_write_1h: Price = Decimal(0)
    cache_read: Price = Decimal(0)
    long_prompt_tokens: int | None = Field(default=None, ge=0)
    long_prompt: TokenPrices | None = None

    @model_validator(mode="before")
    @classmethod
    def _cache_follows_input(cls, values: Any) -> Any:
        shares = {"cache_write_5m": "1.25", "cache_write_1h": "2", "cache_read": "0.1"}
        try:
            usual = {name: Decimal(str(values["input"])) * Decimal(share) for name, share in shares.items()}
        except (ArithmeticError, KeyError, TypeError):
            return values
        return usual | values

    @model_validator(mode="after")
    def _long_prompts_are_whole(self) -> Self:
        if (self.long_prompt is None) != (self.long_prompt_tokens is None):
            raise ValueError("long_prompt and long_prompt_tokens come together")
        return self


class ModelAccess(NamedTuple):
    """Where a provider's API is; `base_url` is None for the provider's own, `key` empty for none."""

    base_url: str | None
    key: str

    @property
    def is_open(self) -> bool:
        """Whether there is anything to ask: a server of one's own may take no key."""
        return bool(self.key or self.base_url)
