"""References in replies: kept for callers that have not read the reply.

When the reply to a call arrives, the caller knows that the callee took the references in the
request. The callee has no such proof for the references in the reply: a caller that times out, or
whose connection breaks, does not read the reply, and does not know which references it gave. So the
callee records the references in its replies, and a caller that has not read a reply asks for them
(see *unread* in `rref/protocol.py`).

Guarantees
    RA-1  A caller that asks about a call gets all references that its reply gave and that are not
          settled, as often as it asks.
    RA-2  No reply gives references after its caller has asked about the call: `add` refuses them.
    RA-3  The record is bounded: at most twice the replies that are not settled, or `SWEEP_LEAST`
          replies, and the newest calls that were asked about. A reply that is later than that many
          calls may give references that no worker takes, until its caller is gone.
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
    """A bounded set of keys: it keeps the newest."""

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
    """The references in one worker's replies. `is_open(ticket)`: it is not settled."""

    def __init__(self, remembered: int) -> None:
        self._given: dict[tuple[str, int], list[Ticket]] = {}
        self._asked = RecentKeys(remembered)
        self._sweep_at = SWEEP_LEAST

    def add(
        self, caller: str, call: int, tickets: list[Ticket], is_open: Callable[[Ticket], bool]
    ) -> bool:
        """Record the references in a reply; False if the caller has asked, and will not read it.

        A call may have more than one reply.
        """
        if (caller, call) in self._asked:
            return False
        self._given.setdefault((caller, call), []).extend(tickets)
        if len(self._given) >= self._sweep_at:
            self._sweep(is_open)
        return True

    def ask(self, caller: str, call: int, is_open: Callable[[Ticket], bool]) -> list[Ticket]:
        """Record that a caller will never read a reply; return the references that it gave."""
        self._asked.add((caller, call))
        return [one for one in self._given.get((caller, call), ()) if is_open(one)]

    def __len__(self) -> int:
        return len(self._given)

    def _sweep(self, is_open: Callable[[Ticket], bool]) -> None:
        settled = [key for key, given in self._given.items() if not any(map(is_open, given))]
        for key in settled:
            del self._given[key]
        self._sweep_at = max(SWEEP_LEAST, 2 * len(self._given))
