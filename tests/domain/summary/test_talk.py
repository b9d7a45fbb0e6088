"""Everyday talk in the extract: what people tell of themselves and when, the newest of what changes, any language."""

from __future__ import annotations

import random
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fidelity.talk import measure, near
from bench.reach.talks import made_up
from compaction.extract.extractive import LATEST, extract
from compaction.extract.talk import Manner, manner_of, split_statements, strip_opening
from compaction.text.dates import add_dates, format_day, split_stamp
from compaction.text.names import attribution, plain_name, split_attribution
from tests.support.dialogues import DIALOGUES


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


FACTS = (
    "My sister Wilma moved to Tartu in March and works as a beekeeper.",
    "I keep my old sneakers under the bed.",
    "We are going camping with the kids next month.",
    "I take yoga classes at Serenity Studio every Tuesday.",
    "My favourite book is The Lean Startup.",
    "I adopted a puppy called Coco yesterday.",
)
CHATTER = (
    "Wow, that sounds amazing!",
    "Thanks so much, you are always so kind!",
    "How are you doing today?",
    "That's really great to hear!",
    "Haha, absolutely! You must be so proud.",
    "What do you think about it?",
)


ESSAY = ("oak", "birch", "elm", "ash", "pine", "beech", "cedar", "maple", "walnut", "cherry", "teak", "larch")
PLACES = (("piano", "attic"), ("kiln", "garage"), ("loom", "cellar"), ("harp", "kitchen"))


def chat(rounds: int = 6) -> list[dict[str, Any]]:
    chance = random.Random(4)  # noqa: S311 - made-up text
    texts = ["[1:56 pm on 8 May, 2023] Hey Mel! Good to see you! How have you been?"]
    for fact in FACTS:
        texts += [" ".join(chance.choices(CHATTER, k=3)) for _ in range(rounds)]
        texts.append(f"Oh wow, thanks! {fact} It was so nice, you know!")
    return said(*texts, *("Great, talk soon!", "Bye, take care!") * 4)


def named(name: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": text, "name": name}


def test_who_of_several_said_what_is_kept_also_by_the_extract_after_that() -> None:
    first = [named("anna", "I can spend 40 EUR on dinner."), named("ben", "I can spend 90 EUR on dinner.")]
    text = extract([*first, *chat()], max_chars=4_000)
    for _ in range(3):
        assert "(anna): I can spend 40 EUR on dinner." in text
        assert "(ben): I can spend 90 EUR on dinner." in text
        text = extract(chat(1), max_chars=4_000, previous=text)


@given(st.text(max_size=100), st.sampled_from(["User", "U", "Assistant"]), st.text(max_size=30))
def test_a_line_says_who_said_it_whatever_they_are_called(given_name: str, speaker: str, words: str) -> None:
    name = plain_name(given_name)
    assert plain_name(name) == name
    assert split_attribution(attribution(speaker, name) + words) == (speaker, name, words)


@pytest.mark.parametrize("fact", [fact.removesuffix(".") for fact in FACTS])
def test_what_people_tell_of_themselves_goes_before_chatter(fact: str) -> None:
    assert fact in extract(chat(), max_chars=1_000)


def test_lines_say_who_and_when() -> None:
    lines = extract(chat(), max_chars=1_200).split("\n")
    assert lines.count("[8 May, 2023]") == 1
    puppy = next(line for line in lines if "Coco" in line)
    assert puppy.startswith(("User: I adopted", "Assistant: I adopted"))
    assert "yesterday (7 May)" in puppy
    assert "next month (June)" in "\n".join(lines)
    assert lines.index("[8 May, 2023]") < lines.index(puppy)


def test_each_sitting_has_its_day_and_a_day_without_a_kept_line_has_none() -> None:
    filler = [text for text in CHATTER for _ in range(4)]
    talk = said(
        "[9:00 am on 3 June, 2024] I bought a canoe from Bergen yesterday.", *filler,
        "[2024-06-09 18:00] I sold my canoe to Ivo for ninety euros.", *filler,
        "[June 12, 2024] Great!", *filler,
    )  # fmt: skip
    lines = extract(talk, max_chars=210).split("\n")
    days = [line for line in lines if line.startswith("[")]
    assert days == ["[3 June, 2024]", "[9 June, 2024]"]
    assert "(2 June)" in lines[lines.index("[3 June, 2024]") + 1]


def test_the_newest_of_what_changes_wins_and_says_so() -> None:
    talk = said(
        "Let us have dinner with Ana on Monday at seven.",
        "Sounds good, I will book a table at the Harbour Grill.",
        "Great.",
        "Anything else?",
        "Actually, make it Tuesday.",
        "Tuesday it is.",
        *CHATTER,
    )
    lines = extract(talk, max_chars=330).split("\n")
    (change,) = [line for line in lines if "make it Tuesday" in line]
    assert change.endswith("make it Tuesday. (before: Let us have dinner with Ana on Monday at seven)")
    assert not any(line.startswith("User: Let us have dinner") for line in lines)


@pytest.mark.parametrize(
    "later", ["I actually bought a red bicycle in Ghent.", "Instead of tea I drink coffee.", "It is Tuesday today."]
)
def test_what_is_about_something_else_takes_nothing_back(later: str) -> None:
    talk = said("Let us have dinner with Ana on Monday at seven.", *CHATTER, *CHATTER, later, "Fine.")
    assert "(before:" not in extract(talk, max_chars=900)


@pytest.mark.parametrize("later", ["Actually, we take the boat to Lisbon on Sunday!", "Actually, I changed my mind:"])
def test_what_changed_is_said_once_however_often_it_is_carried_over(later: str) -> None:
    talk = said("We take the boat to Lisbon on Friday.", "Nice.", *chat_about(0), f"{later} Anna has to work.", "Fine.")
    first = extract(talk, max_chars=3_000)
    text = first
    for number in range(1, 4):
        text = extract(said(*chat_about(number)), max_chars=3_000, previous=text)
    at_first, at_last = ([line for line in each.split("\n") if later in line] for each in (first, text))
    assert at_last == at_first
    assert first.count("(before:") <= 1


def chat_about(number: int) -> list[str]:
    return [
        f"My sister sings in choir {number} in Porto, we went to see her and I cried a little.",
        "That is so sweet, I love choirs and I miss mine.",
        f"I painted kitchen {number} yellow, it makes me happy. Actually, I changed my mind: it is green.",
        "Yellow is my favourite, my mother had a yellow kitchen too.",
    ]


def test_an_extract_of_talk_is_read_as_itself() -> None:
    first = extract(chat(), max_chars=1_600)
    again = extract([], max_chars=1_600, previous=first)
    # With no message beside it nothing tells that it is talk, so that speakers are written out.
    written_out = [line.replace("U: ", "User: ", 1).replace("A: ", "Assistant: ", 1) for line in first.split("\n")]
    assert [line for line in written_out if line != LATEST][1:] == again.split("\n")[1:]


def test_what_an_essay_left_in_an_extract_does_not_outlive_what_people_tell() -> None:
    essay = " ".join(f"Option {name} offers {name} chairs, {name} lamps and {name} curtains." for name in ESSAY)
    facts = [f"My {thing} stands in the {place}." for thing, place in PLACES]
    rounds = [said("[4 June, 2031] Hm.", essay, fact, essay, *CHATTER) for fact in facts]
    text = ""
    for more in rounds:
        text = extract(more, max_chars=900, previous=text)
    assert all(fact.removesuffix(".") in text for fact in facts)


def test_speakers_are_initials_where_the_first_line_can_say_so() -> None:
    long, short = (extract(chat(), max_chars=chars) for chars in (1_600, 1_200))
    assert "U: user, A: assistant" in long.split("\n")[0]
    assert {line[:3] for line in long.split("\n")[1:] if line[0] != "[" and line != LATEST} <= {"U: ", "A: "}
    assert "U: user" not in short.split("\n")[0]
    assert not any(line.startswith(("U: ", "A: ")) for line in short.split("\n"))
    # What was written with initials is read, and written out where there is no room to explain them.
    again = extract([], max_chars=1_200, previous=long)
    assert {line.split(" ")[0] for line in again.split("\n")[1:] if line[0] != "[" and line != LATEST} <= {
        "User:",
        "Assistant:",
    }


def test_a_title_ends_no_sentence() -> None:
    first, *_ = split_statements("I see Dr. Smith every two weeks. She helps.", Manner(1.0, "english"))
    assert first.text == "I see Dr. Smith every two weeks."


def test_facts_outlive_five_compactions_of_talk() -> None:
    text = extract(chat(), max_chars=1_600)
    for number in range(5):
        more = said(*CHATTER, f"I started lesson {number + 2} of my pottery course in Oaxaca.", *CHATTER)
        text = extract(more, max_chars=1_600, previous=text)
        assert text.count("[8 May, 2023]") <= 1
    assert all(fact.removesuffix(".") in text for fact in (FACTS[0], FACTS[3], FACTS[4]))
    assert "yesterday (7 May)" in text
    assert "(7 May) (" not in text


def test_a_rule_stands_and_a_cheer_is_none() -> None:
    cheers = ("Keep on making such great things, you two!", "You must be so relieved.", "They are always there for me.")
    rules = ("Never book anything before I said yes.", "You must ask Ana first.")
    items = [text for line in (*cheers, *rules) for text in (line, "Fine.")]
    facts = [text for fact in FACTS for text in (fact, "Fine.")]
    kept = extract(said("Hello there.", "Hi.", *items, *facts, *CHATTER * 4), max_chars=330)
    assert all(rule in kept for rule in rules)
    assert not any(cheer in kept for cheer in cheers)


GERMAN = (
    "Meine Schwester Wilma ist im M\u00e4rz nach Tartu gezogen.",
    "Ich nehme jeden Dienstag Unterricht bei Frau Okafor.",
    "Wir haben gestern einen Hund namens Bruno adoptiert.",
)
GERMAN_CHATTER = ("Wie sch\u00f6n, das freut mich!", "Und wie geht es dir?", "Ach so, ja.", "Das ist ja toll!")
JAPANESE = (
    "\u59c9\u306f\u6771\u4eac\u3067\u533b\u8005\u3092\u3057\u3066\u3044\u307e\u3059\u3002",
    "\u72ac\u306e\u540d\u524d\u306f\u30dd\u30c1\u3067\u3059\u3002",
)


def test_other_languages_keep_what_is_told_too() -> None:
    german = said(*(text for fact in GERMAN for text in (*GERMAN_CHATTER * 3, fact)), *GERMAN_CHATTER)
    kept = extract(german, max_chars=420)
    assert all(fact.removesuffix(".") in kept for fact in GERMAN)
    japanese = said(*JAPANESE, *("\u306f\u3044\u3002", "\u305d\u3046\u3067\u3059\u304b\uff1f") * 8)
    kept = extract(japanese, max_chars=160)
    assert all(fact in kept for fact in JAPANESE)


def test_work_with_tools_is_no_talk_and_one_lookup_is_no_work() -> None:
    assert all(manner_of(DIALOGUES[name]()).talk == 0 for name in ("support", "coding"))
    assert manner_of(chat()) == (1.0, "english", {"user": 1.0, "assistant": 1.0})
    lookup = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Sunny, 21 degrees"}]}
    assert manner_of([*chat(), lookup]).talk == 1
    work = ["Called book(order: K-1001) \u2192 ok"] * 400
    assert manner_of(chat(), work).talk == 0
    assert manner_of([]).talk == 0


def test_a_long_answer_is_kept_for_the_names_in_it() -> None:
    answer = "Here are some options:\n\n" + "\n".join(
        f"{number}. **{name}**: A wonderful place with a lovely view and friendly staff, praised by all of its guests."
        for number, name in enumerate(("Casa Verde", "Hotel Lumen", "Villa Aurora"), 1)
    )
    kept = extract(said("Can you suggest a hotel in Ghent?", answer, *CHATTER, "I booked Hotel Lumen."), max_chars=240)
    assert all(name in kept for name in ("Casa Verde", "Hotel Lumen", "Villa Aurora"))
    assert kept.count("praised by all") < 2


@given(
    st.lists(st.text(max_size=120) | st.sampled_from([*FACTS, *CHATTER, "[" * 90, "- " * 70, "and " * 60]), max_size=9)
)
def test_statements_are_word_for_word(texts: list[str]) -> None:
    text = "\n".join(texts)
    words = "".join(text.replace("**", "").split())
    for statement in split_statements(text, Manner(1.0, "english")):
        assert statement.telling > 0
        for word in strip_opening(statement.text).split():
            assert word in words or ";" in word


@given(st.text(alphabet=" []and,but-\u2014;:!?.(9monday", max_size=3_000), st.integers(0, 900))
def test_talk_of_any_form_is_bounded(text: str, most: int) -> None:
    kept = extract(said(text, *FACTS), max_chars=most)
    assert len(kept) <= most
    assert extract(said(text, *FACTS), max_chars=most) == kept


@pytest.mark.parametrize(
    ("text", "day", "rest"),
    [
        ("[1:56 pm on 8 May, 2023] Hey", date(2023, 5, 8), "Hey"),
        ("[2023-05-08T13:56:00Z]: Hey", date(2023, 5, 8), "Hey"),
        ("[May 8th, 2023 1:56 PM] Hey", date(2023, 5, 8), "Hey"),
        ("[8 May, 2023]", date(2023, 5, 8), ""),
        ("[31 February, 2023] Hey", None, "[31 February, 2023] Hey"),
        ("[a photo of 8 dogs] Hey", None, "[a photo of 8 dogs] Hey"),
        ("Hey [8 May, 2023]", None, "Hey [8 May, 2023]"),
    ],
)
def test_a_time_before_a_message_is_read(text: str, day: date | None, rest: str) -> None:
    assert split_stamp(text) == (day, rest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("went yesterday", "went yesterday (7 May)"),
        ("Last night we sang", "Last night (7 May) we sang"),
        ("see you tomorrow.", "see you tomorrow (9 May)."),
        ("last Friday", "last Friday (5 May)"),
        ("last Monday", "last Monday (1 May)"),
        ("next Fri", "next Fri (12 May)"),
        ("last month", "last month (April)"),
        ("five months ago", "five months ago (December 2022)"),
        ("next year", "next year (2024)"),
        ("ten years ago", "ten years ago (2013)"),
        ("3 days ago", "3 days ago (5 May)"),
        ("yesterday (7 May)", "yesterday (7 May)"),
        ("last week, or a few weeks ago", "last week, or a few weeks ago"),
        ("99 years ago", "99 years ago (1924)"),
    ],
)
def test_days_are_reckoned_from_the_day_of_the_message(text: str, expected: str) -> None:
    assert add_dates(text, date(2023, 5, 8)) == expected


@given(
    st.dates(), st.sampled_from(["yesterday", "tomorrow", "next month", "last year", "two days ago", "12 months ago"])
)
def test_any_day_can_be_reckoned_from_and_written(day: date, text: str) -> None:
    assert add_dates(text, day).startswith(text)
    if day.year >= 1900 and day.year < 2100:
        assert split_stamp(f"[{format_day(day)}] {text}") == (day, text)


def test_near_is_all_words_within_400_characters_of_the_first_one() -> None:
    text = "Serenity " + "x " * 150 + "Yoga " + "y " * 300 + "studio"
    assert near(text, ["serenity", "yoga"])
    assert not near(text, ["serenity", "studio"])
    assert not near(text, [])
    assert near("no 12\nand July", ["July", "12"])


def test_made_up_talk_is_answered_from_the_extract_and_not_from_the_newest() -> None:
    row = measure("made up", [made_up(seed) for seed in range(2)], 2_000)
    assert row.questions > 50
    assert row.served >= 1.5 * row.keep_last
    assert row.served <= row.whole <= row.questions
    assert row == measure("made up", [made_up(seed) for seed in range(2)], 2_000)._replace(seconds=row.seconds)
