"""POST …/compactions: runs by hand and their dry runs."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.policy import merge
from compaction.steps.rehearsal import RunPlan, plan_run
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.steps.stage import Stage
from compaction.summary.zone import OPENS
from compaction.view import MARKER
from runtime import ids
from runtime.broker import RUN_TASK
from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.service.in_process import Chat, Workers, head
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import conversation_at
from tests.support.service.stub_summarizer import StubSummarizer, refusing
from tests.support.strategies import any_conversations, policies
from tests.support.talk import answer, exchanges, request, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.support.blocks import Message
    from tests.support.service.running_api import Service

POLICY: dict[str, Any] = {"min_savings_tokens": 100}
"""Every threshold is far away: what is done is done because it was asked for."""
STRATEGIES: tuple[str, ...] = ("auto", "tool_results", "prune", "summary", "extract", "drop", "trim")


@pytest.fixture(scope="module")
def product(service: Service) -> Iterator[Chat]:
    """The same tenant, in the test's own process."""
    with Chat(service.settings, service.tenant_id) as made:
        yield made


class Talk:
    """One conversation over HTTP, and its workers in the test's process."""

    def __init__(self, service: Service, product: Chat, *messages: Message, **policy: Any) -> None:
        self.service, self.product = service, product
        self.path = service.conversation(policy=POLICY | policy)
        self.id = conversation_at(self.path)
        if messages:
            service.append(self.path, *messages)

    def ask(self, **body: Any) -> httpx2.Response:
        return self.service.client.post(f"{self.path}/compactions", json=body)

    def queue(self, **body: Any) -> str:
        response = self.ask(**body)
        assert response.status_code == 202, response.text
        name: str = response.json()["run_id"]
        assert response.json() == {"run_id": name}
        assert response.headers["location"] == f"/v1/runs/{name}"
        assert response.headers["retry-after"] == "1"
        return name

    def run(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = self.service.client.get(f"/v1/runs/{name}").json()
        return body

    def plan(self, **body: Any) -> dict[str, Any]:
        before = everything(self.service)
        response = self.ask(dry_run=True, **body)
        assert response.status_code == 200, response.text
        assert everything(self.service) == before
        document: dict[str, Any] = response.json()
        if document["messages"]:
            assert problems(document["messages"]) == []
        return document

    def context(self) -> list[Message]:
        found: list[Message] = self.service.client.get(f"{self.path}/context").json()["messages"]
        if found:
            assert problems(found) == []
        return found

    def carry_out(self, name: str, workers: Workers | None = None) -> dict[str, Any]:
        """Do what workers of both queues do with a run; return it."""
        workers = workers or Workers(self.product, StubSummarizer("They agreed on Berlin."))
        identifier = ids.parse("run", name)
        assert identifier is not None
        while (lease := workers.claim(identifier)) is not None:
            workers.dispatcher.execute(lease)
        workers.woken.clear()
        return self.run(name)


def everything(service: Service) -> dict[str, list[Any]]:
    """Return every row of the database."""
    with psycopg.connect(service.database_url) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        return {
            name: sorted(
                row[0]
                for row in connection.execute(f'select r::text from "{name}" as r').fetchall()  # noqa: S608 - catalogue
            )
            for (name,) in tables
            # Assemblies are written a moment after their answers, and the API's heartbeat at any time.
            if name not in {"assemblies", "processes"}
        }


def steps(run: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    return [(step["name"], step["state"], step["reason"]) for step in run["steps"]]


def agent() -> list[Message]:
    return [request("find me a job"), *rounds(6, 1_200), answer("found one", 200)]


def test_auto_is_the_whole_ladder_below_its_thresholds(service: Service, product: Chat) -> None:
    talk = Talk(service, product, *exchanges(3, 200), *agent())
    stub = StubSummarizer("They agreed on Berlin.")
    run = talk.carry_out(talk.queue(), Workers(product, stub))
    assert (run["trigger"], run["strategy"], run["state"], run["queue"]) == ("manual", "auto", "committed", "summaries")
    assert steps(run) == [
        ("tool_results", "committed", None),
        ("prune", "skipped", "nothing_to_prune"),
        ("summary", "committed", None),
    ]
    served = talk.context()
    assert "They agreed on Berlin." in served[0]["content"]
    assert served[-1] == answer("found one", 200)
    assert run["request_id"]


@pytest.mark.requirement("T1", "S3")
@pytest.mark.parametrize(
    ("strategy", "policy", "name", "shown"),
    [
        ("tool_results", {}, "tool_results", MARKER),
        ("prune", {"prune_head_chars": 100, "prune_tail_chars": 50}, "prune", "are stored but not shown"),
        ("summary", {}, "summary", "They agreed on Berlin."),
        ("extract", {}, "summary", "Extract"),
        ("drop", {"max_conversation_messages": 6}, "fallback", "found one"),
        ("trim", {"max_context_bytes": 20_000}, "trim", "found one"),
    ],
)
def test_one_step_at_a_time(
    service: Service, product: Chat, strategy: str, policy: dict[str, Any], name: str, shown: str
) -> None:
    talk = Talk(service, product, *exchanges(3, 200), *agent())
    before = talk.context()
    plan = talk.plan(strategy=strategy, policy=policy)
    run = talk.carry_out(talk.queue(strategy=strategy, policy=policy))
    assert (run["state"], run["strategy"]) == ("committed", strategy)
    assert steps(run) == [(name, "committed", None)]
    served = talk.context()
    assert shown in str(served)
    assert shown not in str(before) or len(served) < len(before)
    (planned,), (done,) = plan["steps"], run["steps"]
    assert (planned["name"], planned["state"]) == (name, "committed")
    assert planned["messages_after"] == done["messages_after"] == len(served)
    assert planned["tokens_before"] == done["tokens_before"]
    if name != "summary":
        assert planned["tokens_after"] == done["tokens_after"]
        assert plan["messages"] == served
    # Nobody asked for it, so the thresholds would have left it alone; and nothing is held back for them.
    row = product.row(talk.id)
    assert (row.tool_results_hold, row.summary_hold, row.trim_hold) == (0, 0, 0)


def test_a_step_with_nothing_to_do_says_so(service: Service, product: Chat) -> None:
    talk = Talk(service, product, *exchanges(2, 50))
    reasons = {
        "tool_results": "nothing_to_cut",
        "prune": "nothing_to_prune",
        "summary": "zone_too_small",
        "extract": "zone_too_small",
        "drop": "nothing_to_drop",
        "trim": "nothing_to_drop",
    }
    for strategy, reason in reasons.items():
        run = talk.carry_out(talk.queue(strategy=strategy))
        assert (run["state"], run["reason"]) == ("skipped", reason)
        assert [step["reason"] for step in talk.plan(strategy=strategy)["steps"]] == [reason]
    auto = talk.carry_out(talk.queue())
    assert steps(auto) == [
        ("tool_results", "skipped", "nothing_to_cut"),
        ("prune", "skipped", "nothing_to_prune"),
        ("summary", "skipped", "zone_too_small"),
    ]
    empty = Talk(service, product)
    assert empty.carry_out(empty.queue())["state"] == "skipped"
    assert empty.plan()["messages"] == []


def test_too_small_a_saving_is_no_reason_to_move_the_head(service: Service, product: Chat) -> None:
    talk = Talk(service, product, *agent())
    run = talk.carry_out(talk.queue(strategy="tool_results", policy={"min_savings_tokens": 50_000}))
    assert (run["state"], run["reason"]) == ("skipped", "not_smaller")
    assert run["policy"]["min_savings_tokens"] == 50_000
    assert service.client.get(talk.path).json()["policy"]["min_savings_tokens"] == 100


def test_instructions_reach_the_summarizer_and_the_audit(service: Service, product: Chat) -> None:
    talk = Talk(service, product, *exchanges(10, 200))
    stub = StubSummarizer()
    for strategy, wish in (("summary", "Keep every price."), ("auto", "Keep the names.")):
        service.append(talk.path, *exchanges(10, 200))
        run = talk.carry_out(talk.queue(strategy=strategy, instructions=wish), Workers(product, stub))
        assert (run["state"], run["instructions"]) == ("committed", wish)
    assert [asked.instructions for asked in stub.requests] == ["Keep every price.", "Keep the names."]


class TestFailures:
    def test_a_summary_that_was_asked_for_and_failed_leaves_the_context(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200), max_conversation_messages=4)
        run = talk.carry_out(talk.queue(strategy="summary"), Workers(product, refusing()))
        assert (run["state"], run["reason"]) == ("failed", "summary_failed_nothing_dropped")
        assert run["error"] == "model_refused: the model declined to summarize"
        assert talk.context() == exchanges(10, 200)

    def test_auto_takes_an_extract_for_a_summary_that_failed(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200), max_conversation_messages=4)
        run = talk.carry_out(talk.queue(), Workers(product, refusing()))
        assert (run["state"], run["reason"]) == ("degraded", "summary_failed_extract_committed")
        assert [step["name"] for step in run["steps"] if step["state"] == "committed"] == ["extract", "backstop"]
        assert len(talk.context()) <= 4

    @pytest.mark.parametrize("switch", ["policy", "settings"])
    def test_where_summaries_are_off_that_is_the_reason(self, service: Service, product: Chat, switch: str) -> None:
        talk = Talk(service, product, *exchanges(10, 200), compaction_enabled=switch != "policy")
        workers = Workers(product, None if switch == "settings" else StubSummarizer())
        run = talk.carry_out(talk.queue(strategy="summary"), workers)
        assert (run["state"], run["reason"]) == ("skipped", "summaries_disabled")
        assert talk.carry_out(talk.queue(), workers)["state"] == "skipped"
        extract = talk.carry_out(talk.queue(strategy="extract"), workers)
        assert (extract["state"], extract["steps"][0]["summarizer"]) == ("committed", "extractive")

    def test_a_policy_of_its_own_may_turn_them_on(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200), compaction_enabled=False)
        plan = talk.plan(strategy="summary")
        assert plan["steps"][0]["reason"] == "summaries_disabled"
        assert plan["warnings"] == ["summaries are off here"]
        run = talk.carry_out(talk.queue(strategy="summary", policy={"compaction_enabled": True}))
        assert run["state"] == "committed"


class TestOthersAtTheSameTime:
    def test_the_same_again_is_the_same_run(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200))
        body = {"strategy": "summary", "instructions": "Keep the prices.", "policy": {"summary_max_tokens": 500}}
        name = talk.queue(**body)
        assert talk.queue(**body) == name
        for other in (
            {"strategy": "auto"},
            {**body, "instructions": "Keep the names."},
            {**body, "policy": {"summary_max_tokens": 501}},
        ):
            refused = problem(talk.ask(**other), 409, "compaction_running")
            assert refused["run_id"] == name
        talk.carry_out(name)
        assert talk.queue(**body) != name

    def test_while_a_check_is_at_it(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200), compaction_threshold_tokens=2_000)
        workers = Workers(product, StubSummarizer())
        workers.check(talk.id)
        (active,) = service.client.get(f"{talk.path}/runs").json()["data"]
        assert problem(talk.ask(), 409, "compaction_running")["run_id"] == active["id"]
        assert talk.plan()["steps"]  # a dry run stands in nobody's way
        workers.summarize()
        assert talk.run(talk.queue())["state"] == "queued"

    def test_a_check_waits_for_it_and_comes_after_it(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200), compaction_threshold_tokens=2_000)
        name = talk.queue(strategy="tool_results")
        workers = Workers(product, StubSummarizer())
        workers.settle(talk.id)
        assert len(service.client.get(f"{talk.path}/runs").json()["data"]) == 1
        talk.carry_out(name)
        workers.settle(talk.id)
        newest = service.client.get(f"{talk.path}/runs").json()["data"][0]
        assert (newest["trigger"], newest["state"]) == ("check", "committed")

    def test_an_edit_meanwhile_wins(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200))

        def edit() -> None:
            service.append(talk.path, request("edited"), replace_from=4)

        run = talk.carry_out(talk.queue(strategy="summary"), Workers(product, StubSummarizer(act=edit)))
        assert (run["state"], run["reason"]) == ("skipped", "head_moved")
        assert talk.context() == [*exchanges(2, 200), request("edited")]

    def test_an_edit_before_it_begins_is_what_it_works_on(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200))
        name = talk.queue(strategy="summary")
        service.append(talk.path, request("edited"), replace_from=16)
        run = talk.carry_out(name)
        assert run["state"] == "committed"
        served = talk.context()
        assert OPENS in served[0]["content"]
        assert served[-1] == request("edited")

    def test_an_overflow_overtakes_it(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200))
        name = talk.queue(strategy="summary")
        assert service.client.post(f"{talk.path}/overflow", json={}).status_code == 200
        assert (talk.run(name)["state"], talk.run(name)["reason"]) == ("skipped", "head_moved")
        assert problem(talk.ask(), 409, "compaction_running")["run_id"] != name

    def test_a_pending_snapshot_is_left_to_its_loop(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(8, 200), request("go"), *rounds(2, 200, thinking=True))
        first = talk.carry_out(talk.queue(strategy="summary"))
        assert (first["state"], first["reason"]) == ("committed", "waits_for_tool_loop")
        second = talk.carry_out(talk.queue(strategy="summary"))
        assert (second["state"], second["reason"], second["steps"]) == ("skipped", "waits_for_tool_loop", [])
        plan = talk.plan(strategy="summary")
        assert (plan["steps"][0]["state"], plan["steps"][0]["reason"]) == ("pending", "waits_for_tool_loop")
        assert "snapshot 1 waits" in plan["warnings"][0]

    def test_holds_do_not_bind_it(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200), compaction_threshold_tokens=1_000)
        Workers(product, StubSummarizer()).settle(talk.id)
        assert service.client.post(f"{talk.path}/restore", json={"version": 0}).status_code == 200
        assert product.row(talk.id).summary_hold > 0
        assert talk.carry_out(talk.queue())["state"] == "committed"


def test_the_workers_of_its_queue_are_woken(service: Service, product: Chat) -> None:
    talk, other = Talk(service, product, *agent()), Talk(service, product, *agent())
    names = {"checks": talk.queue(strategy="tool_results"), "summaries": other.queue(strategy="summary")}
    with redis.Redis.from_url(service.settings.broker_url.get_secret_value()) as broker:

        def woken(queue: str) -> set[str]:
            messages = [json.loads(text) for text in broker.lrange(f"palimpsest:{queue}", 0, -1)]
            bodies = [
                json.loads(base64.b64decode(message["body"]))[0]
                for message in messages
                if message["headers"]["task"] == RUN_TASK
            ]
            return {f"run_{run_id.replace('-', '')}" for _, run_id in bodies}

        eventually(lambda: all(name in woken(queue) for queue, name in names.items()))


def test_the_row_is_all_that_a_worker_needs(service: Service, product: Chat) -> None:
    """So the sweep finds it where the wake-up got lost."""
    talk = Talk(service, product, *agent())
    name = talk.queue(strategy="tool_results")
    row = product.query("select * from runs where id = :r", r=ids.parse("run", name))[0]
    assert (row.state, row.queue, row.attempts) == ("queued", "checks", 0)
    work(service.settings, talk.id)
    assert talk.run(name)["state"] == "committed"


class TestDryRun:
    def test_it_tells_what_a_summary_would_replace(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200))
        plan = talk.plan(strategy="summary", instructions="Keep the prices.")
        (step,) = plan["steps"]
        assert step["zone_seqs"] == list(range(1, 14))
        assert step["summary_tokens"] == 260
        assert (step["tokens_before"], step["messages_before"], step["messages_after"]) == (4_000, 20, 8)
        assert step["tokens_after"] == plan["tokens_after"] < 4_000 - 2_200
        assert plan["summary_is_placeholder"]
        assert plan["warnings"] == ["no summary was made: where it would stand, a placeholder says so"]
        assert "A dry run makes no summary: that of 13 messages would stand here" in plan["messages"][0]["content"]
        assert plan["messages"][-6:] == exchanges(10, 200)[-6:]
        assert (plan["strategy"], plan["tokens_before"], plan["messages_before"]) == ("summary", 4_000, 20)

    def test_the_plan_of_auto_has_every_step_that_the_run_takes(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(3, 200), *agent())
        plan = talk.plan()
        run = talk.carry_out(talk.queue())
        assert [(step["name"], step["state"], step["reason"]) for step in plan["steps"]] == steps(run)
        assert plan["policy"] == run["policy"]
        assert plan["messages_after"] == run["messages_after"]
        assert len(plan["messages"]) == len(talk.context())

    def test_the_thresholds_of_a_policy_that_is_tried_decide(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(3, 200), *agent())
        high = {"input_token_budget": 100_000, "compaction_threshold_tokens": 100_000, "prune_soft_share": 0.5}
        plan = talk.plan(policy=high)
        assert (plan["by_hand"], plan["steps"], plan["tokens_after"]) == (False, [], plan["tokens_before"])
        assert plan["warnings"] == ["nothing is over a threshold of this policy: a check would do nothing"]
        cut = talk.plan(policy=high | {"input_token_budget": 5_000})
        assert [step["name"] for step in cut["steps"]] == ["tool_results"]
        tokens = f"{cut['tokens_before']:,}"
        assert cut["steps"][0]["detail"].endswith(f": input tokens ({tokens}) exceeded the budget (5,000)")
        both = talk.plan(policy=high | {"input_token_budget": 5_000, "compaction_threshold_tokens": 1_000})
        assert [step["name"] for step in both["steps"]] == ["tool_results", "summary"]
        # As the policy itself does, once it is in force.
        talk.service.client.patch(talk.path, json={"policy": high | {"input_token_budget": 5_000}})
        Workers(product).check(talk.id)
        (run,) = service.client.get(f"{talk.path}/runs").json()["data"]
        assert steps(run) == [(step["name"], step["state"], step["reason"]) for step in cut["steps"]]

    def test_by_hand_is_said_to_be_by_hand(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *agent())
        high = {"input_token_budget": 100_000}
        plan = talk.plan(strategy="tool_results", policy=high)
        assert plan["by_hand"]
        detail = plan["steps"][0]["detail"]
        assert re.fullmatch(
            r"Compacted 5 old tool result\(s\) by hand: input tokens \(7,\d+\), budget \(100,000\)", detail
        )
        assert talk.carry_out(talk.queue(strategy="tool_results", policy=high))["steps"][0]["detail"] == detail
        assert talk.plan()["by_hand"]

    def test_a_step_that_was_skipped_does_not_say_that_it_did_anything(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *agent())
        least = {"min_savings_tokens": 50_000}
        (step,) = talk.plan(strategy="tool_results", policy=least)["steps"]
        assert step["reason"] == "not_smaller"
        assert re.fullmatch(r"It would save 5,\d+ tokens; at least 50,000 are worth it", step["detail"])
        few = Talk(service, product, *exchanges(2, 50))
        details = {name: few.plan(strategy=name)["steps"][0]["detail"] for name in ("tool_results", "drop", "trim")}
        assert details == {
            "tool_results": "No older tool result is left to cut",
            "drop": "Nothing to drop; the limit is 50 messages",
            "trim": "Nothing to drop; the limit is 737,280 bytes",
        }

    def test_a_context_that_is_compacted_already(self, service: Service, product: Chat) -> None:
        talk = Talk(service, product, *exchanges(10, 200))
        talk.carry_out(talk.queue(strategy="summary"))
        service.append(talk.path, *exchanges(10, 200, start=10))
        plan = talk.plan(strategy="summary")
        assert plan["steps"][0]["zone_seqs"] == list(range(14, 34))
        assert plan["messages"][0]["content"].count(OPENS) == 1
        assert head(product, talk.id).version == 1


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"strategy": "magic"}, "/strategy"),
        ({"instructions": ""}, "/instructions"),
        ({"instructions": "x" * 2_001}, "/instructions"),
        ({"instructions": "Keep it.", "strategy": "drop"}, "/instructions"),
        ({"policy": {"summary_max_tokens": "many"}}, "/policy/summary_max_tokens"),
        ({"policy": {"no_such": 1}}, "/policy/no_such"),
        ({"policy": {"reserved_output_tokens": 10**6}}, "/policy/reserved_output_tokens"),
        ({"dry_run": "yes"}, "/dry_run"),
        ({"other": 1}, "/other"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_a_body_that_cannot_be_taken(
    service: Service, product: Chat, body: dict[str, Any], pointer: str, dry: bool
) -> None:
    talk = Talk(service, product, *exchanges(2, 50))
    problem(talk.ask(**{"dry_run": dry, **body}), 422, "invalid", pointer)
    assert service.client.get(f"{talk.path}/runs").json()["data"] == []


def test_it_may_be_asked_for_without_a_body(service: Service, product: Chat) -> None:
    talk = Talk(service, product, *exchanges(2, 50))
    assert service.client.post(f"{talk.path}/compactions").status_code == 202


def planned(messages: list[Message], policy: dict[str, Any], strategy: str) -> RunPlan:
    tail = [Original(seq, message["role"], json.dumps(message["content"])) for seq, message in enumerate(messages)]
    working = build(Snapshot(), tail, merge(policy))
    stage = Stage(working, bytes=sum(len(row.content) for row in tail))
    return plan_run(stage, merge(policy), strategy=strategy, summaries=True, waits=False)


@settings(max_examples=settings().max_examples * 2)
@given(messages=any_conversations(max_chars=3_000), policy=policies(), strategy=st.sampled_from(STRATEGIES))
def test_any_plan_is_valid_ends_and_never_grows(messages: list[Message], policy: dict[str, Any], strategy: str) -> None:
    plan = planned(messages, policy, strategy)
    served = [message.as_message() for message in plan.view]
    if served:
        assert problems(served) == []
    sizes = [size for step in plan.steps for size in (step.tokens_before, step.tokens_after)]
    assert sizes == sorted(sizes, reverse=True)
    assert len({step.name for step in plan.steps}) == len(plan.steps)
    for step in plan.steps:
        assert (step.result == "skipped") == (step.reason is not None)
    assert planned(messages, policy, strategy) == plan
