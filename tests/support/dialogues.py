"""Made-up conversations of several trades, in which later messages need exact values of earlier ones."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

Message = dict[str, Any]


class Script:
    """A conversation that grows by turns; the same seed gives the same one."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - made-up text, the same every time
        self.messages: list[Message] = []

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def assistant(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})

    def call(self, name: str, found: Any, said: str = "", **arguments: Any) -> None:
        use_id = f"toolu_{len(self.messages):04}"
        spoken = [{"type": "text", "text": said}] if said else []
        use = {"type": "tool_use", "id": use_id, "name": name, "input": arguments}
        self.messages.append({"role": "assistant", "content": [*spoken, use]})
        text = found if isinstance(found, str) else json.dumps(found)
        result = {"type": "tool_result", "tool_use_id": use_id, "content": text}
        self.messages.append({"role": "user", "content": [result]})

    def code(self, prefix: str, digits: int = 6) -> str:
        return f"{prefix}{self.chance.randrange(10 ** (digits - 1), 10**digits)}"

    def hex(self, length: int = 12) -> str:
        return "".join(self.chance.choices("0123456789abcdef", k=length))


_GOODS: Final = ("kettle", "desk lamp", "office chair", "monitor arm", "rain jacket", "trail shoes", "espresso machine")


def support(seed: int = 11) -> list[Message]:
    """A shop's support desk: orders looked up one after the other, then refunds by what was found."""
    script = Script(seed)
    orders: list[dict[str, Any]] = []
    script.user("Hello, I have several problems with my orders. Please never cancel anything without asking me first.")
    script.assistant("I am sorry to hear that. Which order shall we look at first?")
    for number in range(9):
        order = script.code("ORD-")
        goods = script.chance.sample(_GOODS, 3)
        items: list[dict[str, Any]] = [
            {
                "sku": script.code("SKU", 5),
                "title": title,
                "unit_price": script.chance.randrange(20, 900) + 0.99,
                "warehouse": script.code("WH-", 3),
                "barcode": script.code("40", 11),
                "weight_grams": script.chance.randrange(100, 9_000),
            }
            for title in goods
        ]
        each: dict[str, Any] = {
            "order_id": order,
            "status": "shipped",
            "tracking": script.code("TRK", 9),
            "items": items,
        }
        orders.append(each)
        script.user(f"The {goods[0]} from order {order} arrived broken, box {number + 1} of the delivery.")
        script.call("get_order", each, order_id=order)
        script.assistant(f"Order {order} has the {goods[0]} at {items[0]['unit_price']} EUR. I noted the damage.")
    for each in orders[:6]:
        item = each["items"][0]
        script.user(f"Please refund the broken {item['title']} of order {each['order_id']} now.")
        script.call(
            "refund",
            {"ok": True, "refund_id": script.code("RF-")},
            order_id=each["order_id"],
            sku=item["sku"],
            amount=item["unit_price"],
        )
        script.assistant(f"Refunded {item['unit_price']} EUR; the return label uses tracking {each['tracking']}.")
    return script.messages


def coding(seed: int = 12) -> list[Message]:
    """A coding agent: files, searches, failing tests and commits, and a report on them at the end."""
    script = Script(seed)
    notes: list[tuple[str, str, str, int]] = []
    script.user("The nightly build fails. Find out why and fix it. Do not touch the vendor directory.")
    for module in ("parser", "scheduler", "billing", "export", "cache", "mailer", "search", "session"):
        path, function, line = (
            f"/srv/app/src/{module}/core_{module}.py",
            f"load_{module}_state",
            script.chance.randrange(900),
        )
        listing = "\n".join(f"{line + n}:    value_{n} = compute_{module}_{n}(state, {n * 7})" for n in range(25))
        script.call(
            "open_file", f"[File: {path} ({line + 400} lines)]\n{listing}", "Let me open the module.", path=path
        )
        log = "\n".join(f"tests/test_{module}.py::test_case_{n} PASSED" for n in range(12))
        failure = f"{log}\n{path}:{line}: in {function}\nKeyError: '{module}_region'\n1 failed, 12 passed in 3.1s"
        script.call("bash", failure, "Running its tests.", command=f"pytest tests/test_{module}.py -q")
        commit = script.hex()
        notes.append((path, function, commit, line))
        script.call("edit", "File updated.", f"{function} needs a default for {module}_region.", path=path, line=line)
        script.call(
            "bash", f"[main {commit}] Default for {module}_region\n 1 file changed", command="git commit -qam fix"
        )
    script.user("Thanks. Now write the release notes with each path, function and commit.")
    for path, function, commit, line in notes:
        script.assistant(f"In {path} the function {function} failed at line {line}; fixed in commit {commit}.")
        script.user("Go on.")
    return script.messages


def meetings(seed: int = 13) -> list[Message]:
    """An assistant that plans meetings; nothing but speech."""
    script = Script(seed)
    agreed: list[str] = []
    script.user("Help me plan the board's season. Every meeting must end before 17:30, and no meeting on Fridays.")
    for topic in ("budget", "audit", "hiring", "strategy", "research", "pensions", "insurance", "security", "travel"):
        day = f"2031-{script.chance.randrange(1, 13):02}-{script.chance.randrange(1, 29):02}"
        room, hour = script.code("R-", 3), f"{script.chance.randrange(8, 16)}:15"
        others = ", ".join(f"2031-{n:02}-{script.chance.randrange(10, 29)}" for n in range(1, 8))
        script.assistant(
            f"For the {topic} meeting I can offer these days: {others}. Rooms with a projector are few in that season, "
            f"catering needs a week, and the secretary wants the agenda three days before. Which day suits you best?"
        )
        script.user(f"Let us take {day} at {hour} for the {topic} meeting, in room {room}, with the usual guests.")
        script.assistant(f"Agreed: the {topic} meeting is on {day} at {hour} in room {room}. I will send invitations.")
        script.user("Good. Anything else that I should know about it before we go on to the next one?")
        agreed.append(f"the {topic} meeting on {day} at {hour} in room {room}")
    for one in agreed:
        script.user("And the next invitation, please.")
        script.assistant(f"Dear members, you are invited to {one}.")
    return script.messages


def german(seed: int = 14) -> list[Message]:
    """A tenant and a property manager's desk, in German."""
    script = Script(seed)
    cases: list[tuple[str, str, str]] = []
    script.user("Guten Tag, ich verwalte mehrere Wohnungen. Bitte rufen Sie mich niemals vor 9:30 Uhr an.")
    script.assistant("Guten Tag! Um welche Wohnung geht es zuerst?")
    for street in (
        "Ahornweg",
        "Birkenallee",
        "Lindenstraße",
        "Kastanienhof",
        "Eichenring",
        "Buchenplatz",
        "Ulmengasse",
    ):
        flat, contract, sum_ = (
            script.code("WE-", 4),
            script.code("MV2031-", 5),
            f"{script.chance.randrange(700, 1900)},50",
        )
        protocol = "\n".join(
            f"Zählerstand {room}: {script.code('Z', 7)}" for room in ("Küche", "Bad", "Flur", "Keller")
        )
        script.user(f"In der Wohnung {flat} im {street} ist die Heizung ausgefallen, Vertrag {contract}.")
        script.call("wohnung_lesen", f"Wohnung {flat}\nKaltmiete {sum_} EUR\n{protocol}", wohnung=flat)
        script.assistant(
            f"Zur Wohnung {flat} gehört der Vertrag {contract}; die Kaltmiete beträgt {sum_} EUR im Monat."
        )
        cases.append((flat, contract, sum_))
    for flat, contract, sum_ in cases:
        script.user(f"Bitte schreiben Sie dem Mieter der Wohnung {flat} wegen der Minderung.")
        script.assistant(f"Für den Vertrag {contract} wird die Kaltmiete von {sum_} EUR um ein Fünftel gemindert.")
    return script.messages


def japanese(seed: int = 15) -> list[Message]:
    """A warehouse's desk, in Japanese: no spaces between words."""
    script = Script(seed)
    parcels: list[tuple[str, str]] = []
    script.user("荷物の確認をお願いします。必ず番号を確認してから発送してください。")
    script.assistant("承知しました。最初の荷物番号を教えてください。")
    for place in ("札幌", "仙台", "横浜", "名古屋", "京都", "大阪", "神戸", "広島", "福岡"):
        parcel, shelf = script.code("JP-", 8), script.code("T-", 4)
        history = "".join(f"二〇三一年の記録{n}件目、担当者が倉庫で状態を点検しました。" for n in range(6))
        script.user(f"{place}行きの荷物 {parcel} はどこにありますか。")
        script.call("find_parcel", f"荷物 {parcel} は棚 {shelf} にあります。{history}", parcel=parcel)
        script.assistant(f"荷物 {parcel} は棚 {shelf} にあります。")
        parcels.append((parcel, shelf))
    for parcel, shelf in parcels:
        script.user("次の発送をお願いします。")
        script.assistant(f"棚 {shelf} の荷物 {parcel} を発送しました。")
    return script.messages


DIALOGUES: Final[dict[str, Callable[[], list[Message]]]] = {
    "support": support,
    "coding": coding,
    "meetings": meetings,
    "german": german,
    "japanese": japanese,
}
