"""How many descriptors this process may have open: each connection takes one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

__all__ = ["Limits", "many_descriptors", "share_of_descriptors"]

SHARE = 8
"""One part in so many: what the unauthenticated connections of a server may take."""

Limits: TypeAlias = tuple[int, int]
"""The soft limit and the hard one."""


@contextmanager
def many_descriptors() -> Iterator[Limits | None]:
    """Let this process open as many as the system allows, while the block runs.

    The usual soft limit is for programs with few. Children inherit it: this gives the limits of
    before, for code that starts children; None if they are the same.
    """
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard or not _limit((hard, hard)):
        yield None
        return
    try:
        yield before
    finally:
        _limit(before)


def _limit(limits: Limits) -> bool:
    """Set the limits; say whether that was allowed, as it is not in every sandbox."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        return True
    return False


def share_of_descriptors(most: int) -> int:
    """Return how many unauthenticated connections a server may hold: at most `most`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(most, soft // SHARE))
