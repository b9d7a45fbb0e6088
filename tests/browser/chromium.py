"""Chromium as the tests and `make screenshots` start it: the system's own, headless, with a profile of its own."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext


PROGRAM: Final = shutil.which("chromium-headless-shell") or shutil.which("chromium") or shutil.which("chromium-browser")
"""Debian's browser, if it is there the one without windows, which takes half the time; nothing is downloaded."""
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium. Asyncio cannot be used in this thread meanwhile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=_FLAGS)
        yield browser
        browser.close()


def sign_in(context: BrowserContext, url: str, key: str) -> None:
    """Give a browser's context the cookie of a session."""
    done = context.request.post(f"{url}/console/sign-in", form={"key": key}, headers={"origin": url}, max_redirects=0)
    assert done.status == 303, done.text()
