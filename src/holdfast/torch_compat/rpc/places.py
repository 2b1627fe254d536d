"""Where each worker is, by a store of torch (`dist.Store`): the one that `init_rpc` has opened.

    static              whether the group is of a fixed size: 1 or 0
    life/INCARNATION    where that life of a worker is
    devices/INCARNATION the GPUs that it sees, once it uses any
    worker/ID           its incarnation
    ids                 the numbers of the present workers, where workers come and go
    join/…              how far the workers are with leaving together
    secret              the group's, between hosts, if the job has none (`agents.py`)

Such a store has no leases: it reports no worker that is gone. A call finds out when the worker
does not let it connect.

Where workers come and go, one that joins or leaves holds the group's token (torch's Python takes
it).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import PeerLost, TimeoutExpired, Unavailable
from holdfast.rpc.agent import Target
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = ["Places"]

LOOK_EVERY_S = 0.01


class Places:
    """The workers of a group. `enter` makes this process one of them."""

    def __init__(self, store: Any, world_size: int | None, clock: Clock = SYSTEM_CLOCK) -> None:
        # A connection of its own where there are connections: one that waits for a key serves
        # no other thread meanwhile.
        self._store = dist.PrefixStore("holdfast", store.clone())
        self._world_size = world_size
        self._clock = clock
        self._round = 0
        # Guards the writers of what follows; each is replaced whole.
        self._lock = threading.Lock()
        self._names: dict[str, Contact] = {}
        self._ids: dict[int, Contact] = {}
        self._lives: dict[str, Contact] = {}
        self._devices: dict[str, list[str]] = {}

    # Coming.

    def enter(self, contact: Contact) -> None:
        """Enter this worker, and find the others; blocks until all of a fixed group are there."""
        store, me = self._store, contact.info
        self._agree_on_kind()
        store.set(f"life/{contact.incarnation}", json.dumps(asdict(contact)))
        store.set(f"worker/{me.id}", contact.incarnation)
        if self._world_size is None:
            ids = sorted({*self._current_ids(), me.id})
            store.set("ids", json.dumps(ids))
        else:
            ids = list(range(self._world_size))
        for number in ids:
            self._know(self._read(store.get(f"worker/{number}").decode()))

    def show_devices(self, incarnation: str, devices: list[str]) -> None:
        """Tell the others which GPUs this worker sees."""
        self._store.set(f"devices/{incarnation}", json.dumps(devices))

    def leave(self, contact: Contact) -> None:
        """Take this worker out of a group in which workers come and go."""
        ids = [one for one in self._current_ids() if one != contact.info.id]
        self._store.set("ids", json.dumps(ids))
        for what in ("life", "devices"):
            self._store.delete_key(f"{what}/{contact.incarnation}")

    def came(self, name: str, number: int) -> None:
        """Hear that a worker has come."""
        contact = self._read(self._store.get(f"worker/{number}").decode())
        if contact.info.name == name:
            self._know(contact)

    def went(self, name: str) -> Contact | None:
        """Hear that a worker has gone; return its contact, if it was known."""
        with self._lock:
            contact = self._names.get(name)
            if contact is not None:
                self._names = {k: v for k, v in self._names.items() if v is not contact}
                self._ids = {k: v for k, v in self._ids.items() if v is not contact}
                self._lives = {k: v for k, v in self._lives.items() if v is not contact}
        return contact

    # Looking.

    def find(self, target: Target) -> Contact:
        known: dict[Any, Contact] = self._ids if isinstance(target, int) else self._names
        try:
            return known[target.name if isinstance(target, WorkerInfo) else target]
        except KeyError:
            raise RuntimeError(f"worker {target} could not find destination") from None

    def find_incarnation(self, incarnation: str) -> Contact:
        known = self._lives.get(incarnation)
        if known is not None:
            return known
        # A worker that knew us before we knew it.
        with _cores_errors():
            if not self._store.check([f"life/{incarnation}"]):
                gone = "Connection closed by peer (no such worker is known)"
                raise PeerLost(gone, incarnation=incarnation)
            contact = self._read(incarnation)
        with self._lock:
            self._lives = {**self._lives, incarnation: contact}
        return contact

    def devices(self, incarnation: str) -> list[str]:
        """Return the GPUs that a worker sees."""
        found = self._devices.get(incarnation)
        if found is None:
            key = f"devices/{incarnation}"
            with _cores_errors():
                if not self._store.check([key]):
                    return []
                found = json.loads(self._store.get(key))
            with self._lock:
                self._devices = {**self._devices, incarnation: found}
        return found

    def everybody(self) -> list[Contact]:
        """Return all workers that are known, by number."""
        return [contact for _, contact in sorted(self._ids.items())]

    # Leaving together.

    def meet(self, busy: bool, deadline: Deadline) -> bool:
        """Wait until all workers of a fixed group are here; return whether any has been busy."""
        if self._world_size is None:
            return False
        self._round += 1
        here, was_busy = f"join/{self._round}/here", f"join/{self._round}/busy"
        self._store.add(was_busy, int(busy))
        self._store.add(here, 1)
        self._wait_for(here, self._world_size, deadline)
        return bool(self._store.add(was_busy, 0))

    def part(self, number: int, deadline: Deadline) -> None:
        """Read no more; number 0, which may serve the store, waits for the others to do so."""
        if self._world_size is None:
            return
        self._store.add("join/left", 1)
        if number == 0:
            self._wait_for("join/left", self._world_size, deadline)

    def _wait_for(self, key: str, count: int, deadline: Deadline) -> None:
        while self._store.add(key, 0) < count:
            if deadline.passed():
                raise TimeoutExpired(f"not all {count} workers came to shut down in time")
            self._clock.sleep(LOOK_EVERY_S)

    def _agree_on_kind(self) -> None:
        mine = str(int(self._world_size is not None))
        agreed = self._store.compare_set("static", "", mine).decode()
        if agreed != mine:
            raise RuntimeError(
                "RPC group mixes statically and dynamically initialized members which is not "
                f"supported. Static group property is initialized as {agreed} and is trying to be "
                f"set as {mine} "
            )

    def _current_ids(self) -> list[int]:
        if not self._store.check(["ids"]):
            return []
        return [int(one) for one in json.loads(self._store.get("ids"))]

    def _read(self, incarnation: str) -> Contact:
        fields = json.loads(self._store.get(f"life/{incarnation}"))
        return Contact(**{**fields, "info": WorkerInfo(**fields["info"])})

    def _know(self, contact: Contact) -> None:
        info = contact.info
        with self._lock:
            other = self._names.get(info.name)
            if other is not None and other.info.id != info.id:
                raise RuntimeError(
                    f"RPC worker name {info.name} is not unique. Workers {other.info.id} and "
                    f"{info.id} share the same name."
                )
            self._names = {**self._names, info.name: contact}
            self._ids = {**self._ids, info.id: contact}
            self._lives = {**self._lives, contact.incarnation: contact}


@contextmanager
def _cores_errors() -> Iterator[None]:
    """Raise an error that core knows where a store is lost: the answer is unknown."""
    try:
        yield
    except dist.DistError as error:
        raise Unavailable(f"the group's store: {error}") from None
