"""What workers are asked to do in tests of calls."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from typing import Any

from holdfast.clock import SYSTEM_CLOCK
from holdfast.rpc.api import async_execution, rpc_async, rpc_sync
from holdfast.rpc.client.deadlines import deadline_here
from holdfast.rpc.client.future import Future, wait_all

counts: dict[str, int] = {}
gates: dict[str, threading.Event] = {}
_lock = threading.Lock()


class Odd(Exception):
    """An error that cannot be made from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Stubborn(Exception):
    """An error that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("stubborn")


def add(one: int, two: int = 0) -> int:
    return one + two


def fail(kind: type[BaseException], *args: object) -> None:
    raise kind(*args)


def lock() -> object:
    return threading.Lock()


def count(name: str) -> int:
    with _lock:
        counts[name] = counts.get(name, 0) + 1
        return counts[name]


def counted(name: str) -> int:
    return counts.get(name, 0)


def gate(name: str) -> threading.Event:
    with _lock:
        return gates.setdefault(name, threading.Event())


def wait_at(name: str) -> int:
    """Count, and wait until the gate is opened."""
    number = count(name)
    if not gate(name).wait(120):
        raise AssertionError("no call opened the gate")
    return number


_all_here = threading.Barrier(300)


def meet() -> int:
    """Wait until 300 calls of this function are here."""
    return _all_here.wait(60.0)


def open_gate(name: str) -> None:
    gate(name).set()


def nested(me: str, other: str, depth: int) -> int:
    """Call back and forth."""
    if not depth:
        return 0
    return 1 + int(rpc_sync(other, nested, (other, me, depth - 1)))


def memory_mib() -> int:
    """Return how much memory this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def nested_async(me: str, other: str, depth: int) -> int:
    if not depth:
        return 0
    return 1 + int(rpc_async(other, nested_async, (other, me, depth - 1)).wait())


def call_all(names: list[str], rounds: int) -> int:
    """Call all workers, each of which calls all too."""
    total = 0
    for _ in range(rounds):
        total += sum(wait_all([rpc_async(name, add, (1,)) for name in names]))
        total += sum(rpc_sync(name, add, (1,)) for name in names)
        total += sum(wait_all([rpc_async(name, call_back, (names,)) for name in names]))
    return total


def call_back(names: list[str]) -> int:
    return sum(int(rpc_sync(name, add, (1,))) for name in names[:3])


# Without a limit of their own, so that what is left of their caller's holds.


def call_all_waiting(me: str, names: list[str]) -> int:
    """Call all workers, one after the other."""
    return sum(int(rpc_sync(name, add, (1,), timeout=0)) for name in names)


def call_all_together(me: str, names: list[str]) -> int:
    """Call all workers at once."""
    return sum(wait_all([rpc_async(name, add, (1,), timeout=0) for name in names]))


def be_called_back(me: str, names: list[str]) -> int:
    """Call all workers at once; each calls back in both ways while we wait."""
    return sum(wait_all([rpc_async(name, ask_back, (me,), timeout=0) for name in names]))


def ask_back(name: str) -> int:
    return int(rpc_sync(name, add, (1,), timeout=0)) + int(
        rpc_async(name, add, (1,), timeout=0).wait()
    )


@async_execution
def later(name: str, value: int) -> Future[int]:
    """Ask another one, and answer when that has."""
    return rpc_async(name, add, (value, 1)).then(lambda done: int(done.value()) * 10)


@async_execution
def nothing_later() -> int:
    return 5  # an answer that is here already will do


async def coroutine(name: str, value: int) -> int:
    await asyncio.sleep(0)
    return 10 * int(await rpc_async(name, add, (value, 1)))


async def coroutine_deadline(name: str) -> float:
    return float(await rpc_async(name, left))


async def coroutine_forever(name: str) -> None:
    count(name)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        count(f"{name} cancelled")
        raise


async def coroutine_fails(kind: type[BaseException]) -> None:
    await asyncio.sleep(0)
    raise kind("async")


def left() -> float:
    """Return how many seconds the call that runs has left."""
    return deadline_here() - SYSTEM_CLOCK.monotonic()


def left_there(name: str, timeout: float | None) -> float:
    return float(rpc_sync(name, left, timeout=timeout))


def process() -> tuple[int, int, int]:
    """Return the process, its threads and its descriptors."""
    return os.getpid(), threading.active_count(), len(os.listdir("/proc/self/fd"))


def big(size: int) -> bytes:
    return bytes(size)
