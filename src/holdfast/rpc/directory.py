"""Who is where: the workers of a job by name and by number, kept in a store that all share.

    worker/NAME   where the worker of that name is (`Contact`), on the worker's lease
    id/NUMBER     whose number it is, on the same lease
    next          the number that was given last, where numbers are given by us
    done/NAME     the incarnation that wants to end, and waits for the others to

A worker's entries vanish with it: `LINGER_S` after its process ends where the store can tell, else
when its lease does. One that comes again under its old name is another *incarnation*: what was
meant for the old one is refused.

Guarantees
    DI-1  At any time a name and a number belong to one incarnation.
    DI-2  Who was found and then lost is told to be lost exactly once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import HoldfastError, PeerLost, PeerViolation, TimeoutExpired, UsageError
from holdfast.rpc.names import WorkerInfo
from holdfast.rpc.peers import Contact
from holdfast.store.lease import LeaseKeeper
from holdfast.store.ops import Lease
from holdfast.store.store import Store, Watch

__all__ = ["Directory"]

LEASE_S = 10.0
LINGER_S = 0.5
LOOK_EVERY_S = 0.2
_WORKERS = "worker/"

_log = logging.getLogger("holdfast.rpc")


class Directory:
    """The workers of a job. `join` makes this process one of them; `close` takes it out."""

    def __init__(
        self,
        store: Store,
        *,
        lost: Callable[[Contact], None] = lambda contact: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._lost = lost
        self._clock = clock
        self._keeper: LeaseKeeper | None = None
        self._watch: Watch | None = None
        self._reader: threading.Thread | None = None
        # Replaced whole when something changes, so that looking needs no lock.
        self._names: dict[str, Contact] = {}
        self._ids: dict[int, Contact] = {}
        self._gone: dict[str, Contact] = {}
        self._changed = threading.Condition()
        self._failure: HoldfastError | None = None

    def next_id(self, timeout: float | None) -> int:
        """Return a number that nobody has had."""
        return self._store.add("next", timeout=timeout) - 1

    def join(self, contact: Contact, deadline: Deadline) -> None:
        """Enter this worker; TimeoutExpired if its name or number stays taken by another one."""
        self._keeper = LeaseKeeper(self._store, LEASE_S, linger=LINGER_S)
        self._keeper.open(deadline.remaining())
        lease, info = self._keeper.lease, contact.info
        value = json.dumps(asdict(contact)).encode()
        self._claim(f"id/{info.id}", info.name.encode(), lease, f"number {info.id}", deadline)
        self._claim(f"{_WORKERS}{info.name}", value, lease, f"name {info.name!r}", deadline)
        self._watch = self._store.watch(_WORKERS, prefix=True, timeout=deadline.remaining())
        self._reader = threading.Thread(
            target=self._read, args=(self._watch,), name="holdfast-rpc-directory", daemon=True
        )
        self._reader.start()

    def wait_for(self, world_size: int, deadline: Deadline) -> None:
        """Wait until so many workers are there; TimeoutExpired says how many were."""
        with self._changed:
            while len(self._names) < world_size:
                if self._failure is not None:
                    raise self._failure
                if deadline.passed():
                    here = ", ".join(sorted(self._names)) or "nobody"
                    raise TimeoutExpired(
                        f"{len(self._names)} of {world_size} workers came in time: {here}"
                    )
                self._changed.wait(deadline.sooner(1.0).remaining())

    def find(self, target: str | int | WorkerInfo) -> Contact:
        """Return where a worker is now; UsageError if nobody of that name or number is there."""
        try:
            if isinstance(target, str):
                return self._names[target]
            if isinstance(target, WorkerInfo):
                return self._names[target.name]
            return self._ids[target]
        except (KeyError, TypeError):
            raise UsageError(
                f"worker {target!r:.140}: unknown; there are {', '.join(sorted(self._names)[:20])}"
            ) from None

    def find_incarnation(self, incarnation: str) -> Contact:
        """Return where this life of a worker is; PeerLost if it is over."""
        for contact in self._names.values():
            if contact.incarnation == incarnation:
                return contact
        raise PeerLost("Connection closed by peer (it is gone)", incarnation=incarnation)

    def everybody(self) -> tuple[Contact, ...]:
        """Return all workers that are there, by number."""
        return tuple(sorted(self._names.values(), key=lambda contact: contact.info.id))

    def say_done(self, me: Contact, timeout: float | None) -> None:
        """Say that this worker wants to end."""
        self._store.set(f"done/{me.info.name}", me.incarnation.encode(), timeout=timeout)

    def finish(self, me: Contact, deadline: Deadline) -> tuple[str, ...]:
        """Say that this worker wants to end, and wait until all others do.

        Return the names of those who do not, and of those who were lost before they did.
        """
        self.say_done(me, deadline.remaining())
        done: dict[str, bytes | None] = {}

        def missing(contacts: Iterable[Contact]) -> set[str]:
            return {
                other.info.name
                for other in contacts
                if done.get(other.info.name) != other.incarnation.encode()
            }

        with self._store.watch("done/", prefix=True, timeout=deadline.remaining()) as watch:
            while missing(self.everybody()) and not deadline.passed():
                try:  # also looks from time to time who is still there
                    change = watch.next(deadline.sooner(LOOK_EVERY_S).remaining())
                except TimeoutExpired:
                    continue
                done[change.key.removeprefix("done/")] = change.value
        for name in missing(self._gone.values()):
            done[name] = self._store.get(f"done/{name}", timeout=deadline.sooner(5.0).remaining())
        return tuple(sorted(missing(self.everybody()) | missing(self._gone.values())))

    def wait_alone(self, me: Contact, deadline: Deadline) -> None:
        """Wait until all others have left."""
        with self._changed:
            while self._names.keys() - {me.info.name} and not deadline.passed():
                self._changed.wait(deadline.sooner(1.0).remaining())

    def close(self) -> None:
        """Leave. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        if self._reader is not None:
            self._reader.join(5.0)
            self._reader = None

    def _claim(self, key: str, value: bytes, lease: Lease, what: str, deadline: Deadline) -> None:
        """Take a key that nobody holds; wait while somebody does, since he may be gone already."""
        with self._store.watch(key, timeout=deadline.remaining()) as watch:
            while True:
                taken = self._store.compare_set(
                    key, None, value, lease=lease, timeout=deadline.remaining()
                )
                if taken.ok or taken.value == value:
                    return
                try:
                    while watch.next(deadline.remaining()).value is not None:
                        pass
                except TimeoutExpired:
                    raise TimeoutExpired(
                        f"{what} is taken by another worker of this job; each needs its own"
                    ) from None

    def _read(self, watch: Watch) -> None:
        try:
            for change in watch:
                name = change.key.removeprefix(_WORKERS)
                try:
                    contact = None if change.value is None else _decode(change.value)
                except PeerViolation as error:
                    _log.warning("%s", error)  # whoever wrote it, the others are still there
                else:
                    self._enter(name, contact)
        except UsageError:
            pass  # closed
        except HoldfastError as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _enter(self, name: str, contact: Contact | None) -> None:
        old = self._names.get(name)
        names = {known: other for known, other in self._names.items() if known != name}
        if contact is not None:
            names[name] = contact
            self._gone.pop(name, None)
        elif old is not None:
            self._gone[name] = old
        with self._changed:
            self._names = names
            self._ids = {other.info.id: other for other in names.values()}
            self._changed.notify_all()
        if old is not None and (contact is None or contact.incarnation != old.incarnation):
            self._lost(old)


def _decode(data: bytes) -> Contact:
    try:
        plain = json.loads(data)
        info = WorkerInfo(**plain.pop("info"))
        return Contact(info=info, **plain)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PeerViolation(f"entry of a worker: {data[:60]!r} is none") from None
