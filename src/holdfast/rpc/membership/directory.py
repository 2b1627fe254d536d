"""Who is where: the workers of a job by name and by number, kept in a store that all share.

    worker/NAME   where the worker of that name is (`Contact`), on the worker's lease
    id/NUMBER     whose number it is, on the same lease
    next          the number that was given last, where numbers are given by us
    ready/NAME    the incarnation that knows all workers of a fixed world
    done/NAME     the incarnation that wants to end, and waits for the others to
    refused/LIFE  see `refusals.py`

A worker's entries vanish with it: `LINGER_S` after its process ends where the store can tell, else
when its lease does. One that comes again under its old name is another *incarnation*: what was
meant for the old one is refused. What it said (`ready`, `done`) stays: others may look later.

Everybody reads the entries as they change, so somebody who is there may not be known here yet.
Who is not known is looked for in the store before he counts as unknown.

Guarantees
    DI-1  At any time a name and a number belong to one incarnation.
    DI-2  Who was found and then lost is told to be lost exactly once.
    DI-3  Who is in the store when he is looked for is found, or the store did not answer in time.
    DI-4  When `meet` returns, every other worker of the world has seen the whole world too.
    DI-5  `finish` ends at its deadline and `close` at its time, and GRACE_S later at the latest,
          whatever the store does.
    DI-6  Who was known here and is gone is told by PeerLost, until another one has his name; of
          very many, the latest OVER_MAX.
    DI-7  A worker that waits for a world of another size than another worker hears so at once: by
          UsageError. A worker that was there before, and says nothing, may be gone and not
          forgotten yet: a warning tells of it, and UsageError if it is still there after its lease.
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
    """The workers of a job. `join` makes this process one of them; `close` takes it out.

    A worker that is silent for `keep_alive_s` is lost, and counts as lost even if it wakes up.
    `lost` hears of each before anything that comes later is known. It must not block, but what it
    returns may, and is called on a thread of its own: whoever waited for that worker may want to
    call others.
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
        self._tellers: set[threading.Thread] = set()
        # Replaced whole when something changes, so that looking needs no lock.
        self._names: dict[str, Contact] = {}
        self._ids: dict[int, Contact] = {}
        self._lives: dict[str, Contact] = {}
        self._gone: dict[str, Contact] = {}
        # Guards what follows, and tells when any of it changes.
        self._changed = threading.Condition()
        self._over: dict[str, None] = {}  # lives that are over: the latest ones
        self._size: WorldSize | None = None  # where the world has one
        self._refusals = Refusals(store)
        self._looked_at = clock.monotonic()  # for a refusal
        self._failure: HoldfastError | None = None

    def next_id(self, first: int, deadline: Deadline) -> int:
        """Return a number that nobody was given before, and that nobody has chosen for himself."""
        while True:
            number = first + self._store.add("next", timeout=deadline.remaining()) - 1
            if self._store.get(f"id/{number}", timeout=deadline.remaining()) is None:
                return number

    def join(self, contact: Contact, deadline: Deadline, fixed: bool = False) -> None:
        """Enter this worker; TimeoutExpired if its name or number stays taken by another one.

        Who has it may be an earlier life of this worker that is over. Where names and numbers are
        `fixed`, that one had both: UsageError at once if somebody has the name and another number.
        """
        self._keeper = LeaseKeeper(
            self._store,
            self._keep_alive_s,
            linger=LINGER_S,
            on_lost=lambda loss: _log.warning("%s was given up: %s", contact.info, loss),
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
        """Wait until so many workers are there; TimeoutExpired says how many were."""
        while True:
            self._check_size()
            with self._changed:
                if len(self._names) >= world_size:
                    return self.everybody()
                if self._failure is not None:
                    raise self._failure
                if deadline.passed():
                    here = ", ".join(sorted(self._names)) or "nobody"
                    here += self._size.others(self.everybody()) if self._size else ""
                    raise TimeoutExpired(
                        f"{len(self._names)} of {world_size} workers came in time: {here}"
                    )
                self._changed.wait(deadline.sooner(self._look_every_s).remaining())

    def meet(self, me: Contact, world_size: int, deadline: Deadline) -> None:
        """Wait until so many workers are there, and each of them has seen as many."""
        world = self.wait_for(world_size, deadline)

        def all_of_them() -> tuple[Contact, ...]:
            nonlocal world
            self._check_size()
            if len(self._names) >= world_size:  # else somebody was quick, and has left already
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
        """Refuse to wait with workers that wait for more others, or for fewer (DI-7)."""
        size, now = self._size, self._clock.monotonic()
        if size is None:
            return
        other = size.other(self._names.values(), now)
        if other is not None:
            if size.comes(other):
                self._refuse(other, size.me)
        elif (last and size.in_doubt) or now - self._looked_at >= self._look_every_s:
            self._looked_at = now
            other = self._refusals.heard(size.me)
        if other is not None:
            raise UsageError(size.mismatch(other))

    @property
    def _look_every_s(self) -> float:
        return LOOK_EVERY_S if self._size and self._size.in_doubt else LOOK_SELDOM_S

    def _refuse(self, other: Contact, me: Contact) -> None:
        """Tell a worker of another world so, and let it hear that: the store may be ours."""
        self._refusals.tell(other, me)
        deadline = Deadline.after(HEARD_WITHIN_S, self._clock)
        while other.incarnation in self._lives and not deadline.passed():
            if self._refusals.heard(me) is not None:
                break  # the other one knows as well
            with self._changed:
                self._changed.wait(deadline.sooner(LOOK_EVERY_S).remaining())

    def find(self, target: str | int | WorkerInfo) -> Contact:
        """Return where a worker is now.

        PeerLost if he was there, and is gone; UsageError if nobody of that name or number was.
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
        """Return where this life of a worker is; PeerLost if it is over.

        If it is not known here, and the store does not tell in time, what the store raises.
        """
        contact = self._lives.get(incarnation)
        if contact is None and incarnation not in self._over:
            contact = self._look_for_life(incarnation)
        if contact is None:
            raise PeerLost("Connection closed by peer (it is gone)", incarnation=incarnation)
        return contact

    def everybody(self) -> tuple[Contact, ...]:
        """Return all workers that are there, by number."""
        return tuple(sorted(self._names.values(), key=lambda contact: contact.info.id))

    def say_done(self, me: Contact, deadline: Deadline) -> None:
        """Say that this worker wants to end."""
        self._say("done", me, deadline)

    def finish(self, me: Contact, deadline: Deadline) -> tuple[str, ...]:
        """Say that this worker wants to end, and wait until all others do.

        Return the names of those who do not, and of those who were lost before they did.
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
        """Leave. What takes longer is left to itself: our entries end with their lease.

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
        tellers = self._tellers - {threading.current_thread()}
        for thread in (reader, *tellers):
            if thread is not None:
                thread.join(deadline.remaining())

    # Looking for who is not known.

    def _known(self, target: str | int | WorkerInfo) -> Contact:
        if isinstance(target, str):
            return self._names[target]
        if isinstance(target, WorkerInfo):
            return self._names[target.name]
        return self._ids[target]

    def _look_for(self, target: str | int | WorkerInfo) -> None:
        """Look into the store for somebody; if he is there, wait until he is known here, too."""
        if self._watch is None or self._failure is not None:
            return  # nobody becomes known here any more
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
        # Who is not there any more will not be again: a life is entered before it is heard of.
        with self._changed:
            self._note_over(incarnation)
        return None

    def _entries(self, deadline: Deadline) -> Iterator[Contact]:
        """Return the workers that the store has now."""
        for entry in self._store.list_prefix(_WORKERS, timeout=deadline.remaining()):
            with suppress(PeerViolation):
                yield decode_entry(entry.value)

    def _wait_until(self, known: Callable[[], bool], deadline: Deadline) -> None:
        """Wait for what the store has, so that only the reader enters, and in order (DI-2)."""
        with self._changed:
            while not known() and self._failure is None:
                if deadline.passed():
                    raise TimeoutExpired("it is there, but has not become known here in time")
                self._changed.wait(deadline.remaining())

    # What all say.

    def _say(self, topic: str, me: Contact, deadline: Deadline) -> None:
        if self._keeper is not None:
            _ = self._keeper.lease  # raises if we are lost: another one may have our name
        value = me.incarnation.encode()
        self._store.set(f"{topic}/{me.info.name}", value, timeout=_at_least(deadline, GRACE_S))

    def _gather(
        self, topic: str, me: Contact, who: Callable[[], tuple[Contact, ...]], deadline: Deadline
    ) -> set[str]:
        """Say something, and wait until all others have; return who has not."""
        self._say(topic, me, deadline)
        said: dict[str, bytes | None] = {f"{topic}/{me.info.name}": me.incarnation.encode()}
        with self._store.watch(
            f"{topic}/", prefix=True, timeout=_at_least(deadline, GRACE_S)
        ) as watch:
            while _silent(topic, who(), said):
                try:  # also looks from time to time who is still there
                    change = watch.next(deadline.sooner(LOOK_EVERY_S).remaining())
                except TimeoutExpired:
                    if deadline.passed():  # and what was said in time has been heard
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
        """Take a key that nobody holds; wait while somebody does, since he may be gone already.

        Unless `check` refuses what he has entered.
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
                self._do_beside(partial(self._refusals.tell, contact, size.me))
        with self._changed:
            self._names, self._gone = names, gone
            self._ids = {other.info.id: other for other in names.values()}
            self._lives = {other.incarnation: other for other in names.values()}
            if old is not None and lost:
                self._note_over(old.incarnation)
            self._changed.notify_all()
        tell = self._lost(old) if old is not None and lost else None
        if tell is not None:
            self._do_beside(tell)

    def _do_beside(self, act: Callable[[], None]) -> None:
        def do() -> None:
            try:
                act()
            finally:
                self._tellers.discard(threading.current_thread())

        thread = threading.Thread(target=do, name="holdfast-rpc-loss", daemon=True)
        self._tellers.add(thread)
        try:
            thread.start()
        except RuntimeError:
            do()  # there is no thread to be had: better here than not at all
            self._tellers.discard(thread)

    def _note_over(self, incarnation: str) -> None:
        self._over[incarnation] = None
        _trim(self._over)


def _trim(known: dict[str, Any]) -> None:
    """Forget the oldest of too many."""
    while len(known) > OVER_MAX:
        del known[next(iter(known))]


def _silent(
    topic: str, contacts: Iterable[Contact], said: dict[str, bytes] | dict[str, bytes | None]
) -> set[str]:
    """Return the names of those who have not said something, in this life of theirs."""
    return {
        other.info.name
        for other in contacts
        if said.get(f"{topic}/{other.info.name}") != other.incarnation.encode()
    }


def _at_least(deadline: Deadline, seconds: float) -> float | None:
    """Return what is left, or a little where that is less: for what must be said in any case."""
    left = deadline.remaining()
    return None if left is None else max(left, seconds)


def _check_holder(me: WorkerInfo, other: WorkerInfo) -> None:
    """Refuse to wait for a worker of our name that is not ourselves in an earlier life."""
    if other.id != me.id:
        first, second = sorted((me.id, other.id))
        raise UsageError(
            f"RPC worker name {me.name} is not unique. "
            f"Workers {first} and {second} share the same name."
        )
