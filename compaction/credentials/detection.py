"""Finds credentials in texts by their shapes: linear in the text, without a dictionary and without entropy alone.

What has the form of an identifier and no name that makes it a secret, such as a UUID, a commit or an order's number,
is none.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import re2

from compaction.credentials import shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MEMORY_BYTES: Final = 32 * 1024 * 1024
"""Bytes that a pattern may take compiled, what is remembered of its states included."""


class Secret(NamedTuple):
    """A credential in a text: where it stands, in characters, and of what kind it is."""

    start: int
    end: int
    kind: str


class _Match(NamedTuple):
    """What a pattern found, in bytes of UTF-8; `named` has the groups that took part."""

    start: int
    end: int
    value: str
    named: dict[str, str]
    before: bytes


def _as_it_is(value: str) -> str:
    return value


class _Rule(NamedTuple):
    """A pattern, and the kind of a match; None for a match that is no credential.

    `trim` takes off what follows the credential in a match.
    """

    pattern: Any
    kind: Callable[[_Match], str | None]
    trim: Callable[[str], str] = _as_it_is


def find_secrets(text: str) -> list[Secret]:
    """Return the credentials in `text` in their order, none overlapping another."""
    # What is half of a surrogate pair is a character of its own here, and one that no credential has.
    data = text.encode("utf-8", "replace")
    found: list[tuple[int, int, int, str]] = []
    rules, any_rule = _rules()
    for rank in sorted(any_rule.Match(data) or ()):
        rule = rules[rank]
        for match in _matches(rule, data):
            kind = rule.kind(match) if match.value else None
            if kind is not None:
                found.append((match.start, match.end, rank, kind))
    if not found:
        return []
    return _in_characters(_merge_spans(found), data, is_ascii=len(data) == len(text))


def is_secret_field(name: str, value: str) -> str | None:
    """Return the kind of the credential that a field `name` holds as `value`, None if it holds none."""
    if not _NAME.fullmatch(name):
        return None
    return _kind_of_assignment(_Match(0, 0, value, {"name": name, "double": value, "sign": ":"}, b""))


def is_secret_flag(flag: str, value: str) -> str | None:
    """Return the kind of the credential that follows `flag` in a list of arguments, None if none does."""
    return is_secret_field(flag.lstrip("-"), value) if flag.startswith("-") else None


def _matches(rule: _Rule, data: bytes) -> Iterator[_Match]:
    groups = rule.pattern.groupindex
    for match in rule.pattern.finditer(data):
        spans = {name: match.span(number) for name, number in groups.items()}
        named = {name: data[slice(*span)].decode("utf-8", "replace") for name, span in spans.items() if span[0] >= 0}
        group = next((groups[name] for name in _VALUES if name in named), match.lastindex)
        start, end = match.span(group)
        value = rule.trim(data[start:end].decode("utf-8", "replace"))
        yield _Match(start, start + len(value.encode()), value, named, data[max(0, start - _BEFORE) : start])


def _without_punctuation(value: str) -> str:
    return value.rstrip(_TRAILING)


def _without_line_end(value: str) -> str:
    return _LINE_END.sub("", value)


def _without_next_field(value: str) -> str:
    """Return a value up to the next field of a connection string or of an address."""
    return _NEXT_FIELD.split(value, maxsplit=1)[0]


_VALUES: Final = ("double", "single", "tick", "bare", "rest")
_BEFORE: Final = 48
"""Bytes before a match that say what it is."""


def _merge_spans(found: Sequence[tuple[int, int, int, str]]) -> list[tuple[int, int, str]]:
    """Return spans that do not overlap; of two that do, the one of the earlier rule names the kind of both."""
    merged: list[tuple[int, int, int, str]] = []
    for start, end, rank, kind in sorted(found):
        if merged and start < merged[-1][1]:
            first, last, before, named = merged[-1]
            merged[-1] = (first, max(last, end), *min((before, named), (rank, kind)))
        else:
            merged.append((start, end, rank, kind))
    return [(start, end, kind) for start, end, _, kind in merged]


def _in_characters(spans: Sequence[tuple[int, int, str]], data: bytes, *, is_ascii: bool) -> list[Secret]:
    if is_ascii:
        return [Secret(*span) for span in spans]
    secrets: list[Secret] = []
    at = characters = 0
    for start, end, kind in spans:
        characters += len(data[at:start].decode("utf-8", "ignore"))
        length = len(data[start:end].decode("utf-8", "ignore"))
        secrets.append(Secret(characters, characters + length, kind))
        characters, at = characters + length, end
    return secrets


# --- What a match has to be, besides its shape ---

_NEXT_FIELD: Final = re.compile(r"[;&,](?=[A-Za-z][\w .-]{0,40}=)|;\Z")
_LINE_END: Final = re.compile(r"(?:\s|\\{1,4}[nrt]|[>|#*\"',+\\])+\Z")

_PLACEHOLDER: Final = re.compile(
    r"[*x.\u2022#_~?-]+|<.*|\$.*|\{.*|%.{0,3}|.*%[(s{].*|\[.*|.*\$\{.*|.*\{\{.*|.*\u2026|"
    r"(?:your|my|example|sample|dummy|fake|placeholder|insert|enter)(?:[-_ ].*)?|"
    r"none|null|nil|true|false|undefined|str|string|bytes|int|bool|boolean|text|any|object|secretstr|optional.*|"
    r"required|redacted|masked|hidden|removed|unset|empty|missing|invalid|incorrect|wrong|expired|todo|tbd|n/?a|"
    r"changeme|change[-_ ]me|value|env|basic|bearer|oauth2?|plain|auto|default|never|always|"
    rf"(?:\w*[_.-])?(?:{shapes.NAME})s?",
    re.IGNORECASE | re.DOTALL,
)
_CODE: Final = re.compile(
    r"[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+\W?|(?:[A-Za-z_][\w.]*)?[(\[{].*|[A-Za-z_][\w.]*\(.*|&.*|"
    r"[\[({})\]=!<>|&,;:/+\s]+.{0,2}|f?\"\"\".*",
    re.DOTALL,
)
"""An attribute, a call, an index, an operator: no value, but where it comes from."""
_FILE: Final = re.compile(
    r"(?:\.{0,2}|~|[A-Za-z]:)[/\\][\w.@/\\ -]*|"
    r"[\w./-]+\.(?:pem|key|crt|json|ya?ml|txt|md|py|[jt]sx?|go|rb|html?|css|env)",
    re.IGNORECASE,
)
_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.IGNORECASE | re.DOTALL)
_WORDS: Final = re.compile(r"[^\W\d_]+(?:[-_' ][^\W\d_]+)*")
_NUMERIC: Final = re.compile(r"[-+]?[\d.,:/ -]+(?:%|[a-z]{1,3})?")
_COUNTED: Final = re.compile(
    r".*(?:max|min|num|total|count|next|prev|page|continuation|sync|pad|eos|bos|unk|mask|sep|cls|special|stop|start|end|"
    r"input|output|prompt|cached?|per|sub|word|char|first|last|prefix|list|resume|pagination|cursor|delimiter)"
    r"[_.-]?tokens?",
    re.IGNORECASE,
)
"""Names of what is no credential, although it is a token."""
_CONSTANT: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_PASSWORD: Final = re.compile(
    r"passw|passphrase|passcode|pwd|pswd|kennwort|contrase|senha|mot_de|(?:^|[_.-])(?:pass|pw|psk)\b", re.IGNORECASE
)
_NAME: Final = re.compile(rf"(?:x-)?(?:{shapes.NAME})", re.IGNORECASE)
_VERSIONED: Final = re.compile(
    r"(?:sha-?\d+|md5|base\d+|utf-?\d+|python\d?|oauth\d?|pbkdf\d|argon2\w*|bcrypt|aes-?\d+\w*|rs\d+|hs\d+|es\d+|tls\S*|"
    r"http\S*|v?\d+(?:\.\d+)+|\d+(?:st|nd|rd|th|am|pm|h|min|s|ms|days?|x)?|[a-z]+-?\d{0,2}|[A-Z]+-?\d+|\d+-\w+)[.,;:!?)]*",
    re.IGNORECASE,
)
"""Words with digits that anybody says beside the word password."""
_PORT: Final = re.compile(r"\d{1,5}[?#].*", re.DOTALL)
"""A port and what follows it, up to a sign that only looks like the end of a password."""
_TRAILING: Final = ".,;:!?)]}>*"
_LEAST_PASSWORD: Final = 3
_LEAST_KEY: Final = 8
_LEAST_WORD_PASSWORD: Final = 6
_LEAST_UNNAMED: Final = 8
_MOST_CHARS: Final = 4_000


def _classes(value: str) -> int:
    """Return how many of the four classes of characters a value has: small and large letters, digits, signs."""
    return sum(
        any(map(test, value))
        for test in (str.islower, str.isupper, str.isdigit, lambda char: not char.isalnum() and not char.isspace())
    )


def _is_random(value: str) -> bool:
    """Return whether a value is one that a machine made: letters and digits together, and no words."""
    letters, digits = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    return letters and digits and not _FILE.fullmatch(value) and not _ADDRESS.fullmatch(value)


def _kind_of_name(name: str) -> str:
    lowered = name.lower()
    if _PASSWORD.search(lowered):
        return "password"
    if "aws" in lowered and "key" in lowered:
        return "aws key"
    if "token" in lowered:
        return "token"
    return "api key" if "api" in lowered else "key" if "key" in lowered else "credential"


def _kind_of_assignment(match: _Match) -> str | None:
    """Return the kind of what is assigned to a name, None for a value that is a placeholder, code or a mere word."""
    named = match.named
    name = named["name"]
    is_quoted = not {"bare", "rest"} & named.keys()
    value = match.value if is_quoted else match.value.rstrip(_TRAILING + "\\")
    if len(value) > _MOST_CHARS or _PLACEHOLDER.fullmatch(value) or _COUNTED.fullmatch(name):
        return None
    if not is_quoted and (_CODE.fullmatch(value) or "(" in value):
        return None
    kind = _kind_of_name(name)
    # `API_KEY=value`, as the environment has it, is data whatever the value; `api_key = value` may be code.
    is_constant = bool(_CONSTANT.fullmatch(name)) and named.get("sign", "").strip() in {"=", ":"}
    if kind == "password":
        return kind if _may_be_password(value, is_quoted=is_quoted, is_constant=is_constant, named=named) else None
    if any(map(str.isspace, value)) or len(value) < _LEAST_KEY or _FILE.fullmatch(value) or _ADDRESS.fullmatch(value):
        return None
    if _NUMERIC.fullmatch(value) and not is_constant:
        return None
    return kind if _is_random(value) or (is_constant and not _CODE.fullmatch(value)) else None


def _may_be_password(value: str, *, is_quoted: bool, is_constant: bool, named: dict[str, str]) -> bool:
    if len(value) < _LEAST_PASSWORD or _ADDRESS.fullmatch(value):
        return False
    if any(map(str.isspace, value)):
        return "phrase" in named["name"].lower() and len(value) < 100  # noqa: PLR2004
    if is_constant or is_quoted:
        return True
    if _WORDS.fullmatch(value):
        # Of a plain word only the line `password: word` of a file is one.
        return "rest" in named
    return not _NUMERIC.fullmatch(value) or len(value) >= _LEAST_WORD_PASSWORD


def _kind_of_statement(match: _Match) -> str | None:
    """Return the kind of what somebody says is a password or a key, None for a mere word."""
    value = match.value
    is_quoted = "bare" not in match.named
    if _is_elsewhere(value) or (not is_quoted and _CODE.fullmatch(value)):
        return None
    if "key" in match.named:
        return _kind_of_name(match.named["key"]) if _is_random(value) and len(value) >= _LEAST_KEY else None
    is_common = _VERSIONED.fullmatch(value) and len(value) <= _LEAST_WORD_PASSWORD
    return "password" if is_quoted or (_is_random(value) and not is_common) else None


def _is_elsewhere(value: str) -> bool:
    """Return whether a value says where a password is, or that there is none: a placeholder, a file, an address."""
    if len(value) < _LEAST_WORD_PASSWORD or any(map(str.isspace, value)):
        return True
    named = _PLACEHOLDER.fullmatch(value) or _ADDRESS.fullmatch(value) or _FILE.fullmatch(value)
    return bool(named) or ("@" in value[1:] and "." in value.rsplit("@", 1)[-1])


def _said_next(match: _Match) -> str | None:
    """Return the kind of the word after "password", which mostly is none."""
    value = match.value.rstrip(_TRAILING)
    if len(value) < _LEAST_UNNAMED and "bare" in match.named and _classes(value) < 2:  # noqa: PLR2004
        return None
    if "bare" in match.named and (_VERSIONED.fullmatch(value) or _classes(value) < 3) and "key" in match.named:  # noqa: PLR2004
        return None
    return _kind_of_statement(match) if _is_random(value) and not _NUMERIC.fullmatch(value) else None


def _login(match: _Match) -> str | None:
    is_password = _classes(match.value) >= 3 and _is_random(match.value)  # noqa: PLR2004 - of four
    return "password" if is_password and not _CODE.fullmatch(match.value) else None


def _said_unspaced(match: _Match) -> str | None:
    value = match.value.rstrip(_TRAILING)
    if _PLACEHOLDER.fullmatch(value) or _ADDRESS.fullmatch(value):
        return None
    return "password" if len(value) >= _LEAST_WORD_PASSWORD and _is_random(value) else None


def _token(match: _Match) -> str | None:
    value = match.value
    kind = next((kind for kind, shape in _KINDS if shape.fullmatch(value)), "token")
    if kind == "api key" and not _is_random(value):
        return None
    return kind


def _url_password(match: _Match) -> str | None:
    value = match.value
    if _PORT.fullmatch(value) or (_PLACEHOLDER.fullmatch(value) and not _WORDS.fullmatch(value)):
        return None
    return "password"


def _query(match: _Match) -> str | None:
    value = match.value
    if _PLACEHOLDER.fullmatch(value) or _COUNTED.search(match.before.decode("utf-8", "replace").rstrip("=")):
        return None
    return "token" if _is_random(value) or len(value) >= 20 else None  # noqa: PLR2004


def _authorization(match: _Match) -> str | None:
    value = match.value
    return None if _PLACEHOLDER.fullmatch(value) or _CODE.fullmatch(value) or _WORDS.fullmatch(value) else "token"


def _command(match: _Match) -> str | None:
    return None if _PLACEHOLDER.fullmatch(match.value) or _FILE.fullmatch(match.value) else "password"


def _random(kind: str) -> Callable[[_Match], str | None]:
    return lambda match: kind if _is_random(match.value) else None


_ISSUERS: Final = re.compile(
    r"4\d{15}|4\d{12}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|"
    r"6(?:011|5\d\d|4[4-9]\d)\d{12}|35(?:2[89]|[3-8]\d)\d{12}|62\d{14,17}|(?:50|5[6-9]|6\d)\d{14}"
)
"""Lengths and first digits of the issuers (ISO/IEC 7812)."""
_NOT_CARD: Final = re.compile(
    rb"(?:order|track\w*|reserv\w*|invoice|booking|ticket|account|acct|reference|ref|isbn|ean|upc|gtin|imei|time\w*|"
    rb"\bts|_?id|\buid|serial|hash|sku|phone|tel|number of|\bno)\W{0,6}(?:is\W|no\W|number\W|num\W)?\W{0,4}$",
    re.IGNORECASE,
)


def _card(match: _Match) -> str | None:
    digits = "".join(filter(str.isdigit, match.value))
    if not _ISSUERS.fullmatch(digits) or not _passes_luhn(digits) or len(set(digits)) == 1:
        return None
    groups = re.split(r"[ -]", match.value)
    if len(groups) == 1:
        return None if _NOT_CARD.search(match.before) else "card number"
    return "card number" if all(2 < len(group) < 8 for group in groups) else None  # noqa: PLR2004


def _passes_luhn(digits: str) -> bool:
    doubled = [int(digit) * (2 if at % 2 else 1) for at, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0  # noqa: PLR2004


def _options() -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    return options


def _compile_pattern(pattern: str) -> Any:
    return re2.compile(pattern, _options())


def _one_of(rules: Sequence[_Rule]) -> Any:
    """Return what tells in one pass which of the rules match a text: nearly every text has nothing for any of them."""
    every = re2.Set.SearchSet(_options())
    for rule in rules:
        every.Add(rule.pattern.pattern)
    every.Compile()
    return every


def _always(kind: str) -> Callable[[_Match], str | None]:
    return lambda _match: kind


_KINDS: Final = [(shape.kind, re.compile(shape.pattern)) for shape in shapes.TOKENS]


@cache
def _rules() -> tuple[tuple[_Rule, ...], Any]:
    """Return the rules, and what tells in one pass which of them match a text; made when a text is first searched."""
    rules = (
        # The more a rule tells of what it finds, the earlier it comes.
        _Rule(_compile_pattern(shapes.PEM), _always("private key"), _without_line_end),
        _Rule(_compile_pattern(shapes.PEM_END), _always("private key")),
        _Rule(_compile_pattern(shapes.PEM_BASE64), _always("private key")),
        _Rule(_compile_pattern(shapes.PUTTY), _always("private key"), _without_line_end),
        _Rule(_compile_pattern(shapes.TOKEN), _token),
        _Rule(_compile_pattern(shapes.AWS_PAIR), _random("aws key")),
        _Rule(_compile_pattern(shapes.URL_USERINFO), _url_password),
        _Rule(_compile_pattern(shapes.URL_USER), _random("token")),
        _Rule(_compile_pattern(shapes.ORACLE), _command),
        _Rule(_compile_pattern(shapes.AUTHORIZATION), _authorization),
        _Rule(_compile_pattern(shapes.BEARER), _random("token")),
        _Rule(_compile_pattern(shapes.COOKIE), _random("token")),
        _Rule(_compile_pattern(shapes.LISTED), _kind_of_assignment),
        _Rule(_compile_pattern(shapes.ASSIGNED), _kind_of_assignment, _without_next_field),
        _Rule(_compile_pattern(shapes.QUERY), _query, _without_next_field),
        _Rule(_compile_pattern(shapes.FLAG), _kind_of_assignment),
        _Rule(_compile_pattern(shapes.COMMAND), _command),
        _Rule(_compile_pattern(shapes.TAGGED), _kind_of_assignment),
        _Rule(_compile_pattern(shapes.CELL), _kind_of_assignment),
        _Rule(_compile_pattern(shapes.PROSE), _kind_of_statement, _without_punctuation),
        _Rule(_compile_pattern(shapes.PROSE_NEXT), _said_next, _without_punctuation),
        _Rule(_compile_pattern(shapes.LOGIN), _login, _without_punctuation),
        _Rule(_compile_pattern(shapes.PROSE_UNSPACED), _said_unspaced, _without_punctuation),
        _Rule(_compile_pattern(shapes.CARD), _card),
    )
    return rules, _one_of(rules)
