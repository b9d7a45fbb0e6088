"""Summarizers by their names: whose API each speaks, and where that is."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

SUMMARIZERS: Final = ("anthropic", "anthropic-native", "openai", "extractive", "none")
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
    from importlib.metadata import entry_points  # noqa: PLC0415 - `serve`, which needs no names, would hold it

    return (*SUMMARIZERS, *sorted(entry_points(group=SUMMARIZER_GROUP).names))


class ModelAccess(NamedTuple):
    """Where a provider's API is; `base_url` is None for the provider's own, `key` empty for none."""

    base_url: str | None
    key: str

    @property
    def is_open(self) -> bool:
        """Whether there is anything to ask: a server of one's own may take no key."""
        return bool(self.key or self.base_url)
