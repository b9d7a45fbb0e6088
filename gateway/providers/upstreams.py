"""The providers: where they are, by the settings alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from runtime import ids
from runtime.settings import Upstream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from compaction.shapes.inner import Shape
    from runtime.settings import Settings, Upstreams

_ANTHROPIC: Final = "https://api.anthropic.com"
_OPENAI: Final = "https://api.openai.com/v1"


class Provider(NamedTuple):
    """Where requests of a shape go."""

    url: str
    """With the API's version, without a slash at the end."""
    key: str | None
    setting: str
    """The variable that says where it is."""


class Providers:
    """The providers of an installation and of its tenants."""

    def __init__(self, settings: Settings) -> None:
        anthropic = Upstream(base_url=settings.anthropic_base_url or _ANTHROPIC, api_key=settings.anthropic_api_key)
        openai = Upstream(base_url=settings.openai_base_url or _OPENAI, api_key=settings.openai_api_key)
        self._all = {
            **_providers({"messages": anthropic}, "ANTHROPIC_BASE_URL"),
            **_providers({"chat": openai, "responses": openai}, "OPENAI_BASE_URL"),
            **_providers(settings.gateway_upstreams, "PALIMPSEST_GATEWAY_UPSTREAMS"),
        }
        self._of_tenants = {
            tenant: {**self._all, **_providers(own, "PALIMPSEST_GATEWAY_TENANTS")}
            for name, own in settings.gateway_tenants.items()
            if (tenant := ids.parse("ten", name)) is not None
        }

    def of(self, tenant_id: UUID | None, shape: Shape) -> Provider:
        """Return where a tenant's requests of a shape go; of nobody known, those of all."""
        return (self._of_tenants.get(tenant_id, self._all) if tenant_id else self._all)[shape]

    def has_own(self, tenant_id: UUID | None) -> bool:
        """Return whether a tenant has providers of its own, whose keys no other tenant shares."""
        return tenant_id in self._of_tenants


def _providers(upstreams: Mapping[Shape, Upstream] | Upstreams, setting: str) -> dict[Shape, Provider]:
    return {
        shape: Provider(
            _with_version(shape, upstream.base_url),
            upstream.api_key.get_secret_value() if upstream.api_key else None,
            setting,
        )
        for shape, upstream in upstreams.items()
    }


def _with_version(shape: Shape, base_url: str) -> str:
    """Return a base URL with the version: Anthropic's SDK adds it, OpenAI's users have it in the URL."""
    if shape == "messages":
        return f"{base_url.removesuffix('/v1')}/v1"
    return base_url if urlsplit(base_url).path else f"{base_url}/v1"
