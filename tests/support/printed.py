"""The JSON that a command printed, among the log lines of services in the same process."""

from __future__ import annotations

import json
from typing import Any


def printed_json(text: str) -> Any:
    """Return the first JSON object of a text."""
    return json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
