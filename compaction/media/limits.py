"""Limits on the media of one request, by provider and model, and what a context has of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.coverage import name_seqs
from compaction.media.files import MediaFacts, media_facts
from compaction.windows import find_by_model, window_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from compaction.policy import Policy

MANY_IMAGES: Final = 21
"""Images of a request from which on the limit on their sides holds (Claude docs, "Vision": more than 20)."""


class MediaLimits(NamedTuple):
    """What one request may have; 0 = no limit.

    `media_bytes` are of base64. `image_side` (pixels) holds once a request has `side_from` images. `image_bytes` is
    what each image may have, of base64; no policy sets it, a provider's refusal may.
    """

    images: int = 0
    image_side: int = 0
    documents: int = 0
    document_pages: int = 0
    media_bytes: int = 0
    side_from: int = MANY_IMAGES
    image_bytes: int = 0

    @property
    def media(self) -> int:
        """Images and pages that a request may have together: where both have a limit, the larger one.

        Claude's is one limit for both: "Too much media: 60 document pages + 50 images > 100".
        """
        return max(self.images, self.document_pages) if self.images and self.document_pages else 0


class MediaLoad(NamedTuple):
    """What a context has of media. `image_side` is the longest side of any image, in pixels; `bytes` are of base64."""

    images: int = 0
    image_side: int = 0
    documents: int = 0
    document_pages: int = 0
    bytes: int = 0

    def __add__(self, other: object) -> MediaLoad:
        """Return the load of both together."""
        if not isinstance(other, MediaLoad):
            return NotImplemented
        return MediaLoad(
            self.images + other.images,
            max(self.image_side, other.image_side),
            self.documents + other.documents,
            self.document_pages + other.document_pages,
            self.bytes + other.bytes,
        )

    def exceeds(self, limits: MediaLimits) -> bool:
        """Return whether a request with this load is over any limit."""
        return (
            _is_over(self.images, limits.images)
            or _is_over(self.documents, limits.documents)
            or _is_over(self.document_pages, limits.document_pages)
            or _is_over(self.images + self.document_pages, limits.media)
            or _is_over(self.bytes, limits.media_bytes)
            or (self.images >= limits.side_from and _is_over(self.image_side, limits.image_side))
        )


NO_MEDIA: Final = MediaLoad()


def _is_over(value: int, limit: int) -> bool:
    return 0 < limit < value


def load_of(facts: MediaFacts) -> MediaLoad:
    """Return what one medium adds to a context's load."""
    is_image, is_document = facts.kind == "image", facts.kind == "document"
    return MediaLoad(
        int(is_image),
        max(facts.size) if facts.size else 0,
        int(is_document),
        facts.pages if is_document else 0,
        facts.encoded_bytes,
    )


def media_in(content: Any) -> Iterator[tuple[tuple[int, ...], MediaFacts]]:
    """Yield the media in a message's content, those in tool results too, each with the way to it: indices of lists."""
    if not isinstance(content, list):
        return
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            continue
        if block.get("type") == "tool_result":
            for place, facts in media_in(block.get("content")):
                yield (index, *place), facts
        elif (known := media_facts(block)) is not None:
            yield (index,), known


def media_load(contents: Iterable[Any]) -> MediaLoad:
    """Return the load of messages, given their contents."""
    load = NO_MEDIA
    for content in contents:
        for _, facts in media_in(content):
            load += load_of(facts)
    return load


_IMAGE_MARKS: Final = (b'"image"', b'"image_url"', b'"input_image"')
_DOCUMENT_MARKS: Final = (b'"document"', b'"file"', b'"input_file"')


def may_exceed(text: bytes, limits: MediaLimits) -> bool:
    """Return whether messages as JSON text, in any shape, may be over a limit; False is certain.

    Nothing is parsed: blocks are counted by the names of their types, of which there may be more than media.
    """
    most = min(filter(None, (limits.images, limits.media, limits.image_side and limits.side_from - 1)), default=0)
    if most and sum(map(text.count, _IMAGE_MARKS)) > most:
        return True
    if 0 < limits.media_bytes < len(text):
        return True
    return bool(limits.documents or limits.document_pages) and any(mark in text for mark in _DOCUMENT_MARKS)


def any_may_exceed(texts: Iterable[str], limits: MediaLimits) -> bool:
    """Return what `may_exceed` tells of several texts together."""
    return may_exceed("".join(texts).encode(), limits)


def shed_warning(seqs: Sequence[int]) -> str:
    """Return what a context's answer says of media that gave way to a request's limits."""
    named = name_seqs(seqs)
    return f"images or files gave way to texts that name them, to stay within the model's limits: messages {named}"


_CLAUDE: Final = {
    "max_context_images": 100,
    "max_context_image_side": 2_000,
    "max_context_document_pages": 100,
    "max_context_media_bytes": 30_000_000,
}
_CLAUDE_WINDOW: Final = 200_000
"""Tokens; models with a larger window take more media."""
_CLAUDE_LONG: Final = {**_CLAUDE, "max_context_images": 600, "max_context_document_pages": 600}
_OPENAI: Final = {
    "max_context_images": 500,
    "max_context_image_side": 0,
    "max_context_document_pages": 0,
    "max_context_media_bytes": 48_000_000,
}
_GEMINI: Final = {
    "max_context_images": 3_600,
    "max_context_image_side": 0,
    "max_context_document_pages": 1_000,
    "max_context_media_bytes": 19_000_000,
}
_IMAGES_ALONE: Final = {"max_context_image_side": 0, "max_context_document_pages": 0, "max_context_media_bytes": 0}
_BEDROCK: Final = {"max_context_images": 20, "max_context_documents": 5, "max_context_media_bytes": 19_000_000}

MEDIA_LIMITS: Final[dict[str, dict[str, int]]] = {
    # Claude docs, "Vision" and "PDF support": 100 images and 100 pages a request for models with a window of 200,000
    # tokens, 600 for all others; 2,000 pixels a side with more than 20 images; 32 MB a request.
    "claude": _CLAUDE,
    # OpenAI docs, "Images and vision": 500 images and 50 MB a request.
    "gpt": _OPENAI,
    "chatgpt": _OPENAI,
    "o1": _OPENAI,
    "o3": _OPENAI,
    "o4": _OPENAI,
    # ai.google.dev, "Image understanding" and "Document processing": 3,600 images, 1,000 pages; 20 MB in line.
    "gemini": _GEMINI,
    # docs.mistral.ai, "Vision": 8 images a request.
    "mistral": {"max_context_images": 8, **_IMAGES_ALONE},
    "pixtral": {"max_context_images": 8, **_IMAGES_ALONE},
    "ministral": {"max_context_images": 8, **_IMAGES_ALONE},
    "magistral": {"max_context_images": 8, **_IMAGES_ALONE},
    # console.groq.com/docs/vision: 5 images a request, 4 MB of base64. It alone names its models so.
    "llama-4-scout-17b-16e-instruct": {"max_context_images": 5, **_IMAGES_ALONE, "max_context_media_bytes": 3_800_000},
    "llama-4-maverick-17b-128e-instruct": {
        "max_context_images": 5,
        **_IMAGES_ALONE,
        "max_context_media_bytes": 3_800_000,
    },
}
"""Policy keys by the beginning of a model's name; the longest that fits counts. Less than a provider's bytes, as what
is no medium has its place too."""

PROVIDERS: Final[dict[str, dict[str, int]]] = {
    # Amazon Bedrock API reference, "Message": 20 images and five documents; 20 MB a request.
    "bedrock": _BEDROCK,
    # Azure OpenAI, "Quotas and limits": 50 images a chat request.
    "azure": {**_OPENAI, "max_context_images": 50},
    # As above.
    "groq": {"max_context_images": 5, **_IMAGES_ALONE, "max_context_media_bytes": 3_800_000},
}
"""What a provider changes of its models' limits, by the first part of a model's name (`azure/gpt-5`)."""

_ON_BEDROCK: Final = re.compile(
    r"(?:arn:aws:bedrock:|(?:[a-z]{2,6}\.)?(?:anthropic|amazon|meta|mistral|google|openai)\.)"
)
"""Begins the names that Amazon Bedrock gives models."""


def limits_for_model(model: str | None) -> Mapping[str, int]:
    """Return the policy keys on media that are known for a model, none for an unknown one."""
    if not model:
        return {}
    name = model.strip().lower()
    known = dict(find_by_model(name, MEDIA_LIMITS) or {})
    if known == _CLAUDE and window_of(name, 0) > _CLAUDE_WINDOW:
        known = dict(_CLAUDE_LONG)
    provider = name.partition("/")[0] if "/" in name else ""
    if _ON_BEDROCK.match(name):
        provider = "bedrock"
    known.update(PROVIDERS.get(provider, {}))
    return known


def limits_of(policy: Policy) -> MediaLimits:
    """Return the limits that a policy sets."""
    return MediaLimits(
        policy.max_context_images,
        policy.max_context_image_side,
        policy.max_context_documents,
        policy.max_context_document_pages,
        policy.max_context_media_bytes,
    )
