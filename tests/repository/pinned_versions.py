"""What the files with pins say: versions, markers, hashes."""

from __future__ import annotations

import re
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.places import ROOT


class Pin(NamedTuple):
    """One version of one package, with the hashes of its files."""

    requirement: Requirement
    version: str
    hashes: frozenset[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def applies(self) -> bool:
        """Whether this Python on this platform installs it."""
        return self.requirement.marker is None or self.requirement.marker.evaluate()


def pins(file: str) -> list[Pin]:
    """Read a file of pins; anything else in it but comments raises."""
    text = re.sub(r"^#.*\n", "", (ROOT / file).read_text(), flags=re.MULTILINE)
    versions = []
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        wanted, *hashes = re.split(r"\s+--hash=", line.strip())
        requirement = Requirement(wanted)
        (specifier,) = requirement.specifier
        assert specifier.operator == "=="
        versions.append(Pin(requirement, specifier.version, frozenset(hashes)))
    return versions
