"""`palimpsest doctor`: what is wrong with an installation, why that matters, and how it is mended."""

from __future__ import annotations

import os
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import httpx2
import msgspec
from rich.console import Console
from rich.text import Text

from cli.doctor.broker import broker_findings
from cli.doctor.database import database_findings
from cli.doctor.findings import ok, problem, warning
from cli.doctor.gateway import gateway_findings
from cli.doctor.summarizer import model_findings, summarizer_findings
from cli.local.installations import POSTGRES_VARIABLE, REDIS_VARIABLE
from cli.options import address_of, settings_as_far_as_they_go
from cli.output import print_json
from compaction.policy import FIELDS
from runtime.database_faults import DATABASE_FAULTS
from runtime.log import configure_logging
from runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cli.doctor.findings import Finding, State

_MARKS: Final[Mapping[State, tuple[str, str]]] = {
    "ok": ("✓", "green"),
    "warning": ("!", "yellow"),
    "problem": ("✗", "red"),
}
_PREFIX: Final = "PALIMPSEST_"
VARIABLES: Final = frozenset(
    {f"{_PREFIX}{name.upper()}" for name in (*Settings.model_fields, *FIELDS)}
    | {f"{_PREFIX}URL", f"{_PREFIX}KEY", f"{_PREFIX}CONVERSATION", POSTGRES_VARIABLE, REDIS_VARIABLE}
)
"""Variables that some part reads; the last five belong to commands."""
_API_SECONDS: Final = 10.0


def run_doctor(*, ask_model: bool, url: str | None, as_json: bool) -> int:
    """Look at everything that the settings name, whatever is down of it; 1 for a problem.

    `ask_model` sends the summarizer's model one short question. `url` is that of an API that is asked if it is ready.
    """
    findings: list[Finding] = []
    for finding in _findings(ask_model=ask_model, url=url):
        findings.append(finding)
        if not as_json:
            _print(finding, Console(highlight=False))
    counts = Counter(finding.state for finding in findings)
    if as_json:
        print_json({"problems": counts["problem"], "warnings": counts["warning"], "findings": found_as_json(findings)})
    else:
        problems, warnings = counts["problem"], counts["warning"]
        Console().print(f"\n{problems} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}")
    return int(counts["problem"] > 0)


def found_as_json(findings: Sequence[Finding]) -> list[dict[str, str | None]]:
    """Return findings as they are printed with --json."""
    return [finding._asdict() for finding in findings]


def _findings(*, ask_model: bool, url: str | None) -> Iterator[Finding]:
    settings, wrong, fields = settings_as_far_as_they_go()
    reason = "no process starts with it; what needs it cannot be looked at"
    mend = "correct the variable: docs/settings.md has its meaning"
    yield from (problem("settings", message, why=reason, mend=mend) for message in wrong)
    if not wrong:
        yield ok("settings", "the settings are valid")
    yield from _unread_variables()
    if settings is not None:
        # What the parts that are tried here log of their failures, the findings say in their own words.
        configure_logging(settings.model_copy(update={"log_level": "error"}))
        if "database_url" not in fields:
            yield from database_findings(settings)
        if "broker_url" not in fields:
            yield from broker_findings(settings)
        if not {"database_url", "broker_url", "summarizer"} & fields:
            yield from summarizer_findings(settings)
        if not {"gateway_upstreams", "gateway_tenants"} & fields:
            yield from gateway_findings(settings)
        if ask_model:
            yield from model_findings(settings)
    if url is not None:
        yield from _api(url)
    else:
        yield ok("api", "no API was asked: with --url or PALIMPSEST_URL it is, too")


def _unread_variables() -> Iterator[Finding]:
    for name in sorted(os.environ):
        if name.upper().startswith(_PREFIX) and name.upper() not in VARIABLES:
            meant = "".join(f", perhaps {each}" for each in get_close_matches(name.upper(), VARIABLES, 1))
            yield warning(
                "variables",
                f"nothing reads the variable {name}",
                why="what it was meant to set has its default",
                mend=f"correct its name{meant}, or take it away: docs/settings.md has all of them",
            )


class _Ready(msgspec.Struct):
    status: str
    services: dict[str, str]


def _api(url: str) -> Iterator[Finding]:
    try:
        response = httpx2.get(f"{address_of(url)}/readyz", timeout=_API_SECONDS)
        ready = msgspec.json.decode(response.content, type=_Ready)
    except msgspec.MsgspecError:
        yield problem(
            "api",
            f"what answers at {url} is not the API",
            why="nobody can send turns or read contexts there",
            mend="correct PALIMPSEST_URL: the gateway, the console and a proxy's own pages are elsewhere",
        )
        return
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        yield problem(
            "api",
            f"the API at {url} does not answer: {error}",
            why="nobody can send turns or read contexts there",
            mend="palimpsest api, or correct PALIMPSEST_URL",
        )
        return
    faults = {known.name: known for known in DATABASE_FAULTS.values()}
    for name, state in ready.services.items():
        if (known := faults.get(state)) is not None:
            yield problem(name, known.words, why="the API met it within the last minute", mend=known.action)
    missing = [f"{name} {state}" for name, state in ready.services.items() if state != "ok"]
    if ready.status == "unavailable":
        yield problem(
            "api",
            f"the API at {url} cannot serve requests: {', '.join(missing)}",
            why="it answers 503",
            mend="see what is said above of what it names",
        )
    elif missing:
        yield warning(
            "api",
            f"the API at {url} serves requests, but: {', '.join(missing)}",
            why="compactions may have to wait",
            mend="see what is said above of what it names",
        )
    else:
        yield ok("api", f"the API at {url} is ready")


def _print(finding: Finding, console: Console) -> None:
    mark, style = _MARKS[finding.state]
    console.print(
        Text.assemble((f"{mark} ", f"bold {style}"), (f"{finding.check}: ", "bold"), finding.what), soft_wrap=True
    )
    if finding.why is not None:
        console.print(Text(f"    why: {finding.why}", style="dim"), soft_wrap=True)
    if finding.mend is not None:
        console.print(Text.assemble("    mend: ", (finding.mend, "cyan")), soft_wrap=True)
