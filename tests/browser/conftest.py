"""A browser, a running API with a played conversation, and pages that must do nothing that nobody asked for."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest
from pydantic import SecretStr

from runtime.ids import external
from runtime.settings import Settings
from tests.browser.chromium import PROGRAM, chromium, sign_in
from tests.browser.played import NAME, USER, play, tell_others
from tests.conftest import create_database, drop_database, make_tenants
from tests.support.service.console_client import make_key
from tests.support.service.in_process_worker import work
from tests.support.service.running_api import Service, running_api
from tests.support.spent_days import Call, spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of this folder out where there is no browser."""
    if PROGRAM is None:
        for item in items:
            if "browser" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="no Chromium here: apt-get install chromium-headless-shell"))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A running browser."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="package")
def service(postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis) -> Iterator[Service]:
    """A running API on a database of these tests' own."""
    url = create_database(postgres.url, f"test_{uuid4().hex}", template)
    settings = Settings(database_url=SecretStr(url), broker_url=SecretStr(redis_server.url), summarizer="extractive")
    tenant, other = make_tenants(url, "acme", "rival")
    with running_api(settings) as api, api.client(tenant.key) as client, api.client(other.key) as stranger:
        yield Service(api, settings, url, tenant.id, client, stranger)
    drop_database(postgres.url, url.rpartition("/")[2].partition("?")[0])


class Played(NamedTuple):
    """The played conversation: its path in the API and its page."""

    path: str
    page: str


@pytest.fixture(scope="package")
def played(service: Service) -> Played:
    """The demo's conversation with all its compactions, among others; tests change none of it."""
    tell_others(service.client)
    path = play(service.client, lambda each: work(service.settings, each), external_id=NAME, user_ref=USER)
    return Played(path, f"/console{path.removeprefix('/v1')}")


@pytest.fixture(scope="package")
def spending(service: Service) -> list[str]:
    """Runs that asked a model in these days, the dearest first."""
    calls = [
        Call(ago, model, 60_000, 2_000, Decimal(4 - ago) / 10, "reported daily")
        for ago, model in enumerate(("claude-sonnet-4-5", "claude-haiku-4-5", "claude-haiku-4-5"))
    ]
    return [external("run", run) for run in spend(service.database_url, service.tenant_id, calls)]


@pytest.fixture(scope="package")
def admin_key(service: Service) -> str:
    """A key that may do everything."""
    return make_key(service)[1]


class Watched:
    """What a browser complained about: errors of scripts, refusals of the policy for content, and dialogs."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.refused: set[str] = set()
        """Addresses whose refusal belongs to the test: a browser notes it as an error."""

    def watch(self, page: Page) -> None:
        """Note what happens on a page that should not."""
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("console", self._heard)
        page.on("dialog", self._asked)

    def _heard(self, message: Any) -> None:
        if message.type in {"error", "warning"} and not message.location["url"].endswith(tuple(self.refused)):
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Fail where a page complained of anything."""
    found = Watched()
    yield found
    assert found.complaints == []


@pytest.fixture
def visit(browser: Browser, service: Service, watched: Watched) -> Iterator[Callable[..., Page]]:
    """Return a way to open a page in a profile of its own, signed in with a key unless it is None."""
    contexts: list[BrowserContext] = []

    def open_page(path: str, key: str | None, **options: Any) -> Page:
        context = browser.new_context(
            base_url=service.api.url,
            **{"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce", **options},
        )
        contexts.append(context)
        context.set_default_timeout(20_000)
        if key is not None:
            sign_in(context, service.api.url, key)
        page = context.new_page()
        watched.watch(page)
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
