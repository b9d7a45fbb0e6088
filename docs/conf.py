"""How Sphinx builds the manual: `make manual` writes it to docs/_build; a warning is an error."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime.release import VERSION

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Palimpsest"
version = release = VERSION
extensions = ["myst_parser"]
exclude_patterns = ["_build", "examples"]
nitpicky = True
# The anchors that a repository's pages have: headings down to the fourth level, named as Git hosts name them.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

DOCS: Final = Path(__file__).resolve().parent
ELSEWHERE: Final = {
    "benchmark": "bench/README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "reporting": "SECURITY.md",
}
"""Pages whose text stands elsewhere in the repository, where people look for it."""
_LINK: Final = re.compile(r"\[([^\[\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def _read(_: Sphinx, page: str, source: list[str]) -> None:
    """Take the text from where it stands, and let links lead to the manual's pages."""
    file = DOCS.parent / ELSEWHERE[page] if page in ELSEWHERE else DOCS / f"{page}.md"
    here = (DOCS / page).parent

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(file.parent / match[2]))
        for name, path in ELSEWHERE.items():
            if target == DOCS.parent / path:
                target = DOCS / f"{name}.md"
        if target == DOCS / "decisions":
            target /= "index.md"
        # Folders of the repository are no part of the site.
        return match[1] if target.is_dir() else f"[{match[1]}]({os.path.relpath(target, here)}{match[3] or ''})"

    source[0] = _LINK.sub(link, file.read_text(encoding="utf-8") if page in ELSEWHERE else source[0])


def setup(app: Sphinx) -> None:
    """Take part in the build."""
    app.connect("source-read", _read)
