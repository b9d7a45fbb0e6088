"""Phrases: the words within lines of frames and summaries that compaction writes, in every language of the wordings.

All code works with the English ones, as it does with the wordings.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class FramePhrases(NamedTuple):
    """The phrases of one language; what stands in braces is filled in."""

    user: str
    """Begins a line, as the next two do, with a name in brackets and a colon behind it."""
    assistant: str
    result: str
    called: str
    """Begins a line about a call of a tool."""
    asked: str
    """A request that a summary leaves out."""
    answered: str
    note: str
    """Begins a note about the summary."""
    partial: str
    side_by_side: str
    oversized: str
    more_oversized: str
    older_media: str
    pin: str
    """The head of a pin, which ends with its characters."""
    by: str
    by_user: str
    by_assistant: str
    older_by_words: str
    """Ends a list of references that is too long."""


ENGLISH: Final = FramePhrases(
    "User",
    "Assistant",
    "Result",
    "Called ",
    "- {who} asked, not answered when this was written: {said}",
    "- {who} asked, answered since: {said}",
    "Note: ",
    "Note: partial: it covers {here} of {whole}; the rest could not be summarized ({why}).",
    "Note: its parts stand side by side, as they could not be merged ({why}).",
    "Note: left out for its size: {what}.",
    "Note: left out for their size: {count} more messages.",
    "- {count} older",
    "{number} of {total}: {label}{by}, message {seq}, {chars} characters",
    ", by {who}",
    "user",
    "assistant",
    "; older ones by words",
)
PHRASES: Final[Mapping[str, FramePhrases]] = {
    "english": ENGLISH,
    "german": FramePhrases(
        "Nutzer",
        "Assistent",
        "Ergebnis",
        "Aufruf: ",
        "- {who} bat, hierbei noch nicht beantwortet: {said}",
        "- {who} bat, inzwischen beantwortet: {said}",
        "Hinweis: ",
        "Hinweis: unvollständig, umfasst {here} von {whole}; der Rest ließ sich nicht zusammenfassen ({why}).",
        "Hinweis: die Teile stehen nebeneinander, da sie sich nicht verbinden ließen ({why}).",
        "Hinweis: wegen der Größe ausgelassen: {what}.",
        "Hinweis: wegen der Größe ausgelassen: {count} weitere Nachrichten.",
        "- {count} ältere",
        "{number} von {total}: {label}{by}, Nachricht {seq}, {chars} Zeichen",
        ", von {who}",
        "Nutzer",
        "Assistent",
        "; ältere über Wörter",
    ),
    "french": FramePhrases(
        "Utilisateur",
        "Assistant",
        "Résultat",
        "Appel : ",
        "- {who} a demandé, sans réponse à ce moment-là : {said}",
        "- {who} a demandé, répondu depuis : {said}",
        "Remarque : ",
        "Remarque : incomplet, couvre {here} sur {whole} ; le reste n'a pas pu être résumé ({why}).",
        "Remarque : les parties se suivent, car elles n'ont pas pu être réunies ({why}).",
        "Remarque : omis à cause de sa taille : {what}.",
        "Remarque : omis à cause de leur taille : {count} autres.",
        "- {count} plus anciens",
        "{number} sur {total} : {label}{by}, n° {seq}, {chars} caractères",
        ", par {who}",
        "utilisateur",
        "assistant",
        " ; les plus anciens par mots",
    ),
    "spanish": FramePhrases(
        "Usuario",
        "Asistente",
        "Resultado",
        "Llamada: ",
        "- {who} pidió, sin respuesta en ese momento: {said}",
        "- {who} pidió, respondido después: {said}",
        "Nota: ",
        "Nota: incompleto, abarca {here} de {whole}; el resto no se pudo resumir ({why}).",
        "Nota: las partes van una tras otra, porque no se pudieron unir ({why}).",
        "Nota: omitido por su tamaño: {what}.",
        "Nota: omitidos por su tamaño: {count} mensajes más.",
        "- {count} anteriores",
        "{number} de {total}: {label}{by}, mensaje {seq}, {chars} caracteres",
        ", de {who}",
        "usuario",
        "asistente",
        "; los anteriores por palabras",
    ),
    "italian": FramePhrases(
        "Utente",
        "Assistente",
        "Risultato",
        "Chiamata: ",
        "- {who} ha chiesto, senza risposta in quel momento: {said}",
        "- {who} ha chiesto, risposto in seguito: {said}",
        "Avviso: ",
        "Avviso: incompleto, copre {here} di {whole}; il resto non si è potuto riassumere ({why}).",
        "Avviso: le parti stanno una dopo l'altra, perché non si sono potute unire ({why}).",
        "Avviso: omesso per la sua dimensione: {what}.",
        "Avviso: omessi per la loro dimensione: altri {count} messaggi.",
        "- {count} precedenti",
        "{number} di {total}: {label}{by}, messaggio {seq}, {chars} caratteri",
        ", di {who}",
        "utente",
        "assistente",
        "; i precedenti per parole",
    ),
    "portuguese": FramePhrases(
        "Utilizador",
        "Assistente",
        "Resultado",
        "Chamada: ",
        "- {who} pediu, sem resposta nesse momento: {said}",
        "- {who} pediu, respondido depois: {said}",
        "Nota: ",
        "Nota: incompleto, abrange {here} de {whole}; o resto não pôde ser resumido ({why}).",
        "Nota: as partes estão lado a lado, porque não puderam ser unidas ({why}).",
        "Nota: omitido pelo seu tamanho: {what}.",
        "Nota: omitidas pelo seu tamanho: mais {count} mensagens.",
        "- {count} anteriores",
        "{number} de {total}: {label}{by}, mensagem {seq}, {chars} caracteres",
        ", de {who}",
        "utilizador",
        "assistente",
        "; as anteriores por palavras",
    ),
    "dutch": FramePhrases(
        "Gebruiker",
        "Assistent",
        "Resultaat",
        "Aanroep: ",
        "- {who} vroeg, toen nog niet beantwoord: {said}",
        "- {who} vroeg, sindsdien beantwoord: {said}",
        "Opmerking: ",
        "Opmerking: onvolledig, beslaat {here} van {whole}; de rest kon niet worden samengevat ({why}).",
        "Opmerking: de delen staan naast elkaar, omdat ze niet konden worden samengevoegd ({why}).",
        "Opmerking: weggelaten wegens de omvang: {what}.",
        "Opmerking: weggelaten wegens de omvang: nog {count} berichten.",
        "- {count} oudere",
        "{number} van {total}: {label}{by}, bericht {seq}, {chars} tekens",
        ", van {who}",
        "gebruiker",
        "assistent",
        "; oudere via woorden",
    ),
    "polish": FramePhrases(
        "Użytkownik",
        "Asystent",
        "Wynik",
        "Wywołanie: ",
        "- {who} prosi, wtedy jeszcze bez odpowiedzi: {said}",
        "- {who} prosi, od tego czasu z odpowiedzią: {said}",
        "Uwaga: ",
        "Uwaga: niepełne, obejmuje {here} z {whole}; reszty nie udało się streścić ({why}).",
        "Uwaga: części stoją obok siebie, bo nie udało się ich połączyć ({why}).",
        "Uwaga: pominięto ze względu na rozmiar: {what}.",
        "Uwaga: pominięto ze względu na rozmiar: jeszcze {count} wiadomości.",
        "- {count} starszych",
        "{number} z {total}: {label}{by}, wiadomość {seq}, {chars} znaków",
        ", od: {who}",
        "użytkownik",
        "asystent",
        "; starsze po słowach",
    ),
    "swedish": FramePhrases(
        "Användare",
        "Assistent",
        "Resultat",
        "Anrop: ",
        "- {who} bad, då ännu inte besvarat: {said}",
        "- {who} bad, besvarat sedan dess: {said}",
        "Anmärkning: ",
        "Anmärkning: ofullständig, omfattar {here} av {whole}; resten kunde inte sammanfattas ({why}).",
        "Anmärkning: delarna står sida vid sida, då de inte kunde slås ihop ({why}).",
        "Anmärkning: utelämnat på grund av storleken: {what}.",
        "Anmärkning: utelämnat på grund av storleken: {count} meddelanden till.",
        "- {count} äldre",
        "{number} av {total}: {label}{by}, meddelande {seq}, {chars} tecken",
        ", av {who}",
        "användare",
        "assistent",
        "; äldre via ord",
    ),
    "russian": FramePhrases(
        "Пользователь",
        "Ассистент",
        "Результат",
        "Вызов: ",
        "- {who} просит, тогда ещё без ответа: {said}",
        "- {who} просит, позже отвечено: {said}",
        "Примечание: ",
        "Примечание: неполно, охватывает {here} из {whole}; остальное не удалось изложить ({why}).",
        "Примечание: части стоят рядом, так как их не удалось объединить ({why}).",
        "Примечание: опущено из-за размера: {what}.",
        "Примечание: опущено из-за размера: ещё {count} сообщений.",
        "- {count} более ранних",
        "{number} из {total}: {label}{by}, сообщение {seq}, {chars} знаков",
        ", от: {who}",
        "пользователь",
        "ассистент",
        "; более ранние по словам",
    ),
    "chinese": FramePhrases(
        "用户",
        "助手",
        "结果",
        "调用: ",
        "- {who} 提出请求,当时尚未答复: {said}",
        "- {who} 提出请求,此后已答复: {said}",
        "注: ",
        "注: 不完整,涵盖 {here} / {whole};其余部分未能概括 ({why})。",
        "注: 各部分并列,因为未能合并 ({why})。",
        "注: 因过大而省略: {what}。",
        "注: 因过大而省略: 另有 {count} 条消息。",
        "- 更早的 {count} 个",
        "{number}/{total}: {label}{by},消息 {seq},{chars} 个字符",
        ",来自 {who}",
        "用户",
        "助手",
        ";更早的请用词语查找",
    ),
    "japanese": FramePhrases(
        "ユーザー",
        "アシスタント",
        "結果",
        "呼び出し: ",
        "- {who} の依頼、この時点では未回答: {said}",
        "- {who} の依頼、その後回答済み: {said}",
        "注記: ",
        "注記: 不完全、{whole} のうち {here} のみ。残りは要約できませんでした ({why})。",
        "注記: 各部分は結合できなかったため、並べて示します ({why})。",
        "注記: 大きすぎるため省略: {what}。",
        "注記: 大きすぎるため省略: ほか {count} 件のメッセージ。",
        "- それ以前の {count} 件",
        "{number}/{total}: {label}{by}、メッセージ {seq}、{chars} 文字",
        "、発言者 {who}",
        "ユーザー",
        "アシスタント",
        "、それ以前は語句で検索",
    ),
    "korean": FramePhrases(
        "사용자",
        "어시스턴트",
        "결과",
        "호출: ",
        "- {who} 요청, 당시 미답변: {said}",
        "- {who} 요청, 이후 답변됨: {said}",
        "참고: ",
        "참고: 불완전함, {whole} 중 {here} 포함. 나머지는 요약하지 못함 ({why}).",
        "참고: 합칠 수 없어 각 부분을 나란히 둠 ({why}).",
        "참고: 크기 때문에 생략: {what}.",
        "참고: 크기 때문에 생략: 메시지 {count}개 더.",
        "- 이전 {count}개",
        "{number}/{total}: {label}{by}, 메시지 {seq}, {chars}자",
        ", 작성자 {who}",
        "사용자",
        "어시스턴트",
        "; 그 이전은 단어로 찾기",
    ),
}
"""By the name of the language, as the wordings are."""
NOTES: Final = tuple(dict.fromkeys(phrases.note for phrases in PHRASES.values()))
PIN_UNITS: Final = tuple(dict.fromkeys(phrases.pin.partition("{chars}")[2] for phrases in PHRASES.values()))
"""What ends the head of a pin."""
_LINES: Final = (
    "asked",
    "answered",
    "partial",
    "side_by_side",
    "more_oversized",
    "oversized",
    "older_media",
    "speaks",
    "calls",
)
"""What lines are tried for, in this order."""
_PLACE: Final = re.compile(r"\{(\w+)\}")
_PATTERNS: Final = {
    "count": r"[\d,]+",
    "who": r"\w+(?: \([^()\n]{1,200}\))?",
    "said": ".*",
    "name": r"(?: \([^()\n]{1,200}\))?",
}
"""What stands in the places of a phrase."""
MOST_LINE_CHARS: Final = 100_000
"""A longer line is nobody's but the user's or a model's."""


def translated_line(line: str, language: str) -> str:
    """Return an English line with compaction's own phrases in a language; any other line unchanged."""
    return _put(line, "english", language)


def english_line(line: str, language: str) -> str:
    """Return a line in a language with compaction's own phrases in English; any other line unchanged."""
    return _put(line, language, "english")


def speaker_in(speaker: str, language: str) -> str:
    """Return a speaker, such as `user (anna)`, in a language."""
    phrases = PHRASES[language]
    role, _, name = speaker.partition(" ")
    role = {"user": phrases.by_user, "assistant": phrases.by_assistant}.get(role, role)
    return f"{role} {name}" if name else role


def _put(line: str, source: str, target: str) -> str:
    if source == target or not line or len(line) > MOST_LINE_CHARS:
        return line
    for pattern, templates in _readers(source):
        match = pattern.fullmatch(line)
        if match is None:
            continue
        values = {name: value or "" for name, value in match.groupdict().items() if name != "speaker"}
        phrases = templates(target)
        if "who" in values:
            values["who"] = _role(values["who"], source, target)
        speaker = match.groupdict().get("speaker")
        template = phrases[_roles(source).index(speaker)] if speaker else phrases[0]
        return template.format(**values)
    return line


def _role(who: str, source: str, target: str) -> str:
    role, _, name = who.partition(" ")
    known = dict(zip(_roles(source), _roles(target), strict=True))
    return f"{known.get(role, role)} {name}" if name else known.get(role, role)


def _roles(language: str) -> tuple[str, str, str]:
    phrases = PHRASES[language]
    return phrases.user, phrases.assistant, phrases.result


class _Templates(NamedTuple):
    kind: str

    def __call__(self, language: str) -> tuple[str, ...]:
        phrases = PHRASES[language]
        if self.kind == "speaks":
            return tuple(role + "{name}: {said}" for role in _roles(language))
        return (phrases.called + "{said}" if self.kind == "calls" else getattr(phrases, self.kind),)


@lru_cache
def _readers(language: str) -> tuple[tuple[re.Pattern[str], _Templates], ...]:
    """Return what finds each kind of line in a language, and what writes it in another."""
    return tuple((_pattern(kind, _Templates(kind)(language), language), _Templates(kind)) for kind in _LINES)


def _pattern(kind: str, templates: Iterable[str], language: str) -> re.Pattern[str]:
    if kind == "speaks":
        roles = "|".join(map(re.escape, _roles(language)))
        return re.compile(rf"(?P<speaker>{roles})(?P<name>{_PATTERNS['name']}): (?P<said>.*)")
    (template,) = templates
    parts = _PLACE.split(template)
    pieces = [
        rf"(?P<{part}>{_PATTERNS.get(part, '.+?')})" if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    ]
    return re.compile("".join(pieces))
