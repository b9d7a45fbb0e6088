"""Standing instructions: the sentences of a message that state a rule for everything that comes after it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.pins.cues import Cues
from compaction.pins.own_words import OTHERS, own_words
from compaction.pins.reporting import tells_of_others
from compaction.pins.wording import LASTING, LASTING_CUES, LASTING_START, WITHDRAWAL_CUES, WITHDRAWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RULES_CHARS: Final = 4_000
"""Characters of standing instructions that are taken from one message."""
RULE_CHARS: Final = 600
"""Characters; a longer sentence is a document and not a rule, and of a longer list the first items are taken."""
WINDOW_CHARS: Final = 4_000
"""Characters at either end of a long text that are looked at when it comes: what is between is material, not talk."""
_WRAPPED_CHARS: Final = 50
"""Characters; the sentence of a longer line may go on in the next one."""

_LINE: Final = re.compile(r"[^\n]+")
_LIST_MARK: Final = re.compile(r"\s*(?:[-*+\u2022]|\d{1,3}[.)]|\(?[a-z][.)])\s+")
_BROKEN: Final = re.compile(r"\s*(?:[-*+\u2022#>|`<{\[]|\d{1,3}[.)]\s)")
_STOPS: Final = tuple(".!?:;\u3002\uff01\uff1f\uff1a")
_CLOSERS: Final = "\"'\u201d\u2019)] \t\r"
_SENTENCE: Final = re.compile(
    # What a sentence may end with is searched for first: at nearly every character that is all there is to see.
    r"\S.*?(?:(?=[.!?])(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bno)[.!?]{1,4}+[\"'\u201d\u2019)\]]{0,3}+(?=\s)|[\u3002\uff01\uff1f]|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_HEADING: Final = re.compile(
    r"\W*(?:(?:my|our|the|some|general|important|house|ground|hard)\s+)*"
    r"(?:rules?|constraints?|guidelines|instructions|requirements|conventions|restrictions|regeln|r\u00e8gles|"
    r"reglas|regole"
    r"|\u89c4\u5219|\u30eb\u30fc\u30eb)\b[^\n]{0,40}$"
)
_TOLD: Final = re.compile(
    r"\b(?:i|he|she|they|it|we|there|who|which|that|you)(?:['\u2019](?:ve|d|s))?\s+"
    r"(?:(?:have|has|had|was|were|am|are|is)\s+)?(?:always|never)\b"
    r"(?!\s+(?:want|need|have to|must|use|do|tell|ask|call|answer|reply|write|send|include|book)\b)|"
    r"\b(?:who|which|that|whose \w+) must\b|\bmust(?:n['\u2019]t)?\s+have\s+\w+(?:ed|en)\b|\bthere must\b|"
    r"\bnever mind\b|\b(?:as|not|almost) always\b",
    re.IGNORECASE,
)
"""Sentences that tell what happened or what is the case, in the words of rules."""
_ANYWHERE: Final = re.compile(
    r"\b(?:always|never|must(?:n['\u2019]t)?|from now on|going forward|at all times|(?:every|each) time|no matter what|"
    r"under no circumstances|(?:are|is) not allowed to|(?:do not|don['\u2019]t) ever|remember that|keep in mind|"
    # German
    r"immer|niemals|auf keinen fall|ab (?:jetzt|sofort)|unbedingt|(?:du|sie) (?:darfst|d\u00fcrfen|musst|m\u00fcssen)|"
    # French
    r"toujours|jamais|d\u00e9sormais|dor\u00e9navant|\u00e0 partir de maintenant|il faut|(?:tu dois|vous devez)|"
    # Spanish, Portuguese, Italian
    r"siempre|nunca|a partir de (?:ahora|agora)|debes|tienes que|sempre|d['\u2019]ora in poi|devi|"
    # Dutch, Russian
    r"altijd|nooit|vanaf nu|\u0432\u0441\u0435\u0433\u0434\u0430|\u043d\u0438\u043a\u043e\u0433\u0434\u0430|"
    r"\u043e\u0431\u044f\u0437\u0430\u0442\u0435\u043b\u044c\u043d\u043e|\u043d\u0435\u043b\u044c\u0437\u044f|"
    # Polish, Swedish
    r"zawsze|nigdy|od (?:teraz|tej pory|dzi\u015b)|odt\u0105d|pod \u017cadnym pozorem|w \u017cadnym (?:wypadku|"
    r"razie)|nie wolno|"
    r"musisz|pami\u0119taj|koniecznie|alltid|aldrig|fr\u00e5n (?:och med )?nu|h\u00e4danefter|fram\u00f6ver|"
    r"under inga|du (?:m\u00e5ste|f\u00e5r inte)|"
    r"kom ih\u00e5g)\b"
)
_LEADS: Final = r"(?:also|and|but|so|then|again|important|note|bitte|por favor)"
_AT_START: Final = re.compile(
    rf"\W*(?:{_LEADS},?:? )?(?:please )?"
    r"(?:do not|don['\u2019]t|only|avoid|refrain from|make sure|ensure|be sure to|remember to|stick to|unless i|"
    r"whenever|keep (?:it|all|every|each|your|the)|nur|verwende nur|achte darauf|utilise uniquement|assure-toi|"
    r"assurez-vous|s\u00f3lo|aseg\u00farate|no (?:uses|hagas|escribas|digas)|n\u00e3o (?:use|fa\u00e7a)|"
    r"non (?:usare|fare|scrivere)|tylko|upewnij si\u0119|nie (?:u\u017cywaj|pisz|r\u00f3b|wysy\u0142aj|podawaj)|"
    r"se till att|anv\u00e4nd (?:bara|inte|endast)|endast|undvik|skriv (?:inte|aldrig))\b"
)
_UNSPACED: Final = re.compile(
    # Chinese, Japanese, Korean
    "\u5fc5\u987b|\u5fc5\u9808|\u52a1\u5fc5|\u4e0d\u8981|\u4e0d\u5f97|\u4e0d\u8bb8|\u4e0d\u51c6|\u7981\u6b62|"
    "\u6c38\u8fdc\u4e0d|\u59cb\u7ec8|\u603b\u662f|\u4ece\u73b0\u5728\u8d77|\u8bb0\u4f4f|\u5fc5\u305a|\u5e38\u306b|"
    "\u7d76\u5bfe\u306b|\u4eca\u5f8c|\u3057\u306a\u3044\u3067|\ud56d\uc0c1|\uc808\ub300|\ubc18\ub4dc\uc2dc|"
    "\uc55e\uc73c\ub85c|"
    "\u52a1\u5fc5|\u52d9\u5fc5|\u4e00\u5b9a\u8981|\u5207\u52ff|\u8bf7\u52ff|\u8acb\u52ff|\u5f9e\u73fe\u5728|"
    "\u4ece\u73b0\u5728|\u4ece\u4eca|\u5f9e\u4eca|\u6c38\u9060\u4e0d|\u7edd\u4e0d|\u7d55\u4e0d|"
    "\u4ee5\u540e\u4e0d|\u4ee5\u5f8c\u4e0d|\u4ee5\u540e\u8bf7|\u4ee5\u5f8c\u8acb|\u7981\u6b62|\u8a18\u4f4f|\u53ea\u80fd"
)


_STANDING_CUES: Final = Cues(
    # Of what heads a list of rules
    "rule|constraint|guidelines|instructions|requirements|conventions|restrictions|regeln|r\u00e8gles|reglas|regole|"
    # Of what says anywhere in a sentence, and at its beginning, that it is one
    "always|never|must|from now on|going forward|at all times|every time|each time|no matter what|under no circum|"
    "are not allowed|is not allowed|do not|don't|don\u2019t|remember t|keep |immer|niemals|auf keinen|ab jetzt|"
    "ab sofort|unbedingt|du darfst|du d\u00fcrfen|du musst|du m\u00fcssen|sie darfst|sie d\u00fcrfen|sie musst|"
    "sie m\u00fcssen|toujours|jamais|d\u00e9sormais|dor\u00e9navant|\u00e0 partir de|il faut|tu dois|vous devez|"
    "siempre|nunca|a partir de|debes|tienes que|sempre|d'ora in|d\u2019ora in|devi|altijd|nooit|vanaf nu|"
    "\u0432\u0441\u0435\u0433\u0434\u0430|\u043d\u0438\u043a\u043e\u0433\u0434\u0430|"
    "\u043e\u0431\u044f\u0437\u0430\u0442\u0435\u043b\u044c\u043d\u043e|\u043d\u0435\u043b\u044c\u0437\u044f|only|"
    "avoid|refrain from|make sure|ensure|be sure to|stick to|unless i|whenever|nur|verwende nur|achte darauf|"
    "utilise uni|assure-toi|assurez-vous|s\u00f3lo|aseg\u00farate|no uses|no hagas|no escribas|no digas|"
    "n\u00e3o use|n\u00e3o fa|non usare|non fare|non scrivere|"
    "zawsze|nigdy|od teraz|od tej|od dzi\u015b|odt\u0105d|pod \u017cadnym|w \u017cadnym|nie wolno|musisz|"
    "pami\u0119taj|koniecznie|tylko|"
    "upewnij|nie u\u017c|nie pisz|nie r\u00f3b|nie wysy|nie podawaj|alltid|aldrig|fr\u00e5n |h\u00e4danefter|"
    "fram\u00f6ver|under inga|"
    "du m\u00e5ste|du f\u00e5r|kom ih\u00e5g|se till att|anv\u00e4nd |endast|undvik|skriv ",
    f"\u89c4\u5219|\u30eb\u30fc\u30eb|{_UNSPACED.pattern}",
)


class _Kind(NamedTuple):
    """A kind of rule."""

    states: Callable[[str], bool]
    """Tells whether a sentence states one."""
    cues: Cues
    """Of these one is in every such sentence."""


class SaidText(NamedTuple):
    """A text, and the same with all blanked that its writer only quotes, pastes or reports (see `own_words`)."""

    text: str
    own: str

    def paragraphs(self, cues: Cues) -> list[SaidText]:
        """Return the paragraphs whose own words have one of the cues."""
        if not cues.are_in(self.own.lower()):
            return []
        pairs = zip(self.text.split("\n\n"), self.own.split("\n\n"), strict=True)
        return [SaidText(*pair) for pair in pairs if cues.are_in(pair[1].lower())]


def stated_in(text: str) -> SaidText | None:
    """Return a text and what of it its writer says himself, None if there can be no rule in it, nor a withdrawal."""
    return SaidText(text, own_words(text)) if _ANY_CUES.are_in(text.lower()) else None


def standing_instructions(text: str, own: str | None = None) -> tuple[str, ...]:
    """Return the sentences and list items of `text` that state a lasting rule, exactly as they are in it, in order.

    A list under a heading such as "Never do any of this:" is one rule. Questions and mere narration are left out.
    At most `RULES_CHARS` characters in all. `own` is the text without what is not the writer's, None if all of it is.
    """
    return _extract_rules(SaidText(text, text if own is None else own), _STANDING)


def lasting_rules(text: str, own: str | None = None) -> tuple[str, ...]:
    """Return those of a text that came later than a conversation's beginning which say that they hold from now on.

    What is asked in the words of a rule alone ("don't change the tests") mostly is for what is done at the moment.
    """
    parts = SaidText(text, text if own is None else own).paragraphs(LASTING_CUES)
    return tuple(rule for part in parts for rule in _extract_rules(part, _LASTING))


def withdrawals(text: str, own: str | None = None) -> tuple[str, ...]:
    """Return the sentences of `text` that ask for a rule to be forgotten, exactly as they are in it, in order."""
    asked: dict[str, None] = {}
    for part in SaidText(text, text if own is None else own).paragraphs(WITHDRAWAL_CUES):
        for line in _LINE.finditer(part.own):
            for match in _SENTENCE.finditer(part.own, *line.span()):
                sentence = match[0].strip()
                if len(sentence) <= RULE_CHARS and OTHERS not in sentence and WITHDRAWS.search(sentence.lower()):
                    asked[part.text[slice(*match.span())].strip()] = None
    return tuple(asked)


def ends_of(said: SaidText) -> list[SaidText]:
    """Return a text, of a long one the lines at its beginning and at its end: WINDOW_CHARS each at most."""
    if len(said.text) <= 2 * WINDOW_CHARS:
        return [said]
    head = said.text.rfind("\n", 0, WINDOW_CHARS) + 1 or WINDOW_CHARS
    tail = said.text.find("\n", len(said.text) - WINDOW_CHARS) + 1 or len(said.text) - WINDOW_CHARS
    return [SaidText(said.text[:head], said.own[:head]), SaidText(said.text[tail:], said.own[tail:])]


def _extract_rules(said: SaidText, kind: _Kind) -> tuple[str, ...]:
    if not kind.cues.are_in(said.own.lower()):
        return ()
    rules: list[str] = []
    room = RULES_CHARS
    for start, end in _rules(said.own, kind):
        rule = said.text[start:end].strip()
        if rule and len(rule) <= room and rule not in rules and OTHERS not in said.own[start:end]:
            room -= len(rule)
            rules.append(rule)
    return tuple(rules)


def _rules(text: str, kind: _Kind) -> Iterator[tuple[int, int]]:
    lines = [match.span() for match in _LINE.finditer(text) if not match[0].isspace()]
    index = 0
    while index < len(lines):
        start, end = lines[index]
        index += 1
        if _heads_rules(text[start:end], kind):
            last = end
            while (
                index < len(lines) and _LIST_MARK.match(text, *lines[index]) and lines[index][1] - start <= RULE_CHARS
            ):
                last = lines[index][1]
                index += 1
            if last > end:
                yield start, last
                continue
        while index < len(lines) and _goes_on(text, lines[index - 1], lines[index]):
            end = lines[index][1]
            index += 1
        if kind.cues.are_in(text[start:end].lower()):
            mark = _LIST_MARK.match(text, start, end)
            yield from _sentences(text, mark.end() if mark else start, end, kind)


def _heads_rules(line: str, kind: _Kind) -> bool:
    if len(line) > RULE_CHARS or not line.rstrip().endswith((":", "\uff1a")):
        return False
    return (kind.states(line) or _HEADING.match(line.lower()) is not None) and not tells_of_others(line)


def _goes_on(text: str, line: tuple[int, int], following: tuple[int, int]) -> bool:
    """Return whether a sentence that a line leaves open goes on in the next line."""
    said = text[slice(*line)]
    if following[0] - line[1] > 1 or said.rstrip(_CLOSERS).endswith(_STOPS) or _BROKEN.match(text, *following):
        return False
    return len(said) >= _WRAPPED_CHARS or text[slice(*following)].lstrip()[:1].islower()


def _sentences(text: str, start: int, end: int, kind: _Kind) -> Iterator[tuple[int, int]]:
    for match in _SENTENCE.finditer(text, start, end):
        sentence = match[0]
        asks = sentence[-RULE_CHARS:].rstrip(_CLOSERS).endswith(("?", "\uff1f"))
        if len(sentence) > RULE_CHARS or asks or not kind.states(sentence) or _TOLD.search(sentence):
            continue
        if not tells_of_others(sentence):
            yield match.span()


def _states_rule(sentence: str) -> bool:
    """Return whether a sentence has the words of a rule."""
    # The patterns are in small letters: without regard to case a search takes seven times as long.
    said = sentence.lower()
    return bool(_ANYWHERE.search(said) or _UNSPACED.search(said) or _AT_START.match(said))


def _states_lasting_rule(sentence: str) -> bool:
    """Return whether a sentence, a withdrawal excepted, has the words of a rule that holds from now on."""
    said = sentence.lower()
    return bool((LASTING.search(said) or LASTING_START.match(said)) and not WITHDRAWS.search(said))


_STANDING: Final = _Kind(_states_rule, _STANDING_CUES)
_LASTING: Final = _Kind(_states_lasting_rule, LASTING_CUES)
_ANY_CUES: Final = _STANDING_CUES | LASTING_CUES | WITHDRAWAL_CUES
