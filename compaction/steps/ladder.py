"""The ladder: what a check decides from a conversation's counters and its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.media.limits import NO_MEDIA, MediaLoad, limits_of

if TYPE_CHECKING:
    from compaction.policy import Policy


BELIEVABLE_SHARE: Final = 4
"""A count below the estimate by more than this factor is none: the learned ratio is held within two, and estimates of
images and documents may be off by as much again. Clients that leave out cached tokens report far less."""


class Load(NamedTuple):
    """What a conversation weighs, from its counters alone; in tokens but for `bytes`."""

    estimated: int
    """Estimate of the next call's input: system prompt, tools and the context as it is served."""
    measured: int | None
    """The API's count carried forward: input and output of the last call and the estimate of everything newer.
    None = no data, or made with another snapshot version."""
    stored: int | None = None
    """What is stored by the estimate alone, which nothing but growth changes: what holds are measured in. None =
    `estimated`."""
    is_counted: bool = True
    """Whether the API counted anything since the last request; before it has, the trim does not go by `measured`."""
    bytes: int = 0
    """Bytes of the context, serialized."""
    has_old_results: bool = True
    """Whether a tool-result message came since older ones were last checked."""
    tool_results_hold: int = 0
    """Tool results are not cut again until what is stored exceeds this."""
    summary_hold: int = 0
    """No summary is tried again until what is stored exceeds this."""
    trim_hold: int = 0
    """The trim is not tried again until the context exceeds this many bytes."""
    media: MediaLoad = NO_MEDIA
    """Images and files of the context. A check knows them if any came since a run looked at them."""

    @property
    def input_tokens(self) -> int:
        """The tokens the next call would send: the API's count where it is known, else the estimate."""
        return self.estimated if self.measured is None else self.measured

    def has_grown(self, hold: int) -> bool:
        """Tell whether what is stored is over a hold; one of 0 holds nothing."""
        return hold == 0 or (self.estimated if self.stored is None else self.stored) > hold


class Due(NamedTuple):
    """The steps that a conversation needs now."""

    tool_results: bool
    summary: bool
    trim: bool
    prune: bool = False
    media: bool = False

    def __bool__(self) -> bool:
        return any(self)


def decide(load: Load, policy: Policy) -> Due:
    """Return what is due. Both token thresholds are strict (requirements T1, S3); a budget of 0 is off."""
    tokens = load.input_tokens
    may_cut = load.has_old_results and load.has_grown(load.tool_results_hold)
    return Due(
        tool_results=may_cut and 0 < policy.input_token_budget < tokens,
        summary=tokens > policy.compaction_threshold_tokens and load.has_grown(load.summary_hold),
        trim=trim_is_due(load, policy),
        # Whether the tool results' own share is that large, only the messages tell.
        prune=may_cut and tokens > prune_threshold(policy),
        media=load.media.exceeds(limits_of(policy)),
    )


def must_wait(tokens: float, policy: Policy, *, in_signed_loop: bool) -> bool:
    """Tell whether a new snapshot has to wait: the API refuses signed thinking whose prefix has changed.

    `tokens` are those of the next call. From the trim threshold on, or once they would be dropped for want of room, it
    cannot wait: there the thinking is left out.
    """
    return in_signed_loop and tokens < policy.pending_limit_tokens


def prune_threshold(policy: Policy) -> int:
    """Return the tokens that tool results have to be over, by themselves, to be pruned."""
    return int(policy.prune_soft_share * policy.model_context_tokens)


def cut_threshold(policy: Policy) -> int:
    """Return the tokens over which older tool results may be cut or pruned, 0 where they never are."""
    return min((each for each in (policy.input_token_budget, prune_threshold(policy)) if each > 0), default=0)


def trim_is_due(load: Load, policy: Policy) -> bool:
    """Tell whether the byte trim has to run (requirements K2 to K4).

    Without a count from the API, or with one that cannot be true, the bytes decide; with one below the threshold the
    trim is skipped, and nothing is serialized to find out; at or above it the bytes decide again.
    """
    measured = load.measured if load.is_counted else None
    if measured is not None and load.estimated / BELIEVABLE_SHARE <= measured < policy.trim_threshold_tokens:
        return False
    return load.bytes > max(policy.max_context_bytes, load.trim_hold)


def over_by_fixed(fixed_tokens: int, policy: Policy) -> tuple[str, ...]:
    """Return the keys of the thresholds that system prompt and tools alone are over: no step can get under these."""
    thresholds = {
        "compaction_threshold_tokens": policy.compaction_threshold_tokens,
        "input_token_budget": policy.input_token_budget,
    }
    return tuple(key for key, threshold in thresholds.items() if 0 < threshold < fixed_tokens)


def growth_margin(threshold: int, policy: Policy) -> int:
    """Return the tokens a conversation has to grow by before the same step is tried on it again.

    A fifth of the threshold keeps compactions few and large: each one breaks the prompt cache from the first message
    it changes.
    """
    return max(policy.min_savings_tokens, threshold // 5)


def saves_enough(before: int, after: int, policy: Policy) -> bool:
    """Tell whether going from `before` to `after` tokens is worth a new snapshot."""
    return after < before and before - after >= policy.min_savings_tokens
