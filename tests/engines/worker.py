"""A worker of the tests of engines: `worker.py end CODE`, `worker.py stay [SIZE]`.

`end` ends rank 0 with this code, and all others with 0. `stay` rings the bell of all hosts and
waits for a signal, on which it saves its work; in a world of SIZE workers it ends at once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

RANK, SIZE = os.environ["RANK"], os.environ["WORLD_SIZE"]
SHARED = Path("/mnt")


def say(*words: str) -> None:
    """Print a line at once and whole."""
    os.write(1, " ".join(words).encode() + b"\n")


def save(number: int, frame: FrameType | None) -> None:
    """Save the work, as a worker does that is told to end."""
    unfinished = SHARED / f"unfinished-{RANK}"
    unfinished.write_text(signal.Signals(number).name)
    unfinished.rename(SHARED / f"saved-{RANK}")
    say("saved", RANK)
    sys.exit(0)


def main(what: str, argument: str = "") -> None:
    say(
        "rank",
        RANK,
        "of",
        SIZE,
        "on",
        os.uname().nodename,
        "run",
        os.environ["TORCHELASTIC_RUN_ID"],
    )
    if what == "end":
        sys.exit(int(argument) if RANK == "0" else 0)
    if argument == SIZE:
        return
    ending = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    for number in ending:
        signal.signal(number, save)
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # none of them before it is waited for
    with (SHARED / "bell").open("wb", buffering=0) as bell:
        bell.write(f"{RANK} {SIZE}\n".encode())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
