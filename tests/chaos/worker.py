"""A worker to be killed: it says where it is, and waits to be told how to end.

    python worker.py FOLDER [stubborn]

It computes its share of a sum, so that the end of a job can be checked. One of each node leaves a
daemon behind, which only the agent can end. `marks` in the folder is a pipe for lines of JSON:
which worker starts where, is at work, and is done. A lock that a worker and its daemon
hold shows if an earlier worker of the same node still runs. Nothing of holdfast is imported, since
a job starts many of these.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys

__all__ = ["EXIT", "FINISH", "MARKS", "RAISE", "TOTAL", "Chaos", "main", "share"]

FINISH, EXIT, RAISE = signal.SIGWINCH, signal.SIGUSR1, signal.SIGUSR2
"""What a worker at work is told by: to end well, by exit(3), by an exception."""
MARKS = "marks"
NUMBERS = 10_000
TOTAL = sum(range(NUMBERS))


class Chaos(Exception):
    """What a worker raises when it is told to."""


def share(rank: int, world: int) -> int:
    """Return a worker's part of TOTAL."""
    return sum(range(rank, NUMBERS, world))


def main(folder: str, stubborn: bool) -> None:
    """Be a worker."""
    told = {FINISH, EXIT, RAISE}
    signal.pthread_sigmask(signal.SIG_BLOCK, told)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what Python does of it has to wait for sigwait
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    marks = os.open(os.path.join(folder, MARKS), os.O_WRONLY)
    fields = {
        "rank": rank,
        "world": world,
        "pid": os.getpid(),
        "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        "alone": _is_alone(os.path.join(folder, f"lock-{os.getppid()}-{local_rank}")),
    }

    def mark(kind: str, **more: object) -> None:
        os.write(marks, json.dumps({"mark": kind, **fields, **more}).encode() + b"\n")

    mark("start")
    if local_rank == 0:
        _leave_daemon(marks)
    value = share(rank, world)
    mark("work")
    match signal.sigwait(told):
        case signal.SIGWINCH:
            mark("done", value=value)
        case signal.SIGUSR1:
            os._exit(3)
        case _:
            raise Chaos(f"rank {rank} was told to")


def _is_alone(path: str) -> bool:
    """Say whether this node's lock was free; from now on this process holds it, to its end."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _leave_daemon(marks: int) -> None:
    """Start a process that leaves our session, and that no polite signal ends."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(marks)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], "stubborn" in sys.argv[2:])
