"""Words: what a query and a text have in common, in every language and for identifiers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.recall.stop_words import STOP_WORDS
from compaction.recall.words import LONGEST_TERM, NEUTRAL, capitalized_words, language_of, query_words, terms

SENTENCES = {
    "danish": (
        "Jeg har købt bilerne af ham, men ikke her; hvad skal du, når hun kommer ud ad døren?",
        "bil",
        "bilerne",
    ),
    "dutch": ("Ik heb de boeken voor jou gekocht, maar ze zijn nog niet aangekomen.", "boek", "boeken"),
    "english": ("I was running with my friends and we would do it again.", "run", "running"),
    "finnish": ("Minä olen ostanut kirjat, mutta se ei ole vielä täällä ja hän on siellä.", "kirja", "kirjat"),
    "french": ("Je suis dans les montagnes avec mes amis et nous avons vu des chamois.", "montagne", "montagnes"),
    "german": ("Ich habe die Rechnungen bezahlt, aber sie sind noch nicht bei mir.", "Rechnung", "Rechnungen"),
    "hungarian": ("Ez a könyv az, amit nem olvastam, és hogy a könyvek itt vannak, azt tudom.", "könyv", "könyvek"),
    "italian": ("Ho visto le montagne con i miei amici, ma non sono stato nella città.", "montagna", "montagne"),
    "norwegian": ("Jeg har kjøpt bøkene, men de er ikke her ennå og jeg vet ikke hva vi skal.", "bok", "bok"),
    "portuguese": ("Eu comprei os livros para você, mas eles não estão em casa.", "livro", "livros"),
    "romanian": ("Am cumpărat cărțile pentru tine, dar nu sunt acasă și nu știu unde este.", "casă", "acasă"),
    "russian": ("Я купил книги для тебя, но они ещё не пришли, и я не знаю, где они.", "книга", "книги"),
    "spanish": ("He comprado los libros para ti, pero no están en la casa y no sé por qué.", "libro", "libros"),
    "swedish": ("Jag har köpt böckerna, men de är inte här och jag vet inte var de är.", "vet", "vet"),
    "turkish": ("Ben bu kitap ile sana geldim ama onlar daha gelmedi ve çok üzgünüm.", "kitap", "kitaplar"),
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_text_tells_its_language(language: str) -> None:
    assert language_of(SENTENCES[language][0]) == language


@pytest.mark.parametrize("text", ["", "x", "GET /v1/a 200 14ms", "{'a': 1}", "1 2 3 4 5", "Ok!"])
def test_what_has_no_function_words_is_of_no_language(text: str) -> None:
    assert language_of(text) == NEUTRAL


def test_there_are_ten_languages_and_more() -> None:
    assert len(STOP_WORDS) >= 10


@pytest.mark.parametrize("language", sorted({*STOP_WORDS} - {"romanian", "hungarian"}))
def test_forms_of_a_word_are_one_term(language: str) -> None:
    _, one, other = SENTENCES[language]
    assert terms(one, language) == terms(other, language) != []


def test_without_a_language_words_are_as_they_stand() -> None:
    assert terms("The Running of the bulls", NEUTRAL) == ["the", "running", "of", "the", "bulls"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("src/api/turns.py", {"src", "api", "turns", "py", "src/api/turns.py"}),
        ("parseTurnBody", {"parse", "turn", "body", "parseturnbody"}),
        ("HTTPServer2", {"http", "server", "2", "httpserver2"}),
        ("ORD-2024-0815", {"ord", "2024", "0815", "ord-2024-0815"}),
        ("max_tool_result_chars", {"max", "tool", "result", "chars", "max_tool_result_chars"}),
        ("18,214 dollars", {"18214", "dollars"}),
        ("Zoë@example.com", {"zoe", "example", "com", "zoe@example.com"}),
        ("東京タワー", {"東京", "京タ", "タワ", "ワー"}),
        ("नमस्ते दुनिया", {"नमस्ते", "दुनिया"}),
    ],
)
def test_identifiers_are_whole_and_in_parts(text: str, expected: set[str]) -> None:
    assert set(terms(text, NEUTRAL)) == expected


def test_a_danda_is_no_part_of_the_word_before_it() -> None:
    assert terms("सर्वर मुंबई में।", NEUTRAL) == terms("सर्वर मुंबई में", NEUTRAL)


def test_a_possessive_is_the_name() -> None:
    assert terms("Melanie's", "english") == terms("Melanie", "english")
    assert capitalized_words("When did Melanie's son meet NASA in a park?") == {"when", "melanie"}


@given(st.text(max_size=400), st.sampled_from([NEUTRAL, *STOP_WORDS]))
def test_any_text_has_terms_of_bounded_length(text: str, language: str) -> None:
    stems = terms(text, language)
    assert all(0 < len(term) <= LONGEST_TERM for term in stems if term)
    assert len(query_words(text)) == len(set(query_words(text)))
    assert terms(text, language) == stems
