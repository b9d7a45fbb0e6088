"""What a model's tokens cost, as settings and lists of prices have it."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

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
