"""What has to hold of the rows of a conversation, whatever happened: random walks and the faults ask here.

The numbers are those of the invariants in docs/architecture.md. Each function says in a sentence what is wrong, row by
row, and nothing where all is well. The statements end where the conversation's id has to follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Row = Mapping[str, Any]

CONVERSATION: Final = (
    "select c.*, s.tokens as head_tokens, s.message_count as head_messages, s.bytes as head_bytes,"
    " (select coalesce(sum(shown_tokens(m.tokens, m.view_tokens, m.result_chars, c.result_cap)), 0)::int"
    "  from messages as m where m.conversation_id = c.id and m.seq > c.covers_through and m.superseded_at is null)"
    " as tail_tokens,"
    " (select count(*)::int from messages as m"
    "  where m.conversation_id = c.id and m.seq > c.covers_through and m.superseded_at is null) as tail_messages,"
    " (select coalesce(sum(m.bytes), 0)::bigint from messages as m"
    "  where m.conversation_id = c.id and m.seq > c.covers_through and m.superseded_at is null) as tail_bytes"
    " from conversations as c left join snapshots as s on s.conversation_id = c.id and s.version = c.head_version"
    " where c.id = "
)
SNAPSHOTS: Final = "select version, covers_through, coverage, seqs from snapshots where conversation_id = "
RUNS: Final = "select id, state, attempts, trigger, policy, block_id from runs where conversation_id = "
STEPS: Final = (
    "select s.run_id, s.name, s.state, s.reason, s.snapshot_version, s.tokens_before, s.tokens_after, r.trigger,"
    " r.target_tokens, (r.policy ->> 'min_savings_tokens')::int as least"
    " from run_steps as s join runs as r on r.id = s.run_id where r.block_id is null and r.conversation_id = "
)


def seqs(snapshot: Row, fates: Collection[str] | None = None) -> list[int]:
    """Return what a snapshot accounts for: everything, or what had one of `fates`."""
    return [
        seq
        for first, last, fate, _ in snapshot["coverage"]
        if fates is None or fate in fates
        for seq in range(first, last + 1)
    ]


def covered_wrongly(
    stored: Collection[int], superseded: Collection[int], head_version: int, snapshots: Sequence[Row]
) -> list[str]:
    """2: a snapshot accounts for every message that it covers, once; the head for exactly those that are live.

    `stored` are the seqs of all messages, `superseded` of those that were replaced.
    """
    wrong: list[str] = []
    for snapshot in snapshots:
        name, covers = f"snapshot {snapshot['version']}", snapshot["covers_through"]
        covered = seqs(snapshot)
        if covered != sorted(set(covered)) or not set(stored).issuperset(covered):
            wrong.append(f"{name} covers {ranges(covered)}")
        missing = {seq for seq in stored if seq <= covers} - set(covered) - set(superseded)
        if missing:
            wrong.append(f"{name} leaves out {ranges(sorted(missing))} of 0..{covers}")
        if not set(seqs(snapshot, {"summarized", "dropped"})).isdisjoint(snapshot["seqs"]):
            wrong.append(f"{name} shows what it says is gone")
        replaced = set(superseded).intersection(covered)
        if snapshot["version"] == head_version and replaced:
            wrong.append(f"{name}, the head, covers what was replaced: {ranges(sorted(replaced))}")
    if head_version and head_version not in {snapshot["version"] for snapshot in snapshots}:
        wrong.append(f"the head is version {head_version}, which is not there")
    return wrong


def counted_wrongly(conversation: Row, last_seq: int | None) -> list[str]:
    """9: the counters of a row of CONVERSATION are a recount; `last_seq` is that of its newest message."""
    expected = {
        "next_seq": conversation["next_seq"] if last_seq is None else last_seq + 1,
        "context_tokens": (conversation["head_tokens"] or 0) + conversation["tail_tokens"],
        "context_messages": (conversation["head_messages"] or 0) + conversation["tail_messages"],
        "context_bytes": (conversation["head_bytes"] or 0) + conversation["tail_bytes"],
    }
    return [
        f"{name} is {conversation[name]}, counted anew {value}"
        for name, value in expected.items()
        if conversation[name] != value
    ]


def attempted_wrongly(runs: Sequence[Row], most: int) -> list[str]:
    """No run is tried more often than `most`, and one at a time is active."""
    wrong = [f"run {run['id']} has {run['attempts']} attempts" for run in runs if run["attempts"] > most]
    active = [run["id"] for run in runs if run["state"] in {"queued", "running"} and run["block_id"] is None]
    return wrong + ([f"{len(active)} runs are active"] if len(active) > 1 else [])


def shrunk_wrongly(steps: Sequence[Row]) -> list[str]:
    """6, 7: what was committed is smaller by what is worth it; what was not changed nothing and says why.

    An emergency may save less than is worth a run, and its summary follows within the same room; to repeat a pin may
    make a context longer.
    """
    wrong: list[str] = []
    for step in steps:
        name = f"step {step['name']} of run {step['run_id']}"
        before, after = step["tokens_before"], step["tokens_after"]
        if step["state"] != "committed":
            if step["snapshot_version"] is not None or after != before or not step["reason"]:
                wrong.append(
                    f"{name} was {step['state']}, with snapshot {step['snapshot_version']}, {before} → {after} tokens"
                    f" and the reason {step['reason']}"
                )
        elif step["name"] == "pin":
            continue
        elif step["name"] == "overflow" or step["trigger"] == "overflow":
            most = before if step["name"] == "overflow" else step["target_tokens"]
            if after > most:
                wrong.append(f"{name} left {after} tokens, {most} were allowed")
        elif before - after < max(1, step["least"]):
            wrong.append(f"{name} saved {before - after} tokens, the least is {step['least']}")
    return wrong


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as text, neighbours as `first..last`."""
    parts: list[str] = []
    begin = last = None
    for number in [*numbers, None]:
        if last is not None and number == last + 1:
            last = number
            continue
        if begin is not None:
            parts.append(f"{begin}" if begin == last else f"{begin}..{last}")
        begin = last = number
    return ", ".join(parts[:20]) or "nothing"
