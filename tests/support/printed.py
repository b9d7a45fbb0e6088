"""The JSON that a command printed, among the log lines of services in the same process."""

from __future__ import annotations

import json
from typing import Any


def printed_json(text: str) -> Any:
    """Return the JSON object on the first line of a text that begins with one."""
    return json.loads(next(line for line in text.splitlines() if line.startswith('{"')))
