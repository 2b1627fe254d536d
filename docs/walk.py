"""Follow live calls through the files, and count what a reader must follow. Run by `make walk`.

For each walk: how many functions of ours are called at the caller, in how many files, on how many
threads, and how often a file is entered again that had been left. A walk that returns to the same
files is hard to read, whatever each file looks like. `--files` lists the way itself.
"""

from __future__ import annotations

import gc
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast import rpc
from holdfast.testing.rpcworld import RpcWorld

SOURCE = str(Path(holdfast.__file__).parent)
POLICY = rpc.RetryPolicy()
TIMES = 10
"""How often a call is followed; the shortest walk counts: in others a thread acts by chance."""


class Walk:
    """The functions of ours that were called, in their order, on all threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[tuple[int, str, str]] = []  # thread, file, function

    @property
    def files(self) -> list[str]:
        """The files in the order of the calls, each once for as long as the walk stays in it.

        A thread has a way of its own: what others do meanwhile is no return.
        """
        by_thread: dict[int, list[str]] = {}
        for thread, file, _ in self.steps:
            by_thread.setdefault(thread, []).append(file)
        return [file for way in by_thread.values() for file, _ in groupby(way)]

    def __str__(self) -> str:
        files, threads = self.files, {thread for thread, _, _ in self.steps}
        cells = (len(self.steps), len(set(files)), len(threads), len(files) - len(set(files)))
        return f"| {self.name} | {' | '.join(map(str, cells))} |"


class Recorder:
    """Records the calls of all threads that begin after it, while a walk is set."""

    def __init__(self) -> None:
        self.walk: Walk | None = None
        threading.setprofile(self._event)
        sys.setprofile(self._event)  # this thread has begun already

    @contextmanager
    def record(self, name: str) -> Iterator[Walk]:
        """Record what is called."""
        self.walk = Walk(name)
        try:
            yield self.walk
        finally:
            self.walk = None

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        walk, path = self.walk, frame.f_code.co_filename
        if event == "call" and walk is not None and path.startswith(SOURCE):
            file = path.removeprefix(SOURCE + "/")
            walk.steps.append((threading.get_ident(), file, frame.f_code.co_qualname))


def store_set(store: holdfast.Store) -> None:
    """Write a key."""
    store.set("key", b"value")


def call() -> None:
    """Make a call and wait for it."""
    rpc.rpc_sync("worker1", operator.add, args=(1, 2))


def call_with_retries() -> None:
    """Make a call that may be sent again, and wait for its future."""
    rpc.rpc_async("worker1", operator.add, args=(1, 2), retries=POLICY).wait()


def use_reference() -> None:
    """Create a value elsewhere, pass the reference to its owner, drop it."""
    reference = rpc.remote("worker1", int, args=("7",))
    rpc.rpc_sync("worker1", rpc.RRef.local_value, args=(reference,))
    del reference


def main() -> None:
    """Print the table, and with `--files` the way of each walk."""
    recorder = Recorder()
    walks: list[Walk] = []

    def follow(name: str, act: Callable[..., None], *args: Any, times: int = TIMES) -> None:
        for _ in range(3):  # the first ones open connections
            act(*args)
        taken = []
        gc.collect()
        for _ in range(times):
            with recorder.record(name) as walk:
                act(*args)
            taken.append(walk)
        walks.append(min(taken, key=lambda walk: len(walk.steps)))

    server = holdfast.serve_store("tcp://127.0.0.1:0")
    with server, holdfast.open_store(server.endpoint) as store:
        follow("store `set` over `tcp://`, both sides", store_set, store)
    with RpcWorld(2):
        follow("`rpc_sync`, warm", call)
        follow("asynchronous call with retries", call_with_retries)
        # Once: the deletion runs on another thread, beside the next walk.
        follow("`RRef`: create, pass to its owner, delete", use_reference, times=1)
    sys.setprofile(None)
    print("| walk, at the caller | calls | files | threads | returns to a file |")
    print("|---|---|---|---|---|")
    for walk in walks:
        print(walk)
    if "--files" in sys.argv[1:]:
        for walk in walks:
            print(f"\n{walk.name}")
            for (thread, file), steps in groupby(walk.steps, key=operator.itemgetter(0, 1)):
                names = ", ".join(name for _, _, name in steps)
                print(f"  {thread % 10_000:>4}  {file}: {names}")


if __name__ == "__main__":
    main()
