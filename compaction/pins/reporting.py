"""The words by which people introduce what others said or wrote: mails, logs, documents, reports, texts of a task."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from compaction.pins.wording import LASTING, LASTING_START
from compaction.text.names import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_HEADERS: Final = 2
"""Lines such as `To:` after a `From:` which make it the head of a mail: that one and another."""
_ATTRIBUTION: Final = re.compile(
    r"(?:on|am|le|el|il|op|em|w dniu|dnia|den|\u0432|\d{1,4}[./-]\d)\b.{4,160}"
    r"(?:wrote|writes|schrieb|a \u00e9crit|escribi\u00f3|ha scritto|schreef|escreveu|napisa\u0142|napisa\u0142a|"
    r"skrev|\u043f\u0438\u0448\u0435\u0442|\u043d\u0430\u043f\u0438\u0441\u0430\u043b|"
    r"\u043d\u0430\u043f\u0438\u0441\u0430\u043b\u0430)"
    r"\b.{0,80}[:\uff1a]\s*\Z",
    re.IGNORECASE,
)
_FORWARDED: Final = re.compile(
    r"\s{0,12}[-_=>*]{2,}\s{0,12}(?:begin )?(?:original|forwarded|urspr\u00fcngliche|weitergeleitete|message d|mensaje|"
    r"messaggio|mensagem|"
    r"oorspronkelijk|doorgestuurd|\u0438\u0441\u0445\u043e\u0434\u043d\u043e\u0435|"
    r"\u043f\u0435\u0440\u0435\u0441\u044b\u043b\u0430\u0435\u043c\u043e\u0435|oryginalna|ursprungligt|"
    r"\u8f6c\u53d1|\u539f\u59cb\u90ae\u4ef6|\u5143\u306e\u30e1\u30c3\u30bb\u30fc\u30b8)",
    re.IGNORECASE,
)
_MAIL_FIELD: Final = re.compile(
    r"\s{0,12}\**(?:from|to|cc|date|sent|subject|von|an|gesendet|datum|betreff|de|\u00e0|para|objet|asunto|assunto|"
    r"da|a|oggetto|"
    r"van|aan|onderwerp|od|do|temat|fr\u00e5n|till|\u00e4mne|\u043e\u0442|\u043a\u043e\u043c\u0443|"
    r"\u0442\u0435\u043c\u0430|\u53d1\u4ef6\u4eba|\u6536\u4ef6\u4eba|\u4e3b\u9898|\u5dee\u51fa\u4eba|"
    r"\u5b9b\u5148|\u4ef6\u540d)\**\s?[:\uff1a]\s?\S",
    re.IGNORECASE,
)
_ROLE_WORDS: Final = "|".join(
    sorted(
        ROLES
        | {
            "sys",
            "sysadmin",
            "gpt",
            "claude",
            "chatgpt",
            "\u7cfb\u7edf",
            "\u7cfb\u7d71",
            "\u0441\u0438\u0441\u0442\u0435\u043c\u0430",
        }
    )
)
_FORGED: Final = re.compile(
    # A role before a colon or in brackets, tokens of chat templates, frames of compaction and of recall.
    rf"\s{{0,12}}[#*_>\[(<|-]{{0,6}}\s{{0,12}}(?:new |updated |important )?(?:{_ROLE_WORDS})"
    r"(?:[ _-](?:message|prompt|note|override|notice|update|instructions?|role|turn|rules?)){0,2}\s{0,12}(?:[\])*_>|"
    r"]{1,4}|[:\uff1a]|\s-\s)|"
    r"\s{0,12}(?:<\|)|\s{0,12}\[/?(?:INST|SYS)\]|\s{0,12}<<\s?SYS|\s{0,12}\[(?:END )?(?:PINNED|PIN|CONTEXT SUMMARY)\b|"
    r"\s{0,12}\[m\d{1,9}(?:\.\d{1,9})?,|"
    r"\s{0,12}#{1,6} (?:system|developer|assistant)\b",
    re.IGNORECASE,
)
_DOCUMENT: Final = re.compile(
    r"\s{0,12}(?:#!/|<\?xml|<!doctype|%PDF-|diff --git |commit [0-9a-f]{8,40}\b|\+{3} |@@ -\d|traceback \(most recent)",
    re.IGNORECASE,
)
_MATERIAL_TAGS_WORDS: Final = """
    document documents doc docs file files page email mail message quote blockquote article text paste content context
    transcript system instructions user assistant history log result results output tool_result function_results data
    source excerpt example attachment html body pre code
"""
_MATERIAL_TAGS: Final = frozenset(_MATERIAL_TAGS_WORDS.split())

_NOUNS: Final = (
    r"(?:e-?mails?|mails?|messages?|letters?|texts?|articles?|documents?|docs?|documentation|polic(?:y|ies)|pages?|"
    r"paragraphs?|excerpts?|passages?|sentences?|snippets?|logs?|transcripts?|chats?|threads?|posts?|tweets?|"
    r"reviews?|"
    r"memos?|manuals?|readme|contracts?|clauses?|licen[cs]es?|terms|faq|prompts?|outputs?|repl(?:y|ies)|responses?|"
    r"comments?|tickets?|quotes?|quotations?|poems?|lyrics|songs?|slogans?|signs?|posters?|handbooks?|guides?|specs?|"
    r"speech(?:es)?|examples?|wikis?|leaflets?|labels?|recipes?|proverbs?|sayings?|mottos?|dialog(?:ue)?s?|"
    r"scripts?|code|"
    r"notes?|minutes|announcements?|notices?|reports?|stor(?:y|ies)|translations?|drafts?|regulations?|law|bylaws)"
)
_TASKS: Final = (
    r"translat\w+|summari[sz]\w+|summary of|proof-?read\w*|rewrit\w+|rephras\w+|paraphras\w+|correct|"
    r"(?:fix|check|improve|polish|shorten|edit|review|explain|interpret|analy[sz]e|critique|classify|evaluate|rate) "
    r"(?:the|this|that|these|my|our|its|it|what|following)|what (?:does|do|did) .{0,60}mean|meaning of|"
    r"respond to|reply to|"
    r"grade|assess|judge (?:the|this)|comment on|read (?:this|the)|look at (?:this|the|what)|opinion (?:on|of|"
    r"about)|thoughts on|"
    r"what do you think (?:of|about)|"
    r"\u00fcbersetz\w*|fass\w* .{0,40}zusammen|zusammenfass\w*|korrigier\w*|was (?:bedeutet|hei\u00dft|"
    r"h\u00e4ltst du)|lies |lektorier\w*|"
    r"tradui[st]\w*|r\u00e9sum\w+|corrig\w+|que (?:veut dire|signifie|penses-tu)|relis|"
    r"traduc\w+|traduz\w*|resum\w+|corrij\w+|qu\u00e9 (?:significa|opinas)|o que significa|riassum\w+|"
    r"corregg\w+|cosa significa|"
    r"vertaal\w*|vat .{0,40}samen|wat betekent|verbeter|"
    r"\u043f\u0435\u0440\u0435\u0432\u0435\u0434\w+|\u0438\u0441\u043f\u0440\u0430\u0432\u044c\w*|"
    r"\u0447\u0442\u043e (?:\u0437\u043d\u0430\u0447\u0438\u0442|"
    r"\u043e\u0437\u043d\u0430\u0447\u0430\u0435\u0442|\u0434\u0443\u043c\u0430\u0435\u0448\u044c)|"
    r"\u043f\u0435\u0440\u0435\u0441\u043a\u0430\u0436\w+|przet\u0142umacz\w*|popraw\w*|stre\u015b\u0107|co znaczy|"
    r"\u00f6vers\u00e4tt\w*|sammanfatta\w*|r\u00e4tta|vad betyder"
)
_POINTS: Final = (
    r"(?:here(?:['\u2019]s| is| are| comes?)|this (?:is|was|came)|(?:the )?following|below|attached|got|"
    r"received|found|saw|"
    r"pasted?|copied|forward(?:ed|ing)?|quot(?:e|ed|ing)|from (?:the|my|our|a|his|her|their)|says?|reads?|"
    r"(?:this|that|these)|"
    r"hier (?:ist|sind|kommt)|diese[rsm]?|folgende[rsn]?|voici|ce(?:tte|t)?|suivante?|aqu\u00ed (?:est\u00e1|"
    r"tienes|va)|este|esta|siguiente|"
    r"ecco|questo|questa|seguente|aqui (?:est\u00e1|vai)|hier is|deze|dit|\u0432\u043e\u0442|"
    r"\u044d\u0442[\u043e\u0430\u0443]\w*|oto|ten|ta|to|h\u00e4r \u00e4r|detta|den h\u00e4r)"
)
_FOREIGN_NOUNS: Final = (
    r"(?:nachricht|brief|artikel|dokument|richtlinie|absatz|satz|auszug|vertrag|handbuch|protokoll|zitat|beitrag|"
    r"courriel|lettre|texte|r\u00e8glement|phrase|extrait|contrat|citation|correo|mensaje|carta|texto|"
    r"art\u00edculo|artigo|"
    r"documento|frase|contrato|cita|messaggio|lettera|testo|articolo|bericht|brief|tekst|zin|contract|"
    r"\u043f\u0438\u0441\u044c\u043c\u043e|\u0441\u043e\u043e\u0431\u0449\u0435\u043d\u0438\u0435|"
    r"\u0442\u0435\u043a\u0441\u0442|\u0441\u0442\u0430\u0442\u044c\u044f|"
    r"\u0434\u043e\u043a\u0443\u043c\u0435\u043d\u0442|"
    r"\u043f\u0440\u0435\u0434\u043b\u043e\u0436\u0435\u043d\u0438\u0435|"
    r"\u0434\u043e\u0433\u043e\u0432\u043e\u0440|\u0446\u0438\u0442\u0430\u0442\u0430|wiadomo\u015b\u0107|list|"
    r"tekst|zdanie|umowa|cytat|"
    r"mejl|mejlet|meddelande|brev|text|texten|mening|avtal|citat)\w*"
)
_MATERIAL: Final = re.compile(
    rf"(?:\b(?:{_TASKS})|\b{_POINTS}\b[^:\uff1a\n]{{0,60}}?\b(?:{_NOUNS}|{_FOREIGN_NOUNS})|"
    r"\u7ffb\u8bd1|\u7ffb\u8b6f|\u603b\u7ed3|\u7e3d\u7d50|\u6821\u5bf9|\u6da6\u8272|\u4ec0\u4e48\u610f\u601d|"
    r"\u4ec0\u9ebc\u610f\u601d|\u4ee5\u4e0b\u662f|\u4e0b\u9762\u662f|\u8fd9\u6bb5|\u9019\u6bb5|\u8fd9\u5c01|"
    r"\u90ae\u4ef6\u5185\u5bb9|\u539f\u6587|\u7ffb\u8a33|\u8981\u7d04|\u6821\u6b63|\u6b21\u306e(?:\u6587|"
    r"\u30e1\u30fc\u30eb|\u6587\u7ae0)|\u4ee5\u4e0b\u306e|"
    r"\u3069\u3046\u3044\u3046\u610f\u5473|\ubc88\uc5ed|\uc694\uc57d|\uad50\uc815|\ubb34\uc2a8 \ub73b|"
    r"\ub2e4\uc74c (?:\uae00|\uba54\uc77c|\ubb38\uc7a5)|\uc544\ub798)[^:\uff1a\n]{0,80}[:\uff1a]",
    re.IGNORECASE,
)
_OWN_RULES: Final = re.compile(
    r"\b(?:my|our|these|some|follow|following|house|ground|hard|the|new|meine|unsere|folgende|mes|nos|mis|nuestras) "
    r"(?:\w+ ){0,2}(?:rules?|constraints?|guidelines|requirements|conventions|restrictions|preferences|"
    r"instructions|regeln|"
    r"r\u00e8gles|reglas|regole|regras)\b[^:\uff1a]{0,30}\Z",
    re.IGNORECASE,
)

_VERBS: Final = (
    r"said|says|saying|proposed|proposes|heard|hears|decided that|advice (?:was|is)|read that|taught|teaches|preached|"
    r"said|says|saying|told|tells|telling|wrote|writes|stated|states|mentioned|mentions|claimed|claims|insisted|"
    r"insists|replied|"
    r"replies|posted|announced|announces|warned|warns|advised|advises|suggested|suggests|recommended|recommends|"
    r"asked|asks|"
    r"demanded|demands|requested|requests|requires|texted|emailed|mailed|tweeted|wants|wanted|thinks|thought|"
    r"believes|complained|"
    r"complains|explained|explains|argued|argues|ordered|instructed|instructs|dictates|forbids|forbade|decreed|"
    r"preaches|"
    r"quipped|noted|notes that|added|yelled|shouted|reminded|reminds|"
    r"sagt|sagte|meint|meinte|schrieb|schreibt|gesagt|geschrieben|behauptet|verlangt|verlangte|forderte|fordert|"
    r"erkl\u00e4rte|riet|"
    r"a dit|ont dit|disait|dit que|dit de|a \u00e9crit|\u00e9crit que|demande que|a demand\u00e9|exige|dijo|"
    r"dice|dec\u00eda|escribi\u00f3|pidi\u00f3|pide|"
    r"ha dicho|ha detto|disse|ha scritto|ha chiesto|diz|escreveu|pediu|zei|zegt|schreef|schrijft|gezegd|vroeg|"
    r"\u0441\u043a\u0430\u0437\u0430\u043b|\u0441\u043a\u0430\u0437\u0430\u043b\u0430|"
    r"\u0441\u043a\u0430\u0437\u0430\u043b\u0438|\u0433\u043e\u0432\u043e\u0440\u0438\u0442|"
    r"\u0433\u043e\u0432\u043e\u0440\u044f\u0442|\u0433\u043e\u0432\u043e\u0440\u0438\u043b|"
    r"\u0433\u043e\u0432\u043e\u0440\u0438\u043b\u0430|\u043d\u0430\u043f\u0438\u0441\u0430\u043b|"
    r"\u043d\u0430\u043f\u0438\u0441\u0430\u043b\u0430|\u043f\u0438\u0448\u0435\u0442|"
    r"\u043f\u0440\u043e\u0441\u0438\u0442|\u043f\u0440\u043e\u0441\u0438\u043b|"
    r"\u043f\u0440\u043e\u0441\u0438\u043b\u0430|\u0442\u0440\u0435\u0431\u0443\u0435\u0442|"
    r"powiedzia\u0142|powiedzia\u0142a|m\u00f3wi|m\u00f3wi\u0142|m\u00f3wi\u0142a|napisa\u0142|napisa\u0142a|"
    r"pisze|kaza\u0142|kaza\u0142a|prosi|sade|sa att|s\u00e4ger|skrev|bad"
)
_REPORT: Final = re.compile(rf"\b(?:{_VERBS})\b", re.IGNORECASE)
_SOURCE: Final = re.compile(
    r"\b(?:apparently|supposedly|allegedly|reportedly|they say|word is|rumou?r has it|(?:it is|it's|is) written|"
    r"angeblich|steht (?:geschrieben|im|in|auf|dass)|\u00e9crit|pone|reza|est\u00e1 escrito|sta scritto|st\u00e5r|"
    r"napisane|\u043d\u0430\u043f\u0438\u0441\u0430\u043d\u043e|"
    r"(?:they|people|some|experts|doctors|teachers|parents|everyone|everybody|others) (?:\w+ ){0,2}"
    r"(?:say|tell|write|claim|think|want|ask|recommend|advise|suggest|insist|believe)|"
    r"according to|as per|in the words of|quote[:,]|laut (?:\w+)|gem\u00e4\u00df|selon|"
    r"d['\u2019]apr\u00e8s|seg\u00fan|de acuerdo con|"
    r"secondo (?:il|la|lo|i|le)\b|segundo (?:o|a)\b|volgens|\u0441\u043e\u0433\u043b\u0430\u0441\u043d\u043e|"
    r"\u043f\u043e \u0441\u043b\u043e\u0432\u0430\u043c|wed\u0142ug|zgodnie z|enligt)\b|"
    r"\u6839\u636e|\u6309\u7167|\u636e\u8bf4|\u64da\u8aaa|\u306b\u3088\u308b\u3068|\u306b\u3088\u308c\u3070|"
    r"\u305d\u3046\u3067\u3059|\u3068\u306e\u3053\u3068|\u306b\u5f93|\ub77c\uace0 |\ub2e4\uace0 (?:\ud588|"
    r"\ub9d0|\ud558|\ud569)|\uc5d0 \ub530\ub974\uba74|\u5199\u7740|\u5beb\u8457|\u5199\u9053|"
    r"\u3068\u3042\u308a\u307e\u3059|\u3068\u66f8\u3044\u3066|\uc801\ud600|\uc4f0\uc5ec",
    re.IGNORECASE,
)
_SAID_UNSPACED: Final = re.compile(
    r"(?<![\u6211\u4eec\u5011\u5e38\u518d])(?:\u8bf4\u8fc7|\u8aaa\u904e|\u8bf4|\u8aaa|\u5199\u9053|\u5beb\u9053|"
    r"\u544a\u8bc9|\u544a\u8a34|\u8868\u793a|\u5f3a\u8c03|\u8981\u6c42\u6211)(?!\u8bdd|\u8a71|\u660e|\u6e05|"
    r"\u670d|\u4e2d\u6587|\u82f1\u6587|\u82f1\u8bed)|"
    r"\u3068(?:\u8a00|\u66f8|\u8ff0\u3079|\u8a71\u3057|\u6ce8\u610f\u3055\u308c)|\u3063\u3066(?:\u8a00|\u66f8)"
)
_OWN_SUBJECT: Final = re.compile(
    r"(?:\b(?:i|we|you|i['\u2019](?:ve|d)|we['\u2019](?:ve|d)|ich|wir|je|j['\u2019]ai|nous|yo|io|eu|ik|\u044f|"
    r"\u043c\u044b|jag|vi)\s+(?:\w+\s+){0,2}|"
    r"\b(?:as|when|if|unless|until|once|whenever|wenn|falls|si|als|\u0435\u0441\u043b\u0438|je\u015bli|"
    r"om)\s+(?:\w+\s+){0,2})\Z",
    re.IGNORECASE,
)
_OBJECT: Final = re.compile(r"\b(?:what|whatever|everything|anything|the way|how)\s+(?:\w+\s+){0,3}\Z", re.IGNORECASE)
_PASSIVE: Final = re.compile(r"\b(?:was|were|been|got|am|are|is|being)\s+(?:\w+\s+)?\Z", re.IGNORECASE)
_CONDITION: Final = re.compile(
    r"\b(?:when(?:ever)?|if|unless|until|once|in case|every time|each time|wenn|falls|sobald|si|quand|cuando|se|"
    r"quando|als|"
    r"wanneer|\u0435\u0441\u043b\u0438|\u043a\u043e\u0433\u0434\u0430|je\u015bli|gdy|om|n\u00e4r)\b[^.,;:]{0,120}\Z",
    re.IGNORECASE,
)

_STAMP: Final = re.compile(
    r"\s{0,12}(?:[-*\u2022]\s{1,3})?"
    r"(?:[\[(]{0,2}\d{1,2}[:.]\d{2}(?:[:.]\d{2})?(?: ?[ap]m)?[\])]{0,2}[,:]?\s.{0,60}[:\uff1a>]\s|"
    r"<[^<>\n]{1,40}>[:\uff1a]?\s\w)",
    re.IGNORECASE,
)
"""A line of a chat's log, with its time or the speaker in angle brackets."""
_COLON: Final = re.compile(r"\s?(?:\uff1a|:(?=\s|\Z|[^\x00-\x7f]))")
_LIST_MARK: Final = re.compile(r"\A\s*(?:[-*+\u2022]|\d{1,3}[.)])\s+")
_WORD: Final = re.compile(r"[^\W_](?:[\w.'\u2019-]*\w)?")
_POSSESSIVE: Final = re.compile(
    r"\w['\u2019]s\b(?<!let['\u2019]s)(?<!that['\u2019]s)(?<!here['\u2019]s)(?<!it['\u2019]s)"
)
_STATES: Final = re.compile(
    r"\b(?:always|never|must|make sure|remember|keep in mind|don['\u2019]t|do not|please|bitte)\b"
)
_FIRST_PERSON: Final = re.compile(
    r"\b(?:i|we|me|i['\u2019](?:m|d|ve|ll)|we['\u2019](?:re|d|ve|ll)|ich|wir|mir|je|nous|yo|io|eu|n\u00f3s|ik|wij|"
    r"\u044f|\u043c\u044b|"
    r"\u043c\u043d\u0435|mnie|mi|jag|vi|mig)\b|\u6211|\u79c1|\u50d5|\ub098|\uc800"
)
_MARK: Final = re.compile(r"[?\uff1f]")
_QUESTION_CHARS: Final = 200
_ASKS_ABOUT: Final = re.compile(
    r"\b(?:is|was|isn['\u2019]t|are|were) (?:it|this|that|these|those|he|she|they|\d|rule \d).{0,40}\b(?:true|"
    r"legal|normal|right|usual|"
    r"allowed|ok|okay|correct|fair|good|bad|real|serious|meant|valid|enforceable|reasonable|possible|from)\b|"
    r"\A\W*(?:true|legal|right|normal|really|is that so|stimmt das|ist das (?:so|normal|erlaubt|rechtens)|vrai|verdad|"
    r"\u00e8 vero|prawda|sant|\u043f\u0440\u0430\u0432\u0434\u0430)\W*\Z|\bstimmt das\b|"
    r"\bwhat (?:does|do|did) (?:it|this|that|he|she|they|these|those)\b|"
    r"\bwhat (?:should|would|can|do) (?:i|you|we) (?:reply|answer|say|do|think|make)\b|\bwhat (?:happens|"
    r"would happen)\b|"
    r"\b(?:which|what) (?:movie|film|book|song|poem|show|author)\b|\bwho (?:wrote|said|is right|of them)\b|"
    r"\bcan (?:he|she|they|we|you) (?:do|check|really|legally)\b|\bcan (?:he|she|they|we)\W*\Z|"
    r"\bdo(?:es)? (?:this|that|it|these) (?:apply|hold|mean|make|count)\b|"
    r"\bwhy (?:does|do|is|would) (?:he|she|they|it|this|that)\b|\bis (?:she|he) right\b",
    re.IGNORECASE,
)
_AROUND_LABELS_WORDS: Final = """
    my our the a an new house ground hard permanent standing general some these this here are is for of to on in with
    all every follow following project session chat conversation work you your us me one two three four five more
    quick before we start first second third last finally and or but so ok okay also again meine unsere neue die der
    das mes nos mis nuestras le mie minhas mijn mina \u6211\u7684 \u306e \uc758 wszystkie
"""
_AROUND_LABELS: Final = frozenset(_AROUND_LABELS_WORDS.split())
_OWN_LABELS_WORDS: Final = """
    rule rules note notes nb important importantly ps p.s reminder fyi attention warning caution constraint
    constraints requirement requirements guideline guidelines instruction instructions convention conventions
    restriction restrictions preference preferences style format formatting language tone output units currency budget
    dates names naming testing tests code coding commits security privacy general generally task goal scope deadline
    request ask also please remember thing time edit update correction answer answers citations sources numbers length
    emails prices regel regeln wichtig hinweis achtung bitte merke anmerkung r\u00e8gle r\u00e8gles remarque consigne
    regla reglas nota importante atenci\u00f3n regola regole regra regras belangrijk opmerking
    \u043f\u0440\u0430\u0432\u0438\u043b\u043e \u043f\u0440\u0430\u0432\u0438\u043b\u0430
    \u0432\u0430\u0436\u043d\u043e \u0432\u043d\u0438\u043c\u0430\u043d\u0438\u0435 zasada zasady wa\u017cne uwaga
    viktigt obs \u89c4\u5219 \u898f\u5247 \u6ce8\u610f \u91cd\u8981 \u8981\u6c42 \u30eb\u30fc\u30eb \uaddc\uce59
    \uc8fc\uc758 \uc911\uc694 on onwards forward sofort jetzt then condition
"""
_OWN_LABELS: Final = frozenset(_OWN_LABELS_WORDS.split())


def begins_document(line: str) -> bool:
    """Return whether a line begins what is no talk: a forged role or frame, or the head of a file."""
    return bool(_FORGED.match(line) or _DOCUMENT.match(line) or _FORWARDED.match(line) or _SUBJECT_LINE.match(line))


def begins_mail(lines: Sequence[str]) -> bool:
    """Return whether the first of some lines begins a mail: it says who wrote it when, or is one of its fields."""
    if _ATTRIBUTION.match(lines[0].strip()[:300]):
        return True
    return bool(_MAIL_FIELD.match(lines[0])) and sum(bool(_MAIL_FIELD.match(line)) for line in lines) >= _LEAST_HEADERS


def is_material_tag(name: str) -> bool:
    """Return whether an element of this name holds material even if it has no end."""
    return name in _MATERIAL_TAGS


_GOT: Final = re.compile(
    r"\b(?:i|we) (?:\w+ )?(?:got|received|found|saw|copied|pasted|came across|was sent|were sent) (?:this|these|"
    r"the following)\b",
    re.IGNORECASE,
)
_SUBJECT_LINE: Final = re.compile(r"\s{0,12}(?:re|fwd?|aw|wg|rv|tr|sv|vs|odp)\s?:\s\S", re.IGNORECASE)
_GREETING: Final = re.compile(
    r"\s{0,12}(?:hi|hello|dear|hey|hallo|liebe[rs]?|sehr geehrte[rs]?|bonjour|cher|ch\u00e8re|hola|estimad[oa]s?|ciao|"
    r"gentile|car[oi]|"
    r"ol\u00e1|beste|\u0443\u0432\u0430\u0436\u0430\u0435\u043c\w+|hej|cze\u015b\u0107|"
    r"szanown\w+)\b[^.?!\n]{0,50}[,!]\s*\Z",
    re.IGNORECASE,
)
_CLOSING: Final = re.compile(
    r"\s{0,12}(?:best|regards|cheers|yours|sincerely|best (?:regards|wishes)|kind regards|viele gr\u00fc\u00dfe|mfg|"
    r"mit freundlichen gr\u00fc\u00dfen|cordialement|saludos|un saludo|cordiali saluti|groeten|"
    r"\u0441 \u0443\u0432\u0430\u0436\u0435\u043d\u0438\u0435\u043c|pozdrawiam|h\u00e4lsningar|"
    r"mvh)[^.?!\n]{0,30},?\s*\Z",
    re.IGNORECASE,
)


def is_letter(text: str) -> bool:
    """Return whether a text has the greeting of a letter and the closing that comes before a signature."""
    lines = text.split("\n")
    greeted = next((at for at, line in enumerate(lines) if _GREETING.match(line[:200])), None)
    return greeted is not None and any(_CLOSING.match(line[:200]) for line in lines[greeted + 1 :])


def introduces_material(line: str) -> int | None:
    """Return where, after a colon, a text begins that a line introduces, None if it introduces none.

    An example is "Translate this for me: ...". What heads rules of the writer's own does not.
    """
    if _GOT.search(line[:600]):
        return len(line)
    match = _MATERIAL.search(line[:600])
    if match is None or _OWN_RULES.search(line[: match.end() - 1]):
        return None
    return match.end()


def begins_report(line: str) -> bool:
    """Return whether what comes after a line's colon is somebody else's, or may be.

    Examples are "Bob said: ...", "The notice on the door: ...", and "Bob: ..." in a log. The writer's own are
    "My rules: ...", "Note: ...", and what stands after words that state a rule or have the writer for their subject.
    """
    stamp = _STAMP.match(line)
    if stamp is not None:
        return True
    colon = _COLON.search(line[:600])
    return colon is not None and not _is_own_heading(line[: colon.start()])


def _is_own_heading(head: str) -> bool:
    said = _LIST_MARK.sub("", head).strip().lower()
    if not said:
        return True
    if tells_of_others(head) or _POSSESSIVE.search(said):
        return False
    if LASTING.search(said) or LASTING_START.match(said) or _STATES.search(said) or _FIRST_PERSON.search(said):
        return True
    words = [word.strip(".'\u2019") for word in _WORD.findall(said)]
    return not _OWN_LABELS.isdisjoint(words) and all(word in _OWN_LABELS or word in _AROUND_LABELS for word in words)


def asks_about_text(text: str) -> bool:
    """Return whether a message has a question about what it quotes: "Is that legal?", "Who wrote this?"."""
    for mark in _MARK.finditer(text):
        before = text[max(0, mark.start() - _QUESTION_CHARS) : mark.start()]
        if _ASKS_ABOUT.search(before[max(map(before.rfind, ".?!\uff1f\n")) + 1 :]):
            return True
    return False


def tells_of_others(sentence: str) -> bool:
    """Return whether a sentence tells what others said, wrote or want, or by whom it is."""
    if _SOURCE.search(sentence) or _SAID_UNSPACED.search(sentence):
        return True
    for match in _REPORT.finditer(sentence[:_MOST_CHARS]):
        before = sentence[: match.start()]
        if _PASSIVE.search(before[-40:]):
            return True
        is_own = _OWN_SUBJECT.search(before[-60:]) or _CONDITION.search(before[-160:]) or _OBJECT.search(before[-60:])
        if before.strip() and not is_own:
            return True
    return False


_MOST_CHARS: Final = 1_000
