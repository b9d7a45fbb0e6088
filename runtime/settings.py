"""The settings of every process, read from the environment once."""

from __future__ import annotations

import os
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

import msgspec
from pydantic import AliasChoices, BaseModel, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from compaction.policy import FIELDS, Policy, PolicyError, merge
from runtime.addresses.redis_clients import check_broker_url
from runtime.defaults import GATEWAY_PORT, SERVICE_ROLE
from runtime.setting_sources import as_written
from runtime.summarizers import (
    ANY_MODEL,
    DEFAULT_MODELS,
    SUMMARIZERS,
    ModelAccess,
    Provider,
    provider_of,
    summarizer_names,
)
from runtime.token_prices import Price, TokenPrices

LAST_PORT: Final = 65_535


def read_rate_limit(text: str) -> str:
    """Return a rate limit as it was given, empty for none; raise ValueError if it is not one."""
    if not (text := text.strip()):
        return ""
    # Installations without limits need not load the library.
    from limits import parse_many  # noqa: PLC0415

    try:
        allowed = [limit.amount for limit in parse_many(text)]
    except ValueError:
        raise ValueError("a rate limit is written as 600/minute, several with a semicolon between") from None
    if min(allowed) < 1:
        raise ValueError("a rate limit allows one request at least")
    return text


def _read_base_url(value: str) -> str:
    """Return a provider's base URL without a slash at its end; raise ValueError if it is none."""
    url = urlsplit(value)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError("expected an http or https URL without a query")
    return value.rstrip("/")


class Upstream(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """A provider of one shape, as its own SDK is told of it."""

    base_url: str
    """As in ANTHROPIC_BASE_URL or OPENAI_BASE_URL."""
    api_key: SecretStr | None = None
    """The key that the gateway presents for clients that have none of their own there."""

    @field_validator("base_url")
    @classmethod
    def _base_url_is_one(cls, value: str) -> str:
        return _read_base_url(value)


Upstreams = dict[Literal["messages", "chat", "responses"], Upstream]


class Settings(BaseSettings):
    """Environment variables with the prefix PALIMPSEST_; a file named after one in /run/secrets counts too."""

    model_config = SettingsConfigDict(
        env_prefix="PALIMPSEST_",
        extra="ignore",
        secrets_dir="/run/secrets" if Path("/run/secrets").is_dir() else None,
        hide_input_in_errors=True,
    )

    database_url: SecretStr = SecretStr("postgresql://localhost/palimpsest")
    """Any login that may take on `database_role`; migrations use it as it is. Several hosts, of which whichever is the
    primary is used: `postgresql://login@one:5432,two:5432/palimpsest`."""
    database_password: SecretStr | None = None
    """Password of that login where the URL has none, so that the file with it holds nothing else."""
    database_role: str = SERVICE_ROLE
    """Role every service connection takes on: no owner, no bypass of row-level security. Empty = the login's."""
    service_password: SecretStr | None = None
    """Password that `palimpsest migrate --service-login` gives the login of the services; no service reads it."""
    database_pool_size: int = Field(default=8, ge=1)
    """Connections a process keeps for each of its two uses (hot calls, everything else)."""
    broker_url: SecretStr = SecretStr("redis://localhost:6379/0")
    """Redis, with `maxmemory-policy noeviction`; or the Sentinels that know which Redis is the master:
    `sentinel://user:password@one:26379,two:26379/0?master_name=…`."""
    summarizer: str | None = None
    """None picks `anthropic` where ANTHROPIC_API_KEY is set and `extractive` elsewhere. `anthropic-native` is the
    API's own compaction, by the model of each conversation: docs/content.md says what the chat product has to send
    then. `openai` asks whatever speaks Chat Completions (docs/summarizers.md); needs the extra `openai`."""
    summarizer_model: str | None = None
    """Model that summaries are asked of, and by `anthropic-native` for conversations that name none. Not set:
    `claude-haiku-4-5`, with `openai` `gpt-6-luna`."""
    summarizer_models: list[str] = []
    """Other models that the policy key `summarizer_model` may name, as JSON; `["*"]` for any."""
    summarizer_temperature: float | None = Field(default=0.0, ge=0, le=2)
    """0 as requirement S8 has it. A model that refuses it is asked without, once that is known; None leaves it
    out at once."""
    summarizer_deadline_seconds: float = Field(default=120.0, gt=0)
    """Seconds for one question to the model, every attempt and every wait included."""
    summarizer_context_tokens: int | None = Field(default=None, ge=1_024)
    """Tokens of the summarizer's own window. Not set: as the model's name says, and 32,000 for names not known."""
    summarizer_prices: dict[str, TokenPrices] = {}
    """Prices by the beginning of a model's name, before the list prices: `{"my-model": {"input": 0.2, "output": 0.8}}`,
    USD for a million tokens; also `cache_write_5m`, `cache_write_1h`, `cache_read`."""
    breaker_failures: int = Field(default=5, ge=0)
    """Failures in a row, over all workers, after which the model is not asked for a while. 0 = always ask."""
    breaker_cooldown_seconds: float = Field(default=30.0, gt=0)
    """Seconds until one worker asks again after that; each further failure doubles them."""
    breaker_max_cooldown_seconds: float = Field(default=600.0, gt=0)
    """Most seconds between two such trials; a refused key or an unpaid account is left alone for as long at once."""
    anthropic_api_key: SecretStr | None = Field(default=None, validation_alias=AliasChoices("ANTHROPIC_API_KEY"))
    """The SDK's own variable, without the prefix."""
    anthropic_base_url: str | None = Field(default=None, validation_alias=AliasChoices("ANTHROPIC_BASE_URL"))
    """The SDK's own variable: any server that speaks /v1/messages."""
    openai_api_key: SecretStr | None = Field(default=None, validation_alias=AliasChoices("OPENAI_API_KEY"))
    """The SDK's own variable, for `openai`. Servers of one's own take any, or none."""
    openai_base_url: str | None = Field(default=None, validation_alias=AliasChoices("OPENAI_BASE_URL"))
    """The SDK's own variable: any server that speaks /chat/completions, with its `/v1`."""

    gateway_port: int = Field(default=GATEWAY_PORT, ge=1, le=LAST_PORT)
    """Port the gateway listens on."""
    gateway_upstreams: Upstreams = {}
    """Providers that the gateway passes requests on to, by shape: `{"messages": {"base_url": "https://…", "api_key":
    "…"}, "chat": …, "responses": …}`. A shape that is left out has the SDK's own variables."""
    gateway_tenants: dict[str, Upstreams] = {}
    """The same for single tenants, by their id (`ten_…`); what is left out is as for all."""
    gateway_patience_seconds: float = Field(default=0.5, gt=0)
    """Seconds that a request waits for the database; then it goes on as it came."""
    gateway_key_grace_seconds: float = Field(default=300.0, ge=0)
    """Seconds after a look-up for which a key counts as in force while the database is away. A key that is revoked
    meanwhile works for as long in a process that has seen it; 0 = none does."""
    gateway_max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1_024)
    """Bytes of one request, as many as the Messages API takes."""
    gateway_max_bytes_under_way: int = Field(default=256 * 1024 * 1024, ge=1_024)
    """Bytes that the requests of one gateway process may have in memory; beyond, large ones are refused."""
    gateway_upstream_seconds: float = Field(default=600.0, gt=0)
    """Seconds without a byte from a provider after which a call is given up."""
    gateway_reader_seconds: float = Field(default=120.0, gt=0)
    """Seconds without a byte taken by a client after which its answer is given up; without one sent, if less than the
    20 that every body has."""
    gateway_recall_as_thinking: bool = False
    """Whether a client sees as the model's thinking what the model asked of recall, where a gateway answers that
    (policy key `gateway_recall`). Else it sees nothing of it."""

    host: str = "127.0.0.1"
    """Address the API, or the gateway, listens on."""
    port: int = Field(default=8080, ge=0, le=LAST_PORT)
    """Port the API listens on."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = True
    """Whether API and gateway log a line for each request but those for health and metrics: method, route, status,
    milliseconds, tenant and request id; never a body or a query."""
    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1_024)
    """Bytes of one request body, counted as they come; reading one takes up to ten times as many in memory. The
    Messages API takes 32 MB with the whole history in them, of which a turn brings what is new."""
    max_bytes_under_way: int = Field(default=20 * 1024 * 1024, ge=1_024)
    """Bytes that the requests of one API process may have in memory, bodies and what is read for answers; beyond, large
    ones are answered 503 with `Retry-After`. No less than `max_body_bytes` counts."""
    max_head_bytes: int = Field(default=64 * 1024, ge=4_096)
    """Bytes of a request's line and headers."""
    hsts_seconds: int = Field(default=0, ge=0)
    """Seconds for which browsers shall reach this host by HTTPS alone (Strict-Transport-Security); only for an
    installation behind a proxy that ends TLS. 0 = they are not told."""
    max_turn_messages: int = Field(default=1_000, ge=1, le=1_000)
    """Messages of one turn."""
    max_message_blocks: int = Field(default=1_000, ge=1)
    """Content blocks of one message."""
    max_context_blocks: int = Field(default=100, ge=0, le=100)
    """Context blocks that come with one turn, and of each kind in one payload."""
    max_json_depth: int = Field(default=200, ge=10, le=200)
    """Levels of nesting in a body. Reading costs the stack a frame a level, and workers begin deeper in it."""
    max_body_values: int = Field(default=500_000, ge=1_000)
    """JSON values of one body, counted by its commas and opening brackets; each costs more than a microsecond to read,
    and no model's window holds as many."""
    max_object_keys: int = Field(default=10_000, ge=100)
    """Keys of one JSON object."""
    max_text_bytes: int = Field(default=8 * 1024 * 1024, ge=1_024)
    """Bytes of one text as UTF-8; no model reads as much. The base64 of images and documents has the body's limit."""
    max_metadata_bytes: int = Field(default=16 * 1024, ge=0)
    """Bytes of a conversation's metadata as JSON."""
    wakeup_interval_seconds: float = Field(default=0.025, ge=0)
    """Seconds a wake-up batch is collected before one task carries it; three times as many while many come."""
    lease_seconds: float = Field(default=12.0, gt=0)
    """Seconds a worker owns a run; it renews its lease every third of them, also while a model is asked."""
    max_attempts: int = Field(default=5, ge=1)
    """Times a run is claimed before it is dead."""
    sweep_interval_seconds: float = Field(default=5.0, gt=0)
    """Seconds between two sweeps."""
    check_overdue_seconds: float = Field(default=5.0, ge=0)
    """Seconds after which a due check counts as a lost wake-up."""
    run_overdue_seconds: float = Field(default=30.0, ge=0)
    """Seconds after which a queued run counts as one whose wake-up got lost."""
    checks_concurrency: int = Field(default=2, ge=1)
    """Processes of a worker that serves only the queue `checks`."""
    summaries_concurrency: int = Field(default=64, ge=1)
    """Threads of any other worker: model calls wait, they do not compute."""

    summaries_per_tenant: int = Field(default=16, ge=0)
    """Summaries of one tenant that may be under way at a time, over all workers; the rest wait. 0 = any number."""
    summaries_overall: int = Field(default=0, ge=0)
    """Summaries of all tenants together. 0 = as many as the workers have threads."""
    summary_limit_seconds: float = Field(default=1_800.0, gt=0)
    """Seconds that a worker keeps a run while its summary is made, every question to the model included."""

    daily_model_tokens: int = Field(default=0, ge=0)
    """Tokens, read and written, that summaries of a tenant may take on a day (UTC); after that they wait for the next.
    0 = any number. `palimpsest tenants limits` sets another number for a tenant."""
    daily_model_cost_usd: Price = Decimal(0)
    """USD that summaries of a tenant may cost on a day (UTC), likewise. Models without a known price count as free."""

    rate_limit_key: str = ""
    """Requests that one API key may make: `600/minute`, or several as `20/second; 600/minute`. Empty = any number.
    `palimpsest tenants limits` sets another limit for a tenant."""
    rate_limit_tenant: str = ""
    """Requests that all keys of one tenant may make together, likewise."""
    rate_limit_without_redis: Literal["open", "closed"] = "open"
    """What becomes of requests while Redis cannot count them: `open` answers them, `closed` refuses them with 503."""

    heartbeat_seconds: float = Field(default=2.0, gt=0)
    """Seconds between two heartbeats of a worker or beat; a process that misses three is shown as gone."""
    task_time_limit_seconds: float = Field(default=300.0, gt=0)
    """Seconds after which a process of the checks pool that is still at one task is replaced."""

    housekeeping_interval_seconds: float = Field(default=60.0, gt=0)
    """Seconds between two rounds in which the sweep removes what its time is over for."""
    idempotency_key_hours: float = Field(default=24.0, gt=0)
    """Hours for which a turn sent again with the same Idempotency-Key is recognized."""
    webhook_delivery_retention_days: float = Field(default=30.0, ge=0)
    """Days for which ended webhook deliveries are kept. 0 = for good."""
    run_retention_days: float = Field(default=0.0, ge=0)
    """Days for which ended runs and their steps are kept, unless a snapshot names them. 0 = for good."""
    snapshot_retention_days: float = Field(default=0.0, ge=0)
    """Days for which snapshots that an edit or a restore took off the way to the head are kept. 0 = for good."""
    retention_archive_dir: Path | None = None
    """Folder in which the sweep writes each conversation before `message_retention_days` erases it, as
    `palimpsest export` does: `TENANT/CONVERSATION.jsonl`. Not set: nothing is kept."""
    recall_audit_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of recalls that are written down with what was asked: 1 = every one, 0 = none. All are counted, and what
    people search for in the console is always written down."""
    usage_retention_days: float = Field(default=90.0, ge=0)
    """Days for which it is kept what providers counted for each turn's call, and what compaction saved of it. 0 = for
    good."""
    recall_retention_days: float = Field(default=90.0, ge=0)
    """Days for which it is kept what was asked back. 0 = for good."""

    jwt_jwks: str | None = None
    """Where the public keys are that bearer tokens (JWT) are signed with: an http or https URL, or a file. Not set:
    only API keys are taken."""
    jwt_issuer: str | None = None
    """The `iss` that a token must have."""
    jwt_audience: str | None = None
    """The `aud` that a token must have, or have among others."""
    jwt_tenant_claim: str = "tenant"
    """Claim that names the tenant: its name, or its id (`ten_…`)."""
    jwt_scope_claim: str = "scope"
    """Claim with the scopes, as a list or with spaces between. Those that are not ours count for nothing."""
    jwt_leeway_seconds: float = Field(default=10.0, ge=0, le=60)
    """Seconds that the issuer's clock and ours may be apart: a token is taken so long before `nbf` and after `exp`."""
    metrics_token: SecretStr | None = None
    """If set, `/metrics` is answered only to `Authorization: Bearer` with it. Not set: to everybody."""
    metrics_host: str = "127.0.0.1"
    """Address at which a worker or beat answers `GET /metrics`, where it has a port for that."""
    metrics_port: int = Field(default=0, ge=0, le=LAST_PORT)
    """Its port: one for each process on a host, as `--metrics-port` or by this. 0 = it answers nobody. The API has its
    `/metrics` beside its routes."""
    tracing: bool = False
    """Whether OpenTelemetry traces are sent, as the standard's own `OTEL_…` variables say; needs the extra `otel`."""

    webhook_private_addresses: bool = False
    """Whether webhooks may go to private addresses, and over plain HTTP: for a network of one's own."""

    policy: dict[str, Any] = {}
    """Defaults of the installation; also one variable a key, as PALIMPSEST_INPUT_TOKEN_BUDGET. Lists are JSON, or their
    items with commas between."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - ours is in its place
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - there is none; to look for it takes half the time
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, the environment and secrets, in this order."""
        return init_settings, *as_written(settings_cls, file_secret_settings)

    @model_validator(mode="before")
    @classmethod
    def _policy_from_environment(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Read PALIMPSEST_<POLICY KEY> for every key of the policy."""
        policy = values.get("policy") or {}
        if not isinstance(policy, dict):  # it is told with all else that is wrong
            return values
        policy = dict(policy)
        for key in FIELDS:
            if (text := os.environ.get(f"PALIMPSEST_{key.upper()}")) is not None:
                policy.setdefault(key, _list(text) if key in _LISTS else _number_or_word(text))
        return {**values, "policy": policy}

    @field_validator("database_url")
    @classmethod
    def _database_url_can_be_read(cls, value: SecretStr) -> SecretStr:
        # Whoever reads settings alone need not load the library.
        from runtime.addresses.database_url import hosts_of  # noqa: PLC0415

        hosts_of(value.get_secret_value())
        return value

    @field_validator("broker_url")
    @classmethod
    def _broker_url_can_be_read(cls, value: SecretStr) -> SecretStr:
        check_broker_url(value.get_secret_value())
        return value

    @field_validator("summarizer")
    @classmethod
    def _summarizer_is_there(cls, value: str | None) -> str | None:
        if value == "anthropic-batch":
            raise ValueError("`anthropic-batch` was removed; use `anthropic`, which asks the same model at once")
        # To look for those that are installed beside it reads what every package says of itself.
        if value is not None and value not in SUMMARIZERS and value not in (known := summarizer_names()):
            raise ValueError(f"there are {', '.join(known)}")
        if value == "openai" and not find_spec("openai"):
            raise ValueError("the extra `openai` is not installed; in a checkout: pip install '.[openai]'")
        return value

    @field_validator("anthropic_base_url", "openai_base_url")
    @classmethod
    def _base_url_is_one(cls, value: str | None) -> str | None:
        if value:
            _read_base_url(value)
        return value

    @field_validator("rate_limit_key", "rate_limit_tenant")
    @classmethod
    def _rate_limit_can_be_read(cls, value: str) -> str:
        return read_rate_limit(value)

    @field_validator("tracing")
    @classmethod
    def _traces_can_be_made(cls, value: bool) -> bool:  # noqa: FBT001 - pydantic calls it
        if value and not (find_spec("opentelemetry") and find_spec("opentelemetry.sdk")):
            raise ValueError("the extra `otel` is not installed; in a checkout: pip install '.[otel]'")
        return value

    @field_validator("policy")
    @classmethod
    def _policy_holds(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            merge(value)
        except PolicyError as error:
            raise ValueError("; ".join(_problems(value)) or f"{error.field}: {error.detail}") from None
        return value

    @model_validator(mode="after")
    def _login_has_its_password(self) -> Self:
        if self.database_password is not None:
            from runtime.addresses.database_url import with_password  # noqa: PLC0415 - as above

            url, password = self.database_url.get_secret_value(), self.database_password.get_secret_value()
            self.database_url = SecretStr(with_password(url, password))
        return self

    @model_validator(mode="after")
    def _tokens_can_be_verified(self) -> Self:
        if self.jwt_jwks is None:
            if self.jwt_issuer or self.jwt_audience:
                raise ValueError("jwt_issuer and jwt_audience need jwt_jwks: without its keys no token is taken")
            return self
        if not self.jwt_issuer or not self.jwt_audience:
            raise ValueError("jwt_jwks needs jwt_issuer and jwt_audience")
        scheme, there, _ = self.jwt_jwks.partition("://")
        if there and scheme not in {"http", "https"}:
            raise ValueError("jwt_jwks: expected an http or https URL, or a file")
        return self

    @property
    def chosen_summarizer(self) -> str:
        """The summarizer in use: `anthropic` needs a key to be chosen by itself."""
        return self.summarizer or ("anthropic" if self.anthropic_api_key else "extractive")

    @property
    def chosen_provider(self) -> Provider | None:
        """Whose API the summarizer speaks, None for one that asks no model of ours."""
        return provider_of(self.chosen_summarizer)

    @property
    def chosen_model(self) -> str | None:
        """The model that the summarizer asks, None for one that asks none of ours."""
        provider = self.chosen_provider
        return None if provider is None else self.model_of(provider)

    def model_of(self, provider: Provider) -> str:
        """Return the model that is asked by a provider's API, where no policy names another."""
        return self.summarizer_model or DEFAULT_MODELS[provider]

    def allows_model(self, name: str) -> bool:
        """Tell whether a policy may have a model asked for summaries that is not the installation's own."""
        return name in self.summarizer_models or ANY_MODEL in self.summarizer_models

    def refuses_model(self, name: str) -> bool:
        """Tell whether a policy that names this model for summaries is known to fail; not where others summarize."""
        provider = self.chosen_provider
        return provider is not None and name != self.model_of(provider) and not self.allows_model(name)

    def model_access(self, provider: Provider) -> ModelAccess:
        """Return where a provider's API is."""
        if provider == "openai":
            key, url = self.openai_api_key, self.openai_base_url
        else:
            key, url = self.anthropic_api_key, self.anthropic_base_url
        return ModelAccess(url or None, key.get_secret_value() if key else "")


def _problems(policy: dict[str, Any]) -> list[str]:
    """Return what is wrong with each value of a policy by itself."""
    problems = []
    for key, value in policy.items():
        try:
            merge({key: value})
        except PolicyError as error:
            if len(error.fields) < 2:  # noqa: PLR2004 - not one that contradicts what stands beside it
                problems.append(f"{error.field}: {error.detail}")
    return problems


_latest: list[tuple[dict[str, str], Settings]] = []


def read_once() -> Settings:
    """Return the environment's settings: the same ones again while it says the same, unless files say any too."""
    environment = dict(os.environ)
    if Settings.model_config["secrets_dir"] or not _latest or _latest[0][0] != environment:
        _latest[:] = [(environment, Settings())]
    return _latest[0][1]


_LISTS: Final = {key for key in FIELDS if isinstance(getattr(Policy(), key), tuple)}


def _list(text: str) -> Any:
    """Return a list that is given as JSON, or as its items with commas between."""
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    return [item.strip() for item in text.split(",") if item.strip()]


def _number_or_word(text: str) -> Any:
    try:
        return msgspec.json.decode(text.strip().lower())
    except msgspec.DecodeError:
        pass
    try:
        return float(text)  # `.6` and `6.` are no JSON
    except ValueError:
        return text
