"""Context blocks as they are stored: weighed, outlined, and marked where they are worth a summary (P15, P16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.credentials.masking import mask_text
from compaction.payload.assembly import blocks_tokens
from compaction.recall.handles import context_block_note
from compaction.text.outline import ContextBlock, outline, read_share
from compaction.tokens import CHARS_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compaction.policy import Policy

_ANY_SEQ: Final = 9_999_999
"""Placeholder for the seq that a block gets when it is stored: as long as any."""


class PreparedBlock(NamedTuple):
    """A context block with all that is stored of it; tokens are those of the block as it is in a message."""

    source: str
    title: str
    text: str
    outline: str
    tokens: int
    outline_tokens: int
    is_large: bool
    """Over `context_block_compact_chars`: worth a summary."""


def prepare(blocks: Sequence[ContextBlock], policy: Policy) -> list[PreparedBlock]:
    """Return a turn's blocks with their outlines, each short enough to be carried over alone, with its handle."""
    max_read = read_share(len(block.text) for block in blocks)
    prepared = []
    for position, block in enumerate(blocks):
        tokens = blocks_tokens([block])
        handle = context_block_note(_ANY_SEQ, position, tokens) if policy.recall_handles else ""
        carried = block._replace(handle=handle, is_carried=True)
        short = _short_outline(carried, policy, max_read)
        outline_tokens = blocks_tokens([carried._replace(text=short)])
        if handle and outline_tokens >= tokens:
            short, outline_tokens = block.text, tokens
        prepared.append(
            PreparedBlock(
                block.source,
                block.title,
                block.text,
                short,
                tokens,
                outline_tokens,
                is_large=len(block.text) > policy.context_block_compact_chars,
            )
        )
    return prepared


def masked_outlines(blocks: Iterable[ContextBlock], policy: Policy) -> tuple[ContextBlock, ...]:
    """Return stored blocks with the credentials masked in what compaction wrote of them, unless the policy keeps these.

    What a block says as a whole is as it came.
    """
    if policy.secrets == "keep":
        return tuple(blocks)
    return tuple(map(_mask_block, blocks))


def _mask_block(block: ContextBlock) -> ContextBlock:
    if block.is_carried:
        return block._replace(text=mask_text(block.text, block.seq))
    outline = block.outline and mask_text(block.outline, block.seq)
    return block._replace(outline=outline, text=outline if block.form == "outline" and outline else block.text)


def _short_outline(block: ContextBlock, policy: Policy, max_read: int) -> str:
    """Return the outline, in as many tokens as may be carried over; where none may be, it is a placeholder."""
    section_chars = policy.carry_forward_section_chars
    tokens = policy.carried_context_max_tokens or policy.context_block_compact_chars // CHARS_PER_TOKEN
    limit = tokens * CHARS_PER_TOKEN
    text = outline(block.text, section_chars=section_chars, max_chars=limit, max_read=max_read)
    while text:
        cut_block = block._replace(handle="") if text == block.text else block._replace(text=text)
        excess = blocks_tokens([cut_block]) - tokens
        if excess <= 0:
            return text
        # Where a character weighs more than one, so many fewer characters are more than is asked for: halve at most.
        limit = max(len(text) // 2, len(text) - excess * CHARS_PER_TOKEN)
        text = outline(text, section_chars=section_chars, max_chars=limit).strip()
    # Its name alone is too long to be carried over.
    return outline(block.text, section_chars=section_chars, max_chars=tokens * CHARS_PER_TOKEN, max_read=max_read)
