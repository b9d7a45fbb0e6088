"""A recorded conversation as the service would hold it, and what the product's own ladder makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec

from compaction.cost.pauses import Pause
from compaction.messages import has_tool_results, is_request
from compaction.shorten.trimming import drop_oldest
from compaction.steps import steps
from compaction.steps.ladder import Load, cut_threshold, decide, growth_margin
from compaction.steps.plan import Progress, RunContext, next_step_of_stage
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.steps.stage import Stage
from compaction.tokens import content_tokens
from compaction.view import ViewMessage, cap_results
from worker.summarizers.base import SummaryError, SummaryRequest
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.cost.depth import Depth
    from compaction.policy import Policy
    from compaction.steps.catalogue import Step

Message = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """A snapshot in force: what its context begins with, and what keeps the ladder from being climbed again at once."""

    snapshot: Snapshot
    keys: tuple[int, ...]
    """What each of its messages is known by: its seq where it shows the original, else a hash of what it says."""
    tokens: tuple[int, ...]
    """Of all its messages up to each."""
    summarized: int = 0
    """Messages when its summary was asked for."""
    summary_read: int = 0
    """Tokens that the model read for it, 0 where none was asked."""
    summary_written: int = 0
    """Tokens that it answered with."""
    results_through: int = -1
    results_hold: int = 0
    summary_hold: int = 0
    depths: tuple[Depth, ...] = ()
    """Of a cut that was all that was made: how deep it might have gone as well, the deepest first."""

    @property
    def total(self) -> int:
        """Tokens of its messages."""
        return self.tokens[-1] if self.tokens else 0

    @property
    def covers(self) -> int:
        """How many messages it stands for."""
        return self.snapshot.covers_through + 1


NO_HEAD = Head(Snapshot(), (), ())


@dataclass
class Recording:
    """One conversation: its messages, and the calls that they came from; each assistant message is one."""

    name: str
    messages: Sequence[Message]
    fixed: int
    policy: Policy
    calls: list[int] = field(default_factory=list)
    """How many messages each call was sent."""
    _heads: dict[tuple[int, int, bool, int], tuple[Head, Head]] = field(default_factory=dict)
    _shared: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pause = Pause(self.policy)
        self.originals = [
            Original(seq, each["role"], msgspec.json.encode(each["content"]).decode())
            for seq, each in enumerate(self.messages)
        ]
        view = [ViewMessage(each["role"], each["content"], seq) for seq, each in enumerate(self.messages)]
        self.sizes = [message.tokens for message in cap_results(view, self.policy.max_tool_result_chars)]
        self.until = [0, *accumulate(self.sizes)]
        """Tokens of the first so many messages."""
        self.calls = [at for at, each in enumerate(self.messages) if each["role"] == "assistant" and at]
        self.results = [at for at, each in enumerate(view) if has_tool_results(each.role, each.content)]
        asked = [is_request(each.role, each.content) for each in view]
        before = [0, *self.calls]
        self.requests = [any(asked[start:end]) for start, end in zip(before, self.calls, strict=False)]

    @property
    def margin(self) -> int:
        """Tokens that it grows by before tool results are looked at again."""
        return growth_margin(cut_threshold(self.policy), self.policy)

    def tokens(self, head: Head, count: int) -> int:
        """Return the tokens of a call that is sent a head and the messages after it, up to so many."""
        return self.fixed + head.total + self.until[count] - self.until[min(head.covers, count)]

    def is_due(self, head: Head, count: int, *, hold: int = 0, in_pause: bool = False) -> bool:
        """Tell by counters alone, as a check does, whether a step of the ladder is due.

        `hold` are the tokens to which cuts of tool results are held back besides.
        """
        tokens = self.tokens(head, count)
        newest = next((at for at in reversed(self.results) if at < count), -1)
        load = Load(
            tokens,
            None,
            has_old_results=newest > head.results_through,
            tool_results_hold=max(head.results_hold, hold),
            summary_hold=head.summary_hold,
        )
        return self.pause.is_due(load) if in_pause else bool(decide(load, self.policy))

    def climb(self, head: Head, count: int, *, in_pause: bool = False, start: int = 0) -> Head | None:
        """Return the head that a run makes of the first `count` messages; None where nothing came of it.

        Results in messages of the view before `start` are not cut.
        """
        key = (id(head), count, in_pause, start)
        if key not in self._heads:
            policy = self.pause.early_policy if in_pause else self.policy
            self._heads[key] = (
                head,
                self._climbed(head, count, policy, start),
            )  # both, so that no id is given to another
        _, climbed = self._heads[key]
        return None if climbed.snapshot.version == head.snapshot.version else climbed

    def _climbed(self, head: Head, count: int, policy: Policy, start: int) -> Head:
        working = build(head.snapshot, self.originals[head.covers : count], policy, pinned=())
        stage = Stage(working, fixed_tokens=self.fixed)
        context, progress = RunContext(policy, can_summarize=True, can_extract=True), Progress()
        before_run = stage
        summarized, read, written = head.summarized, 0, 0
        while step := next_step_of_stage(context, progress, stage):
            before = stage.tokens
            outcome = self._outcome(step, stage, policy, start)
            if outcome is None or outcome.reason is not None:
                progress = progress.after(step, "skipped")
                continue
            stage = stage.after(outcome.settle(stage, ""), policy)
            progress = progress.after(step, "committed")
            if step.summarizer is not None:
                summarized, read = count, before
                written = content_tokens(stage.working.snapshot.summary or "")
        stored = stage.tokens + self.fixed
        committed = [step for step, done in progress.results.items() if done == "committed"]
        find_depths = committed[0].depths if len(committed) == 1 else None
        cut = any(step.looks_at_results for step in progress.results)
        snapshot = stage.working.snapshot
        return Head(
            snapshot,
            _keys(self, snapshot),
            tuple(accumulate(message.tokens for message in snapshot.messages)),
            summarized,
            read,
            written,
            results_through=next((at for at in reversed(self.results) if at < count), -1) if cut else -1,
            results_hold=stored + growth_margin(cut_threshold(policy), policy) if cut else head.results_hold,
            summary_hold=stored + growth_margin(policy.compaction_threshold_tokens, policy)
            if progress.summary is not None
            else head.summary_hold,
            depths=() if find_depths is None else tuple(find_depths(before_run, policy)),
        )

    def _outcome(self, step: Step, stage: Stage, policy: Policy, start: int) -> steps.StepOutcome | None:
        if step.act is None:
            return self._summary(stage, policy)
        return step.act(stage, policy, steps.StepOptions(start=start))

    def _summary(self, stage: Stage, policy: Policy) -> steps.StepOutcome | None:
        zone = steps.find_zone(stage, policy)
        if isinstance(zone, str):
            return None
        request = SummaryRequest(stage.view[zone.start : zone.stop], stage.previous_summary, policy)
        try:
            text = ExtractiveSummarizer().summarize(request).text
        except SummaryError:
            return None
        return steps.summarize(stage, zone, text, policy)

    def shared(self, one: Head, other: Head, count: int) -> int:
        """Return the tokens that two contexts of `count` messages both begin with."""
        if one is other:
            return self.tokens(one, count)
        key = (id(one), id(other), count)
        if key not in self._shared:
            mine = (*one.keys, *range(one.covers, count))
            theirs = (*other.keys, *range(other.covers, count))
            alike = next(
                (at for at, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), len(mine)
            )
            common = one.tokens[min(alike, len(one.keys)) - 1] if alike and one.keys else 0
            if alike > len(one.keys):
                common += sum(self.sizes[seq] for seq in mine[len(one.keys) : alike])
            self._shared[key] = self.fixed + common
        return self._shared[key]

    def newest(self, count: int, most: int) -> tuple[int, int]:
        """Return from which message on the newest `most` are whole exchanges and rounds, and their tokens."""
        view = tuple(ViewMessage(each["role"], each["content"], at) for at, each in enumerate(self.messages[:count]))
        kept = drop_oldest(view, lambda number, _: number <= most).view
        return (kept[0].seq if kept else 0), sum(self.sizes[each.seq] for each in kept if each.seq >= 0)


def _keys(recording: Recording, snapshot: Snapshot) -> tuple[int, ...]:
    """Return what the messages of a snapshot are known by."""
    keys: list[int] = []
    for message in snapshot.messages:
        seq = message.seq
        is_whole = 0 <= seq < len(recording.messages) and recording.messages[seq]["content"] == message.content
        keys.append(seq if is_whole else hash(msgspec.json.encode(message.content)) | 1 << 40)
    return tuple(keys)


def recorded(name: str, messages: Sequence[Message], system: Any, policy: Policy) -> Recording:
    """Return a recording; the system prompt and tools are sent with every call."""
    return Recording(name, messages, content_tokens(system) if system else 0, policy)
