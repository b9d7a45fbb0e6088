"""`palimpsest demo`: a long tool-heavy conversation, played through the HTTP API as a chat backend plays one."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
from rich.console import Console

from cli.client.client import ServiceClient, ServiceError
from cli.client.types import UNCOMPACTED
from cli.consent import STORES
from cli.demo.recollection import recollect
from cli.demo.report import SUMMARY_STEP, Event, Report, Survival, events_of, survival
from cli.demo.scenario import Scenario, job_search
from cli.demo.view import DemoView, Progress, print_report
from cli.failures import reason_of
from cli.installation.accounting import MODEL, Ledger, tokens_of, usage_of
from cli.local.own_service import UnavailableError, service_at
from cli.output import failed
from compaction.policy import FIELDS, Policy, merge
from compaction.shapes.codecs import decode
from compaction.steps.runs import StepState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.client.types import Context, Run
    from cli.options import Service
    from cli.transcripts.readers import Turn
    from compaction.shapes.inner import Shape


def run_demo(
    *,
    as_json: bool = False,
    keep: bool = False,
    where: Service | None = None,
    shape: Shape = "messages",
) -> int:
    """Play the conversation, show what is compacted, print before and after; return 1 if the service failed.

    `shape` is what the turns are posted in, and what the context is read in.

    Without `where` the services are started and stopped here, on servers of their own whatever the environment names;
    `keep` leaves them up until Ctrl-C.
    """
    err = Console(stderr=True)
    url, key = where or (None, None)
    try:
        with (
            service_at(url, key, own_environment()) as service,
            ServiceClient(service.url, service.key) as client,
        ):
            scenario = job_search(shape=shape)
            with DemoView(len(scenario.turns), err if as_json else Console()) as view:
                report = Player(client, scenario, view).play()
            if as_json:
                Console(soft_wrap=True).out(msgspec.json.encode(report).decode(), highlight=False)
            else:
                print_report(report, service, keep=keep)
            if keep:
                with contextlib.suppress(KeyboardInterrupt):
                    threading.Event().wait()
    except UnavailableError as error:
        err.print(f"The demo stopped: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    except (ServiceError, httpx2.TransportError, TimeoutError) as error:
        return failed(f"the demo stopped: {reason_of(error) or error}")
    return 0


def own_environment() -> dict[str, str]:
    """Return the environment without the stores that it names: what the demo writes has no place in them."""
    return {name: value for name, value in os.environ.items() if name not in STORES}


class Player:
    """Plays one scenario: before each model call it takes the context, after it it posts the turn."""

    def __init__(self, client: ServiceClient, scenario: Scenario, view: DemoView) -> None:
        self._client = client
        self._scenario = scenario
        self._view = view
        self._compacted = Ledger.of(scenario.system, scenario.tools)
        self._whole = Ledger.of(scenario.system, scenario.tools)
        self._originals: list[Any] = []
        self._events: list[Event] = []
        self._seen: set[str] = set()
        self._in_summary: Survival | None = None
        self._window_passed_at: int | None = None
        self._id = ""
        self._policy = Policy()

    def play(self) -> Report:
        """Play every turn and return the report."""
        started = time.monotonic()
        conversation = self._client.create_conversation(
            model=MODEL,
            system=self._scenario.system,
            tools=self._scenario.tools,
            metadata={"scenario": "job-search"},
        )
        self._id = conversation.id
        self._policy = _policy_of(conversation.policy)
        self._view.begin(conversation.id, self._policy)
        for number, part in enumerate(self._scenario.turns, start=1):
            self._turn(number, part.label, part.turn)
        runs = self._client.wait_settled(self._id)
        self._collect(len(self._scenario.turns), runs)
        context = self._context()
        self._view.measured(context.tokens.context)
        final = self._messages(context)
        return Report(
            conversation_id=self._id,
            turns=len(self._scenario.turns),
            messages_stored=len(self._originals),
            tokens_stored=sum(map(tokens_of, self._originals)),
            messages_in_context=len(final),
            tokens_in_context=sum(map(tokens_of, final)),
            largest_call=self._compacted.largest,
            largest_call_uncompacted=self._whole.largest,
            window_tokens=self._policy.model_context_tokens,
            window_passed_at_turn=self._window_passed_at,
            input_tokens=self._compacted.sent,
            input_tokens_uncompacted=self._whole.sent,
            usd=self._compacted.usd_uncached,
            usd_uncompacted=self._whole.usd_uncached,
            usd_cached=self._compacted.usd_cached,
            usd_cached_uncompacted=self._whole.usd_cached,
            runs=dict(Counter(run.state for run in runs)),
            events=self._events,
            in_summary=self._in_summary,
            in_context=survival(self._scenario, final, self._originals),
            seconds=round(time.monotonic() - started, 2),
            recalled=recollect(self._client, self._id, self._scenario, final, self._originals),
        )

    def _turn(self, number: int, label: str, turn: Turn) -> None:
        context = self._context()
        said = [{"role": message.role, "content": msgspec.json.decode(message.content)} for message in turn.messages]
        begins = next(at for at, message in enumerate(said) if message["role"] == "assistant")
        asked, answer = said[:begins], said[begins:]
        usage = self._compacted.call([*self._messages(context), *asked])
        output = sum(map(tokens_of, answer))
        self._whole.call([*self._originals, *asked])
        if self._window_passed_at is None and self._whole.largest > self._policy.model_context_tokens:
            self._window_passed_at = number
        self._originals += said
        appended = self._client.append_turn(
            self._id,
            turn.messages,
            usage=usage_of(usage, output, self._scenario.shape),
            snapshot_version=context.snapshot.version if context.snapshot else UNCOMPACTED,
            shape=self._scenario.shape,
        )
        stored = self._whole.fixed_tokens + sum(map(tokens_of, self._originals))
        self._view.advanced(Progress(number, label, appended.context_tokens, stored))
        # Under the budget nothing is due; over it, waiting shows the run next to the turn that caused it.
        if max(sum(usage.values()) + output, appended.context_tokens) > self._policy.input_token_budget:
            self._collect(number, self._client.wait_settled(self._id))
            self._view.measured(self._context().tokens.context)

    def _collect(self, turn: int, runs: list[Run]) -> None:
        for run in runs:
            if not run.settled or run.id in self._seen:
                continue
            self._seen.add(run.id)
            events = events_of(turn, run)
            self._events += events
            self._view.happened(events)
            if any(event.step == SUMMARY_STEP and event.state == StepState.COMMITTED for event in events):
                replaced = self._originals[: -self._policy.protected_tail_messages]
                first = self._messages(self._context())[:1]
                self._in_summary = survival(self._scenario, first, replaced)

    def _context(self) -> Context:
        context = self._client.context(self._id, shape=self._scenario.shape)
        if context is None:  # pragma: no cover  only a conditional request is answered so
            raise ServiceError(httpx2.codes.NOT_MODIFIED, "not_modified", "a context was expected")
        return context

    def _messages(self, context: Context) -> list[Any]:
        """Return what a context shows, each message as every step works on it."""
        shape = self._scenario.shape
        served = msgspec.json.decode(context.items if shape == "responses" else context.messages, type=list[Any])
        return served if shape == "messages" else [decode(shape, message)._asdict() for message in served]


def _policy_of(stated: Mapping[str, Any]) -> Policy:
    return merge({key: value for key, value in stated.items() if key in FIELDS})
