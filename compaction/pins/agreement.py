"""How rules stand to each other, and to what users say of them, told from their words alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from compaction.pins.pinned import Pin
from compaction.pins.wording import WITHDRAWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def proposals(rules: Sequence[Pin], asked: Sequence[Pin]) -> dict[str, Pin]:
    """Return which detected rules users asked to be forgotten (`asked`), by their ids, each with what was said.

    A rule is meant whose words are named, else the newest before; with "all" every one. Nothing follows but that it is
    said: who may, withdraws the rule.
    """
    meant: dict[str, Pin] = {}
    detected = [rule for rule in rules if rule.source == "standing_instruction"] if asked else []
    words = {rule.id: _ParsedRule.parse(rule).words for rule in detected}
    for request in asked:
        earlier = [rule for rule in detected if rule.seq < request.seq]
        if earlier:
            meant.update((rule.id, request) for rule in _meant(request, earlier, words))
    return meant


def _meant(request: Pin, earlier: Sequence[Pin], words: Mapping[str, frozenset[str]]) -> Sequence[Pin]:
    named = _ParsedRule.parse(request).words - _OF_WITHDRAWALS
    shared = {rule.id: len(named & words[rule.id]) for rule in earlier}
    if most := max(shared.values()):
        return [rule for rule in earlier if shared[rule.id] == most]
    if _ALL.search(request.text):
        return earlier
    newest = max(rule.seq for rule in earlier)
    return [rule for rule in earlier if rule.seq == newest][-1:]


def proposal_warnings(proposed: Mapping[str, Pin]) -> list[str]:
    """Return one warning for each message that may ask to forget rules, which are in force still."""
    meant: dict[int, list[str]] = {}
    for rule_id, asked in proposed.items():
        meant.setdefault(asked.seq, []).append(rule_id)
    return [_proposal_warning(seq, rules) for seq, rules in meant.items()]


def _proposal_warning(seq: int, rules: Sequence[str]) -> str:
    if len(rules) == 1:
        return f"message {seq} may ask to forget the rule {rules[0]}: it is in force until somebody withdraws it"
    return (
        f"message {seq} may ask to forget {len(rules)} rules, {format_names(rules)}: "
        "they are in force until somebody withdraws them"
    )


def format_names(names: Sequence[str]) -> str:
    """Return names as one text; of many the first ones and how many more there are."""
    more = f" and {len(names) - _NAMED_RULES} others" if len(names) > _NAMED_RULES else ""
    return ", ".join(names[:_NAMED_RULES]) + more


class Disagreement(NamedTuple):
    """Two rules, the older first, that say the same or cannot both be followed."""

    older: str
    newer: str
    kind: Literal["duplicate", "conflict"]


def disagreements(rules: Sequence[Pin]) -> list[Disagreement]:
    """Return the pairs of rules that say the same or contradict each other, by ids, in the order of the rules.

    They have the same words, with and without a "not", or with another number, language or opposite.
    """
    read = [_ParsedRule.parse(rule) for rule in rules]
    return _to_disagreements((one, other) for index, other in enumerate(read) for one in read[:index])


def disagreements_of(rule_id: str, rules: Sequence[Pin]) -> list[Disagreement]:
    """Return those pairs that one rule is in, none if it is not among the rules."""
    place = next((place for place, rule in enumerate(rules) if rule.id == rule_id), None)
    if place is None:
        return []
    read = [_ParsedRule.parse(rule) for rule in rules]
    own = read[place]
    return _to_disagreements([*((one, own) for one in read[:place]), *((own, other) for other in read[place + 1 :])])


def _to_disagreements(pairs: Iterable[tuple[_ParsedRule, _ParsedRule]]) -> list[Disagreement]:
    return [Disagreement(one.id, other.id, kind) for one, other in pairs if (kind := _kind(one, other)) is not None]


def without_stated(line: str, rules: Sequence[Pin]) -> str:
    """Return a line without the sentences that state one of the rules, "" where it says little else.

    They may state it in whichever order of words. A line that tells that a rule is withdrawn stays as it is.
    """
    if WITHDRAWS.search(line.lower()) or _WITHDRAWN.search(line):
        return line
    read = [_ParsedRule.parse(rule) for rule in rules]
    if _states_one(line, read):
        return ""
    opening = _OPENING.match(line)
    begins = opening.end() if opening else 0
    sentences = _BETWEEN_SENTENCES.split(line[begins:])
    kept = [sentence for sentence in sentences if not _states_one(sentence, read)]
    if len(kept) == len(sentences):
        return line
    return line[:begins] + " ".join(kept) if kept else ""


def _states_one(text: str, rules: Sequence[_ParsedRule]) -> bool:
    said = _ParsedRule.parse(Pin("", 0, text, "standing_instruction"))
    return any(said.states(rule) for rule in rules)


class _ParsedRule(NamedTuple):
    id: str
    words: frozenset[str]
    """What it is about."""
    forbids: bool

    @classmethod
    def parse(cls, rule: Pin) -> _ParsedRule:
        words = [match[0].replace("\u2019", "'") for match in _WORD.finditer(rule.text.lower())]
        forbids = sum(word in _NEGATIONS for word in words) % 2 == 1
        return cls(rule.id, _stems(word for word in words if word not in _NOT_OF_THE_MATTER), forbids)

    def states(self, rule: _ParsedRule) -> bool:
        """Return whether it says what a rule does and little else; who says it is nothing else."""
        other = self.words - rule.words - _TELLING
        alike = bool(rule.words) and rule.words <= self.words and self.forbids == rule.forbids
        return alike and len(other) <= _OTHER_WORDS * len(rule.words)


def _kind(one: _ParsedRule, other: _ParsedRule) -> Literal["duplicate", "conflict"] | None:
    both, either = one.words & other.words, one.words | other.words
    if not both:
        return None
    if one.forbids != other.forbids:
        return "conflict" if len(both) / len(either) >= _SAME_MATTER else None
    mine, yours = one.words - both, other.words - both
    if not mine and not yours:
        return "duplicate"
    if len(mine) == len(yours) == 1 and _exclude(next(iter(mine)), next(iter(yours))):
        return "conflict"
    return None


def _exclude(one: str, other: str) -> bool:
    """Return whether a rule can only have one of two words."""
    return (one.isdigit() and other.isdigit()) or any({one, other} <= group for group in _ALTERNATIVES)


def _stems(words: Iterable[str]) -> frozenset[str]:
    """Return words without what plurals and verbs put at their ends, enough to tell that two forms are of one word."""
    return frozenset(map(_stem, words))


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM and not word.endswith("ss"):
            return word[: -len(ending)].removesuffix("e")
    return word.removesuffix("e") if len(word) > _LEAST_STEM else word


_NAMED_RULES: Final = 20
"""Rules that a warning names; what is more is counted."""
_SAME_MATTER: Final = 0.6
"""Share of their words that two rules have in common which are about the same matter."""
_LEAST_STEM: Final = 3
_OTHER_WORDS: Final = 0.5
"""A line that has more words beside those of a rule, by their share, says something else as well."""
_OPENING: Final = re.compile(r"\s*(?:(?:[-*\u2022]|\d+[.)]) +)?(?:[A-Z]\w{0,20}: )?")
"""What a line begins with whichever of its sentences comes first: a bullet, who says it."""
_BETWEEN_SENTENCES: Final = re.compile(r"(?<=[.!?;\u2026]) +")
_WITHDRAWN: Final = re.compile(
    r"\b(?:withdr[ae]w\w*|no longer|not any ?more|lifted|obsolete|revoked|cancell?ed|dropped|forgotten)\b",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_ALL: Final = re.compile(r"\b(?:all|every|everything|alle|toutes?|todas|tutte)\b", re.IGNORECASE)
_NEGATING: Final = """
    not never no don't dont without avoid refrain mustn't cannot can't shouldn't stop nicht nie niemals kein
    keine keinen ne pas jamais nunca nooit niet non mai
"""
_LITTLE: Final = """
    a an the to of in on at by for from with and or but so then also again please always every each any all only
    just ever must should shall will would can could may do does did be is are was were it its this that these
    those you your i me my we us our now going forward henceforth onwards rule rules remember important note
    sure make ensure keep mind time times immer bitte der die das den dem ein eine und oder ab jetzt sofort von
    nun an du sie ist sind le la les un une et ou toujours el los las y o siempre de del
"""
_WITHDRAWING: Final = """
    forget ignore disregard drop scrap cancel lift remove undo withdraw revoke skip follow following apply
    applying enforce enforcing obey longer anymore more hold count matter instruction constraint restriction
    requirement guideline convention said told about what off lifted withdrawn need have regel regeln vergiss
    r\u00e8gle oublie regla olvida first last earlier previous old actually
"""
_NEGATIONS: Final = frozenset(_NEGATING.split())
_NOT_OF_THE_MATTER: Final = _NEGATIONS.union(_LITTLE.split())
_TOLD: Final = "user assistant say said ask asked want wanted told tell state stated"
_TELLING: Final = _stems(_TOLD.split())
_OF_WITHDRAWALS: Final = _stems(_WITHDRAWING.split())
_GROUPS: Final = """
    english german french spanish italian portuguese dutch polish russian chinese japanese korean arabic turkish
    tabs spaces
    metric imperial
    formal informal
    before after
    short long
    brief detailed
    single double
    light dark
    tu vous
    minimum maximum
    upper lower
    above below
    public private
    allow deny
    include exclude
"""
_ALTERNATIVES: Final = tuple(_stems(line.split()) for line in _GROUPS.splitlines() if line.strip())
"""Words of which a rule has one: two rules that differ in them alone contradict each other."""
