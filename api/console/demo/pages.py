"""What the demo's tools return: job-board listings, vacancy pages and alert e-mails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

BOARDS: Final = {
    "northgate": "https://jobs.northgate.example/contract/",
    "tradewind": "https://www.tradewind-careers.example/view/",
    "daybook": "https://daybook.example/assignments/",
}
TITLES: Final = (
    "Senior Data Platform Engineer",
    "Python Backend Engineer (Streaming)",
    "Lead Data Engineer",
    "Platform Engineer, Event Processing",
    "Senior Analytics Engineer",
    "Data Infrastructure Contractor",
    "Senior Python Developer, Pricing",
    "Ingestion Pipeline Engineer",
)
COMPANIES: Final = (
    *("Harrow & Pike", "Lumen Freight", "Oakfield Health", "Tidewater Energy", "Brightloom Retail"),
    *("Castor Rail", "Meridian Parcels", "Fenwick Mutual", "Saltmarsh Analytics", "Corvid Mapping"),
    *("Pennine Water", "Alder Insurance", "Quayside Ticketing", "Northern Grid Data", "Willow Clinics"),
    *("Foxglove Payments", "Stannard Logistics", "Kestrel Weather", "Marlow Publishing", "Dunmore Homes"),
)
SECTORS: Final = ("logistics", "health", "energy", "retail", "transport", "insurance", "payments", "weather")
STACKS: Final = (
    "Python",
    "Postgres",
    "Kafka",
    "Airflow",
    "dbt",
    "Snowflake",
    "Terraform",
    "Spark",
    "Go",
    "Scala",
)
WANTED: Final = frozenset({"Python", "Postgres", "Kafka", "Airflow", "dbt"})
"""The searcher's own stack, as the first message states it."""
PLACES: Final = ("Leeds", "Manchester", "London", "Bristol", "Glasgow", "Birmingham")

_DUTIES: Final = (
    "take over the {a} ingestion that feeds {sector} reporting and bring its nightly run under {n} minutes",
    "move {n} hand-written jobs from cron to {b}, with tests that the operations team can read",
    "agree data contracts with {n} upstream teams and publish them next to the {a} schemas",
    "replace the polling exporter by change data capture out of {b}, one domain at a time",
    ("cut the monthly warehouse bill, which grew by {n} percent since the merger with a smaller {sector} firm"),
    "write the runbooks for replays and backfills, and hand them over in the last {n} working days",
    "pair with two permanent engineers who know {a} well and {b} hardly at all",
    "review the retention rules for {sector} records and automate the deletion that is done by hand today",
    "put quotas on the shared {b} cluster so that one team's backfill no longer delays {n} others",
    "measure freshness for every table that the {sector} dashboards read, and alarm on the slowest {n}",
)
_BACKGROUND: Final = (
    "{company} runs {n} sites and has grown its {sector} data team from three people to {m} in two years.",
    ("The programme is funded to the end of the financial year and steered by a group that meets every {m} weeks."),
    "Two suppliers built the first version; about {n} percent of it is in use and the rest is to go.",
    "A permanent head of data starts in May; this assignment bridges the {m} weeks until then.",
    "Last winter a replay took {n} hours because nobody could tell which partitions were complete.",
    "The work sits between {sector} product people and an operations desk staffed {m} hours a day.",
    "Audit asked for lineage on {n} regulated reports, and the deadline is fixed.",
    "The current platform was built for batch; {m} of its consumers now need data within minutes.",
)
_REVIEWS: Final = (
    "Invoices were paid in {m} days. Equipment arrived late, access later still.",
    "Clear scope, decent people, and a change board that eats every second {day}.",
    "I stayed for {n} months. On-call was optional and paid, which is rarer than it should be.",
    "The {a} estate is older than the advert suggests; ask to see the deployment pipeline.",
    "Remote means remote here: I saw the office {m} times.",
    "Extension was offered {n} days before the end date, take that into account.",
)
_DAYS: Final = ("Tuesday", "Wednesday", "Thursday", "Friday")


class Vacancy(msgspec.Struct, frozen=True):
    """One contract: rates in pounds a day, length in months, office days a month."""

    id: str
    url: str
    title: str
    company: str
    sector: str
    place: str
    rate_low: int
    rate_high: int
    months: int
    office_days: int
    outside_ir35: bool
    stack: tuple[str, ...]

    @property
    def points(self) -> dict[str, int]:
        """The searcher's rubric applied: stack 30, rate 25, remote 20, length 15, sector 10."""
        return {
            "stack": 6 * len(WANTED.intersection(self.stack)),
            "rate": max(0, min(25, (self.rate_high - 500) // 10)),
            "remote": max(0, 20 - 4 * self.office_days),
            "length": min(15, 2 * self.months),
            "sector": 10 if self.sector in {"logistics", "energy", "transport", "weather"} else 5,
        }

    @property
    def score(self) -> int:
        """Points of 100."""
        return sum(self.points.values())


def vacancies(rng: random.Random, count: int) -> list[Vacancy]:
    """Return `count` vacancies, no two with the same id."""
    vacancies_so_far = []
    for number in range(count):
        board = rng.choice(tuple(BOARDS))
        company = rng.choice(COMPANIES)
        title = rng.choice(TITLES)
        identifier = f"{board[:2].upper()}-{41_000 + 37 * number + rng.randrange(30)}"
        slug = "-".join(title.lower().replace(",", "").replace("(", "").replace(")", "").split())
        low = rng.randrange(480, 660, 10)
        vacancies_so_far.append(
            Vacancy(
                id=identifier,
                url=f"{BOARDS[board]}{slug}-{identifier.lower()}",
                title=title,
                company=company,
                sector=rng.choice(SECTORS),
                place=rng.choice(PLACES),
                rate_low=low,
                rate_high=low + rng.randrange(20, 110, 10),
                months=rng.randrange(3, 13),
                office_days=rng.randrange(6),
                outside_ir35=rng.random() < 0.8,  # noqa: PLR2004  the share seen on such boards
                stack=tuple(rng.sample(STACKS, rng.randrange(4, 8))),
            )
        )
    return vacancies_so_far


def _sentences(rng: random.Random, vacancy: Vacancy, templates: Sequence[str], count: int) -> list[str]:
    chosen = [templates[index % len(templates)] for index in range(count)]
    rng.shuffle(chosen)
    return [
        text.format(
            a=rng.choice(vacancy.stack),
            b=rng.choice(vacancy.stack),
            company=vacancy.company,
            sector=vacancy.sector,
            day=rng.choice(_DAYS),
            n=rng.randrange(8, 90),
            m=rng.randrange(2, 14),
        )
        for text in chosen
    ]


def _card(rng: random.Random, vacancy: Vacancy, rank: int) -> str:
    token = f"{rng.getrandbits(96):024x}"
    tags = "".join(f'<span class="tag tag--stack" data-k="{name.lower()}">{name}</span>' for name in vacancy.stack)
    ir35 = "Outside IR35" if vacancy.outside_ir35 else "Inside IR35"
    teaser = _sentences(rng, vacancy, _DUTIES, 1)[0]
    return (
        f'<article class="result" data-rank="{rank}" data-track="{token}" id="r-{vacancy.id}">'
        f'<h3 class="result__title"><a href="{vacancy.url}?ref=list&amp;pos={rank}&amp;sid={token[:12]}">'
        f"{vacancy.title}</a></h3>"
        f'<p class="result__org"><span>{vacancy.company}</span> &middot; <span>{vacancy.place}</span></p>'
        f'<ul class="result__facts"><li>&pound;{vacancy.rate_low}&ndash;&pound;{vacancy.rate_high} a day</li>'
        f"<li>{vacancy.months} months</li><li>{ir35}</li><li>{vacancy.office_days} office days</li></ul>"
        f'<div class="result__tags">{tags}</div><p class="result__teaser">You will {teaser}.</p>'
        f'<button aria-label="Save {vacancy.id}" data-csrf="{token[12:]}">Save</button></article>\n'
    )


def _document(rng: random.Random, title: str, body: str) -> str:
    build = f"{rng.getrandbits(64):016x}"
    links = "".join(f'<a class="nav__a" href="/{name}">{name.title()}</a>' for name in ("contracts", "alerts", "rates"))
    scripts = "".join(
        f'<script defer src="/assets/{name}.{build[:8]}.js" nonce="{rng.getrandbits(128):032x}"></script>\n'
        for name in ("runtime", "vendor", "consent", "results")
    )
    return (
        f'<!doctype html>\n<html lang="en-GB" data-build="{build}"><head><title>{title}</title>\n'
        f'<link rel="stylesheet" href="/assets/site.{build[8:]}.css">\n{scripts}</head>\n<body>\n'
        f'<header class="top"><nav class="nav">{links}</nav></header>\n<main id="main">\n{body}</main>\n'
        '<div class="consent" role="dialog"><p>We and our partners store information on your device to '
        "remember searches and to measure "
        "adverts.</p><button>Accept</button><button>Choose</button></div>\n"
        "<footer><p>Rates are as stated by the client. Report a listing that looks wrong.</p></footer>\n"
        "</body></html>"
    )


def listing(rng: random.Random, query: str, vacancies: Sequence[Vacancy]) -> str:
    """Return a page of search results."""
    cards = "".join(_card(rng, vacancy, rank) for rank, vacancy in enumerate(vacancies, start=1))
    head = f"<h1>Contracts for <q>{query}</q></h1><p>{len(vacancies)} of {rng.randrange(60, 400)} shown</p>\n"
    return _document(rng, f"{query} contracts", f'{head}<section class="results">\n{cards}</section>\n')


def vacancy_page(rng: random.Random, vacancy: Vacancy, related: Sequence[Vacancy], *, depth: int = 1) -> str:
    """Return a vacancy's own page; `depth` multiplies its prose, as project packs with annexes do."""
    linked = msgspec.json.encode(
        {
            "@type": "JobPosting",
            "identifier": vacancy.id,
            "title": vacancy.title,
            "hiringOrganization": vacancy.company,
            "url": vacancy.url,
            "baseSalary": {
                "min": vacancy.rate_low,
                "max": vacancy.rate_high,
                "unit": "DAY",
                "currency": "GBP",
            },
        }
    ).decode()
    duties = "".join(f"<li>You will {text}.</li>\n" for text in _sentences(rng, vacancy, _DUTIES, 14 * depth))
    prose = "".join(f"<p>{text}</p>\n" for text in _sentences(rng, vacancy, _BACKGROUND, 14 * depth))
    reviews = "".join(
        f'<blockquote class="review" data-stars="{rng.randrange(2, 6)}">{text}</blockquote>\n'
        for text in _sentences(rng, vacancy, _REVIEWS, 12 * depth)
    )
    cards = "".join(_card(rng, other, rank) for rank, other in enumerate(related, start=1))
    facts = (
        f"<dl><dt>Reference</dt><dd>{vacancy.id}</dd><dt>Rate</dt><dd>&pound;{vacancy.rate_low} to "
        f"&pound;{vacancy.rate_high} a day</dd><dt>Length</dt><dd>{vacancy.months} "
        "months</dd><dt>IR35</dt>"
        f"<dd>{'outside' if vacancy.outside_ir35 else 'inside'}</dd><dt>Place</dt><dd>{vacancy.place}, "
        f"{vacancy.office_days} office days a month</dd><dt>Stack</dt><dd>{', '.join(vacancy.stack)}</dd>"
        "</dl>\n"
    )
    body = (
        f'<script type="application/ld+json">{linked}</script>\n'
        f"<h1>{vacancy.title}, {vacancy.company}</h1>\n{facts}"
        f"<h2>Background</h2>\n{prose}<h2>The work</h2>\n<ul>{duties}</ul>\n"
        f"<h2>What contractors say</h2>\n{reviews}"
        f'<aside class="related"><h2>Similar contracts</h2>\n{cards}</aside>\n'
    )
    return _document(rng, f"{vacancy.title} at {vacancy.company}", body)


def alert_email(rng: random.Random, sender: str, vacancies: Sequence[Vacancy]) -> str:
    """Return an alert e-mail: headers, then nested tables with tracking links."""
    rows = "".join(
        f'<tr><td style="padding:12px 24px;font-family:Arial;font-size:14px;line-height:20px;color:#222">'
        f'<a style="color:#0b57d0;text-decoration:none" href="{vacancy.url}?utm_source=alert&amp;utm_id='
        f'{rng.getrandbits(80):020x}">{vacancy.title}</a><br>{vacancy.company}, {vacancy.place}<br>&pound;'
        f"{vacancy.rate_low}&ndash;&pound;{vacancy.rate_high} a day, {vacancy.months} months<br>"
        f'{_sentences(rng, vacancy, _BACKGROUND, 1)[0]}</td><td width="96"><img width="1" height="1" '
        f'alt="" src="https://px.example/o/{rng.getrandbits(128):032x}.gif"></td></tr>\n'
        for vacancy in vacancies
    )
    return (
        f"From: {sender}\nSubject: {len(vacancies)} new contracts match your alert\nMessage-ID: "
        f"<{rng.getrandbits(64):016x}@mail.example>\nContent-Type: text/html; charset=utf-8\n\n"
        f'<table width="100%" cellpadding="0" cellspacing="0"><tbody>\n{rows}</tbody></table>\n'
        f'<p style="font-size:11px">You get this because alert {rng.randrange(1000, 9999)} is on.</p>'
    )
