"""The Message Batches API of a `LoopbackModel`: batches are in progress until the test ends them.

model.batches.end()                                   # every question of the newest batch answered
model.batches.end(outcomes={1: expired()})            # but the second one
model.batches.refuse(status(401))                     # the next batch is not taken
model.batches.lose()                                  # the next one is, and nobody hears of it
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from tests.support.servers.loopback_steps import CHARS_PER_TOKEN, status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.servers.loopback_http import Answering
    from tests.support.servers.loopback_steps import Step

BATCHES: Final = "/v1/messages/batches"
_CUSTOM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_HEADING: Final = re.compile(r"^## .+$", re.MULTILINE)
_PATH: Final = re.compile(rf"{BATCHES}(?:/(?P<id>[^/]+)(?:/(?P<what>results|cancel))?)?")

Outcome = Any
"""A function of a question's `params` that returns its result."""


@dataclass
class LoopbackBatch:
    """One batch as the provider keeps it."""

    id: str
    requests: list[dict[str, Any]]
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    processing_status: str = "in_progress"
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def custom_ids(self) -> list[str]:
        return [request["custom_id"] for request in self.requests]

    def prompt(self, number: int = 0) -> str:
        """Return what the model is asked in one question, its rules aside."""
        text: str = self.requests[number]["params"]["messages"][0]["content"]
        return text

    def document(self, url: str) -> dict[str, Any]:
        kinds = [result["result"]["type"] for result in self.results]
        ended = self.processing_status == "ended"
        counts = {kind: kinds.count(kind) for kind in ("succeeded", "errored", "canceled", "expired")}
        return {
            "id": self.id,
            "type": "message_batch",
            "processing_status": self.processing_status,
            "request_counts": {"processing": 0 if ended else len(self.requests), **counts},
            "created_at": self.created_at.isoformat(),
            "expires_at": (self.created_at + timedelta(hours=24)).isoformat(),
            "ended_at": datetime.now(UTC).isoformat() if ended else None,
            "cancel_initiated_at": None,
            "archived_at": None,
            "results_url": f"{url}{BATCHES}/{self.id}/results" if ended else None,
        }


class LoopbackBatches:
    """Every batch that was taken, and what to do with the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: deque[Step] = deque()
        self._lost = 0
        self._made: list[LoopbackBatch] = []
        self.calls: list[str] = []
        """`METHOD what` of every call, in order of arrival."""

    @property
    def made(self) -> list[LoopbackBatch]:
        """The batches that were taken, oldest first."""
        with self._lock:
            return list(self._made)

    @property
    def only(self) -> LoopbackBatch:
        (batch,) = self.made
        return batch

    def refuse(self, *steps: Step) -> None:
        """Have the next calls, whatever they are, answered by these."""
        with self._lock:
            self._turns.extend(steps)

    def forget(self) -> None:
        """Have the next calls answered as ever."""
        with self._lock:
            self._turns.clear()

    def lose(self, count: int = 1) -> None:
        """Take the next batches, but cut the connection instead of telling."""
        with self._lock:
            self._lost += count

    def add(self, *custom_ids: str) -> LoopbackBatch:
        """Make a batch as another application with the same key would."""
        requests = [{"custom_id": each, "params": {"messages": [{"content": ""}]}} for each in custom_ids]
        with self._lock:
            return self._take(requests)

    def end(
        self,
        batch: LoopbackBatch | None = None,
        *,
        outcome: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        outcomes: Mapping[int, Outcome] | None = None,
    ) -> None:
        """End a batch, the newest one unless given: `outcomes` by place, `outcome` for the others; told backwards."""
        with self._lock:
            ending = batch or self._made[-1]
            results = [
                (outcomes or {}).get(number, outcome or succeeded())(request["params"])
                for number, request in enumerate(ending.requests)
            ]
            lines = [
                {"custom_id": name, "result": result} for name, result in zip(ending.custom_ids, results, strict=True)
            ]
            ending.results = lines[::-1]
            ending.processing_status = "ended"

    def answer(self, answering: Answering, method: str) -> None:
        """Answer one call."""
        path = answering.received.path
        match = _PATH.fullmatch(path)
        with self._lock:
            self.calls.append(
                f"{method} {(match and match['what']) or ('batch' if match and match['id'] else 'batches')}"
            )
            turn = self._turns.popleft() if self._turns else None
        if turn is not None:
            turn(answering)
        elif match is None:
            status(404)(answering)
        elif match["id"] is None:
            self.create(answering) if method == "POST" else self._list(answering)
        else:
            self._one(answering, method, match["id"], match["what"])

    def create(self, answering: Answering) -> None:
        """Take a batch; also for steps that do something else first."""
        requests = (answering.received.body or {}).get("requests") or []
        names = [request.get("custom_id", "") for request in requests]
        if not names or len(set(names)) < len(names) or not all(map(_CUSTOM_ID.fullmatch, names)):
            status(400, "requests: custom_id must be unique, 1 to 64 of [a-zA-Z0-9_-]")(answering)
            return
        with self._lock:
            batch = self._take(requests)
            lost = self._lost > 0
            self._lost -= lost
        if lost:
            answering.cut(reset=True)
        else:
            answering.json(200, batch.document(answering.model.url))

    def _take(self, requests: list[dict[str, Any]]) -> LoopbackBatch:
        batch = LoopbackBatch(f"msgbatch_{uuid4().hex}", requests)
        self._made.append(batch)
        return batch

    def _list(self, answering: Answering) -> None:
        asked = parse_qs(urlsplit(answering.path).query)
        made, most, (after,) = self.made[::-1], int(asked.get("limit", ["20"])[0]), asked.get("after_id", [""])
        start = next((place for place, batch in enumerate(made, 1) if batch.id == after), 0)
        documents = [batch.document(answering.model.url) for batch in made[start : start + most]]
        ends = (
            {"first_id": documents[0]["id"], "last_id": documents[-1]["id"]}
            if documents
            else {"first_id": None, "last_id": None}
        )
        answering.json(200, {"data": documents, "has_more": start + most < len(made), **ends})

    def _one(self, answering: Answering, method: str, name: str, what: str | None) -> None:
        batch = next((each for each in self.made if each.id == name), None)
        if batch is None or (what == "results" and batch.processing_status != "ended"):
            status(404)(answering)
            return
        if what == "results":
            lines = "".join(json.dumps(line) + "\n" for line in batch.results)
            answering.whole(200, lines.encode(), {"content-type": "application/x-jsonl"})
            return
        if what == "cancel" and method == "POST" and batch.processing_status == "in_progress":
            batch.processing_status = "canceling"
        answering.json(200, batch.document(answering.model.url))


def succeeded(text: str | None = None, *, stop_reason: str = "end_turn", **fields: Any) -> Outcome:
    """Answer with `text`, or as a summarizer would, under the headings of its rules."""

    def outcome(params: dict[str, Any]) -> dict[str, Any]:
        asked = params["messages"][0]["content"]
        headings = _HEADING.findall(params.get("system") or "") or ["Summary"]
        lines = [f"{heading}\nWhat there is of {heading.strip('# ').lower()}." for heading in headings]
        summary = "\n".join([*lines, f"It was read in {len(asked):,} characters."])
        summary = summary if text is None else text
        message = {
            "id": "msg_batch",
            "type": "message",
            "role": "assistant",
            "model": params.get("model", "unnamed"),
            "content": [{"type": "text", "text": summary}],
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {
                "input_tokens": len(asked) // CHARS_PER_TOKEN,
                "output_tokens": max(1, len(summary) // CHARS_PER_TOKEN),
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "service_tier": "batch",
            },
        }
        return {"type": "succeeded", "message": message | fields}

    return outcome


def errored(kind: str = "invalid_request_error", message: str = "loopback error") -> Outcome:
    """Fail, as a question that the API refuses."""
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_batch"}
    return lambda _: {"type": "errored", "error": error}


def expired() -> Outcome:
    """Leave unanswered until the batch expired."""
    return lambda _: {"type": "expired"}


def canceled() -> Outcome:
    """Leave unanswered because the batch was canceled."""
    return lambda _: {"type": "canceled"}
