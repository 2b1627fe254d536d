"""The callee's memory of calls that may be retried, so that each runs at most once.

A caller that does not know whether its request arrived retries it, with the same number and marked
`once`. The first request runs. Retries that arrive while it runs wait for its reply; later ones get
the kept reply. From time to time the caller acknowledges the calls that are over
(`wire/acknowledgement.py`): all below a number, but for some that are still open. The callee then
forgets their replies. It forgets everything of a caller that is gone.

Guarantees
    RC-1  A call of one incarnation of a caller runs at most once, also if it is retried after its
          reply was acknowledged, and in whatever order acknowledgements arrive.
    RC-2  Every request for a call gets the same reply.
    RC-3  The kept replies of each caller are bounded, in calls and in bytes: at the bound, new
          calls are refused rather than old replies forgotten. The size of a reply is known only
          when the call ends, so calls that are running at the bound may still exceed it.
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
"""Twice the greatest number of open calls: acknowledgements may be late."""
KEPT_BYTES_MAX = 1 << 28

Waiter = Callable[[Message], None]


class DedupVerdict(StrEnum):
    """What to do with a request that has arrived."""

    RUN = "run"
    WAIT = "wait"
    """The call runs already: this request will get its reply."""
    ANSWERED = "answered"
    """The call has run: send the kept reply."""
    FORGOTTEN = "forgotten"
    """The caller has acknowledged the reply: this is an old request, and needs none."""
    FULL = "full"
    """Too many, or too large, replies of this caller are kept: refuse the request."""


@dataclass(slots=True)
class _Caller:
    below: int = 0
    """Calls below this number are over at the caller …"""
    still: frozenset[int] = frozenset()
    """… but for these."""
    running: dict[int, list[Waiter]] = field(default_factory=dict)
    answers: dict[int, Message] = field(default_factory=dict)
    size: int = 0
    """The bytes of the kept replies."""

    def is_over(self, call: int) -> bool:
        return call < self.below and call not in self.still


class DedupTable:
    """What is known of the calls of each caller."""

    def __init__(self, kept: int = KEPT_MAX, kept_bytes: int = KEPT_BYTES_MAX) -> None:
        self._kept = kept
        self._kept_bytes = kept_bytes
        self._callers: dict[str, _Caller] = {}

    def arrived(
        self, caller: str, call: int, waiter: Waiter
    ) -> tuple[DedupVerdict, Message | None]:
        """Decide what to do with a request; ANSWERED comes with the kept reply."""
        known = self._callers.setdefault(caller, _Caller())
        if known.is_over(call):
            return DedupVerdict.FORGOTTEN, None
        if call in known.answers:
            return DedupVerdict.ANSWERED, known.answers[call]
        if call in known.running:
            known.running[call].append(waiter)
            return DedupVerdict.WAIT, None
        count = len(known.running) + len(known.answers)
        if count >= self._kept or known.size >= self._kept_bytes:
            return DedupVerdict.FULL, None
        known.running[call] = [waiter]
        return DedupVerdict.RUN, None

    def answered(self, caller: str, call: int, answer: Message) -> list[Waiter]:
        """Keep the reply of a call that has run; return the requests that wait for it."""
        known = self._callers.get(caller)
        if known is None:
            return []
        waiters = known.running.pop(call, [])
        if not known.is_over(call):
            known.answers[call] = answer
            known.size += answer.size()
        return waiters

    def acknowledged(self, caller: str, note: Message) -> None:
        """Forget the replies to calls that are over. A call that one note ends stays over."""
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
        """Return how many replies are kept."""
        return sum(len(known.answers) for known in self._callers.values())
