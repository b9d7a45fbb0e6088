"""The lines of a draft: a message or a call, as clauses that are kept or left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from compaction.extract.talk import strip_opening
from compaction.text.clauses import FIELD_JOINT, GAP
from compaction.text.dates import format_day

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet
    from datetime import date

ARROW: Final = " \u2192 "
DONE: Final = "ok"
ERROR_STATUS: Final = "error"
OPEN: Final = "no result"
_CALL_OVERHEAD: Final = len("\n()") + len(ARROW) + len(OPEN)
GAP_MARK: Final = GAP.strip()


@dataclass(slots=True)
class Clause:
    """A piece of text that is kept or left out as a whole."""

    index: int
    text: str
    values: frozenset[str]
    worth: float
    """Worth without its values."""
    bound: float
    """How far its words say what its values are, 0 to 1."""
    group: Group
    line: Line
    words: tuple[str, ...] = ()
    """Of talk, the words that say something."""
    telling: float = 0.0
    """How much of what its words are worth counts, for the kind of statement that it is."""
    bare: str = ""
    """Of a row, its values alone, which is what it says after another one of its group."""
    kept: bool = False

    def cost(self) -> int:
        """Return the most characters that keeping the clause adds."""
        cost = len(self.bare if self.group.open and self.bare else self.text) + len(GAP)
        if not self.group.open:
            cost += len(self.group.lead) + len("; ")
        return cost if self.line.open else cost + self.line.overhead()


@dataclass(slots=True)
class Group:
    """Clauses that share a lead, which is written if one of them is kept."""

    lead: str
    values: frozenset[str]
    joint: str
    label: str = ""
    """How `lead` begins; not said again by the next group that begins alike."""
    clauses: list[Clause] = field(default_factory=list)
    open: bool = False

    def text(self) -> str:
        """Return the kept text, with gaps in running text marked."""
        out = ""
        before = -1
        for position, clause in enumerate(self.clauses):
            if not clause.kept:
                continue
            apart = before < position - 1
            if before >= 0:
                gap = self.joint == " " and apart and not clause.text.startswith(GAP_MARK)
                out += GAP if gap else self.joint
            text = clause.bare if clause.bare and before >= 0 else clause.text
            out += strip_opening(text) if clause.words and (apart or before < 0) else text
            before = position
        return self.lead + out

    def pairs(self) -> list[str]:
        """Return the kept fields of a JSON object."""
        return self.text().split(FIELD_JOINT)


@dataclass(slots=True)
class Heading:
    """The day of the lines below it, written if one of them is kept."""

    day: date
    open: bool = False

    def text(self) -> str:
        """Return the heading's line, in the form of a time stamp before a message."""
        return f"[{format_day(self.day)}]"


@dataclass(slots=True)
class Line:
    """One line of the extract: a message, or a call with its outcome."""

    prefix: str
    place: int
    is_call: bool = False
    status: str = OPEN
    groups: list[Group] = field(default_factory=list)
    outcome: list[Group] = field(default_factory=list)
    open: bool = False
    called_at: int = 0
    """Place of a call that has results; the newest of them is at `place`."""
    results: list[tuple[int, list[Group]]] = field(default_factory=list)
    """Places of a call's results, and what each of them says."""
    heading: Heading | None = None

    def text(self) -> str:
        """Return the kept part of the line."""
        said = _join_groups(self.groups)
        if not self.is_call:
            return self.prefix + said
        outcome = _join_groups(self.outcome, {field for group in self.groups if group.open for field in group.pairs()})
        if self.status == ERROR_STATUS and not outcome.lower().startswith(ERROR_STATUS):
            outcome = f"{ERROR_STATUS}: {outcome}" if outcome else ERROR_STATUS
        said = f"({said})" if said else ""
        return f"{self.prefix}{said}{ARROW}{outcome or self.status}"

    def sources(self) -> tuple[int, ...]:
        """Return the places of the kept text, ascending. Of several results, only those with kept text count."""
        if not self.results:
            return (self.place,)
        quoted = {place for place, groups in self.results if any(group.open for group in groups)}
        if not quoted or self.status == ERROR_STATUS:
            quoted.add(self.place)
        return tuple(sorted({self.called_at, *quoted}))

    def overhead(self) -> int:
        """Return the most characters that the line takes without its clauses, including its line break."""
        heading = 0 if self.heading is None or self.heading.open else len(self.heading.text()) + 1
        return heading + len(self.prefix) + (_CALL_OVERHEAD if self.is_call else 1)

    def clauses(self) -> list[Clause]:
        """Return every clause of the line."""
        return [clause for group in (*self.groups, *self.outcome) for clause in group.clauses]


def _join_groups(groups: Iterable[Group], given: AbstractSet[str] = frozenset()) -> str:
    """Return the kept text of `groups` without the fields in `given`. A shared label is written once."""
    parts: list[str] = []
    label = ""
    for group in groups:
        if not group.open:
            continue
        text = group.text()
        if given and group.joint == FIELD_JOINT:
            text = FIELD_JOINT.join(field for field in group.pairs() if field not in given)
        if not text:
            continue
        parts.append(text.removeprefix(label) if group.label == label else text)
        label = group.label
    return "; ".join(parts)
