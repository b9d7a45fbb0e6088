"""Budgets of model tokens and money: what is counted, what waits for another day, and that it is made up for then."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from sqlalchemy.exc import ProgrammingError

from compaction.payload.context_blocks import prepare
from compaction.policy import Policy, merge
from compaction.steps.runs import RunReason, StepState
from compaction.text.outline import ContextBlock
from runtime import ids
from store.archive import erasures
from store.conversations import branches, pins
from store.conversations.context_blocks import new_blocks
from store.conversations.repinning import repin
from store.engine import owner_engine
from store.operations.operator_actions import Operator
from store.runs import runs, waiting_summaries
from store.tenants import budgets
from store.tenants.budgets import Budget
from tests.support.eventually import eventually
from tests.support.service.hot_calls import hot_calls
from tests.support.service.in_process import SMALL, Chat, Workers, head, view_of
from tests.support.service.paid_workers import PaidWorkers, allow, counted, last_run, pass_a_day, recorded
from tests.support.service.stub_summarizer import SPENT, StubSummarizer
from tests.support.talk import answer, exchanges, request, rounds
from worker.runs.budgets import Budgets
from worker.runs.transactions import RunTransactions
from worker.summarizers import SummaryError
from worker.summarizers.base import Answer, Spent
from worker.summarizers.staged import StagedSummarizer

if TYPE_CHECKING:
    from uuid import UUID

    from worker.summarizers import Summary, SummaryRequest

pytestmark = pytest.mark.usefixtures("within_a_day")

POLICY: Final = merge(SMALL)
ONE_CALL: Final = 1_050
"""Tokens of a call of the stub."""


def grown(chat: Chat, policy: dict[str, Any] | None = None) -> UUID:
    """Make a conversation over its threshold."""
    conversation = chat.begin(policy)
    chat.append(conversation, exchanges(12, 200))
    return conversation


def spend_the_day(chat: Chat, workers: Workers) -> None:
    """Have one summary take what the day's budget has."""
    first = grown(chat)
    workers.settle(first)
    assert chat.run(first).state == "committed"
    assert chat.run(first).reason is None


@pytest.fixture
def stub() -> StubSummarizer:
    return StubSummarizer()


@pytest.fixture
def workers(chat: Chat, stub: StubSummarizer) -> PaidWorkers:
    """Workers of a tenant whose budget of today one summary has spent."""
    allow(chat, daily_model_tokens=1_000)
    made = PaidWorkers(chat, stub)
    spend_the_day(chat, made)
    return made


def postponed(chat: Chat, workers: PaidWorkers) -> UUID:
    """Make a conversation whose summary has to wait for another day."""
    conversation = grown(chat)
    workers.settle(conversation)
    return conversation


def still_waiting(chat: Chat, condition: str = "true") -> int:
    """Return how many summaries of the tenant wait, of those that a condition is true of."""
    return len(chat.query(f"select 1 from waiting_summaries where done_at is null and {condition}"))  # noqa: S608


def test_what_steps_say_is_what_is_counted(chat: Chat) -> None:
    workers = Workers(chat, StubSummarizer())
    for _ in range(3):
        workers.settle(grown(chat))
    assert counted(chat) == recorded(chat) == (3, 3 * ONE_CALL)
    failing = Workers(chat, StubSummarizer(error=SummaryError("model_error", "status 500", SPENT)))
    failing.settle(grown(chat))
    assert counted(chat) == recorded(chat) == (4, 4 * ONE_CALL)


def test_without_a_budget_nothing_waits(chat: Chat) -> None:
    workers = PaidWorkers(chat, StubSummarizer())
    for _ in range(3):
        spend_the_day(chat, workers)
    assert chat.query("select 1 from waiting_summaries") == []
    assert chat.query("select 1 from runs where reserved_tokens > 0") == []


def test_a_spent_budget_leaves_the_steps_without_a_model(
    chat: Chat, workers: PaidWorkers, stub: StubSummarizer
) -> None:
    conversation = grown(chat)
    before = chat.row(conversation).context_tokens
    workers.settle(conversation)
    assert len(stub.requests) == 1
    run = chat.run(conversation)
    assert (run.state, run.reason, run.error) == ("committed", RunReason.BUDGET_SPENT, None)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    assert run.not_before.astimezone(UTC) == datetime.combine(tomorrow, datetime.min.time(), UTC)
    steps = {step.name: step for step in chat.steps(run.id)}
    assert (steps["summary"].state, steps["summary"].reason) == ("skipped", RunReason.BUDGET_SPENT)
    assert steps["summary"].model_calls == 0
    assert steps["extract"].state == "committed"
    row = chat.row(conversation)
    assert row.context_tokens < POLICY.compaction_threshold_tokens < before
    assert chat.valid_context(conversation)
    assert workers.resume() == []  # not today


def test_the_next_day_makes_up_for_it(chat: Chat, workers: PaidWorkers, stub: StubSummarizer) -> None:
    conversation = postponed(chat, workers)
    extracted = head(chat, conversation)
    chat.append(conversation, exchanges(2, 50, start=20))
    (run_id,) = workers.next_day()
    run = last_run(chat, conversation)
    assert (run.id, run.trigger, run.state, run.reason) == (run_id, "budget", "committed", None)
    assert head(chat, conversation).version == extracted.version + 1
    # It is made of the originals, not of the extract.
    asked = stub.requests[-1]
    assert asked.previous is None
    assert [message.seq for message in asked.zone] == list(range(1, len(asked.zone) + 1))
    shown = view_of(chat, conversation, extracted.version + 1)
    assert stub.text in str(shown)
    assert chat.valid_context(conversation)[-1]["content"].startswith("answer 21:")
    assert len(chat.originals(conversation)) == 28
    assert counted(chat) == (1, ONE_CALL)
    assert workers.next_day() == []
    assert still_waiting(chat) == 0


def test_a_summary_waits_from_the_first_extract_on(chat: Chat, workers: PaidWorkers, stub: StubSummarizer) -> None:
    conversation = postponed(chat, workers)
    for start in (20, 40, 60):
        chat.append(conversation, exchanges(12, 200, start=start))
        workers.settle(conversation)
        assert chat.row(conversation).context_tokens <= POLICY.compaction_threshold_tokens * 6 // 5 + 400
    assert [run.reason for run in chat.runs(conversation)].count(RunReason.BUDGET_SPENT) > 1
    assert still_waiting(chat) == 1
    (_,) = workers.next_day()
    assert last_run(chat, conversation).state == "committed"
    assert stub.requests[-1].zone[0].seq == 1
    assert chat.row(conversation).context_tokens <= POLICY.compaction_threshold_tokens


def test_what_could_not_even_be_extracted_is_checked_again(
    chat: Chat, workers: PaidWorkers, stub: StubSummarizer
) -> None:
    conversation = grown(chat)
    version = head(chat, conversation).version
    lease = workers.hand_over(conversation)
    # The extract's commit never comes: the run ends with the summary waiting, and the head where it was.
    RunTransactions(chat.database, lease).end(reason=RunReason.BUDGET_SPENT, waits_from=version)
    pass_a_day(chat)
    assert workers.resume() == []
    assert chat.row(conversation).check_due_at is not None
    workers.settle(conversation)
    assert len(stub.requests) == 2
    assert head(chat, conversation).version > version


def test_a_second_day_may_be_spent_as_well(chat: Chat, workers: PaidWorkers, stub: StubSummarizer) -> None:
    waiting = [grown(chat) for _ in range(2)]
    workers.settle(*waiting)
    # One of them takes all of the second day, the other goes on waiting.
    workers.next_day()
    triggers = sorted(last_run(chat, conversation).reason or "" for conversation in waiting)
    assert triggers == ["", RunReason.BUDGET_SPENT]
    assert counted(chat) == (1, ONE_CALL)
    assert workers.resume() == []
    assert still_waiting(chat, "not_before > now()") == 1
    workers.next_day()
    assert [last_run(chat, conversation).reason for conversation in waiting] == [None, None]
    assert len(stub.requests) == 3


def test_what_waits_for_many_days_has_waited_since_the_first(chat: Chat, workers: PaidWorkers) -> None:
    conversation = postponed(chat, workers)
    waiting = "select created_at from waiting_summaries where done_at is null"
    first = chat.query(waiting)
    for start in (20, 40):
        # It is extracted again the same day, and others are quicker to take what the next one has.
        chat.append(conversation, exchanges(12, 200, start=start))
        workers.settle(conversation)
        pass_a_day(chat)
        (run_id,) = workers.resume()
        workers.woken.remove(run_id)
        spend_the_day(chat, workers)
        workers.woken.append(run_id)
        workers.summarize()
        run = last_run(chat, conversation)
        assert (run.id, run.reason) == (run_id, RunReason.BUDGET_SPENT)
        assert chat.query(waiting) == first


def test_a_day_that_is_spent_before_they_are_resumed_postpones_all(chat: Chat, workers: PaidWorkers) -> None:
    waiting = [grown(chat) for _ in range(2)]
    workers.settle(*waiting)
    pass_a_day(chat)
    spend_the_day(chat, workers)
    assert workers.resume() == []
    rows = chat.query("select not_before > now() as later from waiting_summaries where done_at is null")
    assert [row.later for row in rows] == [True, True]


def test_one_that_cannot_be_resumed_holds_up_no_others(chat: Chat, workers: PaidWorkers) -> None:
    waiting = [grown(chat) for _ in range(2)]
    workers.settle(*waiting)
    pass_a_day(chat)
    with owner_engine(chat.url).begin() as connection:
        connection.exec_driver_sql(
            "create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$"
        )
        connection.exec_driver_sql(
            "create trigger refuse before update on waiting_summaries for each row"
            f" when (old.conversation_id = '{waiting[0]}') execute function refuse()"
        )
    assert len(workers.resume()) == 1
    assert last_run(chat, waiting[1]).trigger == "budget"
    with owner_engine(chat.url).begin() as connection:
        connection.exec_driver_sql("drop function refuse cascade")
    assert len(workers.resume()) == 1
    assert last_run(chat, waiting[0]).trigger == "budget"


def in_loop(chat: Chat, workers: PaidWorkers) -> UUID:
    """Make a conversation whose summary is due the next day, with an extract that waits for the end of a tool loop."""
    conversation = chat.begin()
    chat.append(conversation, [*exchanges(12, 200), request("and now?"), *rounds(1, 50, thinking=True)])
    workers.settle(conversation)
    assert chat.row(conversation).pending_version == 1
    pass_a_day(chat)
    return conversation


def test_one_whose_tool_loop_goes_on_is_not_overdue(chat: Chat, workers: PaidWorkers, stub: StubSummarizer) -> None:
    conversation = in_loop(chat, workers)
    assert workers.resume() == []
    assert still_waiting(chat, "not_before > now()") == 1
    chat.append(conversation, [answer("done")])
    assert head(chat, conversation).version == 1
    pass_a_day(chat)
    (_,) = workers.resume()
    workers.summarize()
    assert stub.text in str(chat.valid_context(conversation))
    assert still_waiting(chat) == 0


def test_a_tool_loop_that_nobody_goes_on_with_keeps_its_extract(chat: Chat, workers: PaidWorkers) -> None:
    conversation = in_loop(chat, workers)
    with owner_engine(chat.url).begin() as connection:
        connection.exec_driver_sql("set local session_replication_role = replica")
        connection.exec_driver_sql("update messages set created_at = created_at - interval '25 hours'")
    assert workers.resume() == []
    assert still_waiting(chat) == 0
    chat.append(conversation, [answer("done")])
    assert head(chat, conversation).version == 1


def test_an_edit_meanwhile_lets_the_thresholds_decide(chat: Chat, workers: PaidWorkers, stub: StubSummarizer) -> None:
    conversation = postponed(chat, workers)
    # An edit of what the extract stands for: its version does not lead to the head any more.
    chat.append(conversation, exchanges(1, 50, start=90), replace_from=2)
    assert workers.next_day() == []
    assert len(stub.requests) == 1
    assert still_waiting(chat) == 0


def test_a_restore_meanwhile_stays(chat: Chat, workers: PaidWorkers, stub: StubSummarizer) -> None:
    conversation = postponed(chat, workers)
    with chat.database.transaction(chat.tenant_id) as connection:
        restored = branches.restore(connection, chat.tenant_id, conversation, 0, POLICY, ids.new_id())
    assert workers.next_day() == []
    workers.settle(conversation)
    assert (head(chat, conversation).version, len(stub.requests)) == (restored, 1)
    assert still_waiting(chat) == 0


def test_a_fork_meanwhile_is_made_up_for_too(chat: Chat, workers: PaidWorkers, stub: StubSummarizer) -> None:
    conversation = postponed(chat, workers)
    allow(chat, daily_model_tokens=100_000)
    through = chat.row(conversation).next_seq - 1
    with chat.database.transaction(chat.tenant_id) as connection:
        fork = branches.fork(connection, chat.tenant_id, conversation, through, None, POLICY, ids.new_id())
    assert fork is not None
    workers.settle(fork)
    assert len(workers.resume()) == 2
    workers.summarize()
    for each in (conversation, fork):
        assert stub.text in str(chat.valid_context(each))
        assert last_run(chat, each).trigger == "budget"
    assert still_waiting(chat) == 0


def test_a_pin_meanwhile_is_in_the_summary_that_makes_up(
    chat: Chat, workers: PaidWorkers, stub: StubSummarizer
) -> None:
    conversation = postponed(chat, workers)
    text = json.loads(chat.originals(conversation)[4][2])
    with chat.database.transaction(chat.tenant_id) as connection:
        pins.add(connection, chat.tenant_id, conversation, 4, text, ids.new_id())
        repin(connection, chat.tenant_id, conversation, policy=POLICY, request_id=ids.new_id())
    assert len(workers.next_day()) == 1
    assert len(stub.requests) == 2
    assert text in str(chat.valid_context(conversation))


def test_two_sweepers_queue_one_run(chat: Chat, workers: PaidWorkers) -> None:
    conversation = postponed(chat, workers)
    pass_a_day(chat)
    with chat.database.transaction(None) as connection:
        (waiting,) = (each for each in waiting_summaries.due(connection, 1_000) if each.tenant_id == chat.tenant_id)
    outcomes: list[str] = []

    def resume() -> None:
        with chat.database.transaction(chat.tenant_id) as connection:
            outcomes.append(waiting_summaries.resume(connection, waiting, lambda _: POLICY).outcome)

    with chat.database.transaction(chat.tenant_id) as connection:
        first = waiting_summaries.resume(connection, waiting, lambda _: POLICY)
        other = Thread(target=resume)
        other.start()
        eventually(lambda: chat.query("select 1 from pg_locks where not granted") != [])
    other.join()
    assert [first.outcome, *outcomes] == ["queued", "over"]
    assert [run.trigger for run in chat.runs(conversation)].count("budget") == 1


def test_a_raised_budget_counts_at_once(chat: Chat, workers: PaidWorkers, stub: StubSummarizer) -> None:
    conversation = postponed(chat, workers)
    allow(chat, daily_model_tokens=100_000)
    (_,) = workers.resume()
    workers.summarize()
    assert last_run(chat, conversation).reason is None
    assert len(stub.requests) == 2


class PricedSummarizer(StubSummarizer):
    """A summarizer that says what each of its summaries has cost."""

    def __init__(self, price: Decimal) -> None:
        super().__init__()
        self._price = price

    def summarize(self, request: SummaryRequest) -> Summary:
        return super().summarize(request)._replace(spent=SPENT._replace(cost_usd=self._price))


def test_money_is_a_budget_too(chat: Chat) -> None:
    chat.renew(daily_model_cost_usd="0.001", summarizer_prices={"stub": {"input": 1, "output": 1}})
    price = Decimal("0.00105")
    workers = PaidWorkers(chat, PricedSummarizer(price))
    spend_the_day(chat, workers)
    conversation = grown(chat)
    workers.settle(conversation)
    assert chat.run(conversation).reason == RunReason.BUDGET_SPENT
    assert chat.query("select cost_usd from model_usage")[0].cost_usd == price
    allow(chat, daily_model_cost_usd=Decimal(0))  # none for this tenant, whatever the installation says
    assert len(workers.resume()) == 1


def test_workers_at_the_same_time_overshoot_by_one_call(chat: Chat) -> None:
    allow(chat, daily_model_tokens=2_000)
    conversations = [grown(chat) for _ in range(6)]
    stub = StubSummarizer()
    workers = PaidWorkers(chat, stub)
    leases = [workers.hand_over(conversation) for conversation in conversations]
    together = Barrier(len(leases))

    def work(lease: runs.Lease) -> None:
        together.wait(30)
        workers.dispatcher.execute(lease)

    threads = [Thread(target=work, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The first call's estimate is below the budget, the second's goes over it, and nobody else begins.
    assert 1 <= len(stub.requests) <= 2
    reasons = [chat.run(conversation).reason for conversation in conversations]
    assert reasons.count(RunReason.BUDGET_SPENT) == 6 - len(stub.requests)
    assert counted(chat) == recorded(chat)


def test_a_dead_workers_reservation_comes_free_with_its_lease(chat: Chat) -> None:
    allow(chat, daily_model_tokens=1_000)
    workers = PaidWorkers(chat, StubSummarizer())
    dead = workers.hand_over(grown(chat))
    workers.resources.purse(dead).reserve("stub-model", 5_000, 500)
    other = grown(chat)
    workers.settle(other)
    assert chat.run(other).reason == RunReason.BUDGET_SPENT
    chat.expire_lease(dead.run_id)
    third = grown(chat)
    workers.settle(third)
    assert chat.run(third).reason is None


def test_what_is_recorded_is_no_longer_reserved(chat: Chat) -> None:
    allow(chat, daily_model_tokens=1_000_000)
    workers = PaidWorkers(chat, StubSummarizer())
    lease = workers.hand_over(grown(chat))
    payments = [workers.resources.purse(lease).reserve("stub-model", 700, 300)]
    with chat.database.transaction(chat.tenant_id) as connection:
        assert budgets.today(connection, chat.tenant_id, Budget()).reserved.tokens == 1_000
    purse = workers.resources.purse(lease)
    payments = [purse.reserve("stub-model", 700, 300) for _ in range(3)]
    step = runs.StepRecord("part", StepState.COMMITTED, 1, 1, 0, 0, 0, model_calls=1, model_input_tokens=400)
    with chat.database.transaction(chat.tenant_id) as connection:
        runs.add_step(connection, lease, step)
    payments[0].recorded()
    with chat.database.transaction(chat.tenant_id) as connection:
        found = budgets.today(connection, chat.tenant_id, Budget())
    assert (found.spent.tokens, found.reserved.tokens) == (400, 2_600)
    payments[1].settle(Spent(1, 100, 100))
    purse.reserve("stub-model", 10, 0)
    with chat.database.transaction(chat.tenant_id) as connection:
        found = budgets.today(connection, chat.tenant_id, Budget())
    assert (found.spent.tokens, found.reserved.tokens) == (400, 200 + 1_000 + 10)


@example_settings(max_examples=example_settings().max_examples // 3)
@given(
    budget=st.integers(1, 5_000),
    acts=st.lists(
        st.tuples(st.sampled_from(["reserve", "record", "die"]), st.integers(0, 3), st.integers(1, 2_000)), max_size=25
    ),
)
def test_never_over_by_more_than_one_call(chat: Chat, budget: int, acts: list[tuple[str, int, int]]) -> None:
    chat.query("update runs set state = 'failed', lease_token = null where state = 'running'")
    pass_a_day(chat)
    allow(chat, daily_model_tokens=budget)
    paying = Budgets(chat.database, chat.settings)
    workers = Workers(chat, StubSummarizer())
    leases: dict[int, runs.Lease] = {}
    purses: dict[int, Any] = {}
    open_calls: dict[int, list[tuple[Any, int]]] = {}
    largest = 0
    for act, who, tokens in acts:
        if who not in leases:
            leases[who] = workers.begin(grown(chat))
            purses[who], open_calls[who] = paying.purse(leases[who]), []
        if act == "reserve":
            try:
                payment = purses[who].reserve("stub-model", tokens, 0)
            except SummaryError as error:
                if error.code != RunReason.BUDGET_SPENT:
                    raise
            else:
                open_calls[who].append((payment, tokens))
                largest = max(largest, tokens)
        elif act == "record" and open_calls[who]:
            payment, cost = open_calls[who].pop()
            record = runs.StepRecord("part", StepState.COMMITTED, 1, 1, 0, 0, 0, model_calls=1, model_input_tokens=cost)
            with chat.database.transaction(chat.tenant_id) as connection:
                runs.add_step(connection, leases[who], record)
            payment.recorded()
        elif act == "die":
            chat.expire_lease(leases.pop(who).run_id)
        with chat.database.transaction(chat.tenant_id) as connection:
            today = budgets.today(connection, chat.tenant_id, Budget())
        assert today.spent.tokens + today.reserved.tokens < budget + max(largest, 1)


class PricedModel:
    """A model that answers every question, until told otherwise, and counts."""

    name = "stub"
    model = "stub-model"

    def __init__(self, context_tokens: int) -> None:
        self.context_tokens = context_tokens
        self.asked = 0

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        del system, max_tokens
        self.asked += 1
        return Answer(f"They spoke, part {self.asked}.", "end_turn", Spent(1, len(prompt) // 4, 10))


def test_a_summary_in_parts_stops_where_the_budget_ends(chat: Chat) -> None:
    allow(chat, daily_model_tokens=5_000)
    model = PricedModel(context_tokens=8_000)
    workers = PaidWorkers(chat, StagedSummarizer(model))
    conversation = chat.begin({"summary_max_tokens": 200})
    chat.append(conversation, exchanges(30, 200))
    workers.settle(conversation)
    assert 1 <= model.asked <= 3
    step = next(step for step in chat.steps(chat.runs(conversation)[0].id) if step.name == "summary")
    assert step.state == "committed"
    assert RunReason.BUDGET_SPENT in step.detail
    assert step.model_calls == model.asked
    assert counted(chat) == recorded(chat)


def test_a_beginning_that_is_not_worth_having_waits_with_the_rest(chat: Chat) -> None:
    allow(chat, daily_model_tokens=1)
    model = PricedModel(context_tokens=2_200)  # so small that a part has hardly any messages
    workers = PaidWorkers(chat, StagedSummarizer(model))
    conversation = chat.begin({"summary_max_tokens": 200, "min_savings_tokens": 2_000})
    chat.append(conversation, exchanges(30, 200))
    workers.settle(conversation)
    run = chat.runs(conversation)[0]
    assert (run.state, run.reason) == ("committed", RunReason.BUDGET_SPENT)
    steps = {step.name: step for step in chat.steps(run.id)}
    assert (steps["summary"].state, steps["summary"].reason) == ("skipped", RunReason.BUDGET_SPENT)
    assert steps["summary"].model_calls == model.asked > 0
    assert steps["extract"].state == "committed"
    assert counted(chat) == recorded(chat)
    assert still_waiting(chat) == 1


def test_a_context_block_waits_with_its_outline(chat: Chat) -> None:
    allow(chat, daily_model_tokens=1_000)
    model = PricedModel(context_tokens=8_000)
    workers = PaidWorkers(chat, StubSummarizer(), model=model)
    spend_the_day(chat, workers)
    conversation = chat.begin({"input_token_budget": 0})
    run_id = with_block(chat, conversation)
    workers.woken.append(run_id)
    workers.summarize()
    run = last_run(chat, conversation)
    assert (run.id, run.state, run.reason) == (run_id, "skipped", RunReason.BUDGET_SPENT)
    assert run.not_before is not None
    assert chat.steps(run_id) == []
    assert model.asked == 0
    (block,) = chat.query("select outline, summary from context_blocks")
    assert block.summary is None
    (again,) = workers.next_day()
    assert again != run_id
    # A day's budget is not enough for all of its parts: the outline stands for good, or until it is raised.
    run = last_run(chat, conversation)
    assert (run.id, run.state, run.reason, run.not_before) == (again, "skipped", RunReason.BUDGET_SPENT, None)
    assert 0 < model.asked == counted(chat).calls
    assert workers.next_day() == []


def test_a_context_block_is_summarized_the_next_day(chat: Chat) -> None:
    allow(chat, daily_model_tokens=1_000)
    model = PricedModel(context_tokens=8_000)
    workers = PaidWorkers(chat, StubSummarizer(), model=model)
    spend_the_day(chat, workers)
    conversation = chat.begin({"input_token_budget": 0})
    workers.woken.append(with_block(chat, conversation))
    workers.summarize()
    allow(chat, daily_model_tokens=100_000)
    (again,) = workers.next_day()
    run = last_run(chat, conversation)
    assert (run.id, run.trigger, run.state) == (again, "context_block", "committed")
    (block,) = chat.query("select outline, summary from context_blocks")
    assert "They spoke" in block.summary
    assert counted(chat).calls == model.asked > 0
    assert workers.next_day() == []


def with_block(chat: Chat, conversation: UUID) -> UUID:
    """Append a turn with a large context block; return the run that is to summarize it."""
    policy = Policy(context_block_compact_chars=2_000)
    blocks = prepare([ContextBlock("doc", "Doc", "# Part\n" + "word " * 2_000)], policy)
    with hot_calls(chat.settings, chat.tenant_id) as calls:
        turn = calls.turn(conversation, {"role": "user", "content": "And this?"})
        calls.at_once([{**turn, "context": new_blocks(blocks, policy).context}])
    (row,) = chat.query("select id from runs where conversation_id = :c", c=conversation)
    found: UUID = row.id
    return found


def test_no_key_of_a_tenant_raises_its_limits(chat: Chat) -> None:
    for change in (
        "update tenants set daily_model_tokens = 1",
        "update tenants set rate_limit_key = ''",
        "update model_usage set input_tokens = 0",
        "delete from model_usage",
    ):
        with pytest.raises(ProgrammingError, match="permission denied"):
            chat.query(change)


def test_erasure_leaves_nothing_to_make_up_for(chat: Chat, workers: PaidWorkers) -> None:
    conversation = postponed(chat, workers)
    with chat.database.transaction(chat.tenant_id) as connection:
        asking = Operator(chat.tenant_id, ids.new_id(), ids.new_id())
        erasures.erase(connection, asking, conversation)
    assert still_waiting(chat) == 0  # also of what people are told waits, and for how long, until the next day
    assert workers.next_day() == []
    assert still_waiting(chat) == 0
