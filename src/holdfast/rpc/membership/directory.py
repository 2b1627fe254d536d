"""The workers of a job and their addresses, by name and by number, in a store that all share.

    worker/NAME   where the worker of that name is (`Contact`), on the worker's lease
    id/NUMBER     the name of the worker with this number, on the same lease
    next          the number that was assigned last, where this module assigns numbers
    ready/NAME    the incarnation that knows all workers of a fixed world
    done/NAME     the incarnation that wants to end, and waits for the others to
    refused/LIFE  see `refusals.py`

A worker's entries vanish with it: `LINGER_S` after its process ends if the store can detect that,
else when its lease ends. A worker that rejoins under its old name is another *incarnation*:
requests for the old one are refused. Its `ready` and `done` stay: others may read them later.

Every worker follows the changes of the entries, so a worker may be in the store and not be known
here yet. A worker that is not known here is looked up in the store before it counts as unknown.

Guarantees
    DI-1  At any time a name and a number belong to one incarnation.
    DI-2  The loss of a worker that was found is reported exactly once.
    DI-3  A lookup finds a worker that is in the store, or the store did not respond in time.
    DI-4  When `meet` returns, every other worker of the world has seen the whole world too.
    DI-5  `finish` ends at its deadline and `close` at its time, and GRACE_S later at the latest,
          whatever the store does.
    DI-6  A lookup of a worker that was known here and is gone raises PeerLost, until another worker
          has its name; this holds for the latest OVER_MAX workers that are gone.
    DI-7  A worker that waits for a world of another size than another worker fails at once with
          UsageError. A worker that was there before, and sends no refusal, may be gone with its
          entry left: it causes a warning, and UsageError if it is still there after its lease.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import (
    HoldfastError,
    PeerLost,
    PeerViolation,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.membership.entry import decode_entry, encode_entry
from holdfast.rpc.membership.refusals import Refusals
from holdfast.rpc.membership.world_size import WorldSize
from holdfast.rpc.wire.worker_info import WorkerInfo
from holdfast.store.lease import LeaseKeeper
from holdfast.store.ops import Lease
from holdfast.store.store import Store, Watch

__all__ = ["KEEP_ALIVE_S", "Directory"]

KEEP_ALIVE_S = 10.0
LINGER_S = 0.5
LOOK_EVERY_S = 0.2
LOOK_SELDOM_S = 1.0
LOOK_WITHIN_S = 2.0
GRACE_S = 1.0
LEAVE_WITHIN_S = 2.0
HEARD_WITHIN_S = 3.0
OVER_MAX = 4096
_WORKERS = "worker/"

_log = logging.getLogger("holdfast.rpc")


class Directory:
    """The workers of a job. `join` makes this process one of them; `close` removes it.

    A worker that does not renew its lease for `keep_alive_s` is lost, and stays lost even if it
    resumes. `lost` is called with each lost worker before any later change becomes known. It must
    not block. It may return a function, which is called on a new thread and may block: a call that
    waited for the lost worker may want to call others.
    """

    def __init__(
        self,
        store: Store,
        *,
        lost: Callable[[Contact], Callable[[], None] | None] = lambda contact: None,
        keep_alive_s: float = KEEP_ALIVE_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._lost = lost
        self._keep_alive_s = keep_alive_s
        self._clock = clock
        self._keeper: LeaseKeeper | None = None
        self._watch: Watch | None = None
        self._reader: threading.Thread | None = None
        self._beside: set[threading.Thread] = set()
        # Replaced as a whole on every change, so that lookups need no lock.
        self._names: dict[str, Contact] = {}
        self._ids: dict[int, Contact] = {}
        self._lives: dict[str, Contact] = {}
        self._gone: dict[str, Contact] = {}
        # Guards the fields below; notified when any of them changes.
        self._changed = threading.Condition()
        self._over: dict[str, None] = {}  # incarnations that are gone: the latest ones
        self._size: WorldSize | None = None  # None: workers join and leave freely
        self._refusals = Refusals(store)
        self._looked_at = clock.monotonic()  # when we last checked for a refusal
        self._failure: HoldfastError | None = None

    def next_id(self, first: int, deadline: Deadline) -> int:
        """Return a number that was never assigned before, and that no worker has chosen itself."""
        while True:
            number = first + self._store.add("next", timeout=deadline.remaining()) - 1
            if self._store.get(f"id/{number}", timeout=deadline.remaining()) is None:
                return number

    def join(self, contact: Contact, deadline: Deadline, fixed: bool = False) -> None:
        """Enter this worker; TimeoutExpired if another worker keeps its name or number.

        The holder may be an earlier incarnation of this worker that is gone. If names and numbers
        are `fixed`, that one had both: UsageError at once if the holder has another number.
        """
        self._keeper = LeaseKeeper(
            self._store,
            self._keep_alive_s,
            linger=LINGER_S,
            on_lost=lambda loss: _log.warning("%s has lost its lease: %s", contact.info, loss),
        )
        self._keeper.open(deadline.remaining())
        if contact.world_size:
            before = {each.incarnation for each in self._entries(deadline)}
            stale_until = self._clock.monotonic() + self._keep_alive_s
            self._size = WorldSize(contact, before, stale_until)
        lease, info = self._keeper.lease, contact.info
        value = encode_entry(contact)
        self._claim(f"id/{info.id}", info.name.encode(), lease, f"number {info.id}", deadline)

        def check(entry: bytes | None) -> None:
            if fixed and entry is not None:
                _check_holder(info, decode_entry(entry).info)

        self._claim(f"{_WORKERS}{info.name}", value, lease, f"name {info.name!r}", deadline, check)
        self._watch = self._store.watch(_WORKERS, prefix=True, timeout=deadline.remaining())
        self._reader = threading.Thread(
            target=self._read, args=(self._watch,), name="holdfast-rpc-directory", daemon=True
        )
        self._reader.start()

    def wait_for(self, world_size: int, deadline: Deadline) -> tuple[Contact, ...]:
        """Wait until so many workers have joined; TimeoutExpired contains how many have."""
        while True:
            self._check_size()
            with self._changed:
                if len(self._names) >= world_size:
                    return self.everybody()
                if self._failure is not None:
                    raise self._failure
                if deadline.passed():
                    here = ", ".join(sorted(self._names)) or "none"
                    here += self._size.others(self.everybody()) if self._size else ""
                    raise TimeoutExpired(
                        f"{len(self._names)} of {world_size} workers came in time: {here}"
                    )
                self._changed.wait(deadline.sooner(self._look_every_s).remaining())

    def meet(self, me: Contact, world_size: int, deadline: Deadline) -> None:
        """Wait until so many workers have joined, and each of them has seen as many."""
        world = self.wait_for(world_size, deadline)

        def all_of_them() -> tuple[Contact, ...]:
            nonlocal world
            self._check_size()
            if len(self._names) >= world_size:  # else a worker has left already
                world = self.everybody()
            return world

        missing = self._gather("ready", me, all_of_them, deadline)
        self._check_size(last=True)
        if missing:
            raise TimeoutExpired(
                f"all {world_size} workers came, but not all have seen the others in time: "
                f"{', '.join(sorted(missing)[:20])}"
            )

    def _check_size(self, last: bool = False) -> None:
        """Raise UsageError if another worker waits for a world of another size (DI-7)."""
        size, now = self._size, self._clock.monotonic()
        if size is None:
            return
        other = size.other(self._names.values(), now)
        if other is not None:
            if size.comes(other):
                self._refuse(other, size.me)
        elif (last and size.in_doubt) or now - self._looked_at >= self._look_every_s:
            self._looked_at = now
            other = self._refusals.refused_by(size.me)
        if other is not None:
            raise UsageError(size.mismatch(other))

    @property
    def _look_every_s(self) -> float:
        return LOOK_EVERY_S if self._size and self._size.in_doubt else LOOK_SELDOM_S

    def _refuse(self, other: Contact, me: Contact) -> None:
        """Refuse a worker of another size, and wait until it knows: we may serve the store."""
        self._refusals.refuse(other, me)
        deadline = Deadline.after(HEARD_WITHIN_S, self._clock)
        while other.incarnation in self._lives and not deadline.passed():
            if self._refusals.refused_by(me) is not None:
                break  # the other worker knows it too
            with self._changed:
                self._changed.wait(deadline.sooner(LOOK_EVERY_S).remaining())

    def find(self, target: str | int | WorkerInfo) -> Contact:
        """Return where a worker is now.

        PeerLost if it has left or is lost; UsageError if no worker had that name or number.
        """
        try:
            return self._known(target)
        except (KeyError, TypeError):
            pass
        try:
            self._look_for(target)
            return self._known(target)
        except (KeyError, TypeError, HoldfastError) as error:
            for gone in self._gone.values():
                if target in (gone.info.name, gone.info.id, gone.info):
                    raise PeerLost(
                        f"{gone.info}: Connection closed by peer (it is gone)",
                        peer=gone.info.name,
                        incarnation=gone.incarnation,
                    ) from None
            why = f" ({error})" if isinstance(error, HoldfastError) else ""
            names = ", ".join(sorted(self._names)[:20])
            raise UsageError(f"worker {target!r:.140}: unknown; there are {names}{why}") from None

    def find_incarnation(self, incarnation: str) -> Contact:
        """Return where this incarnation of a worker is; PeerLost if it is gone.

        If it is not known here and the store does not respond in time, raise the store's error.
        """
        contact = self._lives.get(incarnation)
        if contact is None and incarnation not in self._over:
            contact = self._look_for_life(incarnation)
        if contact is None:
            raise PeerLost("Connection closed by peer (it is gone)", incarnation=incarnation)
        return contact

    def everybody(self) -> tuple[Contact, ...]:
        """Return all known workers, sorted by number."""
        return tuple(sorted(self._names.values(), key=lambda contact: contact.info.id))

    def say_done(self, me: Contact, deadline: Deadline) -> None:
        """Announce that this worker wants to end."""
        self._say("done", me, deadline)

    def finish(self, me: Contact, deadline: Deadline) -> tuple[str, ...]:
        """Announce that this worker wants to end, and wait until all others have done so.

        Return the names of the workers that have not, and of those that were lost before.
        """
        missing = self._gather("done", me, self.everybody, deadline)
        gone = self._gone.values()
        if gone:
            entries = self._store.list_prefix("done/", timeout=_at_least(deadline, GRACE_S))
            missing |= _silent("done", gone, {entry.key: entry.value for entry in entries})
        return tuple(sorted(missing))

    def wait_alone(self, me: Contact, deadline: Deadline) -> None:
        """Wait until all others have left."""
        with self._changed:
            while self._names.keys() - {me.info.name} and not deadline.passed():
                self._changed.wait(deadline.sooner(1.0).remaining())

    def close(self, timeout: float | None = LEAVE_WITHIN_S) -> None:
        """Leave. Do not wait for longer than `timeout`: our entries end with their lease anyway.

        Idempotent.
        """
        deadline = Deadline.after(timeout, self._clock)
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close(deadline.remaining())
        reader, self._reader = self._reader, None
        beside = self._beside - {threading.current_thread()}
        for thread in (reader, *beside):
            if thread is not None:
                thread.join(deadline.remaining())

    # Looking up workers that are not known.

    def _known(self, target: str | int | WorkerInfo) -> Contact:
        if isinstance(target, str):
            return self._names[target]
        if isinstance(target, WorkerInfo):
            return self._names[target.name]
        return self._ids[target]

    def _look_for(self, target: str | int | WorkerInfo) -> None:
        """Look a worker up in the store; if it is there, wait until it is known here, too."""
        if self._watch is None or self._failure is not None:
            return  # no more workers become known here
        deadline = Deadline.after(LOOK_WITHIN_S, self._clock)
        name: str | int | None = target.name if isinstance(target, WorkerInfo) else target
        if isinstance(name, int):
            found = self._store.get(f"id/{name}", timeout=deadline.remaining())
            name = None if found is None else found.decode(errors="replace")
        if isinstance(name, str):
            there = self._store.get(f"{_WORKERS}{name}", timeout=deadline.remaining())
            if there is not None:
                self._wait_until(lambda: name in self._names, deadline)

    def _look_for_life(self, incarnation: str) -> Contact | None:
        if self._failure is not None:
            raise Unavailable(f"the directory of workers is lost: {self._failure}")
        if self._watch is None:
            return None
        deadline = Deadline.after(LOOK_WITHIN_S, self._clock)
        if any(each.incarnation == incarnation for each in self._entries(deadline)):
            self._wait_until(
                lambda: incarnation in self._lives or incarnation in self._over, deadline
            )
            return self._lives.get(incarnation)
        # It will not appear later: an incarnation is entered before any other worker knows it.
        with self._changed:
            self._note_over(incarnation)
        return None

    def _entries(self, deadline: Deadline) -> Iterator[Contact]:
        """Return the workers that the store has now."""
        for entry in self._store.list_prefix(_WORKERS, timeout=deadline.remaining()):
            with suppress(PeerViolation):
                yield decode_entry(entry.value)

    def _wait_until(self, known: Callable[[], bool], deadline: Deadline) -> None:
        """Wait for the reader's thread: only it changes the entries here, in order (DI-2)."""
        with self._changed:
            while not known() and self._failure is None:
                if deadline.passed():
                    raise TimeoutExpired("it is there, but has not become known here in time")
                self._changed.wait(deadline.remaining())

    # Announcements.

    def _say(self, topic: str, me: Contact, deadline: Deadline) -> None:
        if self._keeper is not None:
            _ = self._keeper.lease  # raises if we are lost: another worker may have our name
        value = me.incarnation.encode()
        self._store.set(f"{topic}/{me.info.name}", value, timeout=_at_least(deadline, GRACE_S))

    def _gather(
        self, topic: str, me: Contact, who: Callable[[], tuple[Contact, ...]], deadline: Deadline
    ) -> set[str]:
        """Announce a topic, and wait until all others have; return the workers that have not."""
        self._say(topic, me, deadline)
        said: dict[str, bytes | None] = {f"{topic}/{me.info.name}": me.incarnation.encode()}
        with self._store.watch(
            f"{topic}/", prefix=True, timeout=_at_least(deadline, GRACE_S)
        ) as watch:
            while _silent(topic, who(), said):
                try:  # also check regularly which workers are still there
                    change = watch.next(deadline.sooner(LOOK_EVERY_S).remaining())
                except TimeoutExpired:
                    if deadline.passed():  # and all announcements made in time have been read
                        break
                else:
                    said[change.key] = change.value
        return _silent(topic, who(), said)

    def _claim(
        self,
        key: str,
        value: bytes,
        lease: Lease,
        what: str,
        deadline: Deadline,
        check: Callable[[bytes | None], None] = lambda entry: None,
    ) -> None:
        """Take a key that no worker holds; wait while one does, since it may be gone already.

        Do not wait if `check` refuses the holder's entry.
        """
        with self._store.watch(key, timeout=deadline.remaining()) as watch:
            while True:
                taken = self._store.compare_set(
                    key, None, value, lease=lease, timeout=deadline.remaining()
                )
                if taken.ok or taken.value == value:
                    return
                check(taken.value)
                try:
                    while watch.next(deadline.remaining()).value is not None:
                        pass
                except TimeoutExpired:
                    raise TimeoutExpired(
                        f"{what} is taken by another worker of this job; each needs its own"
                    ) from None

    # The reader's thread.

    def _read(self, watch: Watch) -> None:
        try:
            for change in watch:
                name = change.key.removeprefix(_WORKERS)
                try:
                    contact = None if change.value is None else decode_entry(change.value)
                except PeerViolation as error:
                    _log.warning("%s", error)  # one invalid entry does not affect the others
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
        gone = {known: other for known, other in self._gone.items() if known != name}
        if contact is not None:
            names[name] = contact
        elif old is not None:
            gone[name] = old
            _trim(gone)
        lost = old is not None and (contact is None or contact.incarnation != old.incarnation)
        size = self._size
        if contact is not None and size is not None and size.differs(contact):
            _log.warning("%s", size.mismatch(contact))
            if size.comes(contact):
                self._do_beside(partial(self._refusals.refuse, contact, size.me))
        with self._changed:
            self._names, self._gone = names, gone
            self._ids = {other.info.id: other for other in names.values()}
            self._lives = {other.incarnation: other for other in names.values()}
            if old is not None and lost:
                self._note_over(old.incarnation)
            self._changed.notify_all()
        fail_calls = self._lost(old) if old is not None and lost else None
        if fail_calls is not None:
            self._do_beside(fail_calls)

    def _do_beside(self, act: Callable[[], None]) -> None:
        def do() -> None:
            try:
                act()
            finally:
                self._beside.discard(threading.current_thread())

        thread = threading.Thread(target=do, name="holdfast-rpc-loss", daemon=True)
        self._beside.add(thread)
        try:
            thread.start()
        except RuntimeError:
            do()  # no thread could be started: better here than not at all
            self._beside.discard(thread)

    def _note_over(self, incarnation: str) -> None:
        self._over[incarnation] = None
        _trim(self._over)


def _trim(known: dict[str, Any]) -> None:
    """Remove the oldest entries beyond OVER_MAX."""
    while len(known) > OVER_MAX:
        del known[next(iter(known))]


def _silent(
    topic: str, contacts: Iterable[Contact], said: dict[str, bytes] | dict[str, bytes | None]
) -> set[str]:
    """Return the names of the workers whose current incarnation has not announced a topic."""
    return {
        other.info.name
        for other in contacts
        if said.get(f"{topic}/{other.info.name}") != other.incarnation.encode()
    }


def _at_least(deadline: Deadline, seconds: float) -> float | None:
    """Return the time left, but at least `seconds`: for messages that must be sent in any case."""
    left = deadline.remaining()
    return None if left is None else max(left, seconds)


def _check_holder(me: WorkerInfo, other: WorkerInfo) -> None:
    """Raise UsageError if the holder of our name is not an earlier incarnation of this worker."""
    if other.id != me.id:
        first, second = sorted((me.id, other.id))
        raise UsageError(
            f"RPC worker name {me.name} is not unique. "
            f"Workers {first} and {second} share the same name."
        )
