"""Whether an answer is right: by rules where they can tell, else by a model."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from bench.answers.asking import UNKNOWN

if TYPE_CHECKING:
    from bench.reach.talks import Question

MOST_WORDS: Final = 40
"""Words of an answer that rules take for right: in a longer one what was asked may stand by chance."""
JUDGE: Final = (
    "You judge an answer to a question by the answer that is known to be right. It is RIGHT where it says the same, be"
    " it in other words, with more details, or as another form of the same date or number; it is WRONG where it says"
    " something else, leaves out what was asked, or does not know. Answer with that one word."
)
QUESTION: Final = "Question: {question}\nKnown to be right: {answer}\nAnswer to judge: {reply}"

_TOKEN: Final = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_UNSAID: Final = re.compile(
    r"\b(?:not enough|no information|not (?:mention|say|specif|provid)|(?:isn|wasn|doesn|didn)['\u2019]t "
    r"(?:mention|say|specif|provid)|cannot be (?:answered|known))"
)
"""How an answer that is known to be right says that the conversation does not tell."""
_DOUBTING: Final = "not no never none nor neither without or but instead either maybe"
_DOUBTS: Final = frozenset(_DOUBTING.split())
_SMALL: Final = (
    "a an the of to in on at for and with is are was were be been it its he she they his her their i my you your this"
    " that by from as about around approximately"
)
_LITTLE: Final = frozenset(_SMALL.split())
_COUNTED: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty"
)
_NUMBERS: Final = {word: str(number) for number, word in enumerate(_COUNTED.split())} | {
    "once": "1",
    "twice": "2",
    "thirty": "30",
    "forty": "40",
    "fifty": "50",
    "hundred": "100",
}
_ENDINGS: Final = ("ing", "ies", "ied", "ed", "es", "s", "ly")
_LEAST_STEM: Final = 3


def judged(question: Question, reply: str) -> bool | None:
    """Return whether a reply is right by rules, None where these cannot tell.

    Right: all words of the known answer stand in a short reply that has no word of doubt which the answer has not.
    Wrong: a reply that does not know, or is empty, or has none of the numbers of an answer that is only a number.
    """
    unsaid = _UNSAID.search(question.answer.lower()) is not None
    if not reply or reply.strip(" .").upper() == UNKNOWN:
        return bool(reply) and unsaid
    known, said = _words(question.answer), _words(reply)
    wanted = set(known) - _LITTLE
    if not wanted or unsaid:
        return None
    doubts = (_DOUBTS & set(said)) - set(known)
    if wanted <= set(said) and len(said) <= MOST_WORDS and not doubts:
        return True
    if all(word[0].isdigit() for word in wanted) and not any(word[0].isdigit() for word in said):
        return False
    return None


def verdict_of(text: str) -> bool | None:
    """Return what a model's judgement says, None for none."""
    words = [word for word in re.findall(r"[A-Z]+", text.upper()) if word in {"RIGHT", "WRONG"}]
    return words[0] == "RIGHT" if len(set(words)) == 1 else None


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text.lower().replace("\u2019", "'"))
    bare = "".join(each for each in plain if not unicodedata.combining(each))
    return [_NUMBERS.get(word, _stem(word.removesuffix("'s"))) for word in _TOKEN.findall(bare)]


def _stem(word: str) -> str:
    if word.endswith("n't"):
        return "not"
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            return word[: -len(ending)]
    return word
