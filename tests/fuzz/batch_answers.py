"""What a provider says of message batches, changed: read, or a failure with a reason code; never anything else."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st
from pydantic import SecretStr

from compaction.steps.runs import RunReason
from runtime.settings import Settings
from tests.fuzz.structure import changed_bytes, changed_documents, json_lines
from tests.fuzz.turns import as_json
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import status
from worker.parts import choose_batches
from worker.summarizers import SummaryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import DrawFn, SearchStrategy

    from tests.support.servers.loopback_http import Answering

KEY: Final = "0123abcd"
PARTS: Final = 3
BATCH: Final = {
    "id": "msgbatch_1",
    "type": "message_batch",
    "processing_status": "ended",
    "request_counts": {"processing": 0, "succeeded": PARTS, "errored": 0, "canceled": 0, "expired": 0},
    "created_at": "2026-01-01T00:00:00+00:00",
    "expires_at": "2026-01-02T00:00:00+00:00",
    "ended_at": "2026-01-01T01:00:00+00:00",
    "cancel_initiated_at": None,
    "archived_at": None,
    "results_url": "URL",
}
_ERRORED: Final = {
    "type": "errored",
    "error": {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}},
}


def _message(text: str) -> dict[str, Any]:
    usage = {"input_tokens": 900, "output_tokens": 70, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    return {
        "type": "succeeded",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-haiku-4-5",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": usage,
        },
    }


@st.composite
def batch_answers(draw: DrawFn) -> tuple[bytes, bytes]:
    """Draw the answer that describes a batch, and the one with its results."""
    described = as_json(draw(changed_documents(st.just(BATCH), most=3)))
    kinds: SearchStrategy[Any] = st.sampled_from(
        [_message("## Goals\nWords."), _ERRORED, {"type": "expired"}, {"type": "canceled"}]
    )
    results = [{"custom_id": f"{KEY}-{number}", "result": draw(kinds)} for number in range(PARTS)]
    told = json_lines(draw(changed_documents(st.just(results), most=3)) or [])
    return draw(changed_bytes(st.just(described), most=1)), draw(changed_bytes(st.just(told), most=1))


class BatchAnswers:
    """The worker's side of message batches, at a provider that answers what was drawn."""

    def __init__(self, model: LoopbackModel) -> None:
        self._model = model
        settings = Settings(
            summarizer="anthropic-batch",
            anthropic_api_key=SecretStr("sk-test"),
            anthropic_base_url=model.url,
            breaker_failures=0,
            summarizer_deadline_seconds=10,
        )
        found = choose_batches(settings)
        assert found is not None
        self._batches = found()

    def read_or_refused(self, drawn: tuple[bytes, bytes]) -> None:
        """Assert that every call returns what it promises, or fails with a code that there is."""
        described, told = drawn
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        calls: list[tuple[Any, list[bytes]]] = [
            (lambda: self._batches.status("msgbatch_1"), [described]),
            (lambda: self._batches.cancel("msgbatch_1"), [described]),
            (
                lambda: self._batches.recent(long_ago, long_ago + timedelta(days=36_500)),
                [b'{"data": [' + described + b'], "has_more": false, "first_id": null, "last_id": null}'],
            ),
            (lambda: self._batches.is_of("msgbatch_1", KEY), [self._ended(), told]),
            (self._results, [self._ended(), told]),
        ]
        for call, answers in calls:
            self._answer(*answers)
            code = None
            try:
                call()
            except SummaryError as error:
                code = error.code
            assert code is None or code in set(RunReason), code

    def _results(self) -> None:
        found = self._batches.results("msgbatch_1", KEY, PARTS, 4_096)
        assert found.trouble is not None or len(found.texts) == PARTS
        assert all(isinstance(text, str) and text.strip() for text in found.texts)
        spent = found.spent
        for tokens in (spent.input_tokens, spent.output_tokens):
            assert tokens is None or 0 <= tokens < 2**31
        assert spent.cost_usd is None or 0 <= spent.cost_usd < 10**8

    def _ended(self) -> bytes:
        return json.dumps(
            {**BATCH, "results_url": f"{self._model.url}/v1/messages/batches/msgbatch_1/results"}
        ).encode()

    def _answer(self, *bodies: bytes) -> None:
        self._model.batches.forget()

        def step(body: bytes) -> Any:
            def answer(answering: Answering) -> None:
                answering.whole(200, body, {"content-type": "application/json"})

            return answer

        # Whatever is asked beyond that: refused, and not asked again.
        self._model.batches.refuse(*map(step, bodies), *([status(400)] * 3))


@contextmanager
def batch_answers_of() -> Iterator[BatchAnswers]:
    """Run a provider for the length of the block."""
    with LoopbackModel() as model:
        yield BatchAnswers(model)
