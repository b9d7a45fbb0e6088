"""The console's pages on real data: complete, encoded, one tenant's alone, and short however long a conversation."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.service.console_client import key_of, links, query, sign_in, signed_in, text_of
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.support.service.running_api import Service

POLICY = {
    "input_token_budget": 3_000,
    "compaction_threshold_tokens": 5_000,
    "min_savings_tokens": 100,
    "protected_tail_messages": 4,
}
HOSTILE = "<script>alert('x')</script>\"'><img src=x onerror=alert(1)></textarea>{{ 7 * 7 }}</pre>&amp;\u202e\ud7ff"
_BAR = re.compile(r'aria-label="([\d,]+) of ([\d,]+) tokens')


class Told(NamedTuple):
    """A conversation that was compacted often, as the API and the console call it."""

    path: str
    page: str
    name: str
    messages: int


def turns() -> Iterator[list[dict[str, Any]]]:
    """A search with long results, then much talk; every text is hostile."""
    yield [{"role": "user", "content": f"Find me a position. {HOSTILE}"}]
    for number in range(6):
        call = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {"page": number, HOSTILE: HOSTILE}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"<li>{number}</li>{HOSTILE}" * 100}
        yield [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    for number in range(12):
        talk = f"Score {number}: {number * 7} of 100. {HOSTILE}" + "I decided on part time. " * 100
        yield [{"role": "assistant", "content": talk}, {"role": "user", "content": f"Go on. {HOSTILE}"}]


def tell(service: Service, name: str, **fields: Any) -> Told:
    path = service.conversation(policy=POLICY, external_id=name, **fields)
    count = 0
    for number, turn in enumerate(turns()):
        service.append(path, *turn)
        count += len(turn)
        if number % 2 == 0:
            work(service.settings, path)
    return Told(path, f"/console{path.removeprefix('/v1')}", name, count)


@pytest.fixture(scope="module")
def told(service: Service) -> Told:
    return tell(service, f"told {HOSTILE}"[:500], user_ref=f"user {HOSTILE}")


@pytest.fixture
def client(service: Service) -> Iterator[httpx2.Client]:
    with signed_in(service) as found:
        yield found


def show(client: httpx2.Client, path: str, **parameters: Any) -> str:
    answer = client.get(path, params=parameters or None)
    assert answer.status_code == 200, (path, text_of(answer.text))
    return answer.text


def test_what_was_asked_back_is_shown_with_what_had_taken_it_out(
    service: Service, client: httpx2.Client, told: Told
) -> None:
    for ref in ("m2", "m2", f"m{told.messages - 1}"):
        assert service.client.post(f"{told.path}/recall", json={"ref": ref}).status_code == 200
    page = show(client, told.page)
    assert f'href="{told.page}/messages/2"' in page
    text = text_of(page)
    assert "What compaction should have kept" in text
    assert "compaction_threshold_tokens 5000" in text
    overview = text_of(show(client, "/console"))
    assert "Asked back" in overview
    assert "Needed what had left" in overview


def test_every_page_that_a_page_leads_to_is_there_and_encoded(client: httpx2.Client, told: Told) -> None:
    waiting, seen = ["/console", f"{told.page}/compact?strategy=auto", f"{told.page}/restore?version=0"], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.startswith(("/console/find?", "/console/health")):
            waiting.append(client.get(path).headers["location"].partition("#")[0])
            continue
        page = show(client, path)
        for hostile in ("<script>alert", "<img src=x", "onerror=alert(1)>", "</textarea>{{", "49</pre>"):
            assert hostile not in page, path
        waiting += links(page)
    kinds = {re.sub(r"\d+|(conv|run)_[0-9a-f]{32}", "*", path.partition("?")[0]) for path in seen}
    assert kinds >= {
        "/console",
        "/console/operators",
        "/console/spending",
        "/console/keys",
        "/console/runs/*",
        "/console/conversations/*",
        "/console/conversations/*/context",
        "/console/conversations/*/messages/*",
        "/console/conversations/*/snapshots",
        "/console/conversations/*/diff",
        "/console/conversations/*/restore",
        "/console/conversations/*/compact",
    }


def test_messages_of_another_shape_are_shown_with_what_was_sent(service: Service, client: httpx2.Client) -> None:
    path = service.conversation()
    system = {"role": "system", "name": "ann", "content": "Be <b>brief</b>."}
    said = [system, {"role": "user", "content": "Lisbon?"}]
    assert service.client.post(f"{path}/turns", json={"shape": "chat", "messages": said}).status_code == 201
    page = f"/console/conversations/{path.rpartition('/')[2]}"
    assert "Shape chat" in text_of(show(client, page))
    message = show(client, f"{page}/messages/0")
    assert "<b>brief" not in message
    assert "System message" in text_of(message)
    assert "As it was sent, in the shape chat" in text_of(message)
    assert json.dumps(system, separators=(",", ":")) in html.unescape(message)
    assert "System message" in text_of(show(client, f"{page}/context"))


def test_empty_pages(service: Service) -> None:
    with sign_in(service, key_of(service.stranger)) as client:
        for path in ("/console", "/console/conversations", "/console/runs", "/console/conversations?q=nobody"):
            assert "No " in text_of(show(client, path)), path
        response = service.stranger.post("/v1/conversations", json={})
        page = f"/console/conversations/{response.json()['id']}"
        for path in (
            "",
            "/context",
            "/context?show=all",
            "/recall",
            "/recall?q=a",
            "/snapshots",
            "/diff",
            "/compact",
            "/restore?version=0",
        ):
            show(client, page + path)
        assert "nothing to drop" in text_of(show(client, f"{page}/compact", strategy="trim"))


def test_nothing_is_anothers_to_see_or_to_touch(service: Service, told: Told, client: httpx2.Client) -> None:
    run = re.findall(r"/console/runs/run_[0-9a-f]{32}", show(client, f"{told.page}"))[0]
    paths = [
        told.page,
        *(
            f"{told.page}/{part}"
            for part in ("context", "messages/0", "snapshots", "diff", "compact", "restore?version=0", "recall?q=score")
        ),
        run,
        f"/console/runs?conversation={told.page.rpartition('/')[2]}",
    ]
    before = query(service, "select head_version from conversations where external_id = %s", told.name)
    with sign_in(service, key_of(service.stranger)) as stranger:
        for path in paths:
            show(client, path)
            answer = stranger.get(path)
            assert answer.status_code == 404, path
            assert "Score" not in answer.text
        for listed in ("/console/conversations", "/console/runs", f"/console/conversations?q={told.page[-20:]}"):
            assert told.page not in show(stranger, listed)
        assert stranger.post(f"{told.page}/restore", data={"version": "0"}).status_code == 404
        assert stranger.post(f"{told.page}/compact", data={}).status_code == 404
        assert stranger.post(f"{run}/retry").status_code == 404
    assert query(service, "select head_version from conversations where external_id = %s", told.name) == before


def test_the_list_finds_and_sorts(service: Service, client: httpx2.Client) -> None:
    small = service.conversation(external_id="Listed_a%b small", user_ref="Ada")
    large = service.conversation(external_id="listed_a%b large", user_ref="Bob")
    service.append(small, {"role": "user", "content": "x" * 400})
    service.append(large, {"role": "user", "content": "x" * 40_000})

    def names(**parameters: Any) -> list[str]:
        page = show(client, "/console/conversations", **parameters)
        return re.findall(r'id="c-[0-9a-f]{32}" href="[^"]+">([^<]+)<', page)

    assert names(q="LISTED_A%B", sort="tokens") == ["listed_a%b large", "Listed_a%b small"]
    assert names(q="listed_a%b", sort="created") == ["listed_a%b large", "Listed_a%b small"]
    service.append(small, {"role": "assistant", "content": "y"})
    assert names(q="listed_a%b", sort="activity") == ["Listed_a%b small", "listed_a%b large"]
    assert names(q="ada") == ["Listed_a%b small"]
    assert names(q="listed?a%b") == names(q="listed_aXb") == names(q="' or true --") == []
    assert names(q=small.rpartition("/")[2]) == ["Listed_a%b small"]
    assert names(q="listed_a%b", page=2) == []
    page = show(client, "/console/conversations", q="listed_a%b", sort="tokens")
    assert [tuple(found) for found in _BAR.findall(page)] == [("10,000", "40,000"), ("101", "40,000")]
    run = service.client.post(f"{large}/compactions", json={"strategy": "trim"}).json()["run_id"]
    answer = client.get("/console/conversations", params={"q": run})
    assert answer.headers["location"] == f"/console/runs/{run}"
    assert names(q="listed_a%b", sort="run")[0] == "listed_a%b large"


def test_a_part_is_asked_for_alone(client: httpx2.Client, told: Told) -> None:
    for path in ("/console", "/console/conversations", "/console/runs", told.page):
        part = client.get(path, headers={"hx-request": "true"}).text
        assert part.lstrip().startswith('<div id="live"'), path
        assert "<html" not in part


def test_the_plot_ends_where_the_conversation_stands(service: Service, client: httpx2.Client) -> None:
    told = tell(service, "plotted")

    def last() -> tuple[int, int]:
        page = show(client, told.page)
        points = re.findall(r'data-held="(\d+)" data-shown="(\d+)"', page)
        return int(points[-1][0]), int(points[-1][1])

    def stored() -> tuple[int, int]:
        ((shown, held),) = query(
            service,
            "select ceil((c.context_tokens + c.fixed_tokens) * c.token_ratio)::integer,"
            " (select ceil((sum(m.view_tokens) + c.fixed_tokens) * c.token_ratio)::integer from messages as m"
            "  where m.conversation_id = c.id and m.superseded_at is null)"
            " from conversations as c where c.external_id = %s",
            told.name,
        )
        return held, shown

    assert last() == stored()
    service.append(told.path, {"role": "user", "content": "Instead."}, replace_from=told.messages - 1)
    assert last() == stored()
    service.append(told.path, {"role": "user", "content": "From the start."}, replace_from=2)
    assert last() == stored()
    service.append(told.path, {"role": "assistant", "content": "Well."})
    service.client.post(f"{told.path}/restore", json={"version": 1})
    assert last() == stored()
    assert show(client, told.page).count('class="mark ') >= 3


def test_each_message_says_what_became_of_it(service: Service, client: httpx2.Client) -> None:
    told = tell(service, "labelled")
    lineages = service.client.get(f"{told.path}/messages", params={"limit": 1_000}).json()["data"]

    def labels() -> dict[int, str]:
        page = show(client, f"{told.page}/context", show="all")
        rows = re.findall(
            r'<tr class="line-\w+">\s*<td class="num">(\d+)</td>[^\n]*\s*<td><span class="badge label-(\w+)"', page
        )
        return {int(seq): label for seq, label in rows}

    found = labels()
    assert sorted(found) == list(range(told.messages))
    for message in lineages:
        fate = service.client.get(f"{told.path}/messages/{message['seq']}").json()["fate"]
        assert found[message["seq"]] == fate
    assert set(found.values()) == {"kept", "summarized"}
    gone = [seq for seq, label in found.items() if label == "summarized"]
    view = text_of(show(client, f"{told.page}/context"))
    assert "messages not shown" in view
    assert "+ summary" in view
    page = text_of(show(client, f"{told.page}/messages/{gone[0]}"))
    assert "the summary that stands for it" in page
    service.client.post(f"{told.path}/restore", json={"version": 0})
    restored = labels()
    assert {restored[seq] for seq in gone} == {"restored"}
    service.append(told.path, {"role": "user", "content": "Again."}, replace_from=told.messages - 1)
    assert labels()[told.messages - 1] == "superseded"


def test_the_messages_beside_one_are_there(service: Service, client: httpx2.Client) -> None:
    path = service.conversation()
    said = [{"role": role, "content": "So."} for role in ("user", "assistant") * 3]
    service.append(path, *said)
    service.append(path, {"role": "user", "content": "No."}, replace_from=2)
    # What was replaced stays behind.
    fork = service.client.post(f"{path}/fork", json={"through_seq": 6}).json()["id"]
    for name, seqs in ((path.rpartition("/")[2], [0, 1, 2, 3, 4, 5, 6]), (fork, [0, 1, 6])):
        base = f"/console/conversations/{name}/messages"
        found = {seq: re.findall(r'rel="(?:prev|next)" href="([^"]+)"', show(client, f"{base}/{seq}")) for seq in seqs}
        beside = {seq: {*seqs[max(0, at - 1) : at], *seqs[at + 1 : at + 2]} for at, seq in enumerate(seqs)}
        assert found == {seq: [f"{base}/{other}" for other in sorted(beside[seq])] for seq in seqs}


def test_a_result_over_the_cap_is_truncated_in_the_view_alone(service: Service, client: httpx2.Client) -> None:
    path = service.conversation(policy={"max_tool_result_chars": 1_000})
    page = f"/console{path.removeprefix('/v1')}"
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "begins" + "x" * 5_000 + "ends"}
    service.append(
        path,
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    )
    assert "label-truncated" in show(client, f"{page}/context")
    shown = show(client, f"{page}/messages/2")
    assert "label-truncated" in shown
    original, _, view = text_of(shown).partition("In the context")
    assert "ends" in original
    assert "ends" not in view
    assert "more characters of this result are stored but not shown" in view
    assert "seen as it is" in text_of(show(client, f"{page}/messages/1"))


def test_the_difference_between_any_two(client: httpx2.Client, service: Service, told: Told) -> None:
    head = service.client.get(told.path).json()["head_version"]
    for start in (0, 1, head):
        for to in (0, 1, head):
            page = show(client, f"{told.page}/diff", **{"from": start, "to": to})
            assert ("no longer shown" in text_of(page)) == (start < to == head), (start, to)
            if start == to:
                assert '<section class="diff-section' not in page
    page = show(client, f"{told.page}/diff", **{"from": 0, "to": 1})
    assert "<del>" in page
    assert "truncated for context management" in page


def test_acting_is_for_those_who_may_and_is_written_down(service: Service) -> None:
    told = tell(service, "acted on")
    key = "select id from conversations where external_id = 'acted on'"
    ((conversation,),) = query(service, key)
    written = "select action, outcome, version from operator_actions where conversation_id = %s order by id"
    with signed_in(service, ["audit:read"]) as reader:
        assert "Read only" in show(reader, told.page)
        assert '<form method="post"' not in show(reader, f"{told.page}/restore", version=0).partition("<main")[2]
        assert "formmethod" not in show(reader, f"{told.page}/compact", strategy="auto")
        for action in ("restore", "compact"):
            assert reader.post(f"{told.page}/{action}", data={"version": "0"}).status_code == 403
    assert query(service, written, conversation) == []
    with signed_in(service, ["audit:read", "admin"]) as operator:
        preview = text_of(show(operator, f"{told.page}/restore", version=1))
        assert "What would change" in preview
        before = service.client.get(told.path).json()["head_version"]
        done = operator.post(f"{told.page}/restore", data={"version": "1"})
        assert done.status_code == 303
        show(operator, done.headers["location"])
        assert service.client.get(told.path).json()["head_version"] == before + 1
        assert operator.post(f"{told.page}/restore", data={"version": "99"}).status_code == 404
        run = operator.post(f"{told.page}/compact", data={"strategy": "drop", "max_conversation_messages": "4"})
        assert run.status_code == 303
        told_run = show(operator, run.headers["location"])
        assert "queued" in text_of(told_run)
        again = operator.post(f"{told.page}/compact", data={"strategy": "trim"})
        assert again.headers["location"].startswith(run.headers["location"])
        work(service.settings, told.path)
        ended = text_of(show(operator, run.headers["location"]))
        assert "committed manual" in ended
        assert query(service, written, conversation) == [
            ("restore", "done", 1),
            ("compact", "queued", None),
            ("compact", "another_run_is_active", None),
        ]
        text = text_of(show(operator, "/console/operators"))
        for action in ("sign in", "restore", "compact"):
            assert action in text
    service.client.delete(told.path)
    assert len(query(service, written, conversation)) == 3


def test_what_operators_did_cannot_be_changed(service: Service) -> None:
    with signed_in(service):
        for statement in ("delete from operator_actions", "update operator_actions set outcome = 'x'"):
            with pytest.raises(Exception, match="append-only"):
                query(service, f"{statement} returning 1")


def test_a_dead_run_is_retried(service: Service, client: httpx2.Client) -> None:
    path = service.conversation()
    service.append(path, {"role": "user", "content": "Hello."})
    run = service.client.post(f"{path}/compactions", json={"strategy": "trim"}).json()["run_id"]
    page = f"/console/runs/{run}"
    assert "Retry" not in show(client, page).partition("<main")[2]
    assert client.post(f"{page}/retry").status_code == 409
    kill = "update runs set state = 'dead', reason = 'attempts_exhausted', error = %s, attempts = 5"
    kill += " where id = %s returning 1"
    query(service, kill, f"it broke {HOSTILE}", run.removeprefix("run_"))
    shown = show(client, page)
    assert "5 of 5" in shown
    assert "it broke" in shown
    assert "attempts exhausted" in text_of(show(client, "/console/runs", state="dead"))
    assert client.post(f"{page}/retry").status_code == 303
    assert "queued" in text_of(show(client, page))
    outcomes = query(service, "select outcome from operator_actions where run_id = %s order by id", run[4:])
    assert outcomes == [("not_dead",), ("queued",)]


def test_ten_thousand_messages(service: Service, client: httpx2.Client) -> None:
    path = service.conversation(external_id="long")
    page = f"/console{path.removeprefix('/v1')}"
    for start in range(0, 10_000, 1_000):
        roles = ("user", "assistant")
        service.append(
            path, *({"role": roles[seq % 2], "content": f"number {seq} here"} for seq in range(start, start + 1_000))
        )
    overview = show(client, page)
    assert overview.count("<li data-x=") <= 500
    assert 'data-seq="9999"' in overview
    assert len(overview) < 150_000
    first = show(client, f"{page}/context")
    assert first.count('class="row-link') == 100
    assert "Lines 100 to 200 of 10,000" in first
    part = client.get(f"{page}/context", params={"from": 9_950}, headers={"hx-request": "true"}).text
    assert re.findall(r"number (\d+) here", part) == [str(seq) for seq in range(9_950, 10_000)]
    assert 'class="more"' not in part
    assert "There are no lines" in show(client, f"{page}/context", **{"from": 10_000})
    work(service.settings, path)
    service.client.post(f"{path}/compactions", json={"strategy": "drop"})
    work(service.settings, path)
    after = show(client, f"{page}/context")
    assert "messages not shown" in text_of(after)
    assert show(client, f"{page}/context", show="all").count('class="row-link') == 100
    assert "no longer shown" in show(client, f"{page}/diff")
    assert len(show(client, f"{page}/restore", version=0)) < 300_000


def test_conversations_of_the_gateway_have_their_clients_name_and_are_listed_by_it(
    service: Service, client: httpx2.Client
) -> None:
    of_codex = service.conversation(external_id="by codex", metadata={"gateway": {"client": "codex", "shape": "chat"}})
    hostile = "<b>&a=1"
    service.conversation(external_id="by another", metadata={"gateway": {"client": hostile}})
    service.conversation(external_id="by none", metadata={"gateway": ["client"]})
    every = show(client, "/console/conversations", sort="created")
    assert 'href="/console/conversations?client=codex"' in every
    assert html.escape(hostile) in every
    assert hostile not in every
    listed = text_of(show(client, "/console/conversations?client=codex"))
    assert "by codex" in listed
    assert "by another" not in listed
    assert "by none" not in listed
    (to_hostile,) = {each for each in links(every) if "client=%3Cb" in each}
    assert "by another" in text_of(show(client, html.unescape(to_hostile)))
    assert "No conversation matches" in text_of(show(client, "/console/conversations?client=nobody"))
    own = show(client, f"/console{of_codex.removeprefix('/v1')}")
    assert 'href="/console/conversations?client=codex"' in own
