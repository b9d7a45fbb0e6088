"""What people do in the console, done in a browser: real pages on real data, with pointer and keyboard."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest
from playwright.sync_api import expect
from sqlalchemy import update

from store import tables
from store.engine import owner_engine, transaction
from store.tenants import api_keys
from tests.browser.played import NAME, USER
from tests.console.test_pages import HOSTILE, tell
from tests.support.service.console_client import key_of, make_key
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.browser.conftest import Played, Watched
    from tests.support.service.running_api import Service

    Visit = Callable[..., Page]

LONG: Final = 10_000
WAIT_MS: Final = 20_000
"""A bound for a loaded machine; the pages are brought up to date every two seconds in these tests."""
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="package")
def long_path(service: Service) -> str:
    """A conversation of ten thousand messages, in the API."""
    path = service.conversation(external_id="long")
    for turn in range(0, LONG, 200):
        messages = [
            {"role": "assistant" if number % 2 else "user", "content": f"{turn + number}: nothing new at this hour."}
            for number in range(200)
        ]
        service.append(path, *messages)
    return path


def follow_closely(page: Page) -> None:
    """Have a page brought up to date every two seconds."""
    page.get_by_label("Refresh").select_option("2")


def test_signing_in_and_out(visit: Visit, admin_key: str) -> None:
    page = visit("/console/runs", None)
    expect(page).to_have_url(re.compile(r"/console/sign-in\?next="))
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type(admin_key)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/console/runs$"))
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.goto("/console")
    expect(page).to_have_url(re.compile("/console/sign-in"))


def test_a_wrong_key_is_told(visit: Visit, watched: Watched) -> None:
    watched.refused.add("/console/sign-in")
    page = visit("/console/sign-in", None)
    page.get_by_label("API key").fill("key_of_nobody")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")


def test_searching_the_originals(visit: Visit, played: Played, watched: Watched, admin_key: str) -> None:
    watched.refused.add("/recall?q=%2F%28%2F")
    page = visit(played.page, admin_key)
    page.get_by_role("searchbox", name="Search the originals").fill("m4")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/recall\?q=m4$"))
    expect(page.get_by_role("heading", name="m4")).to_be_visible()
    page.locator(".plot a.found").click()
    expect(page).to_have_url(re.compile(r"/messages/4$"))
    page.go_back()
    page.get_by_role("searchbox", name="Search the originals").fill("/(/")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()


def test_finding_a_conversation(visit: Visit, played: Played, admin_key: str) -> None:
    page = visit("/console/conversations", admin_key)
    page.locator("#q").fill("support-")
    page.keyboard.press("Enter")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_label("Sort by").select_option("tokens")
    expect(rows.first).to_contain_text("support-4711")
    page.get_by_role("link", name="Clear").click()
    expect(page).to_have_url(re.compile("sort=tokens"))
    page.locator("#find").fill(USER)
    page.keyboard.press("Enter")
    page.get_by_role("link", name=NAME).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)


def test_the_plot_is_read_by_pointer_and_by_keyboard(visit: Visit, played: Played, admin_key: str) -> None:
    page = visit(played.page, admin_key)
    plot, told = page.locator("[data-plot] svg"), page.locator(".readout")
    plot.hover(position={"x": 500, "y": 120})
    expect(told).to_contain_text(re.compile(r"Message \d+: stored [\d,]+, context [\d,]+"))
    page.mouse.move(0, 0)
    expect(told).to_have_text(re.compile(r"^\s*$"))
    plot.focus()
    page.keyboard.press("Home")
    expect(told).to_contain_text("Message 0:")
    page.keyboard.press("ArrowRight")
    expect(told).not_to_contain_text("Message 0:")
    marks = page.locator("a.mark")
    expect(marks.first).to_have_accessible_name(re.compile(r"v\d+ · .* tokens"))
    assert marks.count() >= 5
    for budget in ("total budget", "summary due", "tool results cut"):
        expect(plot.get_by_text(budget)).to_be_visible()
    marks.first.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/diff\?to="))


def test_every_message_says_what_became_of_it_and_opens_beside_its_view(
    visit: Visit, played: Played, admin_key: str
) -> None:
    page = visit(f"{played.page}/context?show=all", admin_key)
    labels = set(page.locator("tbody .badge").all_inner_texts())
    assert {"summarized", "kept"} <= labels
    peek = page.locator("#peek")
    page.locator(".begins a").nth(2).click()
    expect(peek.get_by_role("region", name="Original")).to_be_visible()
    expect(peek.get_by_role("region", name="In the context")).to_contain_text("summary that stands for it")
    expect(peek).to_be_focused()
    page.keyboard.press("Escape")
    expect(peek).to_be_hidden()
    expect(page.locator(".begins a").nth(2)).to_be_focused()
    page.get_by_role("link", name="The context", exact=True).click()
    expect(page.locator("tbody")).to_contain_text("messages not shown")
    expect(page.locator("tbody tr").first).to_contain_text("+ summary")


def test_two_snapshots_side_by_side(visit: Visit, service: Service, played: Played, admin_key: str) -> None:
    page = visit(f"{played.page}/snapshots", admin_key)
    page.get_by_label("old").nth(3).check()
    page.get_by_role("button", name="Compare").click()
    newest = service.client.get(played.path).json()["head_version"]
    expect(page).to_have_url(re.compile(rf"/diff\?to={newest}&from={newest - 3}$"))
    expect(page.locator(".diff-changed ins, .diff-changed del").first).to_be_visible()
    page.get_by_label("Compare").select_option("0")
    expect(page.get_by_role("heading", name=re.compile("As stored → v"))).to_be_visible()


def test_runs_and_the_path_of_one(visit: Visit, played: Played, admin_key: str) -> None:
    page = visit(f"/console/runs?conversation={played.page.rpartition('/')[2]}", admin_key)
    page.get_by_label("State").select_option("committed")
    expect(page).to_have_url(re.compile("state=committed"))
    page.locator("tbody .row-link").first.click()
    states = page.get_by_role("listitem").filter(has=page.locator(".path-name"))
    expect(states.first).to_contain_text("queued")
    expect(states.last).to_contain_text("committed")
    expect(page.get_by_role("img", name=re.compile("in all"))).to_be_visible()
    expect(page.get_by_text(re.compile(r"^1 of \d+$"))).to_be_visible()


def test_a_run_is_tried_again_under_another_policy(visit: Visit, service: Service, admin_key: str) -> None:
    message = tell(service, "tried again")
    page = visit(f"/console/runs?conversation={message.page.rpartition('/')[2]}&state=committed", admin_key)
    page.locator("tbody .row-link").first.click()
    page.get_by_role("link", name="Dry run of the same…").click()
    expect(page.get_by_label("compaction threshold tokens")).to_have_value("5000")
    before = service.client.get(f"{message.path}/runs").json()["data"]
    page.get_by_label("Strategy").select_option("tool_results")
    page.get_by_label("protected tail messages").fill("2")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_role("heading", name="What it would do")).to_be_visible()
    expect(page.locator("tbody th").first).to_have_text("tool results")
    assert service.client.get(f"{message.path}/runs").json()["data"] == before
    page.goto(f"/console/runs/{before[0]['id']}")
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#path-title .badge")).to_have_text("queued")
    (again, *others) = service.client.get(f"{message.path}/runs").json()["data"]
    assert others == before
    assert page.url.endswith(again["id"])


def test_going_back_is_shown_first_and_compacting_runs(visit: Visit, service: Service, admin_key: str) -> None:
    message = tell(service, "changed by hand")
    page = visit(f"{message.page}/snapshots", admin_key)
    page.get_by_role("link", name="Go back…").nth(0).click()
    expect(page.get_by_role("heading", name="What would change")).to_be_visible()
    page.get_by_role("button", name=re.compile("Go back to")).click()
    expect(page.get_by_role("status")).to_contain_text("is the head now")
    page.get_by_role("link", name="Compact", exact=True).click()
    page.get_by_label("Strategy").select_option("trim")
    page.get_by_role("button", name="Compact now").click()
    state = page.locator("#path-title .badge")
    expect(state).to_have_text("queued")
    follow_closely(page)
    work(service.settings, message.path)
    expect(state).to_have_text(re.compile("committed|skipped"))
    page.get_by_role("link", name="Operators").click()
    expect(page.locator("tbody")).to_contain_text("restore")
    expect(page.locator("tbody")).to_contain_text("compact")


def test_a_key_that_may_only_look_has_no_button_that_acts(visit: Visit, service: Service, played: Played) -> None:
    page = visit(f"{played.page}/compact", make_key(service, {"audit:read"})[1])
    expect(page.get_by_role("button", name="Dry run")).to_be_visible()
    expect(page.get_by_role("button", name="Compact now")).to_have_count(0)
    page.goto(f"{played.page}/restore?version=1")
    expect(page.get_by_text("may look, but not act")).to_be_visible()
    expect(page.get_by_role("contentinfo")).to_contain_text("Read only")


def test_the_overview_has_every_figure(visit: Visit, played: Played, admin_key: str) -> None:
    page = visit("/console", admin_key)
    for name in ("Tokens cut", "Spent on models", "Conversations", "Waiting", "Dead runs", "Installation"):
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    page.get_by_role("link", name="30 days").click()
    expect(page.get_by_role("img", name="Tokens cut by day")).to_be_visible()
    page.get_by_text("As a table").click()
    expect(page.locator("details tbody tr")).to_have_count(30)


def test_spending_leads_to_the_runs_that_cost_most(visit: Visit, spending: list[str], admin_key: str) -> None:
    page = visit("/console", admin_key)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Spending").click()
    plots = page.get_by_role("img", name=re.compile("by day"))
    expect(plots).to_have_count(2)
    page.get_by_role("link", name="7 days").click()
    expect(page.locator("details tbody tr")).to_have_count(7)
    expect(page.get_by_label("Refresh")).to_be_hidden()
    page.get_by_role("region", name="The runs that cost most").get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(f"/console/runs/{spending[0]}"))


def test_by_keyboard_alone(visit: Visit, played: Played, admin_key: str) -> None:
    page = visit("/console", admin_key)
    order = ["Skip to content", "Palimpsest", "Overview", "Conversations", "Runs", "Spending", "Operators", "Keys"]
    for name in order:
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        expect(focused).to_have_accessible_name(name)
        expect(focused).not_to_have_css("outline-style", "none")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    for key, path in (("s", "spending"), ("k", "keys"), ("c", "conversations")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page).to_have_url(re.compile(f"/console/{path}$"))
    page.keyboard.press("j")
    expect(page.locator(".row-link").first).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator(".row-link").nth(1)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type("g c?")
    expect(page.locator("#find")).to_have_value("g c?")


def test_light_and_dark(visit: Visit, admin_key: str) -> None:
    page = visit("/console", admin_key, color_scheme="dark")
    body = page.locator("body")
    expect(body).to_have_css("background-color", "rgb(14, 17, 22)")
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(body).to_have_css("background-color", "rgb(246, 247, 249)")
    page.reload()
    expect(body).to_have_css("background-color", "rgb(246, 247, 249)")


def test_nothing_that_people_say_is_run(visit: Visit, service: Service, admin_key: str) -> None:
    message = tell(service, f"said {HOSTILE}"[:500], user_ref=HOSTILE)
    page = visit(message.page, admin_key)
    expect(page.get_by_role("heading", level=1)).to_contain_text("<script>alert('x')</script>")
    assert page.title().startswith("said <script>")
    for part in ("/context?show=all", "/messages/0", "/messages/2", "/snapshots", "/diff", "/restore?version=0"):
        page.goto(message.page + part)
    page.goto(f"{message.page}/context?show=all")
    page.locator(".begins a").first.click()
    expect(page.locator("#peek")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0
    page.goto("/console/conversations")
    expect(page.locator("tbody")).to_contain_text("<script>alert('x')</script>")


def test_a_page_brings_itself_up_to_date(visit: Visit, service: Service, admin_key: str) -> None:
    path = service.conversation(external_id="grows")
    service.append(path, {"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Good morning."})
    page = visit(f"/console{path.removeprefix('/v1')}", admin_key)
    expect(page.get_by_text("2 messages, 1 turns")).to_be_visible()
    follow_closely(page)
    service.append(path, {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Still morning."})
    expect(page.get_by_text("4 messages, 2 turns")).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_label("Refresh")).to_have_value("0")


def test_ten_thousand_messages_are_few_elements(visit: Visit, long_path: str, admin_key: str) -> None:
    page = visit(f"/console{long_path.removeprefix('/v1')}", admin_key)
    expect(page.get_by_text("tokens in 10,000 messages")).to_be_visible()
    most = {"": 3_000, "/context?show=all": 3_000, "/context": 3_000, "/diff": 1_000}
    for part, elements in most.items():
        page.goto(f"/console{long_path.removeprefix('/v1')}{part}")
        assert page.evaluate("document.querySelectorAll('*').length") < elements, part
    page.goto(f"/console{long_path.removeprefix('/v1')}/context?show=all&from=9000")
    expect(page.locator("tbody tr.more")).to_contain_text("Lines 9,100 to 9,200 of 10,000")
    page.locator("tbody tr.more").scroll_into_view_if_needed()
    expect(page.locator("tbody")).to_contain_text("9150: nothing new")
    page.get_by_label("From line").fill("9990")
    page.get_by_role("button", name="Go").click()
    expect(page.locator("tbody tr")).to_have_count(10)


@pytest.mark.parametrize("ends", ["revoked", "expired"])
def test_a_session_ends_with_its_key(
    visit: Visit, service: Service, played: Played, watched: Watched, ends: str
) -> None:
    watched.refused |= {played.page, "/console/health"}
    key_id, key = make_key(service)
    page = visit(played.page, key)
    follow_closely(page)
    end_key(service, key_id, ends)
    expect(page).to_have_url(re.compile("/console/sign-in"))
    expect(page.get_by_label("API key")).to_be_visible()


def end_key(service: Service, key_id: Any, how: str) -> None:
    engine = owner_engine(service.database_url)
    with transaction(engine, service.tenant_id) as connection:
        if how == "revoked":
            assert api_keys.revoke(connection, service.tenant_id, key_id)
        else:
            past = datetime.now(UTC) - timedelta(seconds=1)
            connection.execute(update(tables.api_keys).where(tables.api_keys.c.id == key_id).values(expires_at=past))
    engine.dispose()


def test_an_empty_installation_plays_the_demo(visit: Visit, service: Service) -> None:
    page = visit("/console", key_of(service.stranger))
    expect(page.get_by_role("heading", name="No conversations yet")).to_be_visible()
    page.get_by_role("button", name="Play the demo conversation").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("demo-contract-search")
    expect(page.get_by_text("The demo is being played here")).to_be_visible()
    # By itself, while it is played.
    expect(page.get_by_text(re.compile(r"tokens in (\d\d) messages"))).to_be_visible()
    page.goto("/console/operators")
    expect(page.locator("tbody tr").first).to_contain_text("demo")


def test_a_new_key_is_gone_after_reloading_and_going_back(
    visit: Visit, service: Service, watched: Watched, admin_key: str
) -> None:
    watched.refused.add("/revoke")
    page = visit("/console/keys", admin_key)
    page.get_by_role("link", name="New key…").click()
    name = page.get_by_label("Name")
    expect(name).to_be_focused()
    name.fill("made in a browser")
    page.keyboard.press("Enter")
    secret = page.get_by_label("Key", exact=True).input_value()
    assert re.fullmatch(r"key_[0-9a-f]{32}\.[\w-]{43}", secret)
    with service.api.client(secret) as client:
        assert client.get("/v1/conversations").status_code == 200
    expect(page).to_have_url(re.compile("/console/keys$"))
    page.reload()
    expect(page.locator("tbody")).to_contain_text("made in a browser")
    assert secret not in page.content()
    page.locator("tbody tr").filter(has_text="made in a browser").get_by_role("link", name=re.compile("Revoke")).click()
    page.get_by_role("button", name="Revoke it").click()
    row = page.locator("tbody tr").filter(has_text="made in a browser")
    expect(row).to_contain_text("revoked")
    for _ in range(2):
        page.go_back()
        assert secret not in page.content()
    expect(page.locator("tbody tr").filter(has_text="made in a browser")).to_have_count(1)


def test_ages_go_on_where_nothing_is_fetched_anew(visit: Visit, played: Played, admin_key: str) -> None:
    page = visit(played.page, admin_key)
    page.get_by_label("Refresh").select_option("0")
    begun = page.locator(".head time")
    at = datetime.fromisoformat(str(begun.get_attribute("datetime")))
    page.clock.install(time=datetime.now(UTC))
    page.reload()
    page.clock.fast_forward("03:00:00")
    hours = int((datetime.now(UTC) + timedelta(hours=3) - at).total_seconds() // 3_600)
    expect(begun).to_have_text(re.compile(rf"({hours}|{hours + 1}) h ago"))


def test_on_a_phone_the_newest_end_of_the_plot_is_in_view_and_nothing_is_cut_off(
    visit: Visit, service: Service, played: Played, spending: list[str], watched: Watched, admin_key: str
) -> None:
    watched.refused.add("/nowhere")
    run = service.client.get(f"{played.path}/runs").json()["data"][0]["id"]
    page = visit(played.page, admin_key, viewport={"width": 390, "height": 800})
    page.locator("[data-plot] svg").wait_for()
    from_end = "each => each.scrollWidth - each.clientWidth - each.scrollLeft"
    wrap = page.locator("[data-plot] .plot-wrap")
    assert wrap.evaluate("each => each.scrollWidth - each.clientWidth") > 0
    assert wrap.evaluate(from_end) < 2
    # Somebody who looks at an earlier part goes on looking at it when the page is brought up to date.
    wrap.evaluate("each => { each.scrollLeft = 40; }")
    page.wait_for_function("() => document.querySelector('[data-plot] .plot-wrap').scrollLeft === 40")
    before = wrap.evaluate(from_end)
    page.evaluate("document.querySelector('#live').dataset.old = 'yes'")
    follow_closely(page)
    page.locator("#live:not([data-old])").wait_for()
    assert abs(wrap.evaluate(from_end) - before) < 2
    cut = """() => [...document.querySelectorAll("table.rows, .bar nav, .tabs, .filters, .tiles")]
        .filter(each => each.offsetParent && each.scrollWidth > each.clientWidth + 1
            || each.tagName === "TABLE" && each.offsetParent && each.scrollWidth > each.parentElement.clientWidth + 1)
        .map(each => each.className + ": " + each.textContent.trim().slice(0, 60))"""
    of_one = ("", "/snapshots", "/context?show=all", "/context", "/compact?strategy=auto", "/setup", "/messages/92")
    of_all = ("", "/conversations", "/runs", f"/runs/{run}", "/spending", "/operators", "/webhooks", "/nowhere")
    paths = [played.page + each for each in (*of_one, "/diff", "/restore?version=1")]
    for path in (*paths, *(f"/console{each}" for each in (*of_all, "/keys"))):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert run in path or page.evaluate(cut) == [], path  # what is folded up on a run's page has no width
    expect(page.get_by_role("link", name="Palimpsest")).to_be_visible()
    expect(page.get_by_role("link", name="Keys", exact=True)).to_be_in_viewport()


def test_degraded_run_is_not_as_red_as_a_failed_one(
    visit: Visit, service: Service, played: Played, admin_key: str
) -> None:
    path = service.conversation(external_id="degraded")
    service.append(path, {"role": "user", "content": "Hello."})
    runs = {}
    for reason in ("summary_failed_extract_committed", "summary_failed_nothing_dropped"):
        asked = service.client.post(f"{path}/compactions", json={"strategy": "drop"}).json()["run_id"]
        work(service.settings, path)
        runs[reason] = asked
    engine = owner_engine(service.database_url)
    with transaction(engine, service.tenant_id) as connection:
        for reason, run in runs.items():
            state = "degraded" if "extract" in reason else "failed"
            changed = update(tables.runs).where(tables.runs.c.id == UUID(run[4:]))
            connection.execute(changed.values(state=state, reason=reason))
    engine.dispose()
    page = visit(f"/console/runs?conversation={path.rpartition('/')[2]}", admin_key)
    badges = page.locator("tbody .badge")
    expect(badges).to_have_text(["failed", "degraded"])
    colours = badges.evaluate_all("all => all.map(each => getComputedStyle(each).color)")
    assert colours[0] != colours[1]
