"""`palimpsest demo --gateway`: an SDK client whose base URL is changed, and what its provider received."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec
from anthropic import Anthropic, APIError
from rich import box
from rich.console import Console
from rich.table import Table

from cli.client.client import ServiceClient, ServiceError
from cli.demo.provider import StoryProvider
from cli.demo.scenario import Scenario, job_search
from cli.local.own_service import UnavailableError, service_at
from cli.tables import print_table
from compaction.messages import blocks
from compaction.recall.tool import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cli.demo.provider import ReceivedRequest

PROVIDER_KEY: Final = "provider-key-of-the-demo"
MODEL: Final = "claude-sonnet-5"
MAX_TOKENS: Final = 8_000
PATIENCE_SECONDS: Final = "2"
"""As long may the gateway wait for a database that has just been started beside everything else."""
STORED_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_CONVERSATION: Final = "x-palimpsest-conversation"
_OUTCOME: Final = "x-palimpsest-outcome"


class Received(msgspec.Struct, frozen=True):
    """What the provider received of one talk."""

    requests: int
    tokens: int
    """Of all requests, system prompt and tools included, by characters / 4."""
    bytes: int
    largest_request: int
    """Tokens."""
    messages_of_last: int
    tokens_of_last: int
    bytes_of_last: int


class GatewayReport(msgspec.Struct, frozen=True):
    """What the demo ends with."""

    conversation_id: str
    questions: int
    """That the user asked; the other requests bring results of tools."""
    without: Received
    through: Received
    outcomes: dict[str, int]
    """What the gateway said that it did."""
    steps: dict[str, int]
    """Of the conversation's runs, those that made a snapshot."""
    is_history_same: bool
    """Whether the client ended with the same history both ways."""
    seconds: float


class ChatClient:
    """A chat as a client of the SDK has it: it keeps its history and resends the whole with each request."""

    def __init__(self, base_url: str, key: str, scenario: Scenario) -> None:
        self.history: list[Any] = []
        self._client = Anthropic(base_url=base_url, api_key=key, max_retries=0)
        self._system = scenario.system
        self._tools: Any = [tool for tool in scenario.tools if tool["name"] != NAME]

    def send(self, message: Any) -> Mapping[str, str]:
        """Send a question or results of tools, keep the answer, and return its headers."""
        self.history.append(message)
        answer = self._client.messages.with_raw_response.create(
            model=MODEL, max_tokens=MAX_TOKENS, system=self._system, tools=self._tools, messages=self.history
        )
        said = answer.parse()
        self.history.append({"role": "assistant", "content": [block.to_dict() for block in said.content]})
        return answer.headers

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


def run_gateway_demo(*, as_json: bool = False, keep: bool = False, environ: Mapping[str, str]) -> int:
    """Talk with a provider on loopback directly and through a gateway, print what it received; return 1 on failure.

    `environ` is what the services of its own see; `keep` leaves them up until Ctrl-C.
    """
    err = Console(stderr=True)
    scenario = job_search()
    story = [
        {"role": message.role, "content": msgspec.json.decode(message.content)}
        for part in scenario.turns
        for message in part.turn.messages
    ]
    out = err if as_json else Console()
    try:
        with StoryProvider(story) as direct, StoryProvider(story) as behind, contextlib.ExitStack() as running:
            service = running.enter_context(service_at(None, None, _with_provider(environ, behind.url)))
            client = running.enter_context(ServiceClient(service.url, service.key))
            report = compare(
                ChatClient(direct.url, PROVIDER_KEY, scenario),
                ChatClient(service.gateway_url, service.key, scenario),
                (direct, behind),
                [message for message in story if message["role"] == "user"],
                client,
                lambda text: out.print(text, highlight=False, markup=False, soft_wrap=True),
            )
            if as_json:
                Console(soft_wrap=True).out(msgspec.json.encode(report).decode(), highlight=False)
            else:
                print_gateway_report(report, direct.url, service.gateway_url)
            if keep:
                err.print(f"The API is at {service.url} with the key {service.key}. Ctrl-C stops it.", soft_wrap=True)
                with contextlib.suppress(KeyboardInterrupt):
                    threading.Event().wait()
    except (ServiceError, UnavailableError, APIError, httpx2.TransportError, TimeoutError) as error:
        err.print(f"The demo stopped: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    return 0


def compare(
    plain: ChatClient,
    changed: ChatClient,
    providers: tuple[StoryProvider, StoryProvider],
    sent: Sequence[Any],
    service: ServiceClient,
    say: Callable[[str], None],
) -> GatewayReport:
    """Have both clients send the same; between two requests of `changed` compaction does what it does meanwhile."""
    started = time.monotonic()
    direct, behind = providers
    outcomes: Counter[str] = Counter()
    conversation = ""
    with contextlib.closing(plain), contextlib.closing(changed):
        for number, message in enumerate(sent, start=1):
            plain.send(message)
            headers = changed.send(message)
            conversation = headers.get(_CONVERSATION, conversation)
            outcomes[headers.get(_OUTCOME, "")] += 1
            if not conversation:
                raise TimeoutError("the gateway did not have its database in time")
            _settle(service, conversation, len(changed.history))
            without, through = direct.received[-1], behind.received[-1]
            say(
                f"request {number:>3}  sent {without.tokens:>8,} tokens, received {through.tokens:>7,}"
                f"  {headers.get(_OUTCOME, '')}"
            )
    runs = service.runs(conversation)
    return GatewayReport(
        conversation_id=conversation,
        questions=sum(any(block["type"] == "text" for block in blocks(message["content"])) for message in sent),
        without=_summed(direct.received),
        through=_summed(behind.received),
        outcomes=dict(outcomes),
        steps=dict(Counter(step.name for run in runs for step in run.steps if step.state == "committed")),
        is_history_same=plain.history == changed.history,
        seconds=round(time.monotonic() - started, 2),
    )


def _settle(service: ServiceClient, conversation: str, messages: int) -> None:
    """Wait until a turn is stored and nothing is due: here a model answers at once, and nobody reads what it said."""
    deadline = time.monotonic() + STORED_SECONDS
    while _last_seq(service, conversation) < messages - 1:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the turn was not stored in {STORED_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    service.wait_settled(conversation)


def _last_seq(service: ServiceClient, conversation: str) -> int:
    try:
        seq = service.conversation(conversation).last_seq
    except ServiceError as error:
        # It is made when its first turn is stored.
        if error.status == httpx2.codes.NOT_FOUND:
            return -1
        raise
    return -1 if seq is None else seq


def _with_provider(environ: Mapping[str, str], url: str) -> dict[str, str]:
    upstreams = {"messages": {"base_url": url, "api_key": PROVIDER_KEY}}
    return {
        **environ,
        "PALIMPSEST_GATEWAY_UPSTREAMS": msgspec.json.encode(upstreams).decode(),
        "PALIMPSEST_GATEWAY_PATIENCE_SECONDS": PATIENCE_SECONDS,
    }


def _summed(received: Sequence[ReceivedRequest]) -> Received:
    last = received[-1]
    return Received(
        requests=len(received),
        tokens=sum(each.tokens for each in received),
        bytes=sum(each.bytes for each in received),
        largest_request=max(each.tokens for each in received),
        messages_of_last=last.messages,
        tokens_of_last=last.tokens,
        bytes_of_last=last.bytes,
    )


def print_gateway_report(report: GatewayReport, provider_url: str, gateway_url: str) -> None:
    """Print what the provider received with and without the gateway."""
    console = Console()
    table = Table(title="What the provider received", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    table.add_column("without the gateway", justify="right")
    table.add_column("through the gateway", justify="right", style="green")
    table.add_column("saved", justify="right")
    for label, field in (
        ("requests", "requests"),
        ("input tokens of all requests", "tokens"),
        ("bytes of all requests", "bytes"),
        ("tokens of the largest", "largest_request"),
        ("messages of the last", "messages_of_last"),
        ("tokens of the last", "tokens_of_last"),
        ("bytes of the last", "bytes_of_last"),
    ):
        before, after = getattr(report.without, field), getattr(report.through, field)
        table.add_row(label, f"{before:,}", f"{after:,}", f"{1 - after / before:.0%}" if before != after else "")
    console.print()
    print_table(table, console)
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
    steps = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(report.steps.items())) or "none"
    same = "the same" if report.is_history_same else "NOT the same"
    for line in (
        f"The change: Anthropic(base_url={provider_url!r}) became Anthropic(base_url={gateway_url!r}).",
        f"{report.questions} questions, the other requests bring results of tools: {outcomes}.",
        f"Steps of compaction between them: {steps}. In {report.seconds:.1f} s.",
        f"The client's own history is {same} both ways, message by message.",
        f"The conversation is {report.conversation_id} in the API and in the console.",
    ):
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
