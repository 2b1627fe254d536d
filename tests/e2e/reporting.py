"""A process that says what happens to it: lines of JSON on its standard output, read by a test."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.clock import Deadline
from holdfast.process.stop.leftovers import MARKER
from tests.waiting import until

TIMEOUT_S = 120.0
"""How long anything may take; what takes longer does not come."""

PIPE_BYTES = 256 * 1024
"""Room for what a process writes while the test does not read: else it would block."""

Report = dict[str, Any]


class ReportingProcess:
    """A process whose reports are heard, and which is told on stdin what to do."""

    def __init__(
        self, command: Sequence[str], env: dict[str, str], folder: Path | None = None
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=PIPE_BYTES,
            env=os.environ | env,
            cwd=folder,
        )
        self.said: list[Report] = []
        """Everything that it has reported, and has been read."""
        self._heard: set[int] = set()
        self._rest = b""

    @property
    def host(self) -> str:
        """What rounds call it."""
        return f"{os.uname().nodename}[{self.process.pid}]"

    def order(self, *words: object) -> None:
        """Tell it to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, event: str, **fields: object) -> Report:
        """Wait for a report with these fields that has not been heard yet, and return it."""
        wanted = {"event": event, **fields}
        deadline = Deadline.after(TIMEOUT_S)
        while True:
            for index, said in enumerate(self.said):
                if index not in self._heard and said.items() >= wanted.items():
                    self._heard.add(index)
                    return said
            if not self._read(deadline):
                raise AssertionError(f"{self.host} did not say {wanted}; it said {self.said}")

    def hear_waiting(self, reason: str) -> Report:
        """Wait until it knows that the leader waits for this reason, or one that contains it."""
        while True:
            said = self.hear("RoundAwaited")
            if reason in said["reason"]:
                return said

    def ended(self, status: int = 0) -> None:
        """Wait for the end of a process that leaves nothing behind."""
        left = self.hear("left")
        assert (left["clean"], left["leaks"]) == (True, [])
        assert self.process.wait(TIMEOUT_S) == status

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait(TIMEOUT_S)

    def stop(self) -> None:
        """Stop the process by SIGSTOP: it says nothing more, and its connections stay open.

        Not while it holds the lock of a file, for which other processes would wait.
        """

        def stopped() -> bool:
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            if _holds_a_lock(self.process.pid):
                self.wake()
                return False
            return True

        until(stopped)

    def wake(self) -> None:
        """Let it go on as if no time had passed."""
        self.process.send_signal(signal.SIGCONT)

    def discard(self) -> None:
        """End the process and its pipes, whatever it does."""
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # an order that it did not live to read

    def _read(self, deadline: Deadline) -> bool:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        if not select.select([fd], [], [], deadline.remaining())[0]:
            return False
        data = os.read(fd, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.said += map(json.loads, lines)
        return bool(data)


def _holds_a_lock(pid: int) -> bool:
    """Say whether a process has locked a file that others lock too.

    In the list of locks a process that only waits for one has a `->` before its own. The locks that
    an agent holds all its life, on its own folder and control group, block no other process.
    """
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    inodes = {
        int(words[5].rpartition(":")[2])
        for words in locks
        if words[1] == "FLOCK" and words[4] == str(pid)
    }
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            file, name = fd.stat(), fd.readlink().name
            if file.st_ino in inodes and stat.S_ISREG(file.st_mode) and name != MARKER:
                return True
    return False
