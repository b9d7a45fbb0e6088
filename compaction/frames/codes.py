"""Frame codes: what tells compaction's own frames from text that imitates them.

Every frame of a conversation carries the same code, so the bytes of a prefix do not change. The code is a keyed hash of
ids that neither users nor tools are shown, so no text can carry it unless a model repeats it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final

from compaction.frames.wordings import WORDINGS

if TYPE_CHECKING:
    from uuid import UUID

CODE: Final = r"[0-9a-f]{12}"
_CODE_DIGITS: Final = 12
_LINE: Final = re.compile(rf"\[frame {CODE}\][^\n]*\n")
_OPENED: Final = re.compile(rf"\[CONTEXT SUMMARY\]\n\[frame ({CODE})\][^\n]*\n")
_CLOSED: Final = re.compile(rf"\[END PINNED:({CODE})(?::\d{{1,9}})?\]\Z")


def frame_code(tenant_id: UUID, conversation_id: UUID) -> str:
    """Return the code of a conversation's frames."""
    return hmac.digest(tenant_id.bytes, conversation_id.bytes, hashlib.sha256).hex()[:_CODE_DIGITS]


def code_line(code: str, language: str) -> str:
    """Return the line of a summary's frame that shows the code and says what it is for; "" for no code."""
    return f"[frame {code}] {WORDINGS[language].code}\n" if code else ""


def code_line_end(text: str, at: int) -> int:
    """Return where a code line ends that begins at `at`; `at` if there is none."""
    line = _LINE.match(text, at)
    return at if line is None else line.end()


def code_at_end(text: str) -> str | None:
    """Return the code of the frame that ends `text`; None if no frame does, or it has no code."""
    if (closed := _CLOSED.search(text, max(0, len(text) - _CLOSING_CHARS))) is not None:
        return closed[1]
    opened = _OPENED.match(text, at) if (at := text.rfind("[CONTEXT SUMMARY]\n")) >= 0 else None
    return None if opened is None or not text.endswith("[END CONTEXT SUMMARY]") else opened[1]


_CLOSING_CHARS: Final = 60
"""Characters; no closing marker of a frame of pins is longer."""
