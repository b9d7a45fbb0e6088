"""Summarizers: what turns a zone of a conversation into a summary, behind one small interface."""

from __future__ import annotations

from worker.summarizers.base import Summarizer, Summary, SummaryError, SummaryRequest
from worker.summarizers.select import choose_batches, choose_model, choose_summarizer

__all__ = [
    "Summarizer",
    "Summary",
    "SummaryError",
    "SummaryRequest",
    "choose_batches",
    "choose_model",
    "choose_summarizer",
]
