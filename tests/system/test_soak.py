"""The soak: its plan is the seed's, its checks find what is planted, its report is whole."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from xml.etree import ElementTree as ET

import httpx2
import psycopg
import pytest
from psycopg.rows import dict_row

from bench.soak import processes, resources
from bench.soak.course import Options, Outcome
from bench.soak.ends import End, ServiceLog, unexplained
from bench.soak.faults import KINDS, Injected, plan
from bench.soak.invariants import Checker, check_context, check_originals, unpaid_for
from bench.soak.load import ACTIONS, MOST_SHARED_TURNS, OWN, Client, Conversations
from bench.soak.model import FAULTS, SoakModel
from bench.soak.processes import Held
from bench.soak.report import markdown, verdict, write
from bench.soak.resources import Sample, Table, Tables
from bench.soak.speech import SHAPES, Speaker, sent
from bench.soak.traffic import Record, Took
from bench.soak.truth import Breach, Breaches, KnownConversation, Turn
from store.conversations import branches
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.service.in_process import Workers
from tests.support.truth.model import Product, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from psycopg import Connection

    from bench.soak.speech import Message
    from runtime.settings import Settings
    from tests.support.service.running_api import Service

SAVED_NOTHING = (
    "update run_steps as s set tokens_after = s.tokens_before from runs as r"
    " where r.id = s.run_id and r.conversation_id = %(c)s"
)
GAVE_NO_REASON = (
    "update run_steps as s set state = 'skipped', reason = null from runs as r"
    " where r.id = s.run_id and r.conversation_id = %(c)s"
)
COPIED = (
    "insert into messages select tenant_id, conversation_id, 99, role, content, tokens, view_tokens, bytes,"
    " result_chars, is_request, has_thinking from messages where conversation_id = %(c)s and seq = 0"
)


class Talk:
    """A conversation with its truth, on a real database."""

    def __init__(self, chat: Product, connection: Connection[dict[str, Any]], shape: str) -> None:
        self.chat = chat
        self.connection = connection
        self.speaker = Speaker(random.Random(1))  # noqa: S311 - texts
        self.inner = chat.begin_tracked({}, strict=False)
        self.conversation = KnownConversation("conv_1", self.inner.id, 0, shape, 1)
        self.workers = Workers(chat, "chosen")

    def say(self, *, answered: bool = True) -> Turn:
        """Append the next turn; one that is not answered leaves its client in doubt."""
        return self._send(self.speaker.turn(self.conversation), None, answered=answered)

    def edit(self, seq: int) -> Turn:
        """Ask something else in place of message `seq` and all after it."""
        return self._send(self.speaker.edit(self.conversation), seq, answered=True)

    def fork(self, through: int) -> Talk:
        """Branch off."""
        with self.chat.database.transaction(self.chat.tenant_id) as connection:
            policy = self.chat.policy_of(self.inner)
            made = branches.fork(
                connection, self.chat.tenant_id, self.conversation.uuid, through, None, policy, uuid4()
            )
        assert made is not None
        fork = Talk(self.chat, self.connection, self.conversation.shape)
        fork.inner = self.inner.fork(made, through)
        fork.conversation = KnownConversation(
            "conv_2",
            made,
            0,
            self.conversation.shape,
            1,
            tuple(self.conversation.live()),
            numbers=self.conversation.numbers,
        )
        return fork

    def _send(self, messages: list[Message], replace_from: int | None, *, answered: bool) -> Turn:
        turn = Turn(sent(messages), replace_from, time.monotonic())
        self.conversation.begin(turn)
        done, _ = self.chat.send(self.inner, messages, Usage(), replace_from=replace_from)
        if answered:
            turn.first_seq, turn.acknowledged_at = done.first_seq, time.monotonic()
        return turn

    def settle(self) -> None:
        self.workers.settle(self.conversation.uuid)

    def change(self, statement: str) -> None:
        """Do as the database's own superuser what no part of the service may."""
        self.connection.execute("set session_replication_role = replica")
        self.connection.execute(statement, {"c": self.conversation.uuid})
        self.connection.execute("set session_replication_role = origin")

    def found(self) -> dict[str, str]:
        """Return what a check finds: details by invariant."""
        self.conversation.versions.clear()
        breaches = Breaches(lambda: 0.0)
        Checker(self.connection, breaches).check(self.conversation)
        return {breach.invariant: breach.detail for breach in breaches.first}

    def look(self, context: dict[str, Any]) -> set[str]:
        breaches = Breaches(lambda: 0.0)
        check_context(
            self.conversation,
            context,
            known=self.conversation.next_seq,
            live=self.conversation.live(),
            breaches=breaches,
        )
        return {breach.invariant for breach in breaches.first}


@pytest.fixture(scope="module")
def chat(module_settings: Settings) -> Iterator[Product]:
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "soak")
    with Product(module_settings, tenant.id) as made:
        yield made


@pytest.fixture
def connection(module_settings: Settings) -> Iterator[Connection[dict[str, Any]]]:
    url = module_settings.database_url.get_secret_value()
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as made:
        yield made


@pytest.fixture
def talk(chat: Product, connection: Connection[dict[str, Any]]) -> Talk:
    """An agent's conversation that was compacted, and is as it should be."""
    made = Talk(chat, connection, "agent")
    for _ in range(12):
        made.say()
    made.settle()
    made.say()
    assert chat.row(made.conversation.uuid).head_version > 0
    return made


class TestPlan:
    def test_the_same_seed_plans_the_same_faults(self) -> None:
        faults = plan(4, 20, 600, 5)
        assert faults == plan(4, 20, 600, 5)
        assert faults != plan(5, 20, 600, 5)
        assert all(20 < fault.at < 600 for fault in faults)
        assert all(2.4 < after.at - before.at < 7.6 for before, after in itertools.pairwise(faults))

    def test_a_short_soak_sees_every_kind(self) -> None:
        assert {fault.kind for fault in plan(9, 20, 180, 5)} == set(KINDS)

    def test_nothing_is_planned_for_no_time(self) -> None:
        assert plan(1, 20, 20, 5) == []


class TestSpeech:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_what_is_said_is_valid_and_every_message_has_a_mark_of_its_own(self, shape: str) -> None:
        conversation, speaker = KnownConversation("conv_1", uuid4(), 0, shape, 3), Speaker(random.Random(2))  # noqa: S311 - texts
        said: list[Message] = []
        for _ in range(20):
            said += speaker.turn(conversation)
        assert problems(said) == []
        assert len({message.mark for message in sent(said)}) == len(said)


class TestInvariants:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_what_is_as_it_should_be_passes(
        self, chat: Product, connection: Connection[dict[str, Any]], shape: str
    ) -> None:
        talk = Talk(chat, connection, shape)
        for _ in range(15):
            talk.say()
            assert talk.look(chat.context(talk.conversation.uuid)) == set()
        talk.settle()
        assert talk.look(chat.context(talk.conversation.uuid)) == set()
        assert talk.found() == {}

    def test_a_turn_without_an_answer_may_be_whole_or_absent(self, talk: Talk) -> None:
        talk.say(answered=False)
        talk.conversation.begin(Turn(sent(talk.speaker.turn(talk.conversation)), None, time.monotonic()))
        assert not talk.conversation.certain
        assert talk.found() == {}

    @pytest.mark.parametrize(
        ("statement", "invariant"),
        [
            ("delete from messages where conversation_id = %(c)s and seq = 2", "nothing lost"),
            ("update messages set content = '\"x\"' where conversation_id = %(c)s and seq = 2", "nothing lost"),
            (
                "update messages set role = 'assistant' where conversation_id = %(c)s and role = 'user' and seq = 0",
                "nothing lost",
            ),
            ("update messages set superseded_at = now() where conversation_id = %(c)s and seq = 3", "nothing lost"),
            ("update messages set seq = seq + 1 where conversation_id = %(c)s and seq = 25", "nothing lost"),
            (COPIED, "nothing lost"),
            (
                "update snapshot_parts set coverage = coverage - 0 where conversation_id = %(c)s",
                "covered without gaps",
            ),
            (
                "update snapshot_parts set coverage = coverage || coverage where conversation_id = %(c)s",
                "covered without gaps",
            ),
            ("delete from snapshot_parts where conversation_id = %(c)s", "covered without gaps"),
            (
                "update conversations set context_tokens = context_tokens + 1 where id = %(c)s",
                "the head is consistent",
            ),
            ("update runs set attempts = 6 where conversation_id = %(c)s", "attempts are bounded"),
            (SAVED_NOTHING, "shrinking"),
            (GAVE_NO_REASON, "shrinking"),
        ],
    )
    def test_what_is_planted_is_found(self, talk: Talk, statement: str, invariant: str) -> None:
        assert talk.found() == {}
        talk.change(statement)
        assert invariant in talk.found()

    def test_half_a_turn_is_found(self, talk: Talk) -> None:
        talk.say(answered=False)
        talk.change("delete from messages where conversation_id = %(c)s and seq = 26")
        assert "half a turn" in talk.found()["nothing lost"]

    def test_a_turn_that_overtook_another_is_found(self, talk: Talk) -> None:
        first, second = talk.say(), talk.say()
        first.sent_at, second.acknowledged_at = 10.0, 5.0
        assert "was sent after" in talk.found()["nothing lost"]

    def test_an_edit_and_a_fork_are_followed(self, talk: Talk) -> None:
        turn = talk.edit(20)
        assert talk.found() == {}
        assert [row.seq for row in talk.conversation.live()] == [*range(20), 26]
        assert talk.look(talk.chat.context(talk.conversation.uuid)) == set()
        fork = talk.fork(26)
        fork.say()
        assert fork.found() == {}
        assert fork.look(talk.chat.context(fork.conversation.uuid)) == set()
        turn.replace_from = 18
        assert "replaced or not" in talk.found()["nothing lost"]


class TestContexts:
    def test_what_is_wrong_with_a_context_is_found(self, talk: Talk) -> None:
        context = talk.chat.context(talk.conversation.uuid)
        assert talk.look(context) == set()
        messages: list[Message] = context["messages"]
        assert talk.look(context | {"last_seq": context["last_seq"] - 1}) == {"fresh"}
        assert talk.look(context | {"messages": messages[1:]}) == {"valid"}
        assert talk.look(context | {"tokens": {"context": 9, "budget": 8, "measured": None}}) == {"bounded"}

    def test_an_older_last_message_is_found(self, chat: Product, connection: Connection[dict[str, Any]]) -> None:
        talk = Talk(chat, connection, "chat")
        talk.say()
        talk.say()
        context = chat.context(talk.conversation.uuid)
        assert talk.look(context) == set()
        assert "fresh" in talk.look(context | {"messages": context["messages"][:-2]})

    def test_originals_are_held_against_what_was_sent(self, talk: Talk) -> None:
        rows = [
            {"seq": seq, "role": role, "content": json.loads(content), "tokens": 1}
            for seq, role, content in talk.chat.originals(talk.conversation.uuid)
        ]
        for data, count in ((rows, 0), ([rows[0] | {"content": "other"}], 1), ([rows[0] | {"role": "assistant"}], 1)):
            breaches = Breaches(lambda: 0.0)
            check_originals(talk.conversation, json.dumps({"data": data}, ensure_ascii=False).encode(), breaches)
            assert breaches.count == count


def test_calls_of_the_model_have_to_be_accounted_for() -> None:
    assert unpaid_for(3, 3, 0) is None
    assert unpaid_for(11, 3, 1) is None
    assert unpaid_for(4, 3, 0) == "4 calls, 3 written down, 0 attempts lost"


class TestLoad:
    @staticmethod
    def client(
        service: Service, breaches: Breaches, shared: list[KnownConversation]
    ) -> tuple[Client, Conversations, Record]:
        record, conversations = Record(), Conversations()
        client = Client(
            3,
            1,
            service.api.url,
            [service.client.headers["authorization"].removeprefix("Bearer ")],
            conversations,
            shared,
            record=record,
            breaches=breaches,
            clock=lambda: 1.0,
            stopping=threading.Event(),
        )
        return client, conversations, record

    def test_conversations_that_have_grown_long_give_way_to_others(self, service: Service) -> None:
        breaches, shared = Breaches(lambda: 1.0), list[KnownConversation]()
        client, conversations, _ = self.client(service, breaches, shared)
        first = client.begin_shared()
        assert first is not None
        assert shared == [first]
        while len(conversations.all) < OWN + 1:
            client.pick()
        for conversation in conversations.all:
            conversation.turns += [Turn((), None, 0.0)] * (MOST_SHARED_TURNS + 1)
        while len(conversations.all) < 2 * (OWN + 1):
            assert client.pick() not in conversations.all[: OWN + 1]
        assert first not in shared
        assert len(shared) == 1
        assert breaches.first == []

    @pytest.mark.parametrize("shape", SHAPES)
    def test_everything_that_clients_do_is_answered_as_they_expect(
        self, service: Service, connection: Connection[dict[str, Any]], shape: str
    ) -> None:
        breaches = Breaches(lambda: 1.0)
        client, conversations, record = self.client(service, breaches, [])
        for action in [*["talk"] * 12, *sorted(ACTIONS), *["talk"] * 3, *sorted(ACTIONS)]:
            conversation = client.newest() or client.begin_own(shape)
            assert conversation is not None
            client.do(action, conversation)
        assert breaches.first == []
        kinds = {took.kind for took in record.took}
        assert kinds > {
            "turn",
            "context",
            "payload",
            "messages",
            "compact",
            "overflow",
            "restore",
            "pin",
            "fork",
            "change",
        }
        for conversation in conversations.all:
            Checker(connection, breaches).check(conversation)
        assert breaches.first == []


class TestModel:
    def test_calls_are_counted_by_family_and_forgotten(self) -> None:
        with SoakModel() as model, httpx2.Client(base_url=model.url, headers=HEADERS) as client:
            for text in ("mark-3-1- and mark-4-2-", "mark-3-2-", "nobody"):
                assert client.post("/v1/messages", json=asking(text)).status_code == 200
            assert model.calls == {3: 2, -1: 1}
            eventually(lambda: model.requests == [])

    @pytest.mark.parametrize("name", sorted(FAULTS))
    def test_faults_end(self, name: str) -> None:
        with SoakModel() as model, httpx2.Client(base_url=model.url, headers=HEADERS, timeout=0.5) as client:
            model.fail(name)
            failed = contextlib.suppress(httpx2.TransportError)
            with failed:
                client.post("/v1/messages", json=asking("mark-1-1-"))
            model.heal()
            assert client.post("/v1/messages", json=asking("mark-1-1-"), timeout=30).json()["type"] == "message"


class TestResources:
    def test_a_process_holds_what_its_children_hold_too(self) -> None:
        program = "import os; held = [open(os.devnull) for _ in range(50)]; print(len(held), flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "50\n"
            assert child.pid in processes.family(os.getpid())
            found = processes.held([child.pid])
            assert found.processes == 1
            assert found.bytes > 1 << 20
            assert 50 < found.descriptors < 80
            child.communicate("\n")
        assert processes.held([child.pid]) == Held(1, 0, 0)

    def test_growth_over_its_limits_is_found(self) -> None:
        breaches = Breaches(lambda: 1.0)
        before, fine = sample(1, 100 << 20, 20), sample(9, 200 << 20, 60)
        resources.check_growth(before, fine, breaches)
        resources.check_connections(before, fine, breaches)
        assert breaches.count == 0
        resources.check_growth(before, sample(9, 300 << 20, 120), breaches)
        resources.check_connections(before, fine._replace(connections=99, idle_in_transaction=1), breaches)
        assert [breach.invariant for breach in breaches.first] == [
            "memory is bounded",
            "file descriptors are bounded",
            "connections are bounded",
            "no transaction stays open",
        ]

    def test_bloat_and_dead_rows_that_stay_are_found(self) -> None:
        breaches = Breaches(lambda: 1.0)
        resources.check_tables(Tables(5_000, [Table("fine", 10, 5, 40 << 20, 0, 10 << 20)]), breaches)
        assert breaches.count == 0
        resources.check_tables(
            Tables(0, [Table("held", 1, 900, 0, 0, 0), Table("air", 1, 0, 99 << 20, 0, 9)]), breaches
        )
        assert [breach.conversation for breach in breaches.first] == ["held", "air"]


class TestReport:
    def test_it_has_everything_and_the_plot_shows_the_faults(self, tmp_path: Path) -> None:
        found = outcome()
        path = write(found, tmp_path)
        conversation = path.read_text()
        assert verdict(found) in conversation
        for wanted in ("fresh", "conv_9", "a <long> tale", "seed 77", "crash Redis", "messages", "summaries: status 1"):
            assert wanted in conversation
        document = json.loads((tmp_path / "report.json").read_text())
        assert document["options"]["seed"] == 77
        assert document["calls"]["turn"]["statuses"] == {"0": 1, "201": 2}
        assert document["faults"][0]["planned_at"] == 3.0
        plot = ET.parse(tmp_path / "plot.svg").getroot()  # noqa: S314 - our own
        names = [element.get("id", "").partition("-")[0] for element in plot.iter()]
        assert names.count("fault") == 4 * len(found.faults)
        assert names.count("breach") == 4 * len(found.breaches)
        assert "crash Redis" in "".join(plot.itertext())

    def test_a_verdict_names_invariant_conversation_and_seed(self) -> None:
        assert verdict(outcome()).startswith("failed: 1 breaches, the first at 4.0 s: fresh, conv_9")
        assert "seed 77" in verdict(outcome())
        passed = outcome()._replace(breaches=[], breach_count=0)
        assert verdict(passed) == "passed: every invariant held, seed 77"
        assert "None." in markdown(passed)

    def test_a_soak_in_which_nothing_happened_has_one_too(self, tmp_path: Path) -> None:
        nothing: dict[str, Any] = {"faults": [], "took": [], "samples": [], "warm": None, "rest": None, "tables": None}
        write(outcome()._replace(**nothing), tmp_path)
        ET.parse(tmp_path / "plot.svg")  # noqa: S314 - our own


class TestEnds:
    def test_they_are_read_from_the_log(self, tmp_path: Path) -> None:
        path = tmp_path / "service.log"
        with ServiceLog(path) as log:
            log.write("api       | serve | it ended with a smile; again\n")
            log.write("serve     | api ended with signal SIGKILL; again in 0.2 s\n")
            log.write("serve     | summaries-2 ended with status 1; again in 0.2 s\n")
        assert [(end.part, end.how) for end in log.ends] == [("api", "signal SIGKILL"), ("summaries-2", "status 1")]
        assert len(path.read_text().splitlines()) == 3

    def test_who_gave_itself_up_is_found_but_not_who_could_not_start(self) -> None:
        ends = [
            End(10.0, "api", "signal SIGKILL"),
            End(12.0, "api", "status 3"),
            End(13.0, "checks", "status 1"),
            End(90.0, "api", "signal SIGSEGV"),
        ]
        assert unexplained(ends) == [ends[2], ends[3]]


HEADERS = {"x-api-key": "any", "anthropic-version": "2023-06-01"}


def asking(text: str) -> dict[str, Any]:
    return {"model": "any", "max_tokens": 100, "messages": [{"role": "user", "content": text}]}


def sample(at: float, size: int, descriptors: int) -> Sample:
    return Sample(at, {"api": Held(1, size, descriptors)}, 10, 0, 3, 0.5, 2)


def outcome() -> Outcome:
    return Outcome(
        options=Options(60, 5, 77),
        load_seconds=10.0,
        faults=[Injected(3.0, 3.1, 5.0, "crash Redis", "away for 2 s")],
        breaches=[Breach(4.0, "fresh", "conv_9", "a <long> tale")],
        breach_count=1,
        took=[Took(1.0, "turn", 201, 0.01), Took(2.0, "turn", 201, 0.02), Took(3.2, "turn", 0, 2.0)],
        counts={"retries": 1},
        samples=[sample(at, 1 << 20, 9) for at in range(1, 10)],
        warm=sample(2, 1 << 20, 9),
        rest=sample(9, 1 << 20, 9),
        rest_seconds=1.5,
        checks=3,
        conversations=1,
        turns=2,
        messages=4,
        runs=[{"state": "committed", "reason": None, "runs": 1}],
        model_calls=1,
        tables=Tables(3, [Table("messages", 4, 0, 8_192, 0, 900)]),
        keys={"palimpsest:checks": 1},
        connections_left=0,
        ends={"summaries: status 1": 1},
    )
