"""Pictures of the console for the manual: `make screenshots` plays a conversation on a whole service and takes them."""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import httpx2

from cli.client.client import ServiceClient
from cli.local.serve import running_service
from tests.browser.chromium import PROGRAM, chromium, sign_in
from tests.browser.played import NAME, USER, make_keys, play, spent_month, tell_others
from tests.support.places import ROOT
from tests.support.spent_days import spend, tenant_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

FOLDER: Final = ROOT / "docs" / "images"
MOST_BYTES: Final = 200_000
"""Of a picture: the manual is read over slow lines too."""


class Picture(NamedTuple):
    """A page of the console as it is shown in the manual."""

    name: str
    path: str
    is_dark: bool = False
    width: int = 1280
    height: int = 860
    click: str = ""
    """What is opened first."""


def pictures(conversation: str, run: str) -> list[Picture]:
    """Return the pictures of the manual."""
    return [
        Picture("overview", "/console"),
        Picture("conversation", conversation, height=862),
        Picture("conversation-dark", conversation, is_dark=True, height=862),
        Picture("context", f"{conversation}/context", click=".begins .row-link"),
        Picture("diff", f"{conversation}/diff"),
        Picture("run", run),
        Picture("spending", "/console/spending"),
        Picture("keys", "/console/keys", height=560),
        Picture("dry-run", f"{conversation}/compact?strategy=auto&input_token_budget=10000&protected_tail_messages=4"),
    ]


def take(browser: Browser, url: str, key: str, picture: Picture) -> bytes:
    """Return a page as PNG."""
    scheme: Literal["dark", "light"] = "dark" if picture.is_dark else "light"
    size: ViewportSize = {"width": picture.width, "height": picture.height}
    with browser.new_context(base_url=url, viewport=size, color_scheme=scheme, reduced_motion="reduce") as context:
        sign_in(context, url, key)
        page: Page = context.new_page()
        page.goto(picture.path)
        page.locator(".health-text").wait_for()
        if picture.click:
            page.locator(picture.click).first.click()
            page.locator("#peek section").first.wait_for()
        return page.screenshot()


def main() -> int:
    """Take every picture; return 1 where there is no browser, or where a picture is too large."""
    if PROGRAM is None:
        sys.stderr.write("screenshots: Chromium is needed: apt-get install chromium\n")
        return 1
    with (
        tempfile.TemporaryFile("w+") as log,
        running_service(durable=False, summarizer="extractive", log=log) as service,
        ServiceClient(service.url, service.api_key) as waiting,
        httpx2.Client(base_url=service.url, headers={"x-api-key": service.api_key}, timeout=30) as client,
    ):
        tell_others(client)
        make_keys(client)
        spend(service.database_url, tenant_of(service.database_url), spent_month())
        path = play(client, lambda each: waiting.wait_settled(each.rpartition("/")[2]), external_id=NAME, user_ref=USER)
        runs = client.get(f"{path}/runs").json()["data"]
        run = next(each for each in runs if each["state"] == "committed")
        FOLDER.mkdir(exist_ok=True)
        too_large = []
        with chromium() as browser:
            for picture in pictures(f"/console{path.removeprefix('/v1')}", f"/console/runs/{run['id']}"):
                png = take(browser, service.url, service.api_key, picture)
                (FOLDER / f"{picture.name}.png").write_bytes(png)
                sys.stdout.write(f"docs/images/{picture.name}.png {len(png):,} bytes\n")
                too_large += [picture.name] * (len(png) > MOST_BYTES)
    if too_large:
        sys.stderr.write(f"screenshots: over {MOST_BYTES:,} bytes: {', '.join(too_large)}\n")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
