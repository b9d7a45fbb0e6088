"""Summarizers: what turns a zone of a conversation into a summary, behind one small interface."""

from __future__ import annotations

from worker.summarizers.base import Summarizer, Summary, SummaryError, SummaryRequest

__all__ = ["Summarizer", "Summary", "SummaryError", "SummaryRequest"]
