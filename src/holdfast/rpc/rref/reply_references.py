"""References in answers: who must be told of them, if the answer was not read.

What a call gives with its request is known to be taken when its answer comes. What its answer gives
is not: a caller whose time is up, or whose connection breaks, does not read it, and does not even
know what there was to be read. So the callee notes what it gives in answers, and a caller that has
not read one asks (see *unread* in `rref/protocol.py`).

Guarantees
    RA-1  A caller that asks for a call is told all that its answer gave and that is not settled,
          as often as it asks.
    RA-2  Nothing is given in an answer after its caller has asked: `add` refuses it.
    RA-3  What is kept is bounded: at most twice what is not settled, or `SWEEP_LEAST` answers, and
          the newest calls that were asked for. An answer that is later than that many calls may be
          given to nobody, until its caller is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.rpc.wire.tickets import Ticket

__all__ = ["SWEEP_LEAST", "RecentKeys", "ReplyReferences"]

SWEEP_LEAST = 1024


class RecentKeys:
    """The newest of some keys, in a bounded number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, None] = OrderedDict()

    def add(self, key: Hashable) -> None:
        self._known[key] = None
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)


class ReplyReferences:
    """What one worker has given in answers. `is_open` says of a ticket that it is not settled."""

    def __init__(self, remembered: int) -> None:
        self._given: dict[tuple[str, int], list[Ticket]] = {}
        self._asked = RecentKeys(remembered)
        self._sweep_at = SWEEP_LEAST

    def add(
        self, caller: str, call: int, tickets: list[Ticket], is_open: Callable[[Ticket], bool]
    ) -> bool:
        """Note what an answer gives; False if its caller has asked already, and will not read it.

        A call may be answered more than once.
        """
        if (caller, call) in self._asked:
            return False
        self._given.setdefault((caller, call), []).extend(tickets)
        if len(self._given) >= self._sweep_at:
            self._sweep(is_open)
        return True

    def ask(self, caller: str, call: int, is_open: Callable[[Ticket], bool]) -> list[Ticket]:
        """Hear that a caller has not read an answer, and never will; return what that gave."""
        self._asked.add((caller, call))
        return [one for one in self._given.get((caller, call), ()) if is_open(one)]

    def __len__(self) -> int:
        return len(self._given)

    def _sweep(self, is_open: Callable[[Ticket], bool]) -> None:
        settled = [key for key, given in self._given.items() if not any(map(is_open, given))]
        for key in settled:
            del self._given[key]
        self._sweep_at = max(SWEEP_LEAST, 2 * len(self._given))
