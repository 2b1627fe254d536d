"""A process that we started, by a descriptor: hear of its end, and learn how it ended."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.process.spec import Exit
from holdfast.process.stop.escalation import ENDING_WAIT_S
from holdfast.process.stop.orphans import disown, own

__all__ = [
    "WorkerProcess",
    "end",
    "exit_of",
    "is_ending",
    "is_stopped",
    "open_process",
    "readable",
    "still_running",
    "watch",
]

_log = logging.getLogger("holdfast.process")

_LOST = 255 << 8  # the status of a process about which nothing is known any more
_KILL_S = 5.0
_STAT_BYTES_MAX = 1024
_PF_EXITING = 0x4  # among the kernel's flags of a thread


class WorkerProcess(Protocol):
    """A worker's process, which is a process group too."""

    @property
    def pid(self) -> int:
        """Its number, which stays its own until it is reaped."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when the process has ended, until it is reaped."""
        ...

    def reap(self) -> Exit | None:
        """Return how it ended, None if it runs; the number is free from then on."""
        ...

    def close(self) -> None:
        """Close the descriptor; the process is not touched. Idempotent."""
        ...


def open_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdout: int | None,
    stderr: int | None,
    keep: Sequence[int] = (),
) -> WorkerProcess:
    """Start a process in a session of its own; it inherits the descriptors in `keep`, no others.

    It begins with SIGINT blocked, so that an interrupt waits until `child.main` can end quietly.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=keep,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    process.returncode = 0  # this module reaps it, and Popen need not watch over it
    return watch(process.pid)


def watch(pid: int) -> WorkerProcess:
    """Watch a child of ours; it is killed if that cannot be done."""
    try:
        return _Child(pid) if hasattr(os, "pidfd_open") else _WaitedFor(pid)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until there is something to read, or an end; unlike `select`, for any number."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def is_ending(pid: int) -> bool:
    """Say whether a process is exiting, or has ended and not been reaped.

    The kernel marks all threads of a process before it closes the first thing that it held, hence
    before a peer can know. The process itself has ended when everything is freed, which for memory
    that a device uses takes seconds. False where the system does not tell.
    """
    threads = f"/proc/{pid}/task"
    try:
        return _is_marked(f"{threads}/{pid}", gone=False) and all(
            _is_marked(f"{threads}/{thread}", gone=True) for thread in os.listdir(threads)
        )
    except OSError:
        return False


def _is_marked(thread: str, *, gone: bool) -> bool:
    """Say whether a thread is ending; `gone` is the answer if it is not there any more."""
    try:
        state, *numbers = _read_stat(thread).split(maxsplit=7)
    except (FileNotFoundError, ProcessLookupError):
        return gone
    return state in (b"Z", b"X") or bool(int(numbers[5]) & _PF_EXITING)


def _read_stat(task: str) -> bytes:
    """Return what the system tells of a process or a thread, from its state on."""
    file = os.open(f"{task}/stat", os.O_RDONLY | os.O_CLOEXEC)  # the cheapest way: an idle agent
    try:  # does little else
        stat = os.read(file, _STAT_BYTES_MAX)
    finally:
        os.close(file)
    return stat[stat.rindex(b")") + 1 :]  # a name may hold anything


def is_stopped(pid: int) -> bool:
    """Say whether a process is stopped, by SIGSTOP or by a debugger; False if that is not known."""
    try:
        return _read_stat(f"/proc/{pid}").split(maxsplit=1)[0] in (b"T", b"t")
    except OSError:
        return False


def exit_of(pid: int) -> Exit | None:
    """Return how a process ended that its parent has not reaped yet; None if it has not ended.

    For a process that is not our child. It is taken for failed where the system hides how it ended.
    None where the system does not tell of processes.
    """
    process = f"/proc/{pid}"
    try:
        state, *numbers = _read_stat(process).split()
        if state != b"Z" or len(os.listdir(f"{process}/task")) > 1:
            return None
    except OSError:
        return None
    try:
        os.readlink(f"{process}/ns/user")
    except OSError:  # without this right the system shows every status as 0
        return Exit(os.waitstatus_to_exitcode(_LOST))
    return Exit(os.waitstatus_to_exitcode(int(numbers[-1])))


def still_running(
    processes: Mapping[int, int], wait_s: float, clock: Clock = SYSTEM_CLOCK
) -> set[int]:
    """Wait for the ends of killed processes; return the descriptors of those that still run.

    `processes` are their numbers by descriptor. A process that is exiting has ENDING_WAIT_S.
    """
    last = Deadline.after(ENDING_WAIT_S, clock)
    waiting = _wait_for(set(processes), Deadline.after(wait_s, clock))
    ending = {fd for fd in waiting if is_ending(processes[fd])}
    return waiting - ending | _wait_for(ending, last)


def _wait_for(waiting: set[int], deadline: Deadline) -> set[int]:
    """Wait until all are readable, and return those that are not."""
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting:
        ready = poll.poll(1000 * (deadline.remaining() or 0))
        for fd, _ in ready:
            poll.unregister(fd)
        waiting = waiting - {fd for fd, _ in ready}
        if deadline.passed():
            break
    return waiting


def end(process: WorkerProcess) -> None:
    """Kill a process with its group, and release it."""
    if process.reap() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        readable(process.fileno(), _KILL_S)
        process.reap()
    process.close()


class _Child:
    """A child, by the system's own descriptor of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        own(pid)
        self._exit: Exit | None = None

    def fileno(self) -> int:
        return self._descriptor

    def reap(self) -> Exit | None:
        if self._exit is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # the program around us took its status, which is lost
                pid, status = self.pid, _LOST
            if pid:
                self._exit = Exit(os.waitstatus_to_exitcode(status))
                disown(self.pid)
        return self._exit

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _WaitedFor:
    """A child where the system has no descriptor for it: a thread waits, and closes a pipe."""

    _told = False

    def __init__(self, pid: int) -> None:
        if not _WaitedFor._told:
            _WaitedFor._told = True
            _log.warning(
                "%s tells no process of its parent's end: workers may outlive an agent that is "
                "killed",
                sys.platform,
            )
        self.pid = pid
        self._exit: Exit | None = None
        self._descriptor, ended = os.pipe()
        waiting = threading.Thread(target=self._wait, args=(ended,), name=f"wait-{pid}")
        waiting.daemon = True
        waiting.start()

    def _wait(self, ended: int) -> None:
        _, status = os.waitpid(self.pid, 0)
        self._exit = Exit(os.waitstatus_to_exitcode(status))
        os.close(ended)

    def fileno(self) -> int:
        return self._descriptor

    def reap(self) -> Exit | None:
        return self._exit

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
