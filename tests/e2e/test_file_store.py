"""The file store between real processes, some of them killed in the middle of their writes."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

from holdfast.store.file import FileStore
from holdfast.store.store import Store

TIMEOUT_S = 60.0

ADDER = """
import os, sys
from holdfast.store import file
file._COMPACT_BYTES_MIN = 3000  # compacted every few dozen operations
path, count, who = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with file.FileStore(path) as store:
    lease = store.grant_lease(3600)
    for _ in range(count):
        store.add("n")
        store.append("log/" + who, b"x")
        store.set("last/" + who, b"y" * 100, lease=lease)
        os.write(1, b".")  # acknowledged
"""

WAITER = """
import os, sys
from holdfast.store.file import FileStore
with FileStore(sys.argv[1]) as store:
    store.set("ready/" + sys.argv[2], b"")
    store.wait(["go"], timeout=60)
    store.add("woken")
"""

HOLDER = """
import os, sys
from holdfast.clock import Deadline
from holdfast.store.file import FileStore
store = FileStore(sys.argv[1])
with store._synced(Deadline(None)):
    os.write(1, b".")
    sys.stdin.read()
"""


@contextmanager
def started(code: str, *arguments: object) -> Iterator[Popen[bytes]]:
    """Run a program; kill it at the end if it is still there."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with Popen(command, stdin=PIPE, stdout=PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def acknowledged(process: Popen[bytes], count: int = -1) -> int:
    """Read so many acknowledgements, or all there are until the process has ended."""
    assert process.stdout is not None
    return len(process.stdout.read(count))


def test_processes_that_are_killed_lose_no_acknowledged_write(tmp_path: Path) -> None:
    path = tmp_path / "store"
    rng = random.Random(20)
    sure = in_doubt = 0
    with started(ADDER, path, 8000, "survivor") as survivor:
        for number in range(12):
            with started(ADDER, path, 10_000, f"victim {number}") as victim:
                seen = acknowledged(victim, rng.randrange(1, 60))
                victim.send_signal(signal.SIGKILL)
                seen += acknowledged(victim)
                assert victim.wait(TIMEOUT_S) == -signal.SIGKILL
            sure += seen
            in_doubt += 1
            with FileStore(path) as store:
                _check_log(store, f"victim {number}", seen, 1)
        survived = acknowledged(survivor)
        assert survivor.wait(TIMEOUT_S) == 0
    with FileStore(path) as store:
        assert survived == 8000
        _check_log(store, "survivor", 8000, 0)
        total = int(store.get("n") or b"0")
        assert sure + survived <= total <= sure + survived + in_doubt
        assert path.stat().st_size < 50_000
        assert sorted(p.name for p in tmp_path.iterdir() if p.name != "store.new") == [
            "store",
            "store.lock",
        ]


def _check_log(store: Store, who: str, sure: int, in_doubt: int) -> None:
    assert sure <= len(store.get(f"log/{who}") or b"") <= sure + in_doubt


def test_concurrent_processes_count_exactly(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with (
        started(ADDER, path, 300, "a") as a,
        started(ADDER, path, 300, "b") as b,
        started(ADDER, path, 300, "c") as c,
    ):
        assert [acknowledged(process) for process in (a, b, c)] == [300] * 3
        assert [process.wait(TIMEOUT_S) for process in (a, b, c)] == [0] * 3
    with FileStore(path) as store:
        assert store.get("n") == b"900"
        assert store.count("log/") == store.count("last/") == 3


def test_processes_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with (
        FileStore(path) as store,
        store.watch("woken") as watch,
        started(WAITER, path, 0) as one,
        started(WAITER, path, 1) as two,
    ):
        store.wait(["ready/0", "ready/1"], timeout=TIMEOUT_S)
        assert one.poll() is two.poll() is None
        store.set("go", b"")
        while watch.next(TIMEOUT_S).value != b"2":
            pass
        assert (one.wait(TIMEOUT_S), two.wait(TIMEOUT_S)) == (0, 0)


def test_a_killed_process_lets_go_of_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with started(HOLDER, path) as holder, FileStore(path) as store:
        acknowledged(holder, 1)
        os.kill(holder.pid, signal.SIGKILL)
        assert store.add("n", timeout=TIMEOUT_S) == 1
