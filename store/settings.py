"""The settings of every process, read from the environment once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from compaction.policy import FIELDS, Policy, PolicyError, merge

SummarizerName = Literal["anthropic", "extractive", "none"]


class Settings(BaseSettings):
    """Environment variables with the prefix PALIMPSEST_; a file named after one in /run/secrets counts too."""

    model_config = SettingsConfigDict(
        env_prefix="PALIMPSEST_",
        extra="ignore",
        secrets_dir="/run/secrets" if Path("/run/secrets").is_dir() else None,
        hide_input_in_errors=True,
    )

    database_url: SecretStr = SecretStr("postgresql://localhost/palimpsest")
    """Any login that may take on `database_role`; migrations use it as it is."""
    database_role: str = "palimpsest_service"
    """Role every service connection takes on: no owner, no bypass of row-level security. Empty = the login's."""
    database_pool_size: int = 8
    """Connections a process keeps for each of its two uses (hot calls, everything else)."""
    broker_url: SecretStr = SecretStr("redis://localhost:6379/0")
    """Redis, with `maxmemory-policy noeviction`."""
    summarizer: SummarizerName | None = None
    """None picks `anthropic` where ANTHROPIC_API_KEY is set and `extractive` elsewhere."""
    summarizer_model: str = "claude-haiku-4-5"
    """Model that `anthropic` asks."""
    summarizer_temperature: float | None = 0.0
    """Seed 003 asks for 0; None leaves it out, for models that take no temperature."""
    summarizer_deadline_seconds: float = 120.0
    """Seconds for one summary, every attempt and every wait included."""
    anthropic_api_key: SecretStr | None = Field(default=None, validation_alias=AliasChoices("ANTHROPIC_API_KEY"))
    """The SDK's own variable, without the prefix."""
    anthropic_base_url: str | None = Field(default=None, validation_alias=AliasChoices("ANTHROPIC_BASE_URL"))
    """The SDK's own variable: any server that speaks /v1/messages."""

    host: str = "127.0.0.1"
    """Address the API listens on."""
    port: int = 8080
    """Port the API listens on."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    max_body_bytes: int = 32 * 1024 * 1024
    """Bytes of one request body; the Messages API takes 32 MB."""
    wakeup_interval_seconds: float = 0.025
    """Seconds a wake-up batch is collected before one task carries it."""
    lease_seconds: float = 45.0
    """Seconds a worker owns a run without a heartbeat."""
    max_attempts: int = 5
    """Times a run is claimed before it is dead."""
    sweep_interval_seconds: float = 5.0
    """Seconds between two sweeps."""
    check_overdue_seconds: float = 5.0
    """Seconds after which a due check counts as a lost wake-up."""
    run_overdue_seconds: float = 30.0
    """Seconds after which a queued run counts as one whose wake-up got lost."""
    checks_concurrency: int = 2
    """Processes of a worker that serves only the queue `checks`."""
    summaries_concurrency: int = 64
    """Threads of any other worker: model calls wait, they do not compute."""

    policy: dict[str, Any] = {}
    """Defaults of the installation; also one variable a key, as PALIMPSEST_INPUT_TOKEN_BUDGET."""

    @model_validator(mode="before")
    @classmethod
    def _policy_from_environment(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Read PALIMPSEST_<POLICY KEY> for every key of the policy."""
        found = dict(values.get("policy") or {})
        for key in FIELDS:
            if (text := os.environ.get(f"PALIMPSEST_{key.upper()}")) is not None:
                found.setdefault(key, _number_or_word(text))
        return {**values, "policy": found}

    @field_validator("policy")
    @classmethod
    def _policy_holds(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            merge(value)
        except PolicyError as error:
            raise ValueError(f"{error.field}: {error.detail}") from None
        return value

    @property
    def chosen_summarizer(self) -> SummarizerName:
        """The summarizer in use: `anthropic` needs a key to be chosen by itself."""
        return self.summarizer or ("anthropic" if self.anthropic_api_key else "extractive")

    @property
    def default_policy(self) -> Policy:
        """The policy of a tenant that overrides nothing."""
        return merge(self.policy)


def _number_or_word(text: str) -> Any:
    try:
        return msgspec.json.decode(text.strip().lower())
    except msgspec.DecodeError:
        return text
