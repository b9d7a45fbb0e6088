"""The load of a soak: clients that talk, read, edit, fork and compact, and hold every answer against what they know."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from bench.soak.invariants import check_context, check_originals
from bench.soak.speech import POLICIES, POLICY, SHAPES, Speaker, sent
from bench.soak.traffic import Caller
from bench.soak.truth import KnownConversation, Turn
from runtime import ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import httpx2

    from bench.soak.speech import Message
    from bench.soak.traffic import Record
    from bench.soak.truth import Breaches

CLIENTS: Final = 8
OWN: Final = 4
"""Conversations that a client alone writes to, at a time."""
SHARED: Final = 3
"""Conversations that all clients write to, at a time."""
MOST_TURNS: Final = 150
"""Turns after which a conversation of a client's own is left alone and another one begun, so that none gets endless."""
MOST_SHARED_TURNS: Final = 600
"""The same for common ones."""
PAUSE_SECONDS: Final = 0.12
"""What a client waits between two calls, on average."""
IMPATIENT: Final = 0.04
"""Share of turns whose client waits for a moment only."""
UNKEYED: Final = 0.1
"""Share of turns without an Idempotency-Key: those are not sent again."""
_STRATEGIES: Final = ("auto", "tool_results", "prune", "summary", "extract", "drop", "trim")
_STARTED: Final = {200, 201}


class Conversations:
    """All conversations there are; usable from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[KnownConversation] = []
        self._families = 0

    def new_family(self) -> int:
        """Return a number that no conversation has."""
        with self._lock:
            self._families += 1
            return self._families

    def add(self, conversation: KnownConversation) -> KnownConversation:
        """Take a conversation in."""
        with self._lock:
            self._all.append(conversation)
        return conversation

    @property
    def all(self) -> list[KnownConversation]:
        """Every conversation so far."""
        with self._lock:
            return list(self._all)


class Seen(NamedTuple):
    """The context that a client read last of a conversation."""

    etag: str
    through: int
    version: int
    tokens: int


class Client(threading.Thread):
    """One client: a thread with conversations of its own and a share in common ones."""

    def __init__(
        self,
        number: int,
        seed: int,
        url: str,
        keys: Sequence[str],
        conversations: Conversations,
        shared: list[KnownConversation],
        *,
        record: Record,
        breaches: Breaches,
        clock: Callable[[], float],
        stopping: threading.Event,
    ) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self._rng = random.Random(f"{seed}.{number}")  # noqa: S311 - a load, not a secret
        self._speaker = Speaker(self._rng)
        self._conversations = conversations
        self._shared = shared
        self._own: list[KnownConversation] = []
        self._seen: dict[str, Seen] = {}
        self._record, self._breaches, self._stopping = record, breaches, stopping
        self._caller = Caller(
            url,
            keys,
            self._rng,
            record=record,
            breaches=breaches,
            clock=clock,
            stopping=stopping,
        )
        self._tenants = len(keys)

    def run(self) -> None:
        """Work until the load is over."""
        actions = list(ACTIONS)
        weights = [ACTIONS[action] for action in actions]
        with self._caller:
            while not self._stopping.wait(self._rng.expovariate(1 / PAUSE_SECONDS)):
                conversation = self.pick()
                if conversation is not None:
                    (action,) = self._rng.choices(actions, weights)
                    self.do(action, conversation)

    def do(self, action: str, conversation: KnownConversation) -> None:
        """Do one of ACTIONS."""
        try:
            getattr(self, action)(conversation)
        except Exception as error:  # noqa: BLE001 - a client that dies unseen would test nothing
            self._breaches.add("clients understand the answers", conversation.id, f"{action}: {error!r}")

    def begin(self, shape: str) -> KnownConversation | None:
        """Begin a conversation; the same call again would find the one that was made."""
        tenant, name = self._rng.randrange(self._tenants), f"soak-{uuid4()}"
        policy = POLICY | self._rng.choice(POLICIES)
        created = self._post(tenant, "/conversations", "create", {"external_id": name, "policy": policy}, _STARTED)
        if created is None:
            return None
        return self._conversations.add(_conversation(created["id"], tenant, shape, self._conversations.new_family()))

    def begin_own(self, shape: str) -> KnownConversation | None:
        """Begin a conversation that nobody else writes to."""
        conversation = self.begin(shape)
        if conversation is not None:
            self._own.append(conversation)
        return conversation

    def begin_shared(self) -> KnownConversation | None:
        """Begin a conversation that every client writes to."""
        conversation = self.begin("several users")
        if conversation is not None:
            self._shared.append(conversation)
        return conversation

    def newest(self) -> KnownConversation | None:
        """Return the newest conversation of its own."""
        return self._own[-1] if self._own else None

    def pick(self) -> KnownConversation | None:
        """Return a conversation to do something with; None where one was just left alone."""
        if len(self._own) < OWN:
            return self.begin_own(self._rng.choice(SHAPES))
        conversation = self._rng.choice([*self._own, *self._shared])
        if len(conversation.turns) <= (MOST_TURNS if self._is_own(conversation) else MOST_SHARED_TURNS):
            return conversation
        self._seen.pop(conversation.id, None)
        if self._is_own(conversation):
            self._own.remove(conversation)
            return None
        with contextlib.suppress(ValueError):  # another client may have been first
            self._shared.remove(conversation)
            return self.begin_shared()
        return None

    def _is_own(self, conversation: KnownConversation) -> bool:
        return conversation in self._own

    # What a client does

    def talk(self, conversation: KnownConversation) -> None:
        """Append a turn, mostly after the context was read."""
        if self._rng.random() < 0.7:
            self.read(conversation)
        self._append(conversation, self._speaker.turn(conversation))

    def edit(self, conversation: KnownConversation) -> None:
        """Ask something anew, in place of what was said since."""
        if self._is_own(conversation) and conversation.certain and conversation.next_seq:
            oldest = conversation.base[-1].seq + 1 if conversation.base and self._rng.random() < 0.7 else 0
            seq = max(oldest, conversation.next_seq - self._rng.randint(1, 12))
            self._append(
                conversation, self._speaker.edit(conversation), replace_from=min(seq, conversation.next_seq - 1)
            )

    def read(self, conversation: KnownConversation) -> None:
        """Read the context, with the tag of the last one, and look at it."""
        seen = self._seen.get(conversation.id)
        known, newest = (
            conversation.next_seq,
            conversation.live() if self._is_own(conversation) and conversation.certain else None,
        )
        answer = self._caller.call(
            conversation.tenant,
            "GET",
            f"/conversations/{conversation.id}/context",
            "context",
            expected={200, 304},
            headers={"if-none-match": seen.etag} if seen else None,
        )
        if answer is None:
            return
        if answer.status_code == 304:
            self._record.count("contexts not modified")
            if seen is None or seen.through < known - 1:
                self._breaches.add(
                    "fresh", conversation.id, f"304 for a context through {seen}, though {known - 1} is stored"
                )
            return
        context = answer.json()
        check_context(conversation, context, known=known, live=newest, breaches=self._breaches)
        version = context["snapshot"]["version"] if context["snapshot"] else 0
        through, tokens = context["last_seq"], context["tokens"]["context"]
        self._seen[conversation.id] = Seen(answer.headers["etag"], through, version, tokens)

    def read_payload(self, conversation: KnownConversation) -> None:
        """Have the whole payload assembled."""
        asked = {"system": "You are a clerk.", "user_message": "What next?"}
        payload = self._post(conversation.tenant, f"/conversations/{conversation.id}/context", "payload", asked, {200})
        if payload is not None and payload["total"] > payload["budget"] and not payload["warnings"]:
            self._breaches.add(
                "bounded", conversation.id, f"a payload of {payload['total']} tokens for {payload['budget']}"
            )

    def read_originals(self, conversation: KnownConversation) -> None:
        """Read a page of originals and hold it against what was sent."""
        after = self._rng.randint(-1, max(-1, conversation.next_seq - 10))
        path = f"/conversations/{conversation.id}/messages?after={after}&limit=20"
        page = self._caller.call(conversation.tenant, "GET", path, "messages", expected={200})
        if page is not None:
            check_originals(conversation, page.content, self._breaches)

    def compact(self, conversation: KnownConversation) -> None:
        """Ask for a compaction by hand, and mostly wait for it."""
        asked = {"strategy": self._rng.choice(_STRATEGIES), "dry_run": self._rng.random() < 0.3}
        path = f"/conversations/{conversation.id}/compactions"
        begun = self._post(conversation.tenant, path, "compact", asked, {200, 202, 409}, repeatable=False)
        if begun is not None and "code" not in begun and "run_id" in begun and self._rng.random() < 0.7:
            self._caller.call(conversation.tenant, "GET", f"/runs/{begun['run_id']}?wait=2", "run", expected={200})

    def overflow(self, conversation: KnownConversation) -> None:
        """Report that the model refused the prompt."""
        seen = self._seen.get(conversation.id)
        asked = (
            {"error": f"prompt is too long: {seen.tokens * 2} tokens > {max(1, seen.tokens)} maximum"} if seen else {}
        )
        path = f"/conversations/{conversation.id}/overflow"
        self._post(conversation.tenant, path, "overflow", asked, {200, 409}, repeatable=False)

    def restore(self, conversation: KnownConversation) -> None:
        """Go back to an older snapshot."""
        page = self._caller.json(
            conversation.tenant, "GET", f"/conversations/{conversation.id}/snapshots", "snapshots", expected={200}
        )
        if page is not None:
            version = self._rng.choice([0, *(row["version"] for row in page["data"])])
            path = f"/conversations/{conversation.id}/restore"
            self._post(conversation.tenant, path, "restore", {"version": version}, {200, 409}, repeatable=False)

    def pin(self, conversation: KnownConversation) -> None:
        """Pin a message, or take a pin off."""
        path = f"/conversations/{conversation.id}/pins"
        pins = self._caller.json(conversation.tenant, "GET", path, "pins", expected={200})
        if pins is not None and len(pins["data"]) > 2:
            gone = self._rng.choice(pins["data"])["id"]
            self._caller.call(conversation.tenant, "DELETE", f"{path}/{gone}", "unpin", expected={200, 204, 404})
        elif conversation.next_seq:
            seq = self._rng.randrange(conversation.next_seq)
            self._post(conversation.tenant, path, "pin", {"seq": seq}, {201, 409, 422})

    def fork(self, conversation: KnownConversation) -> None:
        """Branch off; the client goes on with the branch."""
        if not self._is_own(conversation) or not conversation.certain or conversation.next_seq < 4:
            return
        live, name = conversation.live(), f"soak-{uuid4()}"
        through = self._rng.choice(live).seq
        asked = {"through_seq": through, "external_id": name}
        created = self._post(conversation.tenant, f"/conversations/{conversation.id}/fork", "fork", asked, {201, 409})
        if created is not None and created.get("code") == "external_id_taken":
            # The answer to the first attempt got lost.
            path = f"/conversations?external_id={name}"
            listed = self._caller.json(conversation.tenant, "GET", path, "find", expected={200})
            created = listed["data"][0] if listed else None
        if created is None:
            return
        fork = _conversation(created["id"], conversation.tenant, conversation.shape, conversation.family)
        fork.base, fork.numbers = tuple(row for row in live if row.seq <= through), conversation.numbers
        self._own.remove(conversation)
        self._own.append(self._conversations.add(fork))

    def change(self, conversation: KnownConversation) -> None:
        """Change the policy."""
        asked = {"policy": POLICY | self._rng.choice(POLICIES)}
        body = json.dumps(asked).encode()
        path = f"/conversations/{conversation.id}"
        self._caller.call(conversation.tenant, "PATCH", path, "change", expected={200}, body=body)

    # How it is done

    def _append(
        self, conversation: KnownConversation, messages: Sequence[Message], *, replace_from: int | None = None
    ) -> None:
        body: dict[str, Any] = {"messages": messages}
        seen = self._seen.get(conversation.id)
        if seen is not None and self._rng.random() < 0.6:
            body["usage"] = {"input_tokens": round(seen.tokens * 1.1) + 50, "output_tokens": 100}
            body["snapshot_version"] = seen.version
        if replace_from is not None:
            body["replace_from"] = replace_from
        raw = json.dumps(body, ensure_ascii=False).encode()
        key = f"{uuid4()}" if self._rng.random() > UNKEYED else None
        turn = Turn(sent(messages), replace_from, time.monotonic())
        conversation.begin(turn)
        impatient = self._rng.random() < IMPATIENT
        answer = self._send(conversation, raw, key, timeout=self._rng.uniform(0.005, 0.1) if impatient else 10.0)
        if answer is None:
            self._record.count("turns without an answer")
        elif answer.status_code == 201:
            first = answer.json()
            with conversation.lock:
                turn.first_seq, turn.acknowledged_at = first["first_seq"], time.monotonic()
            if first["last_seq"] - first["first_seq"] + 1 != len(turn.messages):
                self._breaches.add(
                    "nothing lost", conversation.id, f"{len(turn.messages)} messages sent, answer {first}"
                )
            if key is not None and self._rng.random() < 0.08:
                self._replay(conversation, raw, key, first)

    def _send(
        self, conversation: KnownConversation, body: bytes, key: str | None, *, timeout: float
    ) -> httpx2.Response | None:
        return self._caller.call(
            conversation.tenant,
            "POST",
            f"/conversations/{conversation.id}/turns",
            "turn",
            expected={201},
            body=body,
            headers={"idempotency-key": key} if key else None,
            repeatable=key is not None,
            timeout=timeout,
        )

    def _replay(self, conversation: KnownConversation, body: bytes, key: str, first: Mapping[str, Any]) -> None:
        """Send a turn again that was answered: the same answer, and another body is refused."""
        self._record.count("replays")
        again = self._send(conversation, body, key, timeout=10.0)
        if again is not None:
            same = [again.json()[name] == first[name] for name in ("first_seq", "last_seq", "context_tokens")]
            if not all(same) or again.headers.get("idempotency-replayed") != "true":
                self._breaches.add("idempotent", conversation.id, f"{dict(first)} the first time, then {again.text}")
        self._caller.call(
            conversation.tenant,
            "POST",
            f"/conversations/{conversation.id}/turns",
            "reused key",
            expected={422},
            body=body.replace(b"mark-", b"Mark-"),
            headers={"idempotency-key": key},
        )

    def _post(
        self,
        tenant: int,
        path: str,
        kind: str,
        asked: Mapping[str, Any],
        expected: set[int],
        *,
        repeatable: bool = True,
    ) -> dict[str, Any] | None:
        body = json.dumps(asked).encode()
        return self._caller.json(tenant, "POST", path, kind, expected=expected, body=body, repeatable=repeatable)


ACTIONS: Final = {
    "talk": 60,
    "read": 12,
    "read_payload": 3,
    "read_originals": 4,
    "edit": 4,
    "compact": 3,
    "overflow": 1,
    "restore": 1,
    "pin": 3,
    "fork": 1,
    "change": 2,
}
"""How often each is done, relative to the others."""


def _conversation(identifier: str, tenant: int, shape: str, family: int) -> KnownConversation:
    uuid = ids.parse("conv", identifier)
    assert uuid is not None  # noqa: S101 - the service made it
    return KnownConversation(identifier, uuid, tenant, shape, family)
