"""docs/security.md names controls, files and tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.support.places import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
CONTROLS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("## Controls")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| control")
]


def test_there_are_controls() -> None:
    assert len(CONTROLS) > 15
    assert all(len(row) == 4 and all(row) for row in CONTROLS)


@pytest.mark.parametrize("row", CONTROLS, ids=lambda row: row[0])
def test_what_a_control_names_is_there(row: list[str]) -> None:
    places, shown = re.findall(r"`([^`]+)`", row[2]), re.findall(r"`([^`]+)`", row[3])
    assert places
    assert shown
    assert [place for place in places if not (ROOT / place).exists()] == []
    file = ""
    for name in shown:
        path, _, test = name.partition("::")
        file = path or file
        text = (ROOT / file).read_text()
        assert "def test_" in text
        assert not test or f"def {test}(" in text, name


def test_every_setting_and_page_that_is_named_exists() -> None:
    for name in re.findall(r"PALIMPSEST_[A-Z_]+", PAGE):
        assert f"`{name}`" in (ROOT / "docs" / "settings.md").read_text(), name
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
