"""The callee's memory of calls that may come again, so that each runs at most once.

A caller that does not know whether its request arrived sends it again, under the same number and
marked `once`. The first one runs; those that come while it runs wait with it, and those that come
later get the answer that was kept. The caller says from time to time which calls are over
(`wire/acknowledgement.py`): all below a number, but for some that are still open. Their answers are
forgotten. Everything of a caller is forgotten when it is gone.

Guarantees
    RC-1  A call of one incarnation of a caller is run at most once, also if it comes again after
          its answer was acknowledged, and in whatever order acknowledgements come.
    RC-2  Everybody who asked gets the same answer.
    RC-3  What is kept is bounded for each caller, in calls and in bytes: when it is full, new calls
          are refused rather than old answers forgotten. How large an answer is shows only when it
          is there, so the calls that were running then may add to what is full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.rpc.wire.acknowledgement import decode_acknowledgement
from holdfast.rpc.wire.messages import Message

__all__ = [
    "KEPT_BYTES_MAX",
    "KEPT_MAX",
    "DedupTable",
    "DedupVerdict",
]

KEPT_MAX = 1 << 17
"""Twice as many calls as can be under way: notes that tell of answers may be late."""
KEPT_BYTES_MAX = 1 << 28

Waiter = Callable[[Message], None]


class DedupVerdict(StrEnum):
    """What to do with a request that has come."""

    RUN = "run"
    WAIT = "wait"
    """It runs already: the asker will hear the answer."""
    ANSWERED = "answered"
    """It has run: the asker is to be given the answer that was kept."""
    FORGOTTEN = "forgotten"
    """The caller has said that it has the answer: this is an old request, for nobody."""
    FULL = "full"
    """Too many answers of this caller are kept, or too large ones: refuse it."""


@dataclass(slots=True)
class _Caller:
    below: int = 0
    """Calls below this number are over at the caller …"""
    still: frozenset[int] = frozenset()
    """… but for these."""
    running: dict[int, list[Waiter]] = field(default_factory=dict)
    answers: dict[int, Message] = field(default_factory=dict)
    size: int = 0
    """The bytes of the answers."""

    def is_over(self, call: int) -> bool:
        return call < self.below and call not in self.still


class DedupTable:
    """What is known of the calls of each caller."""

    def __init__(self, kept: int = KEPT_MAX, kept_bytes: int = KEPT_BYTES_MAX) -> None:
        self._kept = kept
        self._kept_bytes = kept_bytes
        self._callers: dict[str, _Caller] = {}

    def arrived(self, caller: str, call: int, asker: Waiter) -> tuple[DedupVerdict, Message | None]:
        """Judge a request; with ANSWERED comes the answer to give."""
        known = self._callers.setdefault(caller, _Caller())
        if known.is_over(call):
            return DedupVerdict.FORGOTTEN, None
        if call in known.answers:
            return DedupVerdict.ANSWERED, known.answers[call]
        if call in known.running:
            known.running[call].append(asker)
            return DedupVerdict.WAIT, None
        count = len(known.running) + len(known.answers)
        if count >= self._kept or known.size >= self._kept_bytes:
            return DedupVerdict.FULL, None
        known.running[call] = [asker]
        return DedupVerdict.RUN, None

    def answered(self, caller: str, call: int, answer: Message) -> list[Waiter]:
        """Keep the answer of a call that has run; return who is to hear it."""
        known = self._callers.get(caller)
        if known is None:
            return []
        askers = known.running.pop(call, [])
        if not known.is_over(call):
            known.answers[call] = answer
            known.size += answer.size()
        return askers

    def acknowledged(self, caller: str, note: Message) -> None:
        """Forget the answers to calls that are over. What one note calls over stays so."""
        known = self._callers.setdefault(caller, _Caller())
        other = _Caller(note.call, frozenset(decode_acknowledgement(note)))
        open_ones = {call for call in known.still if not other.is_over(call)}
        open_ones |= {call for call in other.still if not known.is_over(call)}
        known.below = max(known.below, other.below)
        known.still = frozenset(open_ones)
        for call in [call for call in known.answers if known.is_over(call)]:
            known.size -= known.answers.pop(call).size()

    def gone(self, caller: str) -> None:
        """Forget a caller that is gone."""
        self._callers.pop(caller, None)

    def kept(self) -> int:
        """Return how many answers are kept."""
        return sum(len(known.answers) for known in self._callers.values())
