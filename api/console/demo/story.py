"""The demo's conversation: an assistant looks for the user's next contract, over several rounds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from api.console.demo.pages import Vacancy, alert_email, listing, vacancies, vacancy_page
from api.console.demo.texts import (
    CRITERIA,
    REFINED_CRITERIA,
    REFINEMENTS,
    REPORT,
    REQUEST,
    SYSTEM,
    call_notes,
    closing,
    comparison,
    differences,
    eligible,
    letter,
    next_steps,
    plan,
    recollection,
    report,
    scoring_message,
    whiteboard,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

SEED: Final = 20260301
"""Any other number gives other vacancies and the same story."""


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"name": name, "description": description, "input_schema": schema}


TOOLS: Final = (
    _tool("search_board", "Search one job board.", board="Name of the board", query="Search terms"),
    _tool("list_alerts", "List unread alert e-mails.", folder="Mail folder"),
    _tool("read_email", "Return one e-mail as it was received.", id="Message id"),
    _tool("open_page", "Fetch a page and return its HTML.", url="Address of the page"),
    _tool("write_file", "Write a text file.", path="Path of the file", content="The whole text"),
)


class StoryTurn(NamedTuple):
    """One turn of the story, in the shapes of the Messages API, with a few words on what happens in it."""

    label: str
    messages: tuple[dict[str, Any], ...]


class Story(NamedTuple):
    """The whole conversation, and what is worth finding again in its final context."""

    system: str
    tools: tuple[dict[str, Any], ...]
    turns: tuple[StoryTurn, ...]
    criteria: tuple[str, ...]
    refined_criteria: tuple[str, ...]
    scored: tuple[Vacancy, ...]


class _Script:
    """Writes the conversation turn by turn: the user's side waits for the answer that completes the turn."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311  plausible pages, no secrets
        self.pool = vacancies(self.rng, 150)
        self.turns: list[StoryTurn] = []
        self.scored: list[Vacancy] = []
        self.searches: list[str] = []
        self._unread = iter(self.rng.sample(self.pool, len(self.pool)))
        self._pending: list[dict[str, Any]] = []
        self._open: list[str] = []
        self._calls = 0

    def ask(self, text: str) -> None:
        self._pending.append({"role": "user", "content": text})

    def results(self, *texts: str) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": call, "content": text}
            for call, text in zip(self._open, texts, strict=True)
        ]
        self._pending.append({"role": "user", "content": blocks})

    def answer(self, label: str, text: str, *calls: tuple[str, dict[str, str]]) -> None:
        self._open = []
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
        for name, arguments in calls:
            self._calls += 1
            self._open.append(f"toolu_{self._calls:04d}")
            blocks.append({"type": "tool_use", "id": self._open[-1], "name": name, "input": arguments})
        self._pending.append({"role": "assistant", "content": blocks})
        self.turns.append(StoryTurn(label, tuple(self._pending)))
        self._pending = []

    def take(self, count: int) -> list[Vacancy]:
        """Return vacancies that were not read yet."""
        return [next(self._unread) for _ in range(count)]

    def search(self, opening: str, board: str, query: str) -> None:
        """Answer with a search, and bring its listing as the next result."""
        self.searches.append(f"{board}: {query}")
        self.answer(f"search {board}", opening, ("search_board", {"board": board, "query": query}))
        self.results(listing(self.rng, query, self.rng.sample(self.pool, 12)))

    def alerts(self, opening: str, *boards: str) -> None:
        """Answer by listing alerts, then by reading one e-mail of each board."""
        self.answer("list alerts", opening, ("list_alerts", {"folder": "Contracts"}))
        senders = {f"m-{self.rng.randrange(10**6):06d}": f"alerts@{board}.example" for board in boards}
        self.results("\n".join(f"{key}  unread  {sender}" for key, sender in senders.items()))
        calls = [("read_email", {"id": key}) for key in senders]
        self.answer("read e-mails", f"{len(senders)} alerts are unread. I am opening all of them.", *calls)
        vacancies = self.rng.sample(self.pool, 12 * len(senders))
        mails = [alert_email(self.rng, sender, vacancies[12 * n :][:12]) for n, sender in enumerate(senders.values())]
        self.results(*mails)

    def open_pages(self, opening: str, chosen: Sequence[Vacancy], *, depth: int = 1, related: int = 4) -> None:
        """Answer by opening pages in parallel."""
        names = ", ".join(vacancy.id for vacancy in chosen)
        calls = [("open_page", {"url": vacancy.url}) for vacancy in chosen]
        self.answer(f"open {len(chosen)} page{'s' * (len(chosen) > 1)}", f"{opening} Opening {names}.", *calls)
        self.results(
            *(vacancy_page(self.rng, each, self.rng.sample(self.pool, related), depth=depth) for each in chosen)
        )

    def read(self, opening: str, *counts: int) -> str:
        """Open unread vacancies in steps of `counts`, scoring each step; return the last step's scores."""
        said = opening
        for count in counts:
            chosen = self.take(count)
            self.open_pages(said, chosen)
            self.scored += chosen
            said = scoring_message(self.rng, chosen)
        return said

    def write_report(self, said: str) -> None:
        """Answer by writing the report file with everything scored so far."""
        content = report(self.scored, self.searches)
        self.write_files("write the report", f"{said}\n\nI am updating the report.", {REPORT: content})

    def write_files(self, label: str, said: str, files: dict[str, str]) -> None:
        """Answer by writing files, in parallel calls."""
        calls = [("write_file", {"path": path, "content": content}) for path, content in files.items()]
        self.answer(label, said, *calls)
        self.results(*(f"wrote {len(content)} characters to {path}" for path, content in files.items()))


def job_search(seed: int = SEED) -> Story:
    """Return the conversation; the same seed always gives the same bytes."""
    script = _Script(seed)
    _first_rounds(script)
    _glasgow_and_letters(script)
    _calls(script)
    finalists = _final_comparison(script)
    _after_the_comparison(script, finalists)
    return Story(SYSTEM, TOOLS, tuple(script.turns), CRITERIA, REFINED_CRITERIA, tuple(script.scored))


def _end_round(script: _Script, said: str, label: str) -> None:
    script.write_report(said)
    script.answer(label, closing(script.scored, len(script.searches)))


def _first_rounds(script: _Script) -> None:
    script.ask(REQUEST)
    script.search("I have your criteria and the rubric. I start with the boards.", "northgate", "python data")
    script.search("Twelve results; several are too short. Next board.", "tradewind", "kafka outside ir35")
    script.alerts("The boards are done for now, next your alert e-mails.", "northgate", "tradewind")
    said = script.read("The alerts overlap with the boards. I read what fits, in small groups.", 2, 2, 1)
    _end_round(script, said, "sum up round one")

    script.ask(REFINEMENTS[0])
    script.search("Noted: £640 is the floor and 4 office days are too many.", "northgate", "kafka remote 640")
    script.search("Little that is new. Next board.", "tradewind", "airflow dbt")
    script.search("Better. And the third.", "daybook", "python streaming")
    said = script.read("I leave out what breaks the two new rules and read the rest.", 3, 2, 2)
    _end_round(script, said, "sum up round two")

    script.ask(REFINEMENTS[1])
    script.alerts("Understood: named clients only, and standby has to be paid.", "daybook", "northgate")
    said = script.read("Most of these were in yesterday's alerts. Four are new.", 2, 2)
    script.search(said, "daybook", "data engineer energy")
    said = script.read("Three of these name the client.", 2, 1)
    _end_round(script, said, "sum up round three")


def _glasgow_and_letters(script: _Script) -> None:
    script.ask(REFINEMENTS[2])
    script.search("Glasgow counts like Leeds from here on. Searching there.", "northgate", "streaming glasgow")
    script.search("A few there; one more board.", "tradewind", "kafka glasgow")
    said = script.read("Reading the ones with three office days or fewer.", 2, 2, 2)
    letters = {f"letters/{each.id.lower()}.txt": letter(each) for each in eligible(script.scored)[:2]}
    script.write_files("write letters", f"{said}\n\nNow the letters for the two best so far.", letters)
    _end_round(script, "Both letters are saved.", "sum up round four")


def _calls(script: _Script) -> None:
    first, second = eligible(script.scored)[:2]
    script.ask(call_notes(first, second))
    script.open_pages("I read both pages again beside your notes.", [first, second])
    _end_round(script, differences(first, second), "compare call notes")
    script.ask("Write the thirty-day plan for the first, and a preparation sheet for Friday's technical hour.")
    files = {"calls/thirty-days.md": plan(first), "calls/technical-hour.md": whiteboard(second)}
    script.write_files("prepare calls", "Both from your notes and the two pages.", files)
    script.answer("hand over files", f"Both are saved: {' and '.join(files)}. Each fits on one page when printed.")
    script.ask("Good. While I practise: is there anything in energy or weather that I have not seen yet?")
    script.search("Searching by sector.", "tradewind", "python energy")
    script.search("And weather.", "daybook", "forecasting pipelines")
    said = script.read("Four of these are new to us.", 2, 2)
    _end_round(script, said, "sum up round five")


def _final_comparison(script: _Script) -> list[Vacancy]:
    script.ask(
        "Now the final comparison. Open the complete project packs of the six best, annexes included, and "
        "tell me where the work, the people or the dates speak against them."
    )
    finalists = eligible(script.scored)[:6]
    script.open_pages("I fetch all six packs at once.", finalists, depth=7, related=8)
    _end_round(script, comparison(finalists), "final comparison")
    return finalists


def _after_the_comparison(script: _Script, finalists: Sequence[Vacancy]) -> None:
    script.ask("Before I call anyone: what are my floor and my office limit, and which three lead, with URLs?")
    script.answer("answer from memory", recollection(finalists[:3]))
    script.ask("Right. Check the three boards for anything new since Monday that could still beat third place.")
    for board in ("northgate", "tradewind", "daybook"):
        script.search("Looking for new entries only.", board, "python data platform new")
    said = script.read("Six are new and within the rules.", 2, 2, 2)
    _end_round(script, said, "sum up round six")
    script.ask("Thanks. Last thing: list what I should do tomorrow morning, in order.")
    script.answer("next steps", next_steps(eligible(script.scored)[:3]))
