"""Sizes: what messages take of `max_context_bytes`, which is used instead of tokens where no count is known.

A byte of text is about a quarter of a token; a byte of base64 says nothing, since an image costs the same tokens
however large its file is. What base64 does count against is the size of a request. The counters that checks decide
from have the bytes whole, since they bound memory too: the trim then finds nothing to drop, and waits for growth.
"""

from __future__ import annotations

from typing import Any, Final

from compaction.media.files import CHARS_PER_TOKEN, media_facts

REQUEST_SHARE: Final = 43
"""Bytes of base64 that count as one: a request of the Messages API may have 32 MB, which is 43 times the default of
`max_context_bytes`."""


def uncounted_bytes(content: Any) -> int:
    """Return how many bytes fewer a message's content counts than it has: those of base64 beyond what they stand for.

    An image or a document counts what its estimated tokens would have as text, or a share of its base64 if that is
    more, and never more than the base64 has. Those inside results and documents count in the same way.
    """
    if not isinstance(content, list):
        return 0
    total = 0
    for block in content:
        if isinstance(block, dict):
            if isinstance(inner := block.get("content"), list):
                total += uncounted_bytes(inner)
            if isinstance(source := block.get("source"), dict):
                total += _uncounted_length(block, source)
    return total


def _uncounted_length(block: dict[str, Any], source: dict[str, Any]) -> int:
    data = source.get("data")
    if source.get("type") == "base64" and isinstance(data, str) and (facts := media_facts(block)) is not None:
        return max(0, len(data) - max(facts.tokens * CHARS_PER_TOKEN, len(data) // REQUEST_SHARE))
    return uncounted_bytes(source.get("content"))
