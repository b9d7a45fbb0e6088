"""Look up known vulnerabilities of everything that constraints.txt pins; `make audit` runs it.

Exit codes: 0 none, 1 some, 3 nothing looked up because no service answers. `make check` accepts 3, so that it works
without a network, unless AUDIT_REQUIRED=1 is set; continuous integration with a network sets it. AUDIT_URL names
another server that speaks OSV's API, for networks that have a copy.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS: Final = "10"
NOT_LOOKED: Final = 3
"""Exit code if no service answers."""
ACCEPTED: Final[dict[str, str]] = {}
"""Vulnerabilities that do not touch the product: id to the reason. A reason that ends is removed with its line."""


def asked(service: list[str], pins: str) -> list[dict[str, Any]] | None:
    """Return what a service knows of every pin, None if it does not know each of them or does not answer."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pins)
        file.flush()
        ignored = [f"--ignore-vuln={name}" for name in ACCEPTED]
        options = ["--disable-pip", "--format=json", "--progress-spinner=off", f"--timeout={TIMEOUT_SECONDS}"]
        command = [sys.executable, "-m", "pip_audit", *options, *service, *ignored, "--requirement", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a tool of ours
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    # A package that a service has never heard of counts as clean with the tool; here it counts as not looked at.
    return None if any("skip_reason" in each for each in answers) else answers


def main() -> int:
    """Ask the first service that knows what is pinned."""
    text = (ROOT / "constraints.txt").read_text()
    pins = re.findall(r"^\w(?:.*\\\n)*.*\n", text, flags=re.MULTILINE)
    url = os.environ.get("AUDIT_URL")
    services = [["-s", "osv", "--osv-url", url]] if url else [["-s", "osv"], ["-s", "pypi"]]
    for service in services:
        # One pin first: where nobody answers, one wait is enough.
        if asked(service, pins[0]) is None or (answers := asked(service, "".join(pins))) is None:
            continue
        vulnerabilities = [(each, known) for each in answers for known in each["vulns"]]
        for each, known in vulnerabilities:
            fixed = ", ".join(known["fix_versions"]) or "nothing yet"
            print(f"audit: {each['name']} {each['version']}: {known['id']}, fixed in {fixed}")
        print(f"audit: {len(answers)} packages looked up, {len(vulnerabilities)} known vulnerabilities")
        return 1 if vulnerabilities else 0
    print("audit: NOT LOOKED: no service for known vulnerabilities answers from here")
    return NOT_LOOKED


if __name__ == "__main__":
    sys.exit(main())
