"""HTML as readable text: headings as Markdown headings, tags stripped, entities decoded, scripts and styles dropped."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# Not `html.parser`: before Python 3.13.4 twenty kilobytes of unclosed tags keep it busy for half a minute
# (CVE-2025-6069 and its kin), and this text comes from strangers. With nothing searched behind the last `>`, each
# alternative either fails before the next `<` or matches, so this takes linear time.
_MARKUP: Final = re.compile(
    r"<!--|<[!?][^>]*>|<(?P<slash>/?)(?P<name>[a-z][a-z0-9:-]*)\b"
    r"""(?:(?:[^<>"']|"[^"<]*"|'[^'<]*')*+>|[^>]*>)""",
    re.IGNORECASE,
)
_HIDDEN: Final = {
    name: re.compile(rf"</{name}\s*>", re.IGNORECASE)
    for name in ("script", "style", "noscript", "template", "svg", "iframe", "object")
}
_HEADINGS: Final = {f"h{level}": "#" * level for level in range(1, 7)} | {"title": "#"}
_PARAGRAPHS: Final = frozenset({
    "address", "article", "aside", "blockquote", "dl", "fieldset", "figure", "footer", "form", "header", "hr", "main",
    "nav", "ol", "p", "section", "table", "ul",
})  # fmt: skip
_LINES: Final = frozenset({
    "br", "caption", "dd", "div", "dt", "figcaption", "legend", "li", "option", "optgroup", "summary", "tr",
})  # fmt: skip
_SPACE: Final = re.compile(r"\s+")


def html_text(text: str) -> str:
    """Return an HTML page or fragment as text, one line a block, headings and the title as `# …`.

    List items begin with `- `, cells are parted by tabs, preformatted text is fenced.
    """
    writer = _Writer()
    for name, closing, data in _events(text):
        if not name:
            writer.text(data)
        elif closing:
            writer.close(name)
        else:
            writer.open(name)
    return writer.finish()


def _events(text: str) -> Iterator[tuple[str, bool, str]]:
    """Yield (tag name, closing, text): tags have no text and texts have no name."""
    stop = text.rfind(">") + 1
    position = 0
    never_closed: set[str] = set()
    while match := _MARKUP.search(text, position, stop):
        yield "", False, text[position : match.start()]
        position = match.end()
        name = (match["name"] or "").lower()
        if match[0] == "<!--":
            end = -1 if "-->" in never_closed else text.find("-->", position)
            position = end + len("-->") if end >= 0 else position
            never_closed.update({"-->"} if end < 0 else ())
        elif name in _HIDDEN and not match["slash"] and name not in never_closed:
            if closed := _HIDDEN[name].search(text, position):
                position = closed.end()
            else:
                never_closed.add(name)
        elif name:
            yield name, bool(match["slash"]), ""
    yield "", False, text[position:]


class _Writer:
    """Collects lines; blank ones part paragraphs."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line: list[str] = []
        self._heading = ""
        self._pre = False

    def text(self, data: str) -> None:
        if not data:
            return
        data = unescape(data)
        if not self._pre:
            self._line.append(_SPACE.sub(" ", data))
            return
        first, *rest = data.split("\n")
        self._line.append(first)
        for line in rest:
            self._end_line()
            self._line.append(line)

    def open(self, name: str) -> None:
        if self._pre:
            if name == "br":
                self._end_line()
        elif name in _HEADINGS:
            self._end_paragraph()
            self._heading = _HEADINGS[name]
        elif name == "pre":
            self._end_paragraph()
            self._lines.append("```")
            self._pre = True
        elif name in _PARAGRAPHS:
            self._end_paragraph()
        elif name == "li":
            self._end_line()
            self._line.append("- ")
        elif name in _LINES:
            self._break()

    def close(self, name: str) -> None:
        if self._pre:
            if name == "pre":
                self._end_line()
                self._pre = False
                self._lines += ("```", "")
        elif name in _PARAGRAPHS or name in _HEADINGS:
            self._end_paragraph()
        elif name in {"td", "th"}:
            self._line.append("\t")
        elif name in _LINES:
            self._break()

    def finish(self) -> str:
        if self._pre:
            self.close("pre")
        self._end_paragraph()
        return "\n".join(self._lines).strip("\n") + "\n"

    def _break(self) -> None:
        # A heading is one line whatever is in it.
        if self._heading:
            self._line.append(" ")
        else:
            self._end_line()

    def _end_line(self) -> None:
        line = "".join(self._line)
        self._line.clear()
        if self._pre:
            # A fence inside would end the one around it.
            self._lines.append(line.rstrip().replace("```", "'''"))
            return
        line = line.strip().replace("\t ", "\t")
        if line and self._heading:
            line = f"{self._heading} {_SPACE.sub(' ', line)}"
        # A page's title is often its first heading as well.
        repeated = self._heading and self._lines[-2:] == [line, ""]
        if line and line != "-" and not repeated:
            self._lines.append(line)
        self._heading = ""

    def _end_paragraph(self) -> None:
        self._end_line()
        if self._lines and self._lines[-1]:
            self._lines.append("")
