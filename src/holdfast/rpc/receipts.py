"""The callee's memory of calls that may come again, so that each runs at most once.

A caller that does not know whether its request arrived sends it again, under the same number and
marked `once`. The first one runs; those that come while it runs wait with it, and those that come
later get the answer that was kept. The caller says from time to time which answers it has
(`acknowledged`), and they are forgotten. Everything of a caller is forgotten when it is gone.

Guarantees
    RC-1  A call of one incarnation of a caller is run at most once.
    RC-2  Everybody who asked gets the same answer.
    RC-3  What is kept is bounded for each caller, in calls; when it is full, new calls are refused
          rather than old answers forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.rpc.messages import Message

__all__ = ["KEPT_MAX", "Receipts", "Verdict"]

KEPT_MAX = 4096

Asker = Callable[[Message], None]


class Verdict(StrEnum):
    """What to do with a request that has come."""

    RUN = "run"
    WAIT = "wait"
    """It runs already: the asker will hear the answer."""
    ANSWERED = "answered"
    """The asker has been given the answer that was kept."""
    FORGOTTEN = "forgotten"
    """The caller has said that it has the answer: this is an old request, for nobody."""
    FULL = "full"
    """Too many answers of this caller are kept: refuse it."""


@dataclass(slots=True)
class _Caller:
    below: int = 0
    """Answers to calls below this number have arrived at the caller."""
    running: dict[int, list[Asker]] = field(default_factory=dict)
    answers: dict[int, Message] = field(default_factory=dict)


class Receipts:
    """What is known of the calls of each caller."""

    def __init__(self, kept: int = KEPT_MAX) -> None:
        self._kept = kept
        self._callers: dict[str, _Caller] = {}

    def arrived(self, caller: str, call: int, asker: Asker) -> tuple[Verdict, Message | None]:
        """Judge a request; with ANSWERED comes the answer to give."""
        known = self._callers.setdefault(caller, _Caller())
        if call < known.below:
            return Verdict.FORGOTTEN, None
        if call in known.answers:
            return Verdict.ANSWERED, known.answers[call]
        if call in known.running:
            known.running[call].append(asker)
            return Verdict.WAIT, None
        if len(known.running) + len(known.answers) >= self._kept:
            return Verdict.FULL, None
        known.running[call] = [asker]
        return Verdict.RUN, None

    def answered(self, caller: str, call: int, answer: Message) -> list[Asker]:
        """Keep the answer of a call that has run; return who is to hear it."""
        known = self._callers.get(caller)
        if known is None:
            return []
        askers = known.running.pop(call, [])
        if call >= known.below:
            known.answers[call] = answer
        return askers

    def acknowledged(self, caller: str, below: int) -> None:
        """Forget the answers to calls below this number: the caller has them."""
        known = self._callers.setdefault(caller, _Caller())
        known.below = max(known.below, below)
        for call in [call for call in known.answers if call < known.below]:
            del known.answers[call]

    def gone(self, caller: str) -> None:
        """Forget a caller that is gone."""
        self._callers.pop(caller, None)

    def kept(self) -> int:
        """Return how many answers are kept."""
        return sum(len(known.answers) for known in self._callers.values())
