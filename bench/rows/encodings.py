# ruff: noqa: RUF001 - scripts whose letters look like others
"""Texts of ten scripts and of what programs write, for the estimate's rows; made up, and the same in every run."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from typing import Final
from uuid import UUID

_RANDOM: Final = random.Random(3)  # noqa: S311 - texts that are the same in every run
_TIMES: Final = 40


def _bytes(count: int) -> bytes:
    return _RANDOM.randbytes(count)


def _numbers(count: int) -> list[float]:
    return [round(_RANDOM.random() * 1_000, 4) for _ in range(count)]


TEXTS: Final[dict[str, str]] = {
    "English": "The user asked for a flight to Berlin, and the assistant found three. " * _TIMES,
    "Cyrillic": "Пользователь попросил найти рейс в Берлин, и помощник нашёл три. " * _TIMES,
    "Greek": "Ο χρήστης ζήτησε πτήση για το Βερολίνο και ο βοηθός βρήκε τρεις. " * _TIMES,
    "Arabic": "طلب المستخدم رحلة إلى برلين ووجد المساعد ثلاث رحلات. " * _TIMES,
    "Hebrew": "המשתמש ביקש טיסה לברלין והעוזר מצא שלוש. " * _TIMES,
    "Devanagari": "उपयोगकर्ता ने बर्लिन की उड़ान माँगी और सहायक को तीन मिलीं। " * _TIMES,
    "Thai": "ผู้ใช้ขอเที่ยวบินไปเบอร์ลินและผู้ช่วยพบสามเที่ยว " * _TIMES,
    "Burmese": "အသုံးပြုသူက ဘာလင်သို့ လေယာဉ်ခရီးစဉ် တောင်းခဲ့သည်။ " * _TIMES,
    "Chinese": "用户要求查找飞往柏林的航班，助手找到了三个。" * _TIMES,
    "Japanese": "ユーザーはベルリン行きの便を頼み、アシスタントは三便を見つけた。" * _TIMES,
    "base64": base64.b64encode(_bytes(3_000)).decode(),
    "hexadecimal": _bytes(2_000).hex(),
    "UUIDs": "\n".join(str(UUID(bytes=_bytes(16))) for _ in range(100)),
    "hashes": " ".join(f"commit {hashlib.sha256(_bytes(8)).hexdigest()} mends it" for _ in range(50)),
    "minified JSON": json.dumps(
        [{"id": str(UUID(bytes=_bytes(16))), "score": number} for number in range(60)], separators=(",", ":")
    ),
    "numbers": json.dumps([_numbers(8) for _ in range(40)], separators=(",", ":")),
}
"""By their kind."""
