"""What a node releases when it has left: its member of the store, the store, its port.

The order of leaving is decided by what the store's members agree on (`store/member_server.py`): a
member is removed, and one that leads hands over first; the last one waits for the other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, TimeoutExpired
from holdfast.net.address import Address
from holdfast.records import dataclass
from holdfast.rendezvous.model import Announcement, Keys, Phase
from holdfast.rendezvous.port import HeldPort
from holdfast.store.store import Store

if TYPE_CHECKING:
    from holdfast.net.secret import Secret
    from holdfast.rendezvous.store_host import StoreHost
    from holdfast.store.server import StoreServer

__all__ = ["MeetingStore", "Release"]

HANG_UP_WITHIN_S = 1.0
"""How long a host waits for nodes that have left to disconnect."""
HAND_OVER_S = 10.0
"""How much of the time for leaving is kept for handing the store over."""
IN_HASTE_S = 2.0
"""How long a host that is interrupted tries to hand over."""
STOP_LOOK_S = 0.1
_LOOK_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class MeetingStore:
    """The store where nodes meet, what is nearest to it, and its server if this node hosts it."""

    store: Store
    towards: Address | None
    server: StoreServer | None = None
    secret: Secret | None = None
    shared: bool = False
    """Whether the run's agents keep the store together."""


@dataclass(slots=True)
class Release:
    """What a node releases when it has left."""

    place: MeetingStore
    held: HeldPort
    host: StoreHost | None = None
    is_ending: Callable[[], bool] = lambda: False
    """Say whether the whole job ends, as far as this node knows."""

    def __call__(self, keys: Keys, deadline: Deadline) -> bool:
        """Close everything; a member of the store leaves it first, and the last one waits (E3).

        A node that has left may still wait to hear so: without a store it would look for one.
        """
        server = self.place.server if self.host is None else self.host.stop()
        alone = False
        try:
            alone = server is None or self._leave(server, keys, deadline)
        finally:
            self.place.store.close()
            if server is not None:
                if alone:
                    _wait_quiet(server, deadline.sooner(HANG_UP_WITHIN_S))
                else:  # interrupted, or too late: the others may still need the store
                    server.leave(IN_HASTE_S)
                server.close()
            self.held.close()
        return alone

    def _leave(self, server: StoreServer, keys: Keys, deadline: Deadline) -> bool:
        """Leave the other members, or be the last one when all nodes have left."""
        if server.leads and self.is_ending():  # the others leave as well, and are waited for
            limit = deadline.sooner(max(0.0, (deadline.remaining() or 0.0) - HAND_OVER_S))
            if self._wait_alone(keys, limit, lambda: False):
                _wait(lambda: server.alone, deadline.sooner(HANG_UP_WITHIN_S))
        while not deadline.passed():
            if server.leave(deadline.sooner(HAND_OVER_S).remaining()):
                return True
            if not server.alone:
                return server.deserted
            if self._wait_alone(keys, deadline, lambda: not server.alone):
                return True
            if server.alone:
                return False  # the store cannot be read
        return False

    def _wait_alone(self, keys: Keys, deadline: Deadline, stop: Callable[[], bool]) -> bool:
        """Wait until no other node is there; False at the deadline, or as soon as `stop()`."""
        store = self.place.store
        try:
            with store.watch(keys.nodes, prefix=True, timeout=deadline.remaining()) as watch:
                entries = store.list_prefix(keys.nodes, timeout=deadline.remaining())
                here = {entry.key for entry in entries if _is_here(entry.value)}
                while here:
                    if stop():
                        return False
                    try:
                        change = watch.next(deadline.sooner(STOP_LOOK_S).remaining())
                    except TimeoutExpired:
                        if deadline.passed():
                            return False
                        continue
                    (here.add if _is_here(change.value) else here.discard)(change.key)
        except HoldfastError:
            return False
        return True


def _wait(done: Callable[[], bool], deadline: Deadline) -> None:
    while not done() and not deadline.passed():
        SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)


def _wait_quiet(server: StoreServer, deadline: Deadline) -> None:
    """Wait until no client is connected any more."""
    _wait(lambda: not server.status().connections, deadline)


def _is_here(announced: bytes | None) -> bool:
    """Say whether a node takes part, by its announcement."""
    return announced is not None and Announcement.decode(announced).phase is not Phase.LEFT
