"""What was answered already, in a file of JSON lines: who goes on after an interruption pays for nothing twice."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from worker.summarizers.base import Spent, Summary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from worker.summarizers.base import Summarizer, SummaryRequest

_json: Final = msgspec.json.Encoder(order="sorted").encode


class Kept:
    """Answers by what was asked. A file that cannot be read to its end (an interruption) counts as far as it can."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}
        if file is not None and file.exists():
            for line in file.read_bytes().splitlines():
                try:
                    key, value = msgspec.json.decode(line, type=tuple[str, Any])
                except msgspec.DecodeError:
                    continue
                self._known[key] = value

    def get(self, key: str) -> Any:
        """Return what is known, None for nothing."""
        with self._lock:
            return self._known.get(key)

    def put(self, key: str, value: Any) -> None:
        """Keep a value that is no longer asked for."""
        with self._lock:
            self._known[key] = value
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with self._file.open("ab") as out:
                    out.write(b"\n" * self._is_broken(out.tell()) + _json((key, value)) + b"\n")

    def _is_broken(self, size: int) -> bool:
        """Tell whether the file ends within a line."""
        if not size or self._file is None:
            return False
        with self._file.open("rb") as read:
            read.seek(size - 1)
            return read.read(1) != b"\n"


def key_of(*parts: Any) -> str:
    """Return the key of what was asked, by all that it consists of."""
    return hashlib.sha256(_json(parts)).hexdigest()


class KeptSummarizer:
    """A summarizer that is asked for no summary twice; what summaries cost is given to `spend`."""

    def __init__(self, summarizer: Summarizer, kept: Kept, spend: Callable[[Spent], None]) -> None:
        self.name = summarizer.name
        self.model = summarizer.model
        self._summarizer = summarizer
        self._kept = kept
        self._spend = spend

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return a summary. Raises SummaryError."""
        zone = [(message.seq, message.role, message.content) for message in request.zone]
        policy = msgspec.to_builtins(request.policy)
        key = key_of("summary", self.name, self.model, zone, request.previous, policy)
        if (known := self._kept.get(key)) is not None:
            text, prompt_version, covers_through, notes, parts, dropped = known
            return Summary(
                text,
                self.model,
                prompt_version,
                Spent(),
                covers_through=covers_through,
                notes=tuple(notes),
                parts=parts,
                dropped=dropped,
            )
        summary = self._summarizer.summarize(request)
        self._spend(summary.spent)
        through = summary.covers_through
        value = (summary.text, summary.prompt_version, through, summary.notes, summary.parts, summary.dropped)
        self._kept.put(key, value)
        return summary
