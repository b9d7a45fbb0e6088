"""Palimpsest under LangChain agents."""

from palimpsest_langchain.messages import from_stored, to_stored
from palimpsest_langchain.middleware import PalimpsestMiddleware, PalimpsestState

__all__ = ["PalimpsestMiddleware", "PalimpsestState", "from_stored", "to_stored"]
