"""What is said in the demo's conversation: the user's rules, the assistant's scores, files and letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from api.console.demo.pages import WANTED

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from api.console.demo.pages import Vacancy

REPORT: Final = "reports/contracts-2026-03.md"
SYSTEM: Final = (
    "You help a freelance engineer find their next contract. Use the tools to search boards, read alert "
    "e-mails and vacancy pages, and keep the report file current. Score every vacancy that you have read "
    "against the user's own rubric, show the points for each criterion, and always quote the vacancy's "
    "reference, day rate and URL."
)


REQUEST: Final = f"""\
My contract at the rail operator ends on 12 March and I can start on 16 March. Please run my contract \
search, the same way every time.

What I am looking for
- Python data platform work: Python, Postgres, Kafka, Airflow and dbt are what I want to use daily.
- At least £600 a day, outside IR35. Inside IR35 is a no whatever the rate.
- Remote, with at most 3 office days a month. I live near Leeds.
- Six months or longer; shorter only if everything else is outstanding.
- Logistics, energy, transport or weather preferred. No gambling, no defence.

How to score, 100 points in all
- stack: 30 points, six for each of my five tools that the vacancy names
- rate: 25 points, one for each full £10 above £500 at the top of the range, capped
- remote: 20 points, minus 4 for every office day a month
- length: 15 points, two for every month, capped
- sector: 10 points for a preferred sector, else 5
Shortlist everything with 60 or more. Keep the report in {REPORT}: one line a vacancy with score, \
reference, day rate and URL, best first, and a log of what you searched.

About me, for the letters: eleven years of Python, the last six on streaming platforms. At the rail \
operator I moved 240 nightly jobs to Airflow 3 and cut the replay time from 19 hours to 50 minutes. \
Before that: freight pricing at a parcel network (Kafka, 90,000 events a second at peak), and meter \
readings for 1.4 million homes at a water company (Postgres, dbt). I write my own runbooks. References \
from all three on request.
"""

REFINEMENTS: Final = (
    (
        "Good start. Two changes from now on: my floor is £640 a day, since the accountant worked "
        "through the new tax year, and anything with 4 or more office days a month is out even if it "
        "scores well. Search again with that in mind, all three boards this time."
    ),
    (
        "Please also ignore agencies that do not name the client. And one more rule: I will not take "
        "over 24/7 on-call without paid standby. Go on with the alerts that came in overnight, then "
        "update the report."
    ),
    (
        "My partner may move to Glasgow in autumn, so Glasgow offices are as good as Leeds for me now. "
        "Look for streaming work there too, same scoring, and draft a short letter for the two best of "
        "the whole search so far."
    ),
)
"""Later instructions that change the criteria: what a compacted context must not lose."""

CRITERIA: Final = ("16 March", "£600", "outside IR35", "3 office days", "60 or more", REPORT)
"""Phrases of the user's own rules in the first message."""
REFINED_CRITERIA: Final = ("£640", "4 or more office days", "paid standby", "Glasgow")
"""Phrases of the rules in REFINEMENTS."""


def is_shortlisted(vacancy: Vacancy) -> bool:
    """Tell whether a vacancy reaches the user's own limit."""
    return vacancy.score >= 60 and vacancy.outside_ir35  # noqa: PLR2004  the limit in REQUEST


def eligible(vacancies: Sequence[Vacancy]) -> list[Vacancy]:
    """Return the vacancies outside IR35, best first."""
    return [vacancy for vacancy in ranked(vacancies) if vacancy.outside_ir35]


def ranked(vacancies: Sequence[Vacancy]) -> list[Vacancy]:
    """Return vacancies by falling score."""
    return sorted(vacancies, key=lambda vacancy: (-vacancy.score, vacancy.id))


def scoring_message(rng: random.Random, scored: Sequence[Vacancy]) -> str:
    """Return the assistant's judgement of vacancies: points for each criterion, rate, reference and URL."""
    remarks = (
        (
            "The page spends most of its length on a migration that is nearly done, so expect "
            "maintenance after month two."
        ),
        "Two contractors praise the scope; one warns about a slow change board.",
        "The team is small and the handover is written into the plan, which suits the way you work.",
        "Nothing on standby in the advert: ask before the first call.",
        "The client is named and has advertised the same seat before, eight months ago.",
        "They want examples of replay tooling, so lead with the 19 hours to 50 minutes.",
    )
    parts = ["Scores for what I have just read:"]
    for vacancy in scored:
        points = ", ".join(f"{name} {value}" for name, value in vacancy.points.items())
        verdict = "Shortlisted." if is_shortlisted(vacancy) else "Not shortlisted."
        if not vacancy.outside_ir35:
            verdict = "Inside IR35, therefore out."
        parts.append(
            f"**{vacancy.title}, {vacancy.company}** ({vacancy.id}): {vacancy.score}/100 ({points}). "
            f"£{vacancy.rate_low} to £{vacancy.rate_high} a day, {vacancy.months} months, {vacancy.place} "
            f"with {vacancy.office_days} office days a month. {rng.choice(remarks)} "
            f"{verdict}\n{vacancy.url}"
        )
    return "\n\n".join(parts)


def report(scored: Sequence[Vacancy], searches: Sequence[str]) -> str:
    """Return the report file: vacancies best first, a note on each, then the search log."""
    lines = [
        "# Contract search, March 2026",
        "",
        "| score | reference | role | day rate | IR35 | URL |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {vacancy.score} | {vacancy.id} | {vacancy.title}, {vacancy.company} | "
        f"£{vacancy.rate_low}-{vacancy.rate_high} | {'outside' if vacancy.outside_ir35 else 'inside'} | "
        f"{vacancy.url} |"
        for vacancy in ranked(scored)
    ]
    notes = "\n\n".join(note(vacancy) for vacancy in ranked(scored))
    log = "\n".join(f"- {entry}" for entry in searches)
    return "\n".join([*lines, "", notes, "", "## Searches", log, ""])


def letter(vacancy: Vacancy) -> str:
    """Return a letter of application."""
    known = ", ".join(name for name in vacancy.stack)
    return (
        f"Re: {vacancy.id}, {vacancy.title}\n\nDear {vacancy.company} team,\n\nYour vacancy names "
        f"{known}. I have worked with streaming platforms for six years, most recently at a rail "
        "operator, where I moved 240 nightly jobs to Airflow 3 and brought a full replay down from 19 "
        "hours to 50 minutes. Before that I kept a parcel network's pricing events flowing at 90,000 a "
        f"second.\n\nWhat drew me to this assignment is the {vacancy.sector} setting and its length of "
        f"{vacancy.months} months: long enough to finish the move and to hand over runbooks that your own "
        "people have used. I work outside IR35 through my own company, from near Leeds, and can start on "
        "16 March.\n\n"
        f"My rate for this scope is £{vacancy.rate_high} a day. I would be glad to talk on any afternoon "
        "next week.\n"
    )


_STRENGTHS = (
    ("The lead engineer answers in the reviews and is specific about what is unfinished, which I take as a good sign."),
    ("Their freshness targets are written down, and the breaches of the last quarter are listed with causes."),
    "The handover is planned from week one, with named people on their side and runbooks as a deliverable.",
    "The first month is spent on replay tooling, close to what you did at the rail operator.",
    "Deployment is every day behind flags; nobody mentions a freeze outside the financial year end.",
)
_RISKS = (
    (
        "Against it: access to production data takes a security interview, and the advert does not say "
        "who pays the wait."
    ),
    "Against it: two suppliers share the backlog, so ask who decides when they disagree.",
    ("Against it: the same seat was advertised last summer, and the page does not say what became of that contractor."),
    "Against it: the warehouse is due to be replaced during the assignment and the date has moved twice.",
)


def note(vacancy: Vacancy) -> str:
    """Return what the report says about one vacancy below its line in the table."""
    number = int(vacancy.id.rpartition("-")[2])
    points = ", ".join(f"{name} {value}" for name, value in vacancy.points.items())
    missing = ", ".join(sorted(WANTED.difference(vacancy.stack))) or "nothing"
    return (
        f"### {vacancy.id}, {vacancy.company}\n"
        f"{vacancy.score}/100 ({points}). {vacancy.sector.capitalize()}, {vacancy.months} months, "
        f"{vacancy.place}, {vacancy.office_days} office days a month. Names {', '.join(vacancy.stack)}; "
        f"of your five tools it lacks {missing}. {_STRENGTHS[number % len(_STRENGTHS)]} "
        f"{_RISKS[number % len(_RISKS)]}"
    )


def call_notes(first: Vacancy, second: Vacancy) -> str:
    """Return what the user typed up after two calls."""
    return (
        "I had two first calls today, here are my notes as I typed them.\n\n"
        f"{first.company} ({first.id}), with the head of data, 35 minutes. She opened with the replay "
        "problem: in November they re-ran eleven days of events and nobody could say which partitions "
        "were complete, so finance closed the month from a spreadsheet. There are four engineers, two of "
        "them new. They deploy from main twice a day. Asked about standby: one week in five, paid at £45 "
        "a night plus hours when called, so that is fine by my rule. The budget is approved up to "
        f"£{first.rate_high - 10} a day and she thinks £{first.rate_high} is possible if I can start on "
        "16 March without a gap. The security check takes eight working days, laptop comes by courier. "
        "She wants a one-page plan for the first thirty days before the second call, which is on "
        "Thursday at 14:30 with the platform lead.\n\n"
        f"{second.company} ({second.id}), with an agency person and an architect, 50 minutes. The "
        "architect is good and the agency person kept interrupting. They have nine topics with no owner, "
        "schemas are agreed by chat, and the warehouse load breaks about twice a week. Office days: the "
        "advert is right, but the first fortnight is on site, which nobody wrote down. Rate fixed at "
        f"£{second.rate_high} a day, 30 days payment term, and I said that I invoice at 14. On standby "
        "they will 'come back to me', so treat it as open. Next step would be a technical hour on Friday "
        "at 10:00, a whiteboard session about late events and backfills.\n\n"
        "Please check both pages again against what I was told, write down where they differ, and put "
        "the open questions into the report."
    )


def differences(first: Vacancy, second: Vacancy) -> str:
    """Return the assistant's comparison of the call notes with the pages."""
    return (
        f"Your notes against the pages.\n\n{first.id}, {first.company}: the page says £{first.rate_low} "
        f"to £{first.rate_high} a day, you heard an approved budget of £{first.rate_high - 10}, with "
        f"£{first.rate_high} for a start on 16 March. Standby is one week in five, paid at £45 a night, "
        "which meets your rule and is not on the page. Second call on Thursday at 14:30; the thirty-day "
        "plan is due before it.\n\n"
        f"{second.id}, {second.company}: the rate agrees at £{second.rate_high} a day. The first "
        f"fortnight on site is not on the page, which says {second.office_days} office days a month. "
        "Payment after 30 days against your 14. Standby is open, so it stays behind your rule until they "
        "answer. Technical hour on Friday at 10:00.\n\n"
        f"Open questions: who approves the last £10 at {first.company}; whether the fortnight on site at "
        f"{second.company} can be one week; standby at {second.company}, in writing."
    )


def plan(vacancy: Vacancy) -> str:
    """Return the thirty-day plan that a client asked for, about a page."""
    tools = vacancy.stack
    weeks = (
        (
            f"Week 1. Read-only access, then the inventory: every producer and consumer around {tools[0]} "
            f"and {tools[1]}, owner, volume, lateness at the 95th percentile, and what breaks when it "
            "stops. I sit with operations for two mornings and write down each manual step. Deliverable: "
            "one table, agreed with the people named in it."
        ),
        (
            "Week 2. Completeness first. A small ledger in Postgres records what each partition of the "
            f"{vacancy.sector} events should hold and what arrived. It changes nothing in the flow, so it "
            "can go live in the week it is written. Deliverable: the ledger for the three busiest "
            "sources and an alarm on the slowest."
        ),
        (
            f"Week 3. Replay. One source is replayed end to end into a side schema while {tools[2]} keeps "
            "serving, with the ledger as judge. We time it, find the two slowest steps and fix those. "
            "Deliverable: a replay that two of your engineers have run without me, and its duration "
            "before and after."
        ),
        (
            "Week 4. The backlog, reordered by what the ledger shows. I propose what to retire: jobs "
            f"around {tools[3]} that nobody reads are the cheapest gain there is. Deliverable: a plan for "
            "the following quarter with effort and owner on every line, and runbooks for everything that "
            "I touched."
        ),
    )
    return (
        f"# Thirty days at {vacancy.company}\n\nReference {vacancy.id}, start 16 March, "
        f"£{vacancy.rate_high} a day.\n\n"
        + "\n\n".join(weeks)
        + "\n\nWhat I need from you: access on the first day, one engineer for four hours a week, and "
        "somebody who may decide about retiring a job. What I do not promise: a date for the warehouse "
        "move before the inventory is done.\n"
    )


def whiteboard(vacancy: Vacancy) -> str:
    """Return the preparation sheet for a technical hour."""
    return (
        f"# Technical hour, {vacancy.company} ({vacancy.id}), Friday 10:00\n\n"
        "Late events. Separate event time from arrival time on the first slide. Draw the watermark as a "
        "promise with a price: waiting longer costs freshness, closing earlier costs corrections. Then "
        "the three honest answers to a late event: drop and count it, amend the window, or book a "
        "correction. Finance wants the third. Use the meter readings: 1.4 million homes, a tenth of a "
        "percent late by a day, and what a correction row looked like.\n\n"
        "Backfills. Idempotent by key and version, never by hope. Partition swaps over deletes. A "
        "backfill gets its own quota so that live data never waits behind it; say the number, 30 percent "
        "of the cluster, and how you arrived at it. Show the ledger: expected, arrived, published, per "
        "partition. End on the 19 hours that became 50 minutes: 6 hours from parallel partitions, 11 "
        "from not re-reading what was complete, the rest from boring index work.\n\n"
        "Questions back. Who owns the nine topics without an owner? What happened in the last breakage "
        f"of the load, step by step? Why {vacancy.stack[0]} and not what came before? How is standby "
        "paid, and where is that written?\n\n"
        f"Numbers to have ready. 240 jobs moved, 90,000 events a second at peak, £{vacancy.rate_high} a "
        "day, 14 days payment term, start on 16 March, at most 3 office days a month after the first "
        "fortnight.\n"
    )


def closing(scored: Sequence[Vacancy], searches: int) -> str:
    """Return the end of a round: how many were read, and the ones that lead."""
    lead = "\n".join(
        f"{place}. {vacancy.company}, {vacancy.id}: {vacancy.score}/100, up to £{vacancy.rate_high} a "
        f"day, {vacancy.url}"
        for place, vacancy in enumerate(eligible(scored)[:5], start=1)
    )
    return (
        f"The report in {REPORT} is current: {len(scored)} vacancies read and scored, {searches} searches "
        f"logged, {sum(is_shortlisted(vacancy) for vacancy in scored)} on the shortlist. The leading "
        f"ones:\n\n{lead}\n\n"
        "Tell me what to change in the criteria, or I go on with the same ones."
    )


def comparison(finalists: Sequence[Vacancy]) -> str:
    """Return what speaks against each of the last six."""
    doubts = (
        "The pack promises change data capture and budgets for batch only: ask which of the two is funded.",
        "Three sponsors are named and none owns the backlog.",
        "The start is given as the 16th on one page and as the 30th in an annex.",
        "Standby is described as shared, with no word on pay; by your rule that has to be settled first.",
        "The extension clause lets them end with five days' notice after month three.",
        "Access takes three weeks by their own account, unpaid unless you negotiate it.",
    )
    parts = ["Side by side, after reading the six packs in full:"]
    parts += [
        f"**{vacancy.company}** ({vacancy.id}, {vacancy.score}/100, £{vacancy.rate_low} to "
        f"£{vacancy.rate_high} a day, {vacancy.months} months, {vacancy.office_days} office days): "
        f"{doubt} {vacancy.url}"
        for vacancy, doubt in zip(finalists, doubts, strict=True)
    ]
    parts.append(f"None of this changes the order; {finalists[0].id} stays first.")
    return "\n\n".join(parts)


def recollection(leaders: Sequence[Vacancy]) -> str:
    """Return the answer to a question about what was agreed and found much earlier."""
    lines = "\n".join(
        f"- {vacancy.company} ({vacancy.id}): {vacancy.score}/100, £{vacancy.rate_low} to "
        f"£{vacancy.rate_high} a day, {vacancy.url}"
        for vacancy in leaders
    )
    return (
        "Your floor is £640 a day, outside IR35 only, and 4 or more office days a month is out; Glasgow "
        "counts like Leeds, and there is no 24/7 on-call without paid standby. The three that "
        f"lead:\n\n{lines}"
    )


def next_steps(leaders: Sequence[Vacancy]) -> str:
    """Return the list the conversation ends with."""
    calls = "\n".join(
        f"{place}. Call {vacancy.company} about {vacancy.id} ({vacancy.score}/100), ask about standby and "
        f"access dates, and open at £{vacancy.rate_high} a day."
        for place, vacancy in enumerate(leaders, start=2)
    )
    return (
        f"1. Read the top of {REPORT} once more over coffee.\n{calls}\n5. Send the two letters if the "
        "calls went well.\n"
        "6. Tell me who named a date, and I put it into the report."
    )
