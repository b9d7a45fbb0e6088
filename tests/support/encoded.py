"""Reads what a summarizer is sent as its rules say it is to be read: frames by their code, then lines by their mark."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_OPENING: Final = re.compile(r"<([a-z-]+)-([0-9a-f]{16})(?: covers=\"[^\"\n]*\")?>")
_HEADING: Final = re.compile(r"\[(-?\d+)\] (user|assistant|tool results)(?: (\S+))?")
_LEFT_OUT: Final = re.compile(r"\+ [\d,]+ characters left out of the middle")


@dataclass
class Heard:
    """One message as a reader who follows the rules takes it."""

    seq: int
    speaker: str
    time: str | None = None
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)


@dataclass
class Request:
    """A prompt taken apart: what stands outside every frame, and each frame by name."""

    task: str
    frames: list[tuple[str, str]]

    def body(self, name: str) -> str:
        (content,) = [text for each, text in self.frames if each == name]
        return content

    @property
    def messages(self) -> list[Heard]:
        return messages(self.body("transcript"))


def request(prompt: str) -> Request:
    """Take a prompt apart; a frame that is not closed, or closed by another's code, fails."""
    outside: list[str] = []
    frames: list[tuple[str, str]] = []
    lines = iter(prompt.split("\n"))
    for line in lines:
        opened = _OPENING.fullmatch(line)
        if opened is None:
            outside.append(line)
            continue
        inside: list[str] = []
        closing = f"</{opened[1]}-{opened[2]}>"
        for inner in lines:
            if inner == closing:
                break
            assert not inner.startswith("<"), inner
            inside.append(inner)
        else:
            raise AssertionError(f"{opened[0]} is not closed")
        frames.append((opened[1], "\n".join(inside)))
    return Request("\n".join(outside).strip(), frames)


def messages(body: str) -> list[Heard]:
    """Read a transcript; a line that is neither a heading nor marked fails."""
    heard: list[Heard] = []
    for line in body.split("\n") if body else []:
        if heading := _HEADING.fullmatch(line):
            heard.append(Heard(int(heading[1]), heading[2], heading[3]))
            continue
        mark, rest = line[:1], line[2:]
        assert mark in {"|", "~", "+"}, line
        assert line[1:2] in {"", " "}, line
        if _LEFT_OUT.fullmatch(line):
            continue
        assert heard, line
        {"|": heard[-1].words, "~": heard[-1].data, "+": heard[-1].notes}[mark].append(rest)
    return heard


def unmarked(body: str) -> str:
    """Return the text of a frame whose lines are all words."""
    assert all(line == "|" or line.startswith("| ") for line in body.split("\n")), body
    return "\n".join(line[2:] for line in body.split("\n"))
