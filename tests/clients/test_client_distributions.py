"""The Python distributions under clients/, built as they are published."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CLIENTS: Final = ROOT / "clients"


@pytest.mark.parametrize(
    ("folder", "package"), [("python", "palimpsest_client"), ("langchain", "palimpsest_langchain")]
)
def test_a_wheel_is_whole(folder: str, package: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=CLIENTS / folder, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    sources = {path.relative_to(CLIENTS / folder).as_posix() for path in (CLIENTS / folder / package).glob("*.py")}
    assert sources | {f"{package}/py.typed"} <= names
    assert {name.split("/")[0] for name in names} == {package, metadata_folder(wheel)}
    assert "Requires-Python: >=3.10" in metadata


def metadata_folder(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2]) + ".dist-info"
