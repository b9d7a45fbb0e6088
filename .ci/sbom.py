"""Write what an environment is made of as a CycloneDX document: sbom.py PYTHON OUTPUT.

Of the environment of that Python, what requirements.txt pins for it counts, and everything it pins has to be there in
that version: development tools in the same environment are no part of the product.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
MARKERS = (
    "import json, os, platform, sys; v = sys.version_info;"
    "print(json.dumps({'python_version': '%d.%d' % v[:2], 'python_full_version': platform.python_version(),"
    " 'sys_platform': sys.platform, 'os_name': os.name, 'platform_machine': platform.machine(),"
    " 'platform_system': platform.system(), 'implementation_name': sys.implementation.name,"
    " 'platform_python_implementation': platform.python_implementation()}))"
)


def pinned(python: str) -> dict[str, str]:
    """Return the versions that requirements.txt has for the environment of `python`, by package."""
    printed = subprocess.run([python, "-c", MARKERS], check=True, capture_output=True, text=True).stdout  # noqa: S603 - the caller's own Python
    environment = json.loads(printed)
    lines = re.findall(r"^\w[^\\\n]*", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE)
    needs = [Requirement(line.strip()) for line in lines]
    return {
        canonicalize_name(need.name): next(iter(need.specifier)).version
        for need in needs
        if need.marker is None or need.marker.evaluate(environment)
    }


def described(python: str) -> dict[str, Any]:
    """Return the whole environment as CycloneDX, the project as the component that it is about."""
    done = subprocess.run(  # noqa: S603 - as above
        [
            *(sys.executable, "-m", "cyclonedx_py", "environment", python),
            *("--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "--no-validate"),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def narrowed(document: dict[str, Any], pins: dict[str, str]) -> dict[str, Any]:
    """Return the document with the pinned components alone; raises SystemExit if one is missing or another version."""
    versions = {(canonicalize_name(each["name"]), each["version"]) for each in document.get("components", [])}
    wrong = ["==".join(pin) for pin in pins.items() if pin not in versions]
    if wrong:
        raise SystemExit(f"sbom: the environment does not have {', '.join(sorted(wrong))}")
    components = [each for each in document["components"] if canonicalize_name(each["name"]) in pins]
    root = document["metadata"]["component"]["bom-ref"]
    kept = {root, *(each["bom-ref"] for each in components)}
    dependencies = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", []) if ref in kept]}
        for each in document["dependencies"]
        if each["ref"] in kept
    ]
    return {**document, "components": components, "dependencies": dependencies}


if __name__ == "__main__":
    interpreter, output = sys.argv[1:]
    sbom = narrowed(described(interpreter), pinned(interpreter))
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(output).write_text(json.dumps(sbom, indent=1) + "\n")
    print(f"sbom: {len(sbom['components'])} components in {output}")
