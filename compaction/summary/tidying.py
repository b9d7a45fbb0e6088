"""A model's answer as text that may stand in a context."""

from __future__ import annotations

import re
from typing import Final

from compaction.summary.frames import escape_tags, visible

_FENCE: Final = re.compile(r"\A```[a-z]*\n(.*)\n```\Z", re.DOTALL)
_WRAPPED: Final = re.compile(r"\A<(summary|output|answer)>(.*)</\1>\Z", re.DOTALL | re.IGNORECASE)
_PARAGRAPHS: Final = re.compile(r"(\n[ \t]*\n)")
_SHOWN: Final = re.compile(r"(?<!!)!+(?=\[)")
"""From the first of them on alone: from each, a long run of them would take hours."""
_DEFINED: Final = re.compile(r"^[ >\t]*\[[^\]\n]{1,999}\]:", re.MULTILINE)
"""Gives a name an address: what stands in brackets anywhere may be that name (CommonMark 0.31, 4.7)."""
_ELEMENT: Final = re.compile(
    r"<(?=/?(?:script|style|svg)[\s/>]"
    r"|(?:img|image|source|video|audio|track|i?frame|embed|object|link|input|body|base|meta)[\s/]"
    r"(?:[^<>]{0,2000}[\s/\"'])?(?:src|srcset|href|data|poster|background|content)\s{0,9}="
    r"|[a-z][a-z0-9:-]{0,40}[\s/](?:[^<>]{0,2000}[\s/\"'])?on[a-z]{1,40}\s{0,9}=)",
    re.IGNORECASE,
)
"""An element of HTML that fetches or runs something as soon as it is shown; code such as `List<Image>` is none."""


def tidy_answer(answer: str) -> str:
    """Return a model's answer without wrapping, pictures, scripts, hidden characters, and tags that read as a frame."""
    text = visible(answer).strip()
    for wrapping, group in ((_FENCE, 1), (_WRAPPED, 2)):
        if match := wrapping.match(text):
            text = match[group].strip()
    if _DEFINED.search(text):
        text = _SHOWN.sub("", text)
    text = "".join(map(_without_pictures, _PARAGRAPHS.split(text)))
    return escape_tags(_ELEMENT.sub("&lt;", text)).strip()


def _without_pictures(paragraph: str) -> str:
    """Return a paragraph whose pictures are links, however they are nested.

    A picture's address is fetched by whatever shows it: a way to carry off what a page talked a model into writing.
    """
    end = max(paragraph.rfind("]("), paragraph.rfind("]["))
    return paragraph if end < 0 else _SHOWN.sub("", paragraph[:end]) + paragraph[end:]
