"""The staged summarizer: parts and merges, what it does when a request fails, and how a summary is checked."""

from __future__ import annotations

import itertools
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from compaction.policy import Policy
from compaction.quality.verdict import Reason, Verdict
from compaction.summary.transcript import PROMPT_VERSION, SECTIONS, SYSTEM_PROMPT, canary, transcript_hash
from compaction.summary.zone import REFERENCE
from compaction.tokens import text_weight
from compaction.view import ACKNOWLEDGEMENT, ViewMessage
from runtime.settings import Settings
from tests.support.encoded import Heard, messages, request, unmarked
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import longer_than_input, max_tokens, ok, refusal, status
from tests.support.talk import answer, call, exchanges, result
from tests.support.talk import request as asks
from worker.summarizers import SummaryError, SummaryRequest
from worker.summarizers.anthropic import AnthropicModel
from worker.summarizers.base import Answer, Spent, Summary
from worker.summarizers.staged import NAMED, THREADS, StagedSummarizer, finished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.blocks import Message

Reply = str | SummaryError | Answer


class Scripted:
    """A model that answers by what it is asked: `reply` gets the prompt and the number of the call."""

    name = "scripted"
    model = "scripted-1"

    def __init__(self, reply: Callable[[str, int], Reply], *, window: int = 200_000) -> None:
        self._reply = reply
        self._lock = threading.Lock()
        self.context_tokens = window
        self.prompts: list[str] = []
        self.systems: list[str] = []
        self.max_tokens: list[int] = []

    def ask(self, system: str, prompt: str, *, max_tokens: int) -> Answer:
        with self._lock:
            number = len(self.prompts)
            self.prompts.append(prompt)
            self.systems.append(system)
            self.max_tokens.append(max_tokens)
        reply = self._reply(prompt, number)
        if isinstance(reply, SummaryError):
            raise reply
        return reply if isinstance(reply, Answer) else Answer(reply, "end_turn", Spent(1, 100, 10, Decimal("0.01")))


def error(code: str) -> SummaryError:
    return SummaryError(code, "scripted", Spent(1))


def cut() -> Answer:
    return Answer("it breaks off", "max_tokens", Spent(1, 100, 10))


def seqs(prompt: str) -> list[int]:
    """Return the messages that a request for a part shows, none for a merge."""
    frames = [body for name, body in request(prompt).frames if name == "transcript"]
    return [heard.seq for body in frames for heard in messages(body)]


def is_merge(prompt: str) -> bool:
    return any(name == "part-summary" for name, _ in request(prompt).frames)


def messages_of(model: Scripted) -> list[Heard]:
    """Return every message that a model was shown."""
    parts = [request(prompt) for prompt in model.prompts if not is_merge(prompt)]
    return [heard for part in parts for heard in part.messages]


def told(prompt: str, _: int = 0) -> str:
    """Answer as a summarizer would: with the numbers of the messages."""
    held = [unmarked(body) for name, body in request(prompt).frames if name == "part-summary"]
    return f"{SECTIONS[0]}\n" + (" + ".join(held) if held else f"{seqs(prompt)[0]} to {seqs(prompt)[-1]}")


def zone_of(given: Sequence[Message]) -> tuple[ViewMessage, ...]:
    return tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(given, start=1))


LONG = zone_of(exchanges(60, 1_000))
"""Messages 1 to 120, in five parts."""


def asked(zone: Sequence[ViewMessage] = LONG, previous: str | None = None, **given: Any) -> SummaryRequest:
    policy = Policy(**given.pop("policy", {}))
    return SummaryRequest(zone, previous, policy, **given)


def body(summary: Summary) -> str:
    """Return a summary's own text."""
    assert summary.text.startswith(f"{REFERENCE}\n\n")
    return summary.text.removeprefix(f"{REFERENCE}\n\n").split("\n\nNote: ")[0]


# One part


@pytest.mark.requirement("S8")
def test_what_fits_is_asked_for_once() -> None:
    model = Scripted(lambda *_: f"  {SECTIONS[0]}\nThe user wishes.  ")
    zone = zone_of(exchanges(4, 100))
    summary = StagedSummarizer(model).summarize(asked(zone, "what was before"))
    (prompt,) = model.prompts
    assert [name for name, _ in request(prompt).frames] == ["earlier-summary", "transcript"]
    assert unmarked(request(prompt).body("earlier-summary")) == "what was before"
    secret = canary(transcript_hash(zone, "what was before"))
    assert model.systems == [
        f"{SYSTEM_PROMPT}\n\nReference of this request: {secret}. It is for checks alone: never write it."
    ]
    assert model.max_tokens == [4_096]
    assert summary == Summary(
        f"{REFERENCE}\n\n{SECTIONS[0]}\nThe user wishes.",
        "scripted-1",
        PROMPT_VERSION,
        Spent(1, 100, 10, Decimal("0.01")),
    )
    assert (summary.covers_through, summary.notes, summary.parts) == (None, (), 1)
    assert (StagedSummarizer(model).name, StagedSummarizer(model).model) == ("scripted", "scripted-1")


def test_a_summary_marked_as_reference_is_summarized_again_without_the_mark() -> None:
    model = Scripted(lambda *_: "second")
    first = finished("first", [])
    summary = StagedSummarizer(model).summarize(asked(zone_of(exchanges(4, 100)), first))
    assert unmarked(request(model.prompts[0]).body("earlier-summary")) == "first"
    assert summary.text.count(REFERENCE) == 1


def test_ten_summaries_on_end_do_not_grow() -> None:
    """Each is as long as the model may make it, whatever was there before."""
    model = Scripted(lambda *_: f"{SECTIONS[0]}\n" + "fact " * 400)
    summary: Summary | None = None
    for _ in range(10):
        request_ = asked(
            zone_of(exchanges(10, 100)), summary.text if summary else None, policy={"summary_max_tokens": 512}
        )
        summary = StagedSummarizer(model).summarize(request_)
        assert text_weight(summary.text) <= 512 * 4 * 1.2 + len(REFERENCE) + 2
    lengths = [len(prompt) for prompt in model.prompts]
    assert len(set(lengths[1:])) == 1


def test_wishes_times_pins_and_fields_reach_the_request() -> None:
    model = Scripted(lambda *_: "fine")
    messages_ = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "pay", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": '{"ok":1,"details":"K"}'}]},
    ]
    StagedSummarizer(model).summarize(
        asked(
            zone_of(messages_),
            instructions="stress the dates",
            times={1: "2026-05-01T10:00:00Z"},
            pins=("no refunds", '{"ok":1,"details":"K"}'),
            strip_fields=("details",),
        )
    )
    taken = request(model.prompts[0])
    assert unmarked(taken.body("wishes")) == "stress the dates"
    assert unmarked(taken.body("kept-verbatim")) == 'no refunds\n{"ok": 1}'
    assert taken.messages[0].time == "2026-05-01T10:00:00Z"
    assert taken.messages[1].data == ['{"ok": 1}']


@pytest.mark.parametrize("zone", [(), (ViewMessage("assistant", ACKNOWLEDGEMENT),)])
def test_nothing_to_summarize_asks_nobody(zone: tuple[ViewMessage, ...]) -> None:
    model = Scripted(lambda *_: "fine")
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model).summarize(asked(zone))
    assert (caught.value.code, model.prompts) == ("empty_summary", [])


# Several parts


def test_parts_are_merged_in_order() -> None:
    model = Scripted(told)
    summary = StagedSummarizer(model).summarize(asked(previous="what was before"))
    parts = sorted((prompt for prompt in model.prompts if not is_merge(prompt)), key=seqs)
    assert [seq for prompt in parts for seq in seqs(prompt)] == list(range(1, 121))
    (merge,) = [prompt for prompt in model.prompts if is_merge(prompt)]
    assert merge == model.prompts[-1]
    ranges = [f"{SECTIONS[0]}\n{seqs(prompt)[0]} to {seqs(prompt)[-1]}" for prompt in parts]
    assert body(summary) == f"{SECTIONS[0]}\n" + " + ".join(ranges)
    # The earlier summary is material of the first part and of the merge, and of nothing else.
    assert ["what was before" in prompt for prompt in [*parts, merge]] == [True, False, False, False, False, True]
    assert summary.spent == Spent(6, 600, 60, Decimal("0.06"))
    assert (summary.parts, summary.covers_through, summary.notes) == (5, None, ())
    assert len(set(model.systems)) == 1


def test_four_parts_are_asked_for_at_once_and_logs_know_their_run() -> None:
    together = threading.Barrier(4, timeout=30)
    bound: list[dict[str, Any]] = []

    def reply(prompt: str, number: int) -> str:
        if number < 4:
            bound.append(structlog.contextvars.get_contextvars())
            together.wait()
        return told(prompt)

    with structlog.contextvars.bound_contextvars(run_id="r1"):
        StagedSummarizer(Scripted(reply)).summarize(asked())
    assert [each.get("run_id") for each in bound] == ["r1"] * 4


def test_texts_too_long_to_merge_at_once_are_merged_in_levels() -> None:
    model = Scripted(lambda *_: "fact " * 2_000, window=32_000)
    zone = zone_of(exchanges(100, 1_000))
    summary = StagedSummarizer(model).summarize(asked(zone, "what was before"))
    merges = [request(prompt) for prompt in model.prompts if is_merge(prompt)]
    assert len(merges) > 2
    held = [[name for name, _ in merge.frames] for merge in merges]
    assert [("earlier-summary" in names) for names in held] == [False] * (len(held) - 1) + [True]
    assert summary.parts > 10
    assert summary.covers_through is None


# What fails


@pytest.mark.parametrize("code", ["model_auth", "model_rejected", "model_unreachable"])
@pytest.mark.parametrize("zone", [LONG, LONG[:2]], ids=["parts", "one"])
def test_what_no_other_request_would_mend_is_raised_at_once(code: str, zone: Sequence[ViewMessage]) -> None:
    model = Scripted(lambda prompt, _: error(code) if 1 in seqs(prompt) else told(prompt))
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model).summarize(asked(zone))
    assert caught.value.code == code
    assert caught.value.spent.calls == len(model.prompts) <= 5
    assert not any(is_merge(prompt) for prompt in model.prompts)


def test_too_long_a_request_is_divided_and_not_tried_again() -> None:
    limit = 40_000  # characters that the model really takes
    model = Scripted(lambda prompt, _: error("prompt_too_long") if len(prompt) > limit else told(prompt))
    zone = zone_of(exchanges(10, 1_000))
    summary = StagedSummarizer(model).summarize(asked(zone))
    refused = [len(prompt) for prompt in model.prompts if len(prompt) > limit]
    assert refused
    assert len(set(model.prompts)) == len(model.prompts)
    assert all(smaller < 0.6 * larger for larger, smaller in itertools.pairwise(refused))
    assert summary.covers_through is None
    assert summary.parts >= 2
    assert sorted({seq for prompt in model.prompts for seq in seqs(prompt)}) == list(range(1, 21))


def test_windows_are_halved_three_times_at_most() -> None:
    model = Scripted(lambda *_: error("prompt_too_long"))
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model).summarize(asked(zone_of(exchanges(20, 1_000))))
    assert caught.value.code == "prompt_too_long"
    # One request for the whole, and three times as many as are under way at once.
    assert caught.value.spent.calls == len(model.prompts) <= 1 + 3 * THREADS


def test_a_window_without_room_is_a_prompt_too_long() -> None:
    model = Scripted(told, window=1_000)
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model).summarize(asked())
    assert (caught.value.code, caught.value.spent.calls, model.prompts) == ("prompt_too_long", 0, [])


@pytest.mark.requirement("O4")
def test_what_stays_too_long_is_summarized_without_its_largest_messages() -> None:
    zone = zone_of([*exchanges(2, 100), asks("book", 15_000), answer("short", 100), *exchanges(2, 100)])
    model = Scripted(lambda prompt, _: error("prompt_too_long") if "book" in prompt else told(prompt))
    summary = StagedSummarizer(model).summarize(asked(zone))
    name = next(note for note in summary.notes).removeprefix("left out for its size: ")
    assert name.startswith("message 5 (user, about ")
    assert f"Note: left out for its size: {name}." in summary.text
    named = [heard.seq for heard in messages_of(model) if any("left out for its size" in note for note in heard.notes)]
    assert named == [5]
    assert summary.covers_through is None


def test_a_part_that_fails_is_asked_for_without_its_largest_messages() -> None:
    zone = zone_of([*exchanges(2, 100), asks("book", 15_000), answer("short", 100)])
    model = Scripted(lambda prompt, _: error("model_refused") if "book" in prompt else told(prompt))
    summary = StagedSummarizer(model).summarize(asked(zone))
    assert len(model.prompts) == 2
    assert summary.notes == ("left out for its size: message 5 (user, about 15,003 tokens)",)
    assert body(summary) == f"{SECTIONS[0]}\n1 to 6"
    assert (summary.covers_through, summary.parts) == (None, 1)


def test_many_messages_left_out_are_counted() -> None:
    zone = zone_of([message for number in range(30) for message in (asks(f"book {number}", 14_000), answer("ok", 20))])
    model = Scripted(lambda prompt, _: error("model_refused") if "book" in prompt else told(prompt))
    summary = StagedSummarizer(model).summarize(asked(zone))
    assert len(summary.notes) == NAMED + 1
    assert summary.notes[-1] == f"left out for their size: {30 - NAMED} more messages"


@pytest.mark.requirement("O4")
@pytest.mark.parametrize("code", ["model_rate_limited", "model_overloaded", "model_timeout", "model_garbage"])
def test_a_part_that_fails_for_good_leaves_a_partial_summary(code: str) -> None:
    model = Scripted(lambda prompt, _: error(code) if 70 in seqs(prompt) else told(prompt))
    summary = StagedSummarizer(model).summarize(asked(previous="what was before"))
    assert summary.covers_through is not None
    assert 40 < summary.covers_through < 70
    assert summary.parts == 2
    # It tells of nothing after what it covers.
    last = summary.covers_through
    assert summary.notes == (
        f"partial: it covers messages 1\u2013{last} of messages 1\u2013120; the rest could not be summarized ({code})",
    )
    assert f"Note: {summary.notes[0]}." in summary.text
    assert body(summary).endswith(f"to {last}")
    assert summary.spent.calls == len(model.prompts)


def test_one_part_of_many_needs_no_merge() -> None:
    model = Scripted(lambda prompt, _: told(prompt) if 1 in seqs(prompt) else error("model_timeout"))
    summary = StagedSummarizer(model).summarize(asked())
    assert summary.parts == 1
    assert summary.covers_through is not None
    assert not any(is_merge(prompt) for prompt in model.prompts)


def test_a_partial_summary_never_parts_a_call_from_its_result() -> None:
    rounds = [message for number in range(40) for message in (call(number, names=4), result(number, 2_000, names=4))]
    zone = zone_of(rounds)
    model = Scripted(lambda prompt, _: error("model_error") if 61 in seqs(prompt) else told(prompt))
    summary = StagedSummarizer(model).summarize(asked(zone, policy={"summary_input_max_chars": 20_000}))
    assert summary.covers_through is not None
    assert summary.covers_through % 2 == 0
    assert 0 < summary.covers_through < 61


def test_no_part_at_all_is_an_error() -> None:
    model = Scripted(lambda *_: error("model_timeout"))
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model).summarize(asked())
    assert caught.value.code == "model_timeout"
    assert caught.value.spent.calls == len(model.prompts) <= 4


def test_nothing_is_begun_behind_a_failure() -> None:
    zone = zone_of(exchanges(200, 1_000))
    model = Scripted(lambda *_: error("model_overloaded"))
    with pytest.raises(SummaryError):
        StagedSummarizer(model).summarize(asked(zone))
    assert len(model.prompts) <= 4


def test_a_merge_that_fails_leaves_the_parts_side_by_side() -> None:
    model = Scripted(lambda prompt, _: error("model_refused") if is_merge(prompt) else told(prompt))
    summary = StagedSummarizer(model).summarize(asked())
    assert summary.covers_through is None
    assert summary.notes == ("its parts stand side by side, as they could not be merged (model_refused)",)
    lines = body(summary).split("\n")
    assert [line for line in lines if line.startswith("## ")] == list(SECTIONS)
    assert len([line for line in lines if " to " in line]) == 5


def test_parts_too_long_to_stand_side_by_side_make_it_partial() -> None:
    def reply(prompt: str, _: int) -> Reply:
        return error("model_refused") if is_merge(prompt) else f"{told(prompt)}\n" + "fact " * 1_300

    summary = StagedSummarizer(Scripted(reply)).summarize(asked())
    assert summary.parts == 2
    assert summary.covers_through is not None
    assert summary.notes[0].startswith("partial: ")
    assert summary.notes[1].startswith("its parts stand side by side")
    assert text_weight(body(summary)) <= 4_096 * 4


def test_a_merge_too_long_for_the_model_is_divided() -> None:
    def reply(prompt: str, _: int) -> Reply:
        if is_merge(prompt) and len(prompt) > 45_000:
            return error("prompt_too_long")
        return "fact " * 2_500

    model = Scripted(reply)
    summary = StagedSummarizer(model).summarize(asked())
    assert (summary.covers_through, summary.parts, summary.notes) == (None, 5, ())
    assert len([prompt for prompt in model.prompts if is_merge(prompt)]) > 2
    assert len([prompt for prompt in model.prompts if not is_merge(prompt)]) == 5


def test_a_bug_is_not_a_partial_summary() -> None:
    def reply(prompt: str, _: int) -> str:
        if 70 in seqs(prompt):
            raise ZeroDivisionError
        return told(prompt)

    with pytest.raises(ZeroDivisionError):
        StagedSummarizer(Scripted(reply)).summarize(asked())


# Answers that are no summary


def test_a_cut_answer_is_asked_for_once_more_shorter() -> None:
    model = Scripted(lambda prompt, number: cut() if number == 0 else told(prompt))
    summary = StagedSummarizer(model).summarize(asked(LONG[:4]))
    first, second = model.prompts
    assert second.startswith(first)
    assert "too long" in second
    assert body(summary) == f"{SECTIONS[0]}\n1 to 4"
    assert summary.spent == Spent(2, 200, 20, Decimal("0.01"))


def test_an_answer_cut_twice_is_no_summary() -> None:
    model = Scripted(lambda *_: cut())
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model).summarize(asked(LONG[:4]))
    assert (caught.value.code, caught.value.spent) == ("summary_cut", Spent(2, 200, 20))


def test_an_answer_over_its_length_is_no_summary_whatever_the_server_says() -> None:
    model = Scripted(lambda *_: "fact " * 10_000)
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model).summarize(asked(LONG[:4]))
    assert (caught.value.code, len(model.prompts)) == ("summary_too_long", 2)


@pytest.mark.parametrize("text", ["", " \n", "\u200b\u2060", "```\n\n```"])
def test_a_blank_answer_is_no_summary(text: str) -> None:
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(Scripted(lambda *_: text)).summarize(asked(LONG[:4]))
    assert (caught.value.code, caught.value.spent.calls) == ("empty_summary", 1)


@pytest.mark.parametrize(
    "answered",
    [
        "```markdown\n## Facts\nAcme\n```",
        "<summary>\n## Facts\nAcme\n</summary>",
        "```\n<Summary>## Facts\nAcme</SUMMARY>\n```",
    ],
)
def test_what_is_wrapped_around_an_answer_comes_off(answered: str) -> None:
    summary = StagedSummarizer(Scripted(lambda *_: answered)).summarize(asked(LONG[:4]))
    assert body(summary) == "## Facts\nAcme"


# The check


class Asking:
    """A guard that asks for words; `add` is what it mends with."""

    def __init__(self, *wanted: str, add: str = "") -> None:
        self._wanted = wanted
        self._add = add
        self.seen: list[tuple[str, SummaryRequest]] = []

    def __call__(self, request_: SummaryRequest) -> Asking:
        self._request = request_
        return self

    def of(self, text: str) -> Verdict:
        self.seen.append((text, self._request))
        lacking = tuple(each for each in self._wanted if each not in text)
        return Verdict((Reason.IDENTIFIERS_MISSING,) * len(lacking), lacking)

    def mend(self, text: str, _: Verdict) -> str:
        return f"{text}{self._add}"


def test_a_good_summary_is_asked_for_once() -> None:
    model = Scripted(told)
    summary = StagedSummarizer(model, Asking("1 to 4")).summarize(asked(LONG[:4]))
    assert len(model.prompts) == 1
    assert "1 to 4" in summary.text


def test_a_check_sees_the_text_its_zone_and_its_canary() -> None:
    guard = Asking()
    model = Scripted(lambda prompt, _: error("model_timeout") if 70 in seqs(prompt) else told(prompt))
    summary = StagedSummarizer(model, guard).summarize(asked())
    ((text, request_),) = guard.seen
    assert text == body(summary)
    assert summary.covers_through is not None
    assert request_.zone == LONG[: summary.covers_through]
    assert request_.canary is not None
    assert all(request_.canary in system for system in model.systems)


def test_one_correction_names_the_reasons() -> None:
    model = Scripted(lambda prompt, number: "a draft" if number == 0 else "a draft with Acme")
    summary = StagedSummarizer(model, Asking("Acme")).summarize(asked(LONG[:4]))
    first, second = model.prompts
    assert second.startswith(first)
    taken = request(second)
    assert unmarked(taken.body("draft")) == "a draft"
    assert unmarked(taken.body("reasons")) == "- These exact values are missing, say what each is: Acme."
    assert body(summary) == "a draft with Acme"
    assert summary.spent.calls == 2


def test_what_is_still_missing_is_mended() -> None:
    model = Scripted(lambda *_: "a draft")
    summary = StagedSummarizer(model, Asking("Acme", add="\nAcme")).summarize(asked(LONG[:4]))
    assert (len(model.prompts), body(summary)) == (2, "a draft\nAcme")


@pytest.mark.parametrize("second", ["worse", error("model_timeout"), cut(), ""])
def test_a_worse_correction_does_not_take_the_drafts_place(second: Reply) -> None:
    model = Scripted(lambda _, number: "Acme" if number == 0 else second)
    summary = StagedSummarizer(model, Asking("Acme", "Berlin", add=" Berlin")).summarize(asked(LONG[:4]))
    assert body(summary) == "Acme Berlin"


def test_what_cannot_be_mended_is_refused_with_its_reasons() -> None:
    model = Scripted(lambda *_: "a draft")
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model, Asking("Acme", "Berlin", add=" Acme")).summarize(asked(LONG[:4]))
    assert (caught.value.code, caught.value.detail) == ("summary_rejected", "identifiers_missing")
    assert caught.value.spent.calls == 2
    with pytest.raises(SummaryError, match="summary_rejected"):
        StagedSummarizer(model, Asking("Acme")).summarize(asked(LONG[:4]))


def test_a_fatal_failure_of_the_correction_is_raised() -> None:
    model = Scripted(lambda _, number: "a draft" if number == 0 else error("model_auth"))
    with pytest.raises(SummaryError) as caught:
        StagedSummarizer(model, Asking("Acme")).summarize(asked(LONG[:4]))
    assert caught.value.code == "model_auth"


def test_the_merge_is_what_is_checked_and_corrected() -> None:
    def reply(prompt: str, _: int) -> str:
        names = [name for name, _ in request(prompt).frames]
        return "all with Acme" if "reasons" in names else "all" if "part-summary" in names else told(prompt)

    model = Scripted(reply)
    summary = StagedSummarizer(model, Asking("Acme")).summarize(asked())
    assert body(summary) == "all with Acme"
    assert [is_merge(prompt) for prompt in model.prompts[-2:]] == [True, True]


def test_parts_side_by_side_are_mended_and_not_asked_for_again() -> None:
    model = Scripted(lambda prompt, _: error("model_refused") if is_merge(prompt) else told(prompt))
    summary = StagedSummarizer(model, Asking("Acme", add="\nAcme")).summarize(asked())
    assert body(summary).endswith("\nAcme")
    assert len(model.prompts) == 6


# Against a server


@pytest.fixture
def server() -> Iterator[LoopbackModel]:
    with LoopbackModel(default=ok(f"{SECTIONS[0]}\nThe user wishes."), context_tokens=None) as model:
        yield model


def staged(server: LoopbackModel, **fields: Any) -> StagedSummarizer:
    given: dict[str, Any] = {
        "summarizer_deadline_seconds": 20,
        "ANTHROPIC_API_KEY": "sk-ant-any",
        "ANTHROPIC_BASE_URL": server.url,
    }
    return StagedSummarizer(AnthropicModel(Settings(**given | fields)))


@pytest.mark.requirement("S8")
def test_a_server_gets_whole_requests_with_nothing_to_call(server: LoopbackModel) -> None:
    summary = staged(server).summarize(asked())
    assert len(server.requests) == 6
    for sent in server.requests:
        # No tools: there is nothing that an instruction in the record could set off.
        assert sorted(sent.body) == ["max_tokens", "messages", "model", "system", "temperature"]
        assert (sent.body["temperature"], sent.body["max_tokens"]) == (0, 4_096)
        assert sent.body["system"].startswith(SYSTEM_PROMPT)
        ((message),) = sent.body["messages"]
        assert message["role"] == "user"
        assert request(message["content"]).frames
        assert sent.input_tokens * 1.0 <= 200_000
    assert summary.spent.calls == 6
    assert summary.spent.cost_usd is not None
    assert body(summary) == f"{SECTIONS[0]}\nThe user wishes."


def test_a_smaller_window_than_was_known_is_found_out() -> None:
    with LoopbackModel(default=ok("short"), context_tokens=9_000) as small:
        summary = staged(small).summarize(asked(zone_of(exchanges(20, 1_000))))
        assert summary.covers_through is None
        assert summary.parts > 4
        assert summary.spent.calls == len(small.requests)


def test_a_model_that_only_refuses_is_an_error(server: LoopbackModel) -> None:
    server.default = refusal()
    with pytest.raises(SummaryError) as caught:
        staged(server).summarize(asked())
    assert caught.value.code == "model_refused"
    assert caught.value.spent.calls == len(server.requests)


@pytest.mark.parametrize(
    ("step", "code"), [(max_tokens(), "summary_cut"), (longer_than_input(), "summary_too_long")], ids=["cut", "long"]
)
def test_an_answer_without_end_is_an_error(server: LoopbackModel, step: Any, code: str) -> None:
    server.default = step
    with pytest.raises(SummaryError) as caught:
        staged(server).summarize(asked(LONG[:20]))
    assert caught.value.code == code
    assert len(server.requests) == 2


def test_a_wrong_key_is_found_out_with_the_first_requests(server: LoopbackModel) -> None:
    server.default = status(401)
    with pytest.raises(SummaryError) as caught:
        staged(server).summarize(asked(zone_of(exchanges(200, 1_000))))
    assert caught.value.code == "model_auth"
    assert len(server.requests) <= 4
