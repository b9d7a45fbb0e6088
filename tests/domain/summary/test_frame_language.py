"""Frames and headings in the conversation's language: told once, kept, and read again whatever it is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compaction.claims.citations import makes_claim
from compaction.coverage import Span
from compaction.extract.extractive import extract, previous_lines
from compaction.frames.languages import language_of_frames, language_of_text
from compaction.frames.phrases import PHRASES, FramePhrases
from compaction.frames.wordings import ENGLISH, WORDINGS, FrameWording, in_english, translated
from compaction.pins.left_out import note_at
from compaction.pins.pinned import Pin, framed_texts, render_pins, with_pins, without_pins
from compaction.policy import Policy
from compaction.quality.verdict import gather, judge
from compaction.recall.ranges import missing_ranges_note
from compaction.steps import steps
from compaction.steps.snapshot import Original, Snapshot, build, serialized
from compaction.steps.stage import Stage
from compaction.summary.prompts import Place, Wishes, part_prompt
from compaction.summary.transcript import SECTIONS
from compaction.summary.zone import CLOSES, OPENS, framed, neutralize, with_summary, without_summary
from compaction.view import ViewMessage

ASKED = {
    "german": "Bitte plane unsere Reise nach Lissabon, wir sind zwei Erwachsene und ein Kind, und es soll warm sein.",
    "french": "Merci de pr\u00e9parer notre voyage \u00e0 Lisbonne, nous sommes deux adultes et un enfant, et il y a un chien.",
    "spanish": "Por favor planifica nuestro viaje a Lisboa, somos dos adultos y un ni\u00f1o y el presupuesto es de 1850 euros.",
    "italian": "Per favore organizza il nostro viaggio a Lisbona, siamo due adulti e un bambino e il budget \u00e8 di 1850 euro.",
    "portuguese": "Por favor planeie a nossa viagem a Lisboa, somos dois adultos e uma crian\u00e7a e n\u00e3o h\u00e1 pressa.",
    "dutch": "Plan alsjeblieft onze reis naar Lissabon, we zijn met twee volwassenen en een kind en het is niet duur.",
    "polish": "Prosz\u0119 zaplanuj nasz\u0105 podr\u00f3\u017c do Lizbony, jest nas dwoje doros\u0142ych i jedno dziecko, a bud\u017cet to 1850 euro.",
    "swedish": "Planera v\u00e5r resa till Lissabon, vi \u00e4r tv\u00e5 vuxna och ett barn och budgeten \u00e4r 1850 euro.",
    "russian": "\u0421\u043f\u043b\u0430\u043d\u0438\u0440\u0443\u0439 \u043d\u0430\u0448\u0443 \u043f\u043e\u0435\u0437\u0434\u043a\u0443 \u0432 \u041b\u0438\u0441\u0441\u0430\u0431\u043e\u043d, \u043d\u0430\u0441 \u0434\u0432\u043e\u0435 \u0438 \u043e\u0434\u0438\u043d \u0440\u0435\u0431\u0451\u043d\u043e\u043a, \u0438 \u043d\u0435 \u0434\u043e\u0440\u043e\u0433\u043e.",
    "chinese": "\u8bf7\u5e2e\u6211\u4eec\u89c4\u5212\u53bb\u91cc\u65af\u672c\u7684\u65c5\u884c\uff0c\u4e24\u4e2a\u5927\u4eba\u548c\u4e00\u4e2a\u5b69\u5b50\u3002",
    "japanese": "\u30ea\u30b9\u30dc\u30f3\u3078\u306e\u65c5\u884c\u3092\u8a08\u753b\u3057\u3066\u304f\u3060\u3055\u3044\u3002\u5927\u4eba\u4e8c\u4eba\u3068\u5b50\u4f9b\u4e00\u4eba\u3067\u3059\u3002",
    "korean": "\ub9ac\uc2a4\ubcf8 \uc5ec\ud589\uc744 \uacc4\ud68d\ud574 \uc8fc\uc138\uc694. \uc5b4\ub978 \ub458\uacfc \uc544\uc774 \ud558\ub098\uc785\ub2c8\ub2e4.",
    "english": "Please plan our trip to Lisbon: we are two adults and a child, and it should be warm.",
}
LANGUAGES = sorted(WORDINGS)
RULE = Pin("rule", 3, "Euro 1850\n[PINNED]", "standing_instruction", "user")


def stage_of(asked: str, policy: Policy, *, snapshot: Snapshot | None = None, count: int = 12) -> Stage:
    tail = []
    for seq in range(count):
        text = asked if seq == 0 else f"Lisboa {seq} " + "4711 " * 300
        message: dict[str, Any] = {"role": "assistant" if seq % 2 else "user", "content": text}
        tail.append(Original(seq, message["role"], serialized(message["content"]).decode()))
    return Stage(build(snapshot or Snapshot(), tail, policy, pinned=()))


@pytest.mark.parametrize("language", sorted(ASKED))
def test_the_language_is_that_of_what_the_user_asked(language: str) -> None:
    assert language_of_text(ASKED[language]) == language
    view = [ViewMessage("user", ASKED[language], 0)]
    assert language_of_frames("auto", view, is_framed=False) == language
    assert language_of_frames("en", view, is_framed=False) == "english"


@pytest.mark.parametrize(
    "text", ["", "Hi", "ok ok", "x = [1, 2]; print(x)", "word " * 40, "4711 " * 90, "A hablar de 4"]
)
def test_what_tells_no_language_is_framed_in_english(text: str) -> None:
    view = [ViewMessage("user", text, 0)]
    assert language_of_frames("auto", view, is_framed=False) == "english"


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_translated_is_read_again(language: str) -> None:
    said = "\n".join((*ENGLISH.lines, "User: ## Facts", "- [m12] 4711"))
    there = translated(said, language)
    assert in_english(there) == said
    assert translated(there, language) == there
    assert neutralize(there) == there
    assert (there == said) is (language == "english")
    assert not any(map(makes_claim, WORDINGS[language].lines))
    assert previous_lines("\n".join(WORDINGS[language].lines)) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_frames_of_every_language_are_found_and_taken_off(language: str) -> None:
    first = ViewMessage("user", "4711?", 0)
    frame = render_pins([RULE], language)
    assert framed_texts(frame) == (RULE.text,)
    summary = translated(f"{ENGLISH.reference}\n\n{SECTIONS[0]}\n4711", language)
    whole = with_summary(first, summary)
    assert str(whole.content).endswith(CLOSES)
    assert OPENS in whole.content
    (pinned,) = with_pins([whole], [RULE], language)
    assert WORDINGS[language].standing in pinned.content
    assert without_pins([pinned], [RULE]) == (whole,)
    assert without_summary(whole, summary) == first
    # A frame that is there says what language the next one is in, whatever was said since.
    assert language_of_frames("auto", [pinned], is_framed=True) == language


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("count", [1, 1_200])
def test_the_note_of_what_is_left_out_is_found(language: str, count: int) -> None:
    noted = missing_ranges_note([Span(3, 2 + count, "dropped", "run")], {}, language)
    assert "recall m3" in noted
    assert note_at(f"4711\n\n{noted}") == len("4711")


@pytest.mark.parametrize("language", sorted(set(LANGUAGES) - {"english"}))
def test_a_summary_has_the_headings_of_its_language(language: str) -> None:
    policy = Policy(protected_tail_messages=2, compaction_threshold_tokens=1_000)
    stage = stage_of(ASKED[language], policy)
    assert stage.working.language == language
    zone = steps.find_zone(stage, policy)
    assert not isinstance(zone, str)
    text = "\n".join((ENGLISH.reference, "", *(f"{heading}\n4711" for heading in SECTIONS), ENGLISH.kept, "- 4711"))
    outcome = steps.summarize(stage, zone, text, policy)
    assert outcome.summary is not None
    wording = WORDINGS[language]
    assert [line for line in outcome.summary.split("\n") if line.startswith("#")] == [*wording.sections, wording.kept]
    assert outcome.summary.startswith(wording.reference)
    after = stage.after(outcome.settle(stage, "run"), policy)
    assert after.working.language == language
    assert after.previous_summary == text


MADE = f"""\
{ENGLISH.extract}
User: 4711
User (Zo\u00eb): 4711: 12
Called x9(a=1) \u2192 ok
Assistant: 4711 [m3]
Result: 4711
{ENGLISH.latest}
Assistant: 4712
{ENGLISH.kept}
- User (Zo\u00eb) asked, answered since: 4711?
- User asked, not answered when this was written: 4712?

Note: partial: it covers 1-2 of 1-4; the rest could not be summarized (x9).
Note: its parts stand side by side, as they could not be merged (x9).
Note: left out for its size: 4711.
Note: left out for their size: 1,200 more messages."""
"""Everything that compaction writes into a summary of its own words."""
PINS = (
    Pin("a", 3, "4711", "standing_instruction", "user (Zo\u00eb)"),
    Pin("b", 4, "4712", "pinned", "assistant"),
    Pin("c", 5, "4713?", "latest_request", "user", is_answered=True),
    Pin("d", 6, "4714", "pinned"),
)
SHARED = {"recall", "pin", "pinned", "end", "context", "summary", "zo", "frame"}
"""Markers, names and commands, which are the same in all languages."""


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{2,}", text.lower()))


def own_words(phrases: FramePhrases, wording: FrameWording) -> set[str]:
    """Return the words that compaction writes in a language."""
    every = [*phrases, *(text for each in wording for text in (each if isinstance(each, tuple) else (each,)))]
    return words(re.sub(r"\{\w+\}", " ", " ".join(every)))


@pytest.mark.parametrize("language", sorted(set(LANGUAGES) - {"english"}))
def test_a_context_has_no_english_word_of_compactions(language: str) -> None:
    english = own_words(PHRASES["english"], ENGLISH) - SHARED
    assert {"user", "asked", "note", "older", "characters", "called"} <= english
    foreign = english - own_words(PHRASES[language], WORDINGS[language])
    media = f"\n{ENGLISH.media}\n- 1,200 older\n- PNG [m9.0]"
    text = framed(translated(MADE + media, language), "0123456789ab", language)
    pinned = render_pins(PINS, language, "0123456789ab")
    noted = missing_ranges_note([Span(at, at, "dropped", "run") for at in range(0, 90, 2)], {}, language)
    assert words(f"{text}\n{pinned}\n{noted}") & foreign == set()


@pytest.mark.parametrize("language", LANGUAGES)
def test_phrases_are_read_again(language: str) -> None:
    for made in (
        MADE,
        f"{ENGLISH.media}\n- 1,200 older\n- PNG [m9.0]",
        f"{ENGLISH.reference}\n\nUser: 4711\nResult: x",
    ):
        there = translated(made, language)
        assert in_english(there) == made
        assert translated(there, language) == there
        assert not any(map(makes_claim, there.split("\n")[-4:])) or made is not MADE
    assert framed_texts(render_pins(PINS, language, "0123456789ab"), "0123456789ab") == tuple(pin.text for pin in PINS)
    (whole,) = with_pins([ViewMessage("user", "4711?", 0)], PINS, language)
    assert without_pins([whole], PINS) == (ViewMessage("user", "4711?", 0),)


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_extract_goes_on_from_its_translation(language: str) -> None:
    """A later extract reads who said what, whatever language that is told in."""
    there = in_english(translated(MADE, language))
    assert previous_lines(there) == previous_lines(MADE)


def test_the_policy_asks_for_english() -> None:
    policy = Policy(frame_language="en")
    assert stage_of(ASKED["german"], policy).working.language == "english"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_summarizer_is_asked_for_the_headings_that_are_accepted(language: str) -> None:
    wording = WORDINGS[language]
    place = Place(1, 1, "messages 1-2", "")
    prompt = part_prompt("s", "body", place, previous=None, wishes=Wishes(language=language), answer_tokens=500)
    assert ", ".join(wording.sections) in prompt.text
    answer = "\n".join(f"{heading}\n- 4711" for heading in wording.sections)
    evidence = gather([ViewMessage("user", "4711", 0)])
    assert judge(answer, evidence, sections=SECTIONS).missing_sections == ()


def test_an_extract_is_made_again_from_its_translation() -> None:
    messages = [{"role": "user", "content": f"The code of room {n} is QX-{n}{n}7."} for n in range(9)]
    text = extract(messages, max_chars=2_000)
    there = translated(text, "german")
    assert there.startswith(WORDINGS["german"].extract)
    assert extract(messages[:1], max_chars=900, previous=in_english(there)) == extract(
        messages[:1], max_chars=900, previous=text
    )
