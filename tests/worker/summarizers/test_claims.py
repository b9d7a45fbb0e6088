"""The sources of a summary's lines, with models that cite well, wrongly, everything, nothing, and half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest
from sqlalchemy import insert, select

from actions.types.runs import run_out
from compaction.claims.citations import parse_lines
from compaction.claims.claim import Claim
from compaction.coverage import find_span
from compaction.policy import merge
from compaction.summary.zone import REFERENCE
from compaction.view import ViewMessage
from store.conversations import branches, conversations, pins, snapshots
from store.tables import snapshots as stored
from tests.support.servers.loopback_steps import ok
from tests.support.service.in_process import Chat, Workers
from tests.support.talk import answer, exchanges, request
from worker.claims.proving import proved
from worker.summarizers.base import SummaryRequest
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.servers.loopback_model import LoopbackModel


FACTS: Final = (
    ("The depot in Rotterdam closes on Friday.", "Noted, the Rotterdam depot closes on Friday."),
    ("Raise the freight budget to 6200 EUR, please.", "The freight budget is 6200 EUR now."),
    ("Our carrier is Kestrel Lines, contract KL-20417.", "Kestrel Lines holds contract KL-20417, then."),
    ("The pallets weigh 731 kilograms each.", "All pallets at 731 kilograms are entered."),
)
"""What user and assistant say in messages 2 to 9."""
WELL: Final = """## Request and constraints
The user plans freight [m2-9].
## Decisions
The freight budget was raised to 6200 EUR [m4, m5].
## Facts
The depot in Rotterdam closes on Friday [m2].
Kestrel Lines is the carrier under contract KL-20417 [m6\u2013m7].
## Results and scores
Pallets weigh 731 kilograms each [m8].
## Status and next steps
None."""
GRAVE: Final = "A warehouse in Osaka was rented for 48 months [m3]."


def told(chat: Chat, policy: dict[str, Any] | None = None) -> UUID:
    """Return a conversation whose messages 2 to 9 say something, before enough others to be over the threshold."""
    conversation = chat.begin({"min_savings_tokens": 100} | (policy or {}))
    talk = [request("Help me with freight."), answer("Gladly.")]
    for asked, replied in FACTS:
        talk += [request(asked), answer(replied)]
    chat.append(conversation, [*talk, *exchanges(12, 200)])
    return conversation


def claims(chat: Chat, conversation: UUID, version: int | None = None) -> tuple[Claim, ...]:
    """Return the claims of a version, the head's by default, having held them against their summary and coverage."""
    row = chat.snapshot(conversation, version or chat.row(conversation).head_version)
    stored = snapshots.claims_of(row)
    assert stored is not None
    agree(chat, conversation, row.version)
    return stored


def agree(chat: Chat, conversation: UUID, version: int) -> None:
    """No claim rests on what its snapshot does not cover, or still shows; each is a line of the summary."""
    with chat.database.transaction(chat.tenant_id, one_moment=True) as connection:
        snapshot = snapshots.load(connection, chat.tenant_id, conversation, base_version=version).snapshot
    for claim in snapshot.claims or ():
        assert claim.text in (snapshot.summary or "")
        assert bool(claim.seqs) == (claim.support != "unsupported")
        assert list(claim.seqs) == sorted(set(claim.seqs))
        for seq in claim.seqs:
            span = find_span(snapshot.coverage, seq)
            assert span is not None
            assert span.fate in {"summarized", "dropped"}


def by_text(claims_: tuple[Claim, ...]) -> dict[str, Claim]:
    return {claim.text: claim for claim in claims_}


def detail(chat: Chat, conversation: UUID) -> str:
    return next(
        str(step.detail) for step in chat.steps(chat.run(conversation).id) if step.name in {"summary", "extract"}
    )


def summarized(chat: Chat, model: LoopbackModel, text: str, policy: dict[str, Any] | None = None) -> UUID:
    """Return a conversation whose model has answered `text`, to the correction too."""
    model.default = ok(text)
    conversation = told(chat, policy)
    Workers(chat).settle(conversation)
    return conversation


def test_what_a_model_cites_well_is_stored_and_not_served(asking: Chat, model: LoopbackModel) -> None:
    conversation = summarized(asking, model, WELL)
    lines = by_text(claims(asking, conversation))
    assert lines["The depot in Rotterdam closes on Friday."].seqs == (2,)
    assert lines["The freight budget was raised to 6200 EUR."].seqs == (4, 5)
    assert lines["Kestrel Lines is the carrier under contract KL-20417."].seqs == (6, 7)
    assert lines["Pallets weigh 731 kilograms each."].seqs == (8,)
    assert "[m" not in asking.snapshot(conversation, 1).summary
    assert "[m4" not in str(asking.valid_context(conversation))
    assert "claims: 5 cited" in detail(asking, conversation)
    # What the guard adds comes word for word from the zone, and so do its sources.
    added = [claim for claim in lines.values() if claim.text not in {line.text.strip() for line in parse_lines(WELL)}]
    assert all(claim.support == "verbatim" for claim in added)


def test_the_model_is_asked_for_sources_by_the_numbers_that_it_sees(asking: Chat, model: LoopbackModel) -> None:
    summarized(asking, model, WELL)
    asked = model.requests[0]
    assert "[m12-15]" in str(asked.body["system"])
    assert "[2] user" in str(asked.body["messages"])


@pytest.mark.parametrize(
    ("cites", "outcome"),
    [
        ("[m8]", "re-attributed"),
        ("[m0-m400]", "re-attributed"),
        ("", "re-attributed"),
        ("[m7003]", "re-attributed"),
        ("[conv_00000000000000000000000000000001:m6]", "re-attributed"),
        ("[m6", "re-attributed"),
        ("[m6-", "re-attributed"),
        ("[m9-m6]", "re-attributed"),
        ("[m6]", "cited"),
        ("[m6.0]", "cited"),
    ],
    ids=["wrongly", "everything", "nothing", "no such", "elsewhere", "cut", "cut range", "backwards", "well", "block"],
)
def test_a_line_is_given_to_the_one_stretch_that_bears_it_out(
    asking: Chat, model: LoopbackModel, cites: str, outcome: str
) -> None:
    line = "Kestrel Lines carries the freight under contract KL-20417"
    conversation = summarized(asking, model, f"{WELL.partition('Kestrel')[0]}{line} {cites}")
    assert "KL-20417" in asking.snapshot(conversation, 1).summary
    claim = by_text(claims(asking, conversation))[line]
    assert claim.seqs == (6,) if outcome == "cited" else set(claim.seqs) <= {6, 7}
    assert claim.support == "values"
    assert ("4 cited, 0 re-attr" if outcome == "cited" else "3 cited, 1 re-attr") in detail(asking, conversation)


def test_what_nothing_bears_out_is_marked_dropped_or_refused(asking: Chat, model: LoopbackModel) -> None:
    text = WELL.replace("## Results", f"{GRAVE}\n## Results")
    bare = GRAVE.partition(" [")[0]
    marked = summarized(asking, model, text)
    assert by_text(claims(asking, marked))[f"{bare}."].support == "unsupported"
    assert "1 unsupported, 0 dropped" in detail(asking, marked)
    run = asking.run(marked)
    out = run_out(run, asking.steps(run.id))
    assert (out.unsupported_lines, out.dropped_lines) == (1, 0)

    dropped = summarized(asking, model, text, {"unsupported_claims": "drop"})
    assert "Osaka" not in asking.snapshot(dropped, 1).summary
    assert "Rotterdam" in asking.snapshot(dropped, 1).summary
    assert all(claim.support != "unsupported" for claim in claims(asking, dropped))
    assert "0 unsupported, 1 dropped" in detail(asking, dropped)

    emptied = summarized(asking, model, text.replace(GRAVE, f"### Abroad\n{GRAVE}"), {"unsupported_claims": "drop"})
    assert "Abroad" not in asking.snapshot(emptied, 1).summary

    asked = len(model.requests)
    refused = summarized(asking, model, text, {"unsupported_claims": "refuse"})
    names = [(step.name, step.state, step.reason) for step in asking.steps(asking.run(refused).id)]
    assert ("summary", "failed", "summary_rejected") in names
    assert names[-1][:2] == ("extract", "committed")
    assert "Osaka" not in asking.snapshot(refused, 1).summary
    assert all(claim.support == "verbatim" for claim in claims(asking, refused))
    correction = model.requests[asked + 1]
    assert "No message bears these lines out" in str(correction.body["messages"])
    assert "Osaka" in str(correction.body["messages"])


def test_lines_that_were_marked_are_counted_where_they_are_dropped_now(asking: Chat, model: LoopbackModel) -> None:
    conversation = summarized(asking, model, WELL.replace("## Results", f"{GRAVE}\n## Results"))
    with asking.database.transaction(asking.tenant_id) as connection:
        policy = asking.row(conversation).policy | {"unsupported_claims": "drop"}
        conversations.change(connection, asking.tenant_id, conversation, {"policy": policy})
    asking.append(conversation, exchanges(14, 200, start=20))
    Workers(asking).settle(conversation)
    assert asking.row(conversation).head_version == 2
    assert "Osaka" not in asking.snapshot(conversation, 2).summary
    details = [step.detail or "" for run in asking.runs(conversation) for step in asking.steps(run.id)]
    assert any(", 1 dropped, 1 marked before are gone" in each for each in details), details


def test_references_are_served_short_where_handles_are_on_and_count(asking: Chat, model: LoopbackModel) -> None:
    without = asking.snapshot(summarized(asking, model, WELL), 1)
    conversation = summarized(asking, model, WELL, {"recall_handles": True})
    row = asking.snapshot(conversation, 1)
    assert "The freight budget was raised to 6200 EUR. [m4-5]" in row.summary
    assert "The depot in Rotterdam closes on Friday. [m2]" in str(asking.valid_context(conversation))
    assert row.tokens > without.tokens
    assert [claim.seqs for claim in claims(asking, conversation)] == [
        claim.seqs for claim in snapshots.claims_of(without) or ()
    ]


@pytest.mark.parametrize("handles", [False, True])
def test_a_summary_of_a_summary_cites_originals(asking: Chat, model: LoopbackModel, *, handles: bool) -> None:
    conversation = summarized(asking, model, WELL, {"recall_handles": handles})
    before = by_text(claims(asking, conversation))
    later = """## Request and constraints
The user plans freight [m2-9].
## Decisions
The budget for freight is 6200 EUR [m4].
## Facts
The depot in Rotterdam closes on Friday.
Contract KL-20417 is with Kestrel Lines [m30].
## Results and scores
None.
## Status and next steps
None."""
    model.default = ok(later)
    asking.append(conversation, exchanges(14, 200, start=20))
    asked = len(model.requests)
    Workers(asking).settle(conversation)
    assert asking.row(conversation).head_version == 2
    shown = str(model.requests[asked].body["messages"])
    assert "The freight budget was raised to 6200 EUR. [m4-5]" in shown
    after = by_text(claims(asking, conversation))
    assert after["The depot in Rotterdam closes on Friday."] == before["The depot in Rotterdam closes on Friday."]
    assert after["The budget for freight is 6200 EUR."].seqs == (4, 5)
    assert after["Contract KL-20417 is with Kestrel Lines."].seqs == (6, 7)


def test_numbers_alone_name_originals_of_earlier_summaries_too(asking: Chat, model: LoopbackModel) -> None:
    bare = WELL.replace("[m2-9]", "[2-9]").replace("[m4, m5]", "[4, 5]").replace("[m6\u2013m7]", "[6\u20137]")
    conversation = summarized(asking, model, bare)
    before = claims(asking, conversation)
    asking.append(conversation, exchanges(14, 200, start=20))
    Workers(asking).settle(conversation)
    assert asking.row(conversation).head_version == 2
    assert claims(asking, conversation) == before
    assert "[4" not in asking.snapshot(conversation, 2).summary


@pytest.mark.parametrize("cites", ["m4", "4"])
def test_where_lines_are_dropped_citations_stay_however_they_are_written(
    asking: Chat, model: LoopbackModel, cites: str
) -> None:
    conversation = asking.begin({"min_savings_tokens": 100, "unsupported_claims": "drop"})
    talk = [message for asked, replied in FACTS for message in (request(asked), answer(replied))]
    again = [request("So the freight budget is 6200 EUR, is it?"), answer("It is.")]
    asking.append(conversation, [*exchanges(1, 20), *talk, *exchanges(3, 100), *again, *exchanges(12, 200)])
    model.default = ok(WELL.replace("was raised to 6200 EUR [m4, m5]", f"was set at 6200 EUR [{cites}]"))
    Workers(asking).settle(conversation)
    assert by_text(claims(asking, conversation))["The freight budget was set at 6200 EUR."].seqs == (4,)


def test_what_the_summary_before_it_said_has_to_stand_in_a_summary_too(asking: Chat, model: LoopbackModel) -> None:
    conversation = summarized(asking, model, WELL)
    model.default = ok(WELL.replace("Kestrel Lines is the carrier under contract KL-20417 [m6\u2013m7].\n", ""))
    asking.append(conversation, exchanges(14, 200, start=20))
    Workers(asking).settle(conversation)
    assert asking.row(conversation).head_version == 2
    assert "KL-20417" in asking.snapshot(conversation, 2).summary


def test_what_nothing_bore_out_once_bears_nothing_out_later(asking: Chat, model: LoopbackModel) -> None:
    conversation = summarized(asking, model, WELL.replace("raised to 6200 EUR", "raised to 9155 EUR"))
    assert by_text(claims(asking, conversation))["The freight budget was raised to 9155 EUR."].support == "unsupported"
    model.default = ok(WELL.replace("was raised to 6200 EUR", "is at 9155 EUR now"))
    asking.append(conversation, exchanges(14, 200, start=20))
    Workers(asking).settle(conversation)
    assert asking.row(conversation).head_version == 2
    assert by_text(claims(asking, conversation))["The freight budget is at 9155 EUR now."].support == "unsupported"


def test_what_is_pinned_and_finds_no_room_has_to_stand_in_the_summary(asking: Chat, model: LoopbackModel) -> None:
    model.default = ok(WELL.replace("Kestrel Lines is the carrier under contract KL-20417 [m6\u2013m7].\n", ""))
    conversation = told(asking, {"pinned_max_tokens": 70})
    with asking.database.transaction(asking.tenant_id) as connection:
        for seq, (said, _) in ((6, FACTS[2]), (8, FACTS[3])):
            pins.add(connection, asking.tenant_id, conversation, seq, said, uuid4())
    Workers(asking).settle(conversation)
    row = asking.snapshot(conversation, 1)
    assert [text for _, _, text, source, *_ in row.pins if source == "pinned"] == [FACTS[3][0]]
    kept = model.requests[0].prompt.partition("<kept-verbatim")[2]
    assert (FACTS[2][0] in kept, FACTS[3][0] in kept) == (False, True)
    assert "KL-20417" in row.summary


@pytest.mark.parametrize("handles", [False, True])
def test_an_extract_knows_its_sources_by_construction(chat: Chat, *, handles: bool) -> None:
    conversation = told(chat, {"recall_handles": handles})
    Workers(chat).settle(conversation)
    first = claims(chat, conversation)
    contents = {seq: content for seq, _, content in chat.originals(conversation)}
    assert len(first) > 3
    for claim in first:
        said = claim.text.partition(": ")[2].partition(" \u2026 ")[0]
        assert any(said in contents[seq] for seq in claim.seqs)
    contract = next(claim for claim in first if "KL-20417" in claim.text)
    assert contract.seqs in {(6,), (7,)}

    chat.append(conversation, exchanges(14, 200, start=20))
    Workers(chat).settle(conversation)
    assert chat.row(conversation).head_version == 2
    carried = next(claim for claim in claims(chat, conversation) if "KL-20417" in claim.text)
    assert carried.seqs == contract.seqs
    limit = 4 * 4_000 // 4
    assert len(chat.snapshot(conversation, 2).summary) <= limit * 4


def test_a_fork_and_a_restore_keep_the_claims(asking: Chat, model: LoopbackModel) -> None:
    conversation = summarized(asking, model, WELL)
    before = claims(asking, conversation, 1)
    with asking.database.transaction(asking.tenant_id) as connection:
        policy = asking.run(conversation).policy
        last = asking.row(conversation).next_seq - 1
        forked = branches.fork(connection, asking.tenant_id, conversation, last, None, merge(policy), uuid4())
        branches.restore(connection, asking.tenant_id, conversation, 0, merge(policy), uuid4())
        version = branches.restore(connection, asking.tenant_id, conversation, 1, merge(policy), uuid4())
    assert forked is not None
    assert claims(asking, forked, 1) == before
    assert claims(asking, conversation, version) == before
    assert asking.query("select claims from snapshots where conversation_id = :c and version = 2", c=conversation) == [
        (None,)
    ]


def test_headings_of_the_summary_before_it_are_no_claims_of_an_extract(asking: Chat, model: LoopbackModel) -> None:
    conversation = summarized(asking, model, WELL)
    before = claims(asking, conversation)
    model.default = ok("I'm sorry, I cannot help with that.")
    for version, start in ((2, 20), (3, 40)):
        asking.append(conversation, exchanges(14, 200, start=start))
        Workers(asking).settle(conversation)
        row = asking.snapshot(conversation, version)
        assert row.step == "extract"
        carried = [claim for claim in claims(asking, conversation) if claim.text in by_text(before)]
        assert tuple(carried) == before
        assert all(claim.support != "unsupported" for claim in claims(asking, conversation))
        assert "Facts" not in row.summary
        assert REFERENCE not in row.summary


@pytest.mark.parametrize("handling", ["mark", "drop", "refuse"])
@pytest.mark.parametrize("is_asked", [True, False], ids=["model", "extract"])
def test_what_was_marked_is_not_given_on_where_there_is_to_be_no_such_line(
    asking: Chat, model: LoopbackModel, handling: str, *, is_asked: bool
) -> None:
    conversation = summarized(asking, model, WELL.replace("## Results", f"{GRAVE}\n## Results"))
    with asking.database.transaction(asking.tenant_id) as connection:
        policy = asking.row(conversation).policy | {"unsupported_claims": handling}
        conversations.change(connection, asking.tenant_id, conversation, {"policy": policy})
    model.default = ok(WELL if is_asked else "I'm sorry, I cannot help with that.")
    asked = len(model.requests)
    asking.append(conversation, exchanges(14, 200, start=20))
    Workers(asking).settle(conversation)
    assert ("Osaka" in model.requests[asked].prompt) is (handling == "mark")
    row = asking.snapshot(conversation, 2)
    assert (row.step, len(model.requests) - asked) == (("summary", 1) if is_asked else ("extract", 2))
    assert ("Osaka" in row.summary) is (handling == "mark" and not is_asked)
    assert "KL-20417" in row.summary
    carried = by_text(claims(asking, conversation))
    assert carried["The depot in Rotterdam closes on Friday."].seqs == (2,)
    gone = ", 1 marked before are gone"
    details = [step.detail or "" for run in asking.runs(conversation) for step in asking.steps(run.id)]
    assert any(gone in each for each in details) is (handling != "mark")


def test_what_is_marked_in_a_block_is_not_gone_with_an_extract_after_it() -> None:
    zone = tuple(ViewMessage("user" if seq % 2 else "assistant", text, seq) for seq, text in enumerate(sum(FACTS, ())))
    asked = SummaryRequest(zone, None, merge({"unsupported_claims": "drop"}), claims=(Claim(GRAVE),))
    (note,) = proved(ExtractiveSummarizer().summarize(asked), asked).notes
    assert note.endswith("0 unsupported, 0 dropped")


@pytest.mark.parametrize("handling", ["drop", "refuse"])
def test_what_a_summary_from_before_claims_said_is_kept_however_often_it_is_taken_over(
    asking: Chat, model: LoopbackModel, handling: str
) -> None:
    conversation = summarized(asking, model, WELL, {"unsupported_claims": handling})
    with asking.database.transaction(asking.tenant_id) as connection:
        first = connection.execute(select(stored).where(stored.c.conversation_id == conversation)).mappings().one()
        connection.execute(insert(stored).values({**first, "version": 2, "parent_version": 1, "claims": None}))
        snapshots.move_head(connection, conversation, 2)
    for version, start in ((3, 20), (4, 40), (5, 60)):
        asking.append(conversation, exchanges(14, 200, start=start))
        Workers(asking).settle(conversation)
        row = asking.snapshot(conversation, version)
        assert (row.step, "KL-20417" in row.summary, "6200 EUR" in row.summary) == ("summary", True, True)
        assert all(claim.support == "unsupported" for claim in claims(asking, conversation))
