"""Names for things: typed identifiers, how they are made, and what is allowed in them.

Randomness is given by the caller, so that a simulation makes the same ids from the same seed.
"""

from __future__ import annotations

import random
import string
from typing import NewType

from holdfast.errors import UsageError

__all__ = [
    "UNNAMED_RUN",
    "CauseId",
    "LeaseId",
    "NodeId",
    "RunId",
    "SessionId",
    "new_session_id",
    "new_token",
    "run_id",
]

CauseId = NewType("CauseId", str)
"""What set a chain of events in motion; every event and effect of the chain repeats it."""

LeaseId = NewType("LeaseId", int)
"""A lease of a store, unique within that store's life."""

NodeId = NewType("NodeId", str)
"""One node of a run, for as long as it takes part."""

RunId = NewType("RunId", str)
"""The name of one job."""

SessionId = NewType("SessionId", int)
"""One client of a store server, over all its connections. 63 random bits."""

UNNAMED_RUN = "none"
"""The name of a job that was given none, as torchrun calls it: no name of the job's own."""

RUN_ID_MAX = 128
_RUN_ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + "._-")
_TOKEN_ALPHABET = string.ascii_lowercase + string.digits


def run_id(text: str) -> RunId:
    """Check a job's name. It becomes part of file names and keys, so the alphabet is narrow."""
    if not isinstance(text, str):
        raise UsageError(f"run id {text!r:.80}: must be a str, not {type(text).__name__}")
    if not text or len(text) > RUN_ID_MAX or not _RUN_ID_CHARACTERS.issuperset(text):
        raise UsageError(
            f"run id {text[: RUN_ID_MAX + 1]!r}: 1 to {RUN_ID_MAX} letters, digits, "
            "'.', '_' and '-' are allowed"
        )
    if text.startswith("."):
        raise UsageError(f"run id {text!r}: must not begin with '.'")
    return RunId(text)


def new_session_id(rng: random.Random) -> SessionId:
    """Make the id of a new store session; never 0."""
    return SessionId(rng.randrange(1, 1 << 63))


def new_token(rng: random.Random, length: int = 8) -> str:
    """Make a short random name of lower-case letters and digits."""
    return "".join(rng.choice(_TOKEN_ALPHABET) for _ in range(length))
