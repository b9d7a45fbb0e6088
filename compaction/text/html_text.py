"""HTML as readable text: headings as Markdown headings, tags stripped, entities decoded, scripts and styles dropped."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Event = tuple[str, bool, str]

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
_CODE: Final = frozenset({"script", "style"})
_HEADINGS: Final = {f"h{level}": "#" * level for level in range(1, 7)} | {"title": "#"}
_PARAGRAPHS: Final = frozenset({
    "address", "article", "aside", "blockquote", "dl", "fieldset", "figure", "footer", "form", "header", "hr", "main",
    "nav", "ol", "p", "section", "table", "ul",
})  # fmt: skip
_LINES: Final = frozenset({
    "br", "caption", "dd", "div", "dt", "figcaption", "legend", "li", "option", "optgroup", "summary", "tr",
})  # fmt: skip
_SPACE: Final = re.compile(r"\s+")
_MAIN: Final = re.compile(r"<main\b", re.IGNORECASE)
_AFTER_HEAD: Final = frozenset({"body", "main", "h1"})
_BESIDE: Final = frozenset({"nav", "footer", "aside", "title", "select", "button", "dialog"})
"""Elements that stand beside what a page is about; its title is read before."""
_VOID: Final = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})
_CLOSED_BY_NEXT: Final = frozenset({"dd", "dt", "li", "option", "p", "td", "th", "tr"})
"""Elements that the next one of their kind closes, since their end tags may be left out."""
_HIDDEN_BY: Final = re.compile(
    r"\s(?:hidden(?=[\s>/=])|aria-hidden\s*=\s*[\"']?true|role\s*=\s*[\"']?(?:navigation|contentinfo|search|dialog)"
    r"|style\s*=\s*[\"'][^\"']*?(?:display\s*:\s*none|visibility\s*:\s*hidden))",
    re.IGNORECASE,
)
_SLACK: Final = 200
"""Characters read beyond what is wanted: blanks at the ends of lines go."""


def html_text(text: str) -> str:
    """Return an HTML page or fragment as text, one line a block, headings and the title as `# …`.

    List items begin with `- `, cells are parted by tabs, preformatted text is fenced.
    """
    return _write(_events(text))


def page_text(text: str, most: int | None = None) -> str:
    """Return the readable text of an HTML page or fragment: its title, then what it is about.

    If the page has a main element with text, only that is read. Navigation, footers, asides and hidden elements are
    left out unless nothing else has text. Reading stops once there are `most` characters.
    """
    title = _title_of(text)
    writer = _Writer(title)
    awaits_main = _MAIN.search(text) is not None
    inside = ""
    depth = 0
    for name, closing, data in _events(text, ends_in_script=True):
        if inside:
            if name == inside:
                depth += -1 if closing else 1
                inside = "" if depth == 0 or name in _CLOSED_BY_NEXT else inside
            continue
        if name == "main":
            if not closing and awaits_main:
                writer = _Writer(title)
            elif closing and writer.has_text:
                break
            awaits_main = False
        if name and not closing and _is_beside(name, data):
            inside, depth = name, 1
            continue
        writer.write(name, data, closing=closing)
        if most is not None and writer.length > most + _SLACK and not awaits_main:
            break
    return writer.finish() if writer.has_text else _write(_events(text, ends_in_script=True))


def _write(events: Iterable[Event]) -> str:
    writer = _Writer()
    for name, closing, data in events:
        writer.write(name, data, closing=closing)
    return writer.finish()


def _title_of(text: str) -> str:
    """Return the title in the head of a page, "" for none."""
    title = None
    for name, closing, data in _events(text):
        if name == "title" and not closing:
            title = ""
        elif title is None and name in _AFTER_HEAD:
            break
        elif title is not None and name:
            return _SPACE.sub(" ", unescape(title)).strip()
        elif title is not None:
            title += data
    return ""


def _is_beside(name: str, tag: str) -> bool:
    """Return whether an element is hidden or stands beside what a page is about."""
    return name in _BESIDE or (name not in _VOID and _HIDDEN_BY.search(tag) is not None)


def _events(text: str, *, ends_in_script: bool = False) -> Iterator[Event]:
    """Yield (tag name, closing, text): the text of a tag is the tag itself, and texts have no name.

    With `ends_in_script` a script or style sheet that is never closed hides all that follows, as it does in a browser.
    """
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
            elif ends_in_script and name in _CODE:
                return
            else:
                never_closed.add(name)
        elif name:
            yield name, bool(match["slash"]), match[0]
    yield "", False, text[position:]


class _Writer:
    """Collects lines; blank ones part paragraphs."""

    def __init__(self, title: str = "") -> None:
        self._lines = [f"# {title}", ""] if title else []
        self.has_text = False
        """Whether anything but the title was written."""
        self.length = len(title)
        """Characters read, those of the title included."""
        self._line: list[str] = []
        self._heading = ""
        self._pre = False

    def write(self, name: str, data: str, *, closing: bool) -> None:
        """Write one event: a text if there is no name, else a tag."""
        if not name:
            self.text(data)
        elif closing:
            self.close(name)
        else:
            self.open(name)

    def text(self, data: str) -> None:
        if not data:
            return
        self.has_text = self.has_text or not data.isspace()
        data = unescape(data)
        if not self._pre:
            spaced = _SPACE.sub(" ", data)
            self._line.append(spaced)
            self.length += len(spaced) if spaced != " " else 0
            return
        self.length += len(data)
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
