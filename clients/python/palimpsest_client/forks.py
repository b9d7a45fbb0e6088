"""Processes that are forked while there is a client: what is not theirs, they begin without.

A connection that two processes write to answers each of them with what the other has asked for, and a lock that was
held by another thread is held for ever in a process that does not have that thread.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_ANEW: Final[weakref.WeakKeyDictionary[Any, Callable[[Any], None]]] = weakref.WeakKeyDictionary()


def in_a_fork(each: T, begin: Callable[[T], None]) -> None:
    """Have `begin` called with it in every process that is forked from this one."""
    _ANEW[each] = begin


def _begin_anew() -> None:
    for each, begin in list(_ANEW.items()):
        begin(each)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
