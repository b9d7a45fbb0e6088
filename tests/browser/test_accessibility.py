"""Every page of the console against WCAG 2.1, levels A and AA, as axe checks it; wide and light, narrow and dark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from playwright.sync_api import Page

    from tests.browser.conftest import Played, Watched
    from tests.support.service.running_api import Service

AXE: Final = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
LEVELS: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
OF_ALL: Final = (
    "",
    "/conversations",
    "/runs",
    "/operators",
    "/spending",
    "/keys",
    "/keys/new",
    "/webhooks",
    "/runs/retry",
    "/nowhere",
)
OF_ONE: Final = (
    "",
    "/context",
    "/recall?q=position",
    "/bisect?q=position",
    "/messages/92",
    "/snapshots",
    "/diff",
    "/restore?version=1",
    "/compact?strategy=auto",
    "/setup",
    "/erase",
)
MORE_OF_ALL: Final = ("/conversations?q=nobody", "/runs?state=dead")
MORE_OF_ONE: Final = ("/context?show=all&from=80", "/recall?q=m999999", "/messages/4")
"""Pages that are made of what others are made of, looked at once, where there is time."""


def violations(page: Page, *, with_styles: bool = False) -> list[str]:
    """Return what axe found wrong: the rule, where, and how.

    To read the style sheet anew takes half the time, and the one rule that does so finds the same on every page.
    """
    page.evaluate(AXE)
    found: list[dict[str, Any]] = page.evaluate(
        """([runOnly, preload]) =>
            axe.run(document, {runOnly, preload, resultTypes: ['violations']}).then(each => each.violations)""",
        [LEVELS, with_styles],
    )
    return [f"{rule['id']}: {node['target']}: {node['failureSummary']}" for rule in found for node in rule["nodes"][:3]]


@pytest.mark.timeout(600)  # a bound for a loaded machine: axe reads two dozen pages
@pytest.mark.parametrize(
    ("scheme", "width", "of_all", "of_one"),
    [
        ("light", 1280, OF_ALL, OF_ONE),
        pytest.param("dark", 420, OF_ALL + MORE_OF_ALL, OF_ONE + MORE_OF_ONE, marks=pytest.mark.slow),
    ],
)
def test_no_page_has_a_violation(
    visit: Callable[..., Page],
    service: Service,
    played: Played,
    spending: list[str],
    watched: Watched,
    admin_key: str,
    scheme: str,
    width: int,
    of_all: Sequence[str],
    of_one: Sequence[str],
) -> None:
    watched.refused |= {"/nowhere", "/recall?q=m999999"}
    page = visit("/console/sign-in", None, color_scheme=scheme, viewport={"width": width, "height": 860})
    wrong = {"/console/sign-in": violations(page, with_styles=True)}
    page = visit("/console", admin_key, color_scheme=scheme, viewport={"width": width, "height": 860})
    run = service.client.get(f"{played.path}/runs").json()["data"][0]["id"]
    runs = service.client.get(f"{played.path}/runs", params={"limit": 100}).json()["data"]
    summarized = next(each["id"] for each in runs if any(step["name"] == "summary" for step in each["steps"]))
    paths = [f"/console{each}" for each in of_all] + [played.page + each for each in of_one]
    for path in [*paths, f"/console/runs/{run}", f"/console/runs/{summarized}/summary"]:
        page.goto(path)
        if path.endswith("/context"):  # with an open message beside it
            page.locator(".lines .begins a").first.click()
            page.locator("#peek section").first.wait_for()
        wrong[path] = violations(page)
        if path == "/console":
            page.keyboard.press("?")
            page.get_by_role("dialog").wait_for()
            wrong["shortcuts"] = violations(page)
    items = [f"{path} {each}" for path, each_of in wrong.items() for each in each_of]
    assert not items, "\n".join(items)
