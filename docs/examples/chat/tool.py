"""The tool of the example: it reads the log of a service, which is long, as tool results are."""

from __future__ import annotations

from typing import Any, Final

EVERY: Final = 12
"""Each such line of a log is a warning."""
TOOLS: list[Any] = [
    {
        "name": "read_log",
        "description": "Read the newest lines of a service's log.",
        "input_schema": {
            "type": "object",
            "properties": {"service": {"type": "string"}, "lines": {"type": "integer", "default": 60}},
            "required": ["service"],
        },
    }
]


def run_tool(call: Any) -> dict[str, Any]:
    """Return the result of a call, as a block of the next message."""
    service, lines = call.input.get("service", "checkout"), min(int(call.input.get("lines", 60)), 500)
    slow, usual = "WARN slow query, 1840 ms", "INFO GET /cart 200 31 ms"
    log = "\n".join(
        f"12:{minute % 60:02}:07 {service} {usual if minute % EVERY else slow}"
        for minute in range(1, min(lines, 500) + 1)
    )
    return {"type": "tool_result", "tool_use_id": call.id, "content": log}
