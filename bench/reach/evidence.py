"""Evidence: of the messages that answer a question, the share among those given back; and what is stored for that."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from bench.measure import progress
from bench.reach.baselines import PlainSearch, keep_last, text_of
from bench.reach.goals import EVIDENCE, STORED, TUNED_ON, least, most
from bench.reach.service import seqs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.reach.goals import Row
    from bench.reach.service import Measured
    from bench.reach.talks import Source, Talk

TOKENS: Final = (1_000, 2_000, 4_000)
CHARS_PER_TOKEN: Final = 4
_WAYS: Final = ("recall", "BM25", "keep-last")


def evidence(
    measured: Measured, sources: Sequence[Source], *, most_questions: int | None
) -> tuple[list[Row], list[Row]]:
    """Return the rows of every conversation, then of the sources; and what is stored of each source."""
    rows, stored = [], []
    for source in sources:
        before, text = measured.stored_bytes(), 0
        for talk in source.talks:
            talk_rows, through = _reach(measured, talk, most_questions)
            rows += [{"source": source.name, **row} for row in talk_rows]
            text += sum(len(text_of(message).encode()) for message in talk.messages[: through + 1])
        stored.append(stored_row(source.name, text, measured.stored_bytes() - before))
    return rows, stored


def stored_row(name: str, text: int, stored: int) -> Row:
    """Return what is stored for each byte of those texts that something is stored for."""
    share = stored / max(1, text)
    return {"of": name, "bytes of text": text, "stored": stored, "a byte": round(share, 2), **most(share, STORED)}


def sums(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield for each source and number of tokens the means over its questions, those of other than tuned talk apart."""
    for source in dict.fromkeys(row["source"] for row in rows):
        own = [row for row in rows if row["source"] == source]
        unseen = [row for row in own if row["conversation"] not in TUNED_ON]
        apart = bool(unseen) and len(unseen) < len(own)
        for name, of in ((source, own), *([(f"{source}, not tuned on", unseen)] if apart else [])):
            for tokens in TOKENS:
                yield _sum(name, source, tokens, [row for row in of if row["tokens"] == tokens])


def _sum(name: str, source: str, tokens: int, rows: Sequence[Row]) -> Row:
    questions = sum(row["questions"] for row in rows)
    means = {way: round(sum(row[way] * row["questions"] for row in rows) / questions, 3) for way in _WAYS}
    goal = least(means["recall"], EVIDENCE.get(source, {}).get(tokens))
    return {"talk": name, "questions": questions, "tokens": tokens, **means, **goal}


def _reach(measured: Measured, talk: Talk, most_questions: int | None) -> tuple[list[Row], int]:
    """Return a row for each number of tokens, and the last message that something was stored for."""
    progress(f"evidence: {talk.name}, {len(talk.messages):,} messages, {len(talk.questions):,} questions")
    conversation = measured.store(talk.messages)
    measured.client.wait_settled(conversation)
    texts = [text_of(message) for message in talk.messages]
    plain = PlainSearch(texts)
    rows = []
    for tokens in TOKENS:
        shares: dict[str, list[float]] = {way: [] for way in _WAYS}
        last = keep_last(texts, tokens * CHARS_PER_TOKEN)
        for question in talk.questions[:most_questions]:
            recalled = measured.client.recall(conversation, {"query": question.text, "max_tokens": tokens})
            shares["recall"].append(question.share_found(seqs_of(recalled)))
            shares["BM25"].append(question.share_found(plain.search(question.text, tokens * CHARS_PER_TOKEN)))
            shares["keep-last"].append(question.share_found(last))
        figures = {name: round(statistics.mean(each), 4) for name, each in shares.items()}
        rows.append({"conversation": talk.name, "questions": len(shares["BM25"]), "tokens": tokens, **figures})
    return rows, measured.prepared_through(conversation)
