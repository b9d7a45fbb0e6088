"""Text that others wrote, encoded for a prompt: it can neither end its frame nor pass for somebody else's words.

Every line of it begins with a mark that no text can take off, so a forged role, tag or note stays visibly inside its
message; and the tags around it end in a code taken from the text itself, which nobody can have written into it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from compaction.text.invisible import IGNORABLE, INVISIBLE, SPACES, UNSEEN, spread
from compaction.text.salience import clean
from compaction.tokens import text_weight

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS: Final = "|"
"""Begins each line of what a speaker said."""
DATA: Final = "~"
"""Begins each line of what tools and files say: untrusted."""
NOTE: Final = "+"
"""Begins a line of our own on a call, a result or an attachment."""

FRAMES: Final = ("transcript", "earlier-summary", "part-summary", "kept-verbatim", "wishes", "draft", "reasons")
"""Names of the tags around text from outside."""
_CODED: Final = re.compile(rf"\b(?:document|{'|'.join(FRAMES)})-[0-9a-f]{{16}}\b", re.IGNORECASE)
NAME_CHARS: Final = 200
"""Characters of a name, a title or a URL that a note shows."""

_CUT_NOTE_CHARS: Final = 160
"""Room for the note of a cut, with the largest heading and mark."""
_BREAKS: Final = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_HIDDEN: Final = re.compile(f"\x1b\\[[0-9;?]*[A-Za-z]|[{INVISIBLE}]")
"""Escape sequences, and characters that show nothing but may say something."""
_VARIANTS: Final = re.compile("(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]+")
"""Variation selectors beyond the one that an emoji has: a series of them can carry a text."""
_OPENING: Final = "\\[\uff3b\u3010\u3014\u27e6\u2772\ufe5d\u301a\u2045"
_CLOSING: Final = "\\]\uff3d\u3011\u3015\u27e7\u2773\ufe5e\u301b\u2046"
_GAP: Final = rf"{UNSEEN}[\s_-][\s_{IGNORABLE}-]*+"
_MARKER: Final = re.compile(
    rf"[{_OPENING}]{SPACES}({spread('END')}{_GAP})?{spread('CONTEXT')}{_GAP}{spread('SUMMARY')}{SPACES}[{_CLOSING}]",
    re.IGNORECASE,
)
ANGLE: Final = "<\uff1c\ufe64\u2039\u3008\u2329\u27e8\u1438\u02c2\u276e\u276c\u29fc"
"""`<` and what is read as one."""
_TAG: Final = re.compile(
    rf"[{ANGLE}](?=[\s/\\!?]{{0,20}}(?:{'|'.join(name.replace('-', '[-_ ]?') for name in FRAMES)}"
    r"|recalled|system|assistant|human|instructions?|function_(?:calls|results)|antml:|(?:start|end)_of_turn\b|(?:bos|eos|unk|pad|s)\s{0,9}>"
    r"|[|\uff5c]|<\s{0,9}/?\s{0,9}SYS\b))",
    re.IGNORECASE,
)
"""Opens a frame, a role or one of the control tokens that chat templates turn into structure."""
_BRACKET: Final = re.compile(r"\[(?=\s{0,9}/?\s{0,9}INST\s{0,9}\])", re.IGNORECASE)


def visible(text: str) -> str:
    """Return `text` without control and invisible characters, all line breaks alike, context markers disarmed."""
    clean_text = _VARIANTS.sub("", _HIDDEN.sub("", _BREAKS.sub("\n", text)))
    return clean(escape_markers(clean_text))


def escape_markers(text: str) -> str:
    """Return `text` with everything that reads as a summary's marker turned into plain words."""
    return _MARKER.sub(lambda match: "(end of context summary)" if match[1] else "(context summary)", text)


def escape_tags(text: str) -> str:
    """Return `text` with the tags of frames and roles, and the control tokens of chat templates, written as entities.

    Any case, spaces and look-alikes of `<` included; other markup stays as it is.
    """
    return _BRACKET.sub("&#91;", _TAG.sub("&lt;", text))


def quote_lines(text: str, mark: str) -> str:
    """Return cleaned `text` with `mark` before each line; empty for blank text."""
    text = escape_tags(visible(text)).strip("\n")
    if not text.strip():
        return ""
    return "\n".join(f"{mark} {line}" if line else mark for line in text.split("\n"))


def one_line(text: Any, limit: int = NAME_CHARS) -> str:
    """Return a name as one cleaned line of at most `limit` characters."""
    line = " ".join(escape_tags(visible(str(text)[: limit * 4])).split())
    return line if len(line) <= limit else line[: limit - 1] + "\u2026"


def title(text: Any) -> str:
    """Return a name as one cleaned line in quotation marks."""
    return json.dumps(one_line(text), ensure_ascii=False)


def code(*texts: str) -> str:
    """Return the code that the tags around `texts` carry: 16 hexadecimal digits of their hash."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode(errors="replace") + b"\0")
    return digest.hexdigest()[:16]


def names_frame(text: str) -> bool:
    """Return whether a text holds the name and the code of a frame, whatever became of the brackets around them."""
    return _CODED.search(text) is not None


def frame(name: str, body: str, secret: str, about: str = "") -> str:
    """Return `body` between tags that carry `secret`; each of its lines must have a mark or be a message's heading."""
    return f"<{name}-{secret}{about and f' {about}'}>\n{body}\n</{name}-{secret}>"


def cut_lines(text: str, limit: int) -> str:
    """Return encoded messages with their middle replaced by a note, so that they have at most `limit` characters.

    What comes after the note has its speaker and its mark again, although its line may have begun before.
    """
    if len(text) <= limit:
        return text
    room = limit - _CUT_NOTE_CHARS
    if room <= 0:
        return text[: max(0, limit)]
    start = len(text) - room // 2
    line = text.rfind("\n", 0, start) + 1
    if text[line] == "[" and start != line:
        # Half a heading is no heading.
        following = text.find("\n", start)
        line = start = len(text) if following < 0 else following + 1
    end = room - room // 2
    last = text.rfind("\n", 0, end) + 1
    if text[last] == "[":
        end = max(0, last - 1)
    before = text[:end].removesuffix("\n")
    return f"{before}{_cut_note(text, start - end, start, line)}{text[start:]}".lstrip("\n")


def _cut_note(text: str, hidden: int, start: int, line: int) -> str:
    """Return the note for what is left out before `start`, up to the mark that the rest of its line needs."""
    note = f"\n{NOTE} {hidden:,} characters left out of the middle\n"
    if text[start : start + 1] in {"[", ""} and start == line:
        return note
    heading = text.rfind("\n[", 0, start) + 1
    if text[heading] == "[":
        note += text[heading : text.index("\n", heading) + 1]
    # The rest of a note's line is somebody's text as well: it must not pass for a note.
    return note if start == line else f"{note}{WORDS if text[line] == WORDS else DATA} "


def fit_text(text: str, chars: int, weight: int, cut: Callable[[str, int], str]) -> str:
    """Return `text` cut to at most `chars` characters and `weight` (see `tokens.text_weight`)."""
    limit = min(len(text), chars)
    while (shortened := cut(text, limit)) and (now := text_weight(shortened)) > weight:
        limit = min(limit - 1, limit * weight // now)
        if limit <= 0:
            return ""
    return shortened
