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
    for url in dict.fromkeys(each.base_url for each in every):
        yield _reached(url)


def _reached(url: str) -> Finding:
    try:
        # Whatever it answers: without a key it refuses, and is there.
        httpx2.get(url, timeout=_SECONDS)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return problem(
            "gateway_upstreams",
            f"the provider at {url} can't be reached: {type(error).__name__}",
            why="clients of the gateway get a 502 for every request",
            mend="correct PALIMPSEST_GATEWAY_UPSTREAMS or PALIMPSEST_GATEWAY_TENANTS, or check the network",
        )
    return ok("gateway_upstreams", f"the provider at {url} answers")
