"""What the last assembly was made of: with the conversation, in the log, in the metrics; and restores that it ends."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import event
from structlog.testing import capture_logs

from actions.background.assemblies import LIMIT, Assemblies
from actions.monitoring.metrics import Metrics
from cli.conversations.inspect import run_inspect
from runtime import ids
from store.conversations import assemblies, conversations
from store.conversations.assemblies import AssemblyRecord
from store.engine import service_engine, transaction
from tests.api.operations.test_metrics import metrics
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.service.in_process_worker import work
from tests.support.service.running_api import conversation_at
from tests.support.talk import chat, look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
    from uuid import UUID

    from sqlalchemy import Engine

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.service.running_api import Service

BLOCK = {"source": "doc", "title": "Doc", "text": "# Part\n" + "word " * 800}
SMALL = {"total_token_budget": 2_000, "reserved_output_tokens": 100, "input_token_budget": 0}
COMPACTING = {"input_token_budget": 300, "min_savings_tokens": 50, "reserved_output_tokens": 100}
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def payload(service: Service, path: str, **body: Any) -> dict[str, Any]:
    answer = service.client.post(f"{path}/context", json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def last_assembly(service: Service, path: str) -> Any:
    return service.client.get(path).json()["last_assembly"]


def row(service: Service, path: str) -> tuple[Any, ...]:
    identifier = conversation_at(path)
    with psycopg.connect(service.database_url) as connection:
        found = connection.execute(
            "select held_by_restore, tool_results_hold, summary_hold, trim_hold, check_due_at is not null, revision "
            "from conversations where id = %s",
            [identifier],
        ).fetchone()
    assert found is not None
    return found


def assembly_events(logs: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    """Return the events of a log but for the requests themselves."""
    return [each for each in logs if each["event"] != "request.answered"]


class TestWithTheConversation:
    @pytest.mark.requirement("P14")
    def test_a_payload_is_remembered_layer_by_layer(self, service: Service) -> None:
        path = service.conversation(system="Be brief. " * 20, policy=SMALL)
        assert last_assembly(service, path) is None
        service.append(path, *chat(20))
        given = payload(service, path, turn_context=[BLOCK], user_message="And now?", max_output_tokens=150)
        state = eventually(lambda: last_assembly(service, path))
        assert state.pop("at").endswith("Z")
        history = given["history"]
        assert history["exchanges_dropped"] > 0
        assert state == {
            "call": "payload",
            "layers": given["layers"],
            "total": given["total"],
            "budget": 2_000,
            "reserved_output": 150,
            **history,
            "rounds_dropped": False,
            "blocks_shortened": 0,
            "warnings": len(given["warnings"]),
            "snapshot_version": 0,
        }

    def test_lists_do_not_have_it(self, service: Service) -> None:
        path = service.conversation(user_ref="lister")
        payload(service, path, user_message="Hi")
        eventually(lambda: last_assembly(service, path))
        (listed,) = service.client.get("/v1/conversations", params={"user_ref": "lister"}).json()["data"]
        assert "last_assembly" not in listed

    def test_the_newest_assembly_takes_the_place_of_the_one_before(self, service: Service) -> None:
        path = service.conversation()
        for number in range(1, 4):
            payload(service, path, user_message="x" * 40 * number)
        assert eventually(lambda: last_assembly(service, path))["layers"]["user_message"] == 30
        payload(service, path, user_message="x" * 400)
        eventually(lambda: last_assembly(service, path)["layers"]["user_message"] == 100)

    @pytest.mark.requirement("P14")
    def test_a_context_is_remembered_where_it_had_to_be_fitted(self, service: Service) -> None:
        path = service.conversation(system="s" * 400, policy=SMALL)
        service.append(path, *chat(4))
        service.client.get(f"{path}/context")
        payload(service, path)
        assert eventually(lambda: last_assembly(service, path))["call"] == "payload"
        service.append(path, *chat(20))
        answer = service.client.get(f"{path}/context").json()
        state = eventually(lambda: (each := last_assembly(service, path))["call"] == "context" and each)
        assert state["total"] == answer["tokens"]["context"]
        assert state["layers"]["system"] == 100
        assert state["exchanges_total"] == 24
        assert state["exchanges_dropped"] == 24 - len(answer["messages"]) // 2 > 0

    def test_a_loop_that_lost_rounds_says_so(self, service: Service) -> None:
        path = service.conversation(policy=SMALL)
        service.append(path, {"role": "user", "content": "Fix the bug."})
        for number in range(12):
            call = {"type": "tool_use", "id": f"t{number}", "name": "run", "input": {}}
            result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "o" * 2_000}
            service.append(path, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]})
        given = payload(service, path)
        assert "older tool rounds of the last exchange" in given["warnings"][0]
        state = eventually(lambda: last_assembly(service, path))
        assert (state["rounds_dropped"], state["exchanges_dropped"]) == (True, 0)

    def test_what_repair_left_out_does_not_count_as_dropped(self, service: Service) -> None:
        path = service.conversation()
        nothing = {"role": "user", "content": [{"type": "redacted_thinking", "data": "not a user's"}]}
        service.append(path, *chat(1), nothing, {"role": "assistant", "content": "Hm?"})
        service.append(path, {"role": "user", "content": "Hello"})
        with capture_logs() as logs:
            given = payload(service, path)
            context = service.client.get(f"{path}/context").json()
        assert (given["history"]["exchanges_total"], given["history"]["exchanges_dropped"]) == (2, 0)
        assert not any("exchanges" in warning for warning in [*given["warnings"], *context["warnings"]])
        assert assembly_events(logs) == []


class TestTold:
    @pytest.mark.requirement("P8")
    def test_each_assembly_that_dropped_or_exceeded_is_one_event_without_content(self, service: Service) -> None:
        path = service.conversation(policy=SMALL)
        service.append(path, *chat(1))
        with capture_logs() as logs:
            payload(service, path, user_message="secret")
            service.client.get(f"{path}/context")
        assert assembly_events(logs) == []
        service.append(path, *chat(20))
        with capture_logs() as logs:
            payload(service, path, user_message="secret")
            payload(service, path, user_message="secret " * 2_000)
            service.client.get(f"{path}/context")
        logs = assembly_events(logs)
        assert [each["event"] for each in logs] == ["assembly.dropped", "assembly.over_budget", "assembly.dropped"]
        assert [each["call"] for each in logs] == ["payload", "payload", "context"]
        dropped, over, _ = logs
        assert dropped["conversation_id"] == path.rpartition("/")[2]
        assert dropped["exchanges_dropped"] + dropped["exchanges_kept"] == 21
        assert dropped["over"] == 0
        assert over["over"] == over["total"] + 100 - 2_000 > 0
        assert all(each["log_level"] == "warning" for each in logs)
        assert "secret" not in str(logs)

    def test_assemblies_are_counted(self, service: Service) -> None:
        path = service.conversation(policy=SMALL)
        service.append(path, *chat(20))
        before = metrics(service)
        small, large = payload(service, path, user_message="Hi"), payload(service, path, user_message="x" * 9_000)
        service.client.get(f"{path}/context")
        after = metrics(service)

        def gained(name: str, *labels: str) -> float:
            return after[f"palimpsest_assembly_{name}", *labels] - before[f"palimpsest_assembly_{name}", *labels]

        totals = small["total"] + large["total"]
        dropped = small["history"]["exchanges_dropped"] + large["history"]["exchanges_dropped"]
        assert gained("tokens_count", "payload") == 2
        assert gained("tokens_sum", "payload") == totals
        assert gained("tokens_count", "context") == 1
        assert gained("exchanges_dropped_total", "payload") == dropped
        assert gained("exchanges_dropped_total", "context") > 0
        assert gained("responses_truncated_total", "payload") == large["history"]["responses_truncated"]
        assert gained("over_budget_total", "payload") == 1
        layers = ("system", "prior_context", "turn_context", "history", "user_message")
        assert sum(gained("layer_tokens_total", "payload", layer) for layer in layers) == totals
        assert gained("layer_tokens_total", "payload", "user_message") == small["layers"]["user_message"] + 2_250


class TestRestored:
    """A restore holds compaction until the conversation has grown, or the guard has to drop something that fitted."""

    @pytest.fixture
    def restored(self, service: Service, module_settings: Settings) -> Callable[..., str]:
        def make(budget: int) -> str:
            path = service.conversation(policy={**COMPACTING, "total_token_budget": budget})
            service.append(path, *look_up(0), *look_up(1))
            work(module_settings, path)
            assert service.client.get(path).json()["head_version"] == 1
            assert service.client.post(f"{path}/restore", json={"version": 0}).status_code == 200
            work(module_settings, path)
            return path

        return make

    @pytest.mark.parametrize("call", ["GET", "POST"])
    def test_a_guard_that_drops_ends_the_hold_and_the_next_check_compacts(
        self, service: Service, module_settings: Settings, restored: Callable[[int], str], call: str
    ) -> None:
        path = restored(1_830)
        service.append(path, {"role": "user", "content": "m" * 4 * 400})
        work(module_settings, path)
        held, *_, due, revision = row(service, path)
        assert (held, due) == (True, False)
        before = metrics(service)
        answer = service.client.request(call, f"{path}/context", json={} if call == "POST" else None)
        assert answer.json()["warnings"]
        eventually(lambda: not row(service, path)[0])
        *ended, later = row(service, path)
        assert ended == [False, 0, 0, 0, True]
        assert later > revision
        eventually(
            lambda: metrics(service)["palimpsest_wakeups_total", "sent"] > before["palimpsest_wakeups_total", "sent"]
        )
        work(module_settings, path)
        body = service.client.get(path).json()
        assert body["head_version"] == 3
        assert service.client.get(f"{path}/context").json()["warnings"] == []
        (newest, *_) = service.client.get(f"{path}/runs").json()["data"]
        assert (newest["trigger"], newest["request_id"]) == ("check", answer.headers["request-id"])

    @pytest.mark.parametrize("call", ["GET", "POST"])
    def test_what_is_over_the_budget_when_it_is_restored_stays_until_it_has_grown(
        self, service: Service, module_settings: Settings, restored: Callable[[int], str], call: str
    ) -> None:
        path = restored(1_200)
        for _ in range(2):
            answer = service.client.request(call, f"{path}/context", json={} if call == "POST" else None)
            assert answer.json()["warnings"]
        eventually(lambda: last_assembly(service, path))
        work(module_settings, path)
        assert row(service, path)[0]
        assert service.client.get(path).json()["head_version"] == 2
        turn = {"messages": look_up(2)}
        grown = service.client.post(f"{path}/turns", json=turn)
        work(module_settings, path)
        assert service.client.get(path).json()["head_version"] == 3
        (newest, *_) = service.client.get(f"{path}/runs").json()["data"]
        assert newest["request_id"] == grown.headers["request-id"]

    @pytest.mark.parametrize("budget", [1_200, 20_000])
    def test_a_plan_says_what_is_served_afterwards(
        self, service: Service, restored: Callable[[int], str], budget: int
    ) -> None:
        path = restored(budget)
        head = service.client.get(path).json()["head_version"]
        plan = service.client.post(f"{path}/restore", json={"version": 1, "dry_run": True}).json()
        assert (plan["version"], plan["warnings"]) == (1, [])
        plan = service.client.post(f"{path}/restore", json={"version": 0, "dry_run": True}).json()
        assert service.client.get(path).json()["head_version"] == head
        served = service.client.get(f"{path}/context").json()
        assert plan["messages_served"] == len(served["messages"])
        assert plan["tokens_served"] == served["tokens"]["context"] <= plan["tokens"]
        assert bool(plan["warnings"]) is (budget == 1_200)
        assert plan["messages"] == len(service.client.get(f"{path}/messages").json()["data"])
        missing = service.client.post(f"{path}/restore", json={"version": 99, "dry_run": True})
        assert missing.status_code == 404

    def test_without_a_drop_it_stays_held(
        self, service: Service, module_settings: Settings, restored: Callable[[int], str]
    ) -> None:
        path = restored(20_000)
        service.client.get(f"{path}/context")
        payload(service, path, user_message="Hi")
        eventually(lambda: last_assembly(service, path))
        assert row(service, path)[0]
        service.append(path, {"role": "user", "content": "Go on"})
        work(module_settings, path)
        assert service.client.get(path).json()["head_version"] == 2
        assert row(service, path)[0]

    def test_growth_ends_it_too(
        self, service: Service, module_settings: Settings, restored: Callable[[int], str]
    ) -> None:
        path = restored(20_000)
        service.append(path, *look_up(2))
        work(module_settings, path)
        assert service.client.get(path).json()["head_version"] == 3
        assert not row(service, path)[0]

    def test_a_later_head_is_held_anew(self, service: Service, restored: Callable[[int], str]) -> None:
        path = restored(20_000)
        identifier = conversation_at(path)
        assert service.client.post(f"{path}/restore", json={"version": 0}).status_code == 200
        engine = service_engine(service.settings, "test")
        with transaction(engine, service.tenant_id) as connection:
            two, three = ({identifier: assemblies.Dropped(version, ids.new_id())} for version in (2, 3))
            assert assemblies.lift_holds(connection, two) == []
            assert assemblies.lift_holds(connection, three) == [identifier]
            assert assemblies.lift_holds(connection, three) == []
        engine.dispose()

    def test_what_no_restore_holds_is_left_alone(self, service: Service, module_settings: Settings) -> None:
        path = service.conversation(policy=SMALL)
        service.append(path, *chat(20))
        work(module_settings, path)
        before = row(service, path)
        assert payload(service, path)["history"]["exchanges_dropped"]
        eventually(lambda: last_assembly(service, path))
        assert row(service, path) == before


class TestStored:
    @pytest.fixture
    def engine(self, make_settings: Callable[..., Settings]) -> Iterator[Engine]:
        made = service_engine(make_settings(), "test")
        yield made
        made.dispose()

    @staticmethod
    def conversation(engine: Engine, tenant_id: UUID) -> UUID:
        with transaction(engine, tenant_id) as connection:
            found: UUID = conversations.create(connection, tenant_id, {})[0].id
        return found

    def test_the_newer_of_two_stays(self, engine: Engine, tenant: Tenant) -> None:
        conversation = self.conversation(engine, tenant.id)
        with transaction(engine, tenant.id) as connection:
            for minutes in (0, 2, 1):
                each = record(conversation, tenant.id, history=minutes, at=NOW + timedelta(minutes=minutes))
                assemblies.remember(connection, [each])
            found = assemblies.last(connection, tenant.id, conversation)
        assert found == record(conversation, tenant.id, history=2, at=NOW + timedelta(minutes=2))

    def test_a_batch_of_a_tenant_is_one_statement(self, engine: Engine, tenant: Tenant) -> None:
        known = [record(self.conversation(engine, tenant.id), tenant.id) for _ in range(50)]
        sent: list[str] = []
        with transaction(engine, tenant.id) as connection:
            event.listen(connection, "before_cursor_execute", lambda *call: sent.append(call[2]))
            assemblies.remember(connection, known)
            assert len(sent) == 1
            assert [assemblies.last(connection, tenant.id, each.conversation_id) for each in known] == known

    def test_a_clock_that_is_ahead_does_not_keep_later_ones_out(self, engine: Engine, tenant: Tenant) -> None:
        conversation = self.conversation(engine, tenant.id)
        for history, at in ((1, datetime.now(UTC) + timedelta(days=1)), (2, datetime.now(UTC) + timedelta(days=1))):
            with transaction(engine, tenant.id) as connection:
                assemblies.remember(connection, [record(conversation, tenant.id, history=history, at=at)])
                found = assemblies.last(connection, tenant.id, conversation)
            assert found is not None
            assert found.history_tokens == history
            assert found.assembled_at <= datetime.now(UTC) + timedelta(minutes=1)

    def test_nothing_is_written_for_another_tenant_or_for_a_conversation_that_is_gone(
        self, engine: Engine, tenant: Tenant, database_url: str
    ) -> None:
        other = make_tenant(database_url, "rival")
        mine, theirs = self.conversation(engine, tenant.id), self.conversation(engine, other.id)
        with transaction(engine, tenant.id) as connection:
            records = [record(each, tenant.id) for each in (theirs, ids.new_id(), mine)]
            assemblies.remember(connection, records)
            assert assemblies.last(connection, tenant.id, mine) == records[2]
            assert assemblies.last(connection, tenant.id, theirs) is None
        with transaction(engine, other.id) as connection:
            assert assemblies.last(connection, other.id, theirs) is None
            assert assemblies.last(connection, tenant.id, mine) is None


class Writes:
    """Stands for the database of a batch: keeps what it is given, fails while `failing`."""

    def __init__(self) -> None:
        self.batches: list[tuple[UUID, Sequence[AssemblyRecord], Mapping[UUID, assemblies.Dropped]]] = []
        self.failing = False

    async def run(
        self,
        tenant_id: UUID,
        query: Callable[..., list[UUID]],
        records: Sequence[AssemblyRecord],
        dropped: Mapping[UUID, assemblies.Dropped],
    ) -> list[UUID]:
        if self.failing:
            raise TimeoutError
        self.batches.append((tenant_id, records, dropped))
        return list(dropped)


class WokenUp:
    """Collects who is woken up."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []

    def add(self, conversation_id: UUID, _: UUID) -> str:
        self.ids.append(conversation_id)
        return "queued"


def record(
    conversation: UUID, tenant_id: UUID, *, history: int = 10, kept: int = 1, at: datetime = NOW
) -> AssemblyRecord:
    return AssemblyRecord(
        conversation_id=conversation,
        tenant_id=tenant_id,
        call="payload",
        snapshot_version=4,
        system_tokens=1,
        history_tokens=history,
        reserved_output_tokens=100,
        total_token_budget=1_000,
        exchanges_total=1,
        exchanges_kept=kept,
        rounds_dropped=False,
        responses_truncated=0,
        warnings=0,
        assembled_at=at,
    )


class TestBatches:
    """The batch by itself: nothing is waited for when an assembly is added."""

    @staticmethod
    def play(story: Callable[[Assemblies], Any], writes: Writes) -> tuple[Metrics, WokenUp]:
        counted, woken = Metrics(), WokenUp()

        async def life() -> None:
            batch = Assemblies(writes.run, woken, counted)  # type: ignore[arg-type]
            batch.start()
            await asyncio.sleep(0)
            story(batch)
            await batch.stop()

        asyncio.run(life())
        return counted, woken

    @staticmethod
    def adding(records: Sequence[AssemblyRecord]) -> Callable[[Assemblies], None]:
        def story(batch: Assemblies) -> None:
            for each in records:
                batch.add(each, ids.new_id())

        return story

    def test_what_is_collected_is_written_at_the_end_a_tenant_at_a_time(self) -> None:
        writes = Writes()
        tenants = [ids.new_id(), ids.new_id()]
        known = [record(ids.new_id(), tenants[number % 2]) for number in range(6)]
        self.play(self.adding(known), writes)
        assert {tenant: list(records) for tenant, records, _ in writes.batches} == {
            tenants[0]: known[::2],
            tenants[1]: known[1::2],
        }

    def test_only_the_newest_of_a_conversation_is_written_and_a_drop_before_it_is_not_forgotten(self) -> None:
        writes = Writes()
        conversation, tenant = ids.new_id(), ids.new_id()
        first, second = record(conversation, tenant, kept=0), record(conversation, tenant, history=20)
        _, woken = self.play(self.adding([first, second]), writes)
        ((tenant_id, records, dropped),) = writes.batches
        assert (tenant_id, records) == (tenant, [second])
        assert {each: of.version for each, of in dropped.items()} == {conversation: 4}
        assert woken.ids == [conversation]

    def test_a_batch_is_bounded_and_loses_its_oldest(self) -> None:
        writes = Writes()
        tenant = ids.new_id()
        known = [record(ids.new_id(), tenant) for _ in range(LIMIT + 3)]
        counted, _ = self.play(self.adding(known), writes)
        ((_, records, _),) = writes.batches
        assert list(records) == known[3:]
        assert b"palimpsest_assemblies_lost_total 3.0" in counted.text()

    def test_a_database_that_is_away_loses_the_batch_and_nothing_else(self) -> None:
        writes = Writes()
        writes.failing = True
        known = [record(ids.new_id(), ids.new_id(), kept=0) for _ in range(2)]
        with capture_logs() as logs:
            counted, woken = self.play(self.adding(known), writes)
        logs = assembly_events(logs)
        assert [each["event"] for each in logs] == ["assembly.dropped"] * 2 + ["assemblies.lost"] * 2
        assert woken.ids == []
        assert b"palimpsest_assemblies_lost_total 2.0" in counted.text()


class TestInspect:
    """`palimpsest inspect` shows the layers of the last assembly."""

    @staticmethod
    def key(service: Service) -> str:
        return str(service.client.headers["authorization"]).removeprefix("Bearer ")

    @pytest.mark.requirement("P14")
    def test_the_last_assembly_is_a_bar_and_a_row_a_layer(
        self, service: Service, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = service.conversation(system="s" * 400, policy=SMALL)
        service.append(path, *chat(20))
        body = {"turn_context": [{**BLOCK, "text": "a " * 400}], "user_message": "And now?"}
        given = payload(service, path, **body)
        first = eventually(lambda: last_assembly(service, path))
        identifier = path.rpartition("/")[2]
        assert run_inspect(identifier, url=service.api.url, key=self.key(service), as_json=True) == 0
        document = json.loads(capsys.readouterr().out.splitlines()[-1])["conversation"]["last_assembly"]
        assert document == first
        # What was read to be shown was an assembly as well.
        payload(service, path, **body)
        eventually(lambda: (now := last_assembly(service, path))["call"] == "payload" and now["at"] != first["at"])
        assert run_inspect(identifier, url=service.api.url, key=self.key(service)) == 0
        output = capsys.readouterr().out
        assert f"Last payload: {given['total']:,} of 1,900 tokens, 100 reserved" in output
        for name, tokens in given["layers"].items():
            assert re.search(rf"{name.replace('_', ' ')} +{tokens:,} ", output)
        assert f"{given['history']['exchanges_dropped']} of 20 exchanges left out" in output

    def test_nothing_is_shown_of_an_assembly_that_never_was(
        self, service: Service, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = service.conversation()
        assert run_inspect(path.rpartition("/")[2], url=service.api.url, key=self.key(service)) == 0
        assert "Last " not in capsys.readouterr().out
