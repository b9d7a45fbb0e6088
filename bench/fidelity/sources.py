"""Conversations to measure with: recorded ones, or the story that the demo plays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bench.fidelity.recall import wholes
from cli.demo.scenario import job_search
from cli.transcripts.readers import read_transcripts
from cli.transcripts.shaped import in_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.fidelity.recall import Message
    from cli.client.types import Message as Recorded
    from compaction.shapes.inner import Shape

ROOT: Final = Path(__file__).parents[2]
LEAST_MESSAGES: Final = 20
"""Messages; a shorter conversation has no past worth cutting."""


class Source(NamedTuple):
    """Conversations of one kind, under the name that the report gives them."""

    name: str
    conversations: list[list[Message]]
    in_pieces: bool = False
    """Whether they are in another shape than the Messages API's, in which one answer may be several messages."""


def transcripts_folder() -> Path:
    """Return where recorded conversations are looked for: PALIMPSEST_TRANSCRIPTS, else beside the repository."""
    return Path(os.environ.get("PALIMPSEST_TRANSCRIPTS") or ROOT.parent / "shared" / "data")


def sources(paths: Sequence[Path] = (), *, most: int | None = None, shape: Shape = "messages") -> list[Source]:
    """Return the conversations of `paths`, else the recorded ones that are there, else the demo's story.

    In another `shape` each is what a chat of that API would have stored. `most` is how many of each file are taken;
    conversations of fewer than 20 messages are passed over, and so are files with no other. Raises TranscriptError
    for a file that is none, OSError for one that cannot be read.
    """
    long_enough: list[Source] = []
    for path in paths or sorted(transcripts_folder().glob("*.jsonl")):
        read = (_plain(in_shape(transcript.messages, shape)) for transcript in read_transcripts(path))
        long = [messages for messages in read if len(wholes(messages, in_pieces=shape != "messages")) >= LEAST_MESSAGES]
        if long:
            long_enough.append(Source(path.stem, long[:most], in_pieces=shape != "messages"))
    return long_enough or ([] if paths else [scenario(shape)])


def scenario(shape: Shape = "messages") -> Source:
    """Return the demo's conversation."""
    story = [message for turn in job_search(shape=shape).turns for message in turn.turn.messages]
    return Source("job search (the demo's)", [_plain(story)], in_pieces=shape != "messages")


def _plain(messages: Iterable[Recorded]) -> list[Message]:
    return [{"role": message.role, "content": msgspec.json.decode(message.content)} for message in messages]
