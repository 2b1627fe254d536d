"""A worker that holds references for others: `python -m tests.e2e.rref_worker ENDPOINT NAME RANK`.

It ends when its standard input does.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import holdfast
from holdfast.clock import Deadline
from holdfast.rpc import api
from holdfast.rpc.current import current_agent
from holdfast.rpc.rref.rref import RRef

LEASE_S = 600.0
WITHIN_S = 120.0
WORKERS = 3
kept: dict[str, Any] = {}
ready = threading.Event()


def wait_ready() -> bool:
    """Wait until this worker knows all others: it is called as soon as others know it."""
    return ready.wait(WITHIN_S)


def empty() -> dict[str, int]:
    """Wait until no reference is left at this worker; return what is left if time is up."""
    gc.collect()
    rrefs = current_agent().rrefs
    rrefs.wait_empty(Deadline.after(WITHIN_S).remaining)
    return {name: number for name, number in rrefs.counts().items() if number}


def counts() -> dict[str, int]:
    return current_agent().rrefs.counts()


def keep(name: str, rref: RRef[Any] | None) -> None:
    kept[name] = rref


def drop(name: str) -> None:
    del kept[name]
    gc.collect()


def use(rref: RRef[Any]) -> Any:
    return rref.to_here()


def use_kept(name: str) -> Any:
    return kept[name].to_here()


def pass_on(rref: RRef[Any], to: str) -> Any:
    return api.rpc_sync(to, use, args=(rref,))


def keep_at(rref: RRef[Any], to: str, name: str) -> None:
    api.rpc_sync(to, keep, args=(name, rref))


def give_back(rref: RRef[Any]) -> RRef[Any]:
    return rref


def make(value: Any) -> RRef[Any]:
    return RRef(value)


go_on = threading.Event()


def make_late(*_: RRef[Any]) -> list[RRef[Any]]:
    """Return references to a value of this worker and to what was given, when told to go on."""
    if not go_on.wait(WITHIN_S):
        raise TimeoutError("nobody has said to go on")
    return [RRef("late"), *_]


def let_go_on() -> None:
    go_on.set()


def look(rref: RRef[Any]) -> tuple[bool, str, Any]:
    return rref.is_owner(), rref.owner_name(), rref.local_value()


def fail() -> None:
    raise ZeroDivisionError("on purpose")


@contextmanager
def joined(endpoint: str, name: str, rank: int) -> Iterator[None]:
    """Be a worker for a while."""
    with holdfast.open_store(endpoint) as store:
        # No worker counts as lost for being slow: a collection of the whole heap holds the
        # interpreter's lock, for longer than a usual lease on a machine that is busy enough.
        api.init_rpc(
            name,
            rank=rank,
            world_size=WORKERS,
            store=store,
            timeout=WITHIN_S,
            keep_alive=LEASE_S,
        )
        ready.set()
        try:
            yield
        finally:
            ready.clear()
            api.shutdown(graceful=False)


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.dump_traceback_later(100, exit=True)
    # What is pickled names functions of this module by its real name.
    from tests.e2e import rref_worker

    with rref_worker.joined(sys.argv[1], sys.argv[2], int(sys.argv[3])):
        sys.stdin.read()
