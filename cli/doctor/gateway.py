"""What `palimpsest doctor` finds about the gateway: whether the providers that its settings name can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx2

from cli.doctor.findings import ok, problem, warning
from runtime import ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.doctor.findings import Finding
    from runtime.settings import Settings

_SECONDS: Final = 10.0


def gateway_findings(settings: Settings) -> Iterator[Finding]:
    """Yield what is found of the providers that its settings name, nothing where they name none."""
    every = [*settings.gateway_upstreams.values()]
    for name, own in settings.gateway_tenants.items():
        every += own.values()
        if ids.parse("ten", name) is None:
            yield warning(
                "gateway_tenants",
                f"PALIMPSEST_GATEWAY_TENANTS names {name}, which is no tenant's id",
                why="that tenant's requests go where everybody's go",
                mend="palimpsest tenants list has the ids (ten_…)",
            )
    named = {each.base_url: "PALIMPSEST_GATEWAY_UPSTREAMS or PALIMPSEST_GATEWAY_TENANTS" for each in every}
    for url, setting in {**dict(_usual(settings)), **named}.items():
        yield _reached(url, setting)


def _usual(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the providers of shapes that have none of their own, as far as the SDKs' variables name them."""
    own = settings.gateway_upstreams
    if settings.anthropic_base_url and "messages" not in own:
        yield settings.anthropic_base_url, "ANTHROPIC_BASE_URL"
    if settings.openai_base_url and not {"chat", "responses"} <= set(own):
        yield settings.openai_base_url, "OPENAI_BASE_URL"


def _reached(url: str, setting: str) -> Finding:
    try:
        # Whatever it answers: without a key it refuses, and is there.
        httpx2.get(url, timeout=_SECONDS)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return problem(
            "gateway_upstreams",
            f"the provider at {url} can't be reached: {type(error).__name__}",
            why="clients of the gateway get a 502 for every request",
            mend=f"correct {setting}, or check the network",
        )
    return ok("gateway_upstreams", f"the provider at {url} answers")
