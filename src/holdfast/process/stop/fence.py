"""A deadline for all workers that holds though the agent does not run.

An agent that is stopped (SIGSTOP, a debugger, no processor time) cannot kill its workers when its
lease ends, and the other nodes go on without it. So a process of its own does that: the fence. The
agent moves the deadline with every renewal of its lease. A process that is not there anymore does
not, and then its reaper acts.

Guarantees
    FE-1  At the deadline that was told last the fence kills all workers that have not ended.
    FE-2  A worker that is started after the deadline is killed at once.
    FE-3  The fence ends with the agent, and then kills nothing: that is for the reaper.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

from holdfast.process.stop.orphans import disown, own

__all__ = ["Fence"]

_END_WITHIN_S = 5.0
_MAIN = Path(__file__).with_name("fence_main.py")

_log = logging.getLogger("holdfast.process")


class Fence:
    """The deadline of the workers that bear a mark in their environment. From any thread."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._lock = threading.Lock()
        self._groups: dict[int, None] = {}
        self._kill_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._broken = False

    def move(self, kill_at: float) -> None:
        """Set the deadline, on the monotonic clock; the first one starts the process."""
        with self._lock:
            if kill_at == self._kill_at or self._broken:
                return
            if self._process is None and not self._start():
                return
            self._kill_at = kill_at
            self._tell(f"={kill_at!r}")

    def entered(self, group: int) -> None:
        """Note that a worker has started, the leader of this process group."""
        with self._lock:
            self._groups[group] = None
            self._tell(f"+{group}")

    def left(self, group: int) -> None:
        """Note that a worker has ended; call it before reaping."""
        with self._lock:
            self._groups.pop(group, None)
            self._tell(f"-{group}")

    def close(self) -> None:
        """End the process. Idempotent."""
        with self._lock:
            self._close_pipe()
            process, self._process, self._broken = self._process, None, True
        if process is not None:
            try:
                process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_WITHIN_S)
            disown(process.pid)

    def forget(self) -> None:
        """Release it: for a fork of the agent, which is not the agent."""
        self._close_pipe()
        self._broken = True

    # With the lock.

    def _start(self) -> bool:
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_MAIN), self._mark],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            os.close(write_end)
            self._lose(error)
            return False
        finally:
            os.close(read_end)
        own(self._process.pid)
        os.set_blocking(write_end, False)
        self._pipe = write_end
        for group in self._groups:
            self._tell(f"+{group}")
        return True

    def _tell(self, line: str) -> None:
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, f"{line}\n".encode())  # so short that it is written whole
        except OSError as error:
            if self._process is not None:  # if it only hangs, it must not act on an old deadline
                self._process.kill()
            self._close_pipe()
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self._broken = True
        _log.warning(
            "no fence: workers of an agent that is stopped may run beside those of the next round "
            "(%s)",
            error,
        )

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
