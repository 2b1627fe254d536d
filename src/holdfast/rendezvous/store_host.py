"""The member of the run's store that this agent hosts: the shell around `hosting.py`.

The founder's member is its server, and costs nothing more. Any other agent has a thread that joins,
and joins again if that is to be; while it hosts a member, the thread waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import HoldfastError, UsageError
from holdfast.net.address import Address, parse_address
from holdfast.rendezvous.hosting import (
    HOSTED_MAX,
    SETTLE_WITHIN_S,
    AskToJoin,
    Hosting,
)
from holdfast.store.client import RemoteStore
from holdfast.store.server import StoreServer
from holdfast.threads import start_thread

__all__ = ["StoreHost"]

JOIN_WITHIN_S = 30.0
STOP_WITHIN_S = 10.0
_SLICE_S = 0.2
_LOOK_EVERY_S = 0.01

_log = logging.getLogger("holdfast.rendezvous")


class StoreHost:
    """What this agent hosts of the store. `make` makes the server of a new member, not started."""

    def __init__(
        self,
        store: RemoteStore,
        make: Callable[[], StoreServer],
        server: StoreServer | None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._make = make
        self._clock = clock
        self._changed = threading.Condition()  # guards what follows
        self._machine = Hosting(founder=server is not None)
        self._server = server
        self._thread: threading.Thread | None = None
        if server is not None:
            server.belongs_to(store.session_id)
            server.on_dismissed = self._dismissed

    def start(self) -> None:
        """Begin to join, unless this agent has founded the store."""
        if self._server is None:
            self._start_thread()

    @property
    def server(self) -> StoreServer | None:
        """The member that is hosted here, if there is one."""
        with self._changed:
            return self._server if self._machine.is_member else None

    def addresses(self) -> tuple[str, ...]:
        """Return where the store's members are, as far as is known; none if it is only one."""
        server = self.server
        known = server.members if server is not None else self._store.members
        return known if len(known) > 1 else ()

    def settle(self, deadline: Deadline) -> None:
        """Wait until the first request to be a member has come to an end (HO-5)."""
        limit = deadline.sooner(SETTLE_WITHIN_S)
        with self._changed:
            while not self._machine.settled and not limit.passed():
                self._changed.wait(limit.sooner(_SLICE_S).remaining())

    def stop(self) -> StoreServer | None:
        """Ask no more; return the server of the member that is hosted here, if there is one."""
        with self._changed:
            was_member = self._machine.is_member
            self._machine.leave()
            server = self._server
            self._changed.notify_all()
        if server is not None and not was_member:
            server.close()  # it was about to join, and is closed a second time there
        if self._thread is not None:
            self._thread.join(STOP_WITHIN_S)
        return server if was_member else None

    def _dismissed(self, why: str) -> None:
        """Hear, on the thread of the server's reactor, that it is no member any more."""
        with self._changed:
            self._machine.dismissed()
            self._changed.notify_all()
            if self._thread is None and not self._machine.is_leaving:
                self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="holdfast-store-host", daemon=True)
        start_thread(thread)
        self._thread = thread

    # On the thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._machine.is_leaving:
                    return
                now = self._clock.monotonic()
                step = self._machine.next_step(max(1, len(self._store.members)), now)
                if not isinstance(step, AskToJoin):
                    self._changed.wait(None if step.at is None else max(0.0, step.at - now))
                    continue
                old = self._server
            if old is not None:
                old.close()
            self._join()

    def _join(self) -> None:
        try:
            server = self._make()
            server.belongs_to(self._store.session_id)
            server.on_dismissed = self._dismissed
            with self._changed:
                if self._machine.is_leaving:
                    return
                self._server = server
            server.join(self._members(), JOIN_WITHIN_S, most=HOSTED_MAX)
        except UsageError as error:
            _log.info("this node hosts no member of the store: %s", error)
            self._tell(lambda: self._machine.refused(self._clock.monotonic()))
        except HoldfastError as error:
            _log.warning("this node hosts no member of the store yet: %s", error)
            self._tell(lambda: self._machine.failed(self._clock.monotonic()))
        else:
            self._tell(self._machine.joined)

    def _members(self) -> tuple[Address, ...]:
        known = self._store.members or self._store.endpoint.removeprefix("tcp://").split(",")
        return tuple(map(parse_address, known))

    def _tell(self, told: Callable[[], None]) -> None:
        with self._changed:
            told()
            self._changed.notify_all()
