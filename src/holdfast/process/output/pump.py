"""Carries the workers' output from their pipes to files and to the console, in one thread.

Little memory: of each pipe one chunk is under way at a time. While the console does not take it,
that pipe is not read, its worker comes to wait in its write, and the other workers go on.

What cannot be written is lost, never waited for: one warning says which file and why. The worker
does not notice, the other places still get its output, and when writing works again it goes on.

At the end a console that is slow is waited for as long as it takes something now and then. What it
has not taken when it is given up is lost, and one warning says how many lines these are.

Rule: only the pump's thread reads and writes; others make it, start it, hurry it and close it.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import selectors
import stat
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.process.output.prefix import LineSplitter, matching_lines, prefix_lines

__all__ = ["PIPE_BYTES", "Console", "LogFile", "OutputSource", "Pump", "open_log_file", "open_pipe"]

# Below the size from which malloc asks the system for fresh pages each time: four times as fast.
CHUNK_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
"""What a pipe should hold: a worker that writes in bursts does not wait for us."""

# How long a thread that is past its deadline may take to end.
_END_S = 1.0
_WAKEUP_BYTES = 64

_log = logging.getLogger("holdfast.process")


def open_pipe() -> tuple[int, int]:
    """Make a worker's pipe: the end that the pump reads, and the worker's."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        from fcntl import F_SETPIPE_SZ, fcntl  # Linux only

        fcntl(writing, F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, OSError):
        pass  # A user may own only so many bytes of pipes: then it has the usual 64 KiB.
    return reading, writing


def open_log_file(path: Path) -> int:
    """Open a log for appending; private to the user, never through a link that lies in its place.

    Raises OSError.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


class _Destination:
    """Where output goes; remembers whether the last write failed, to tell of it once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lost: int | None = None

    def failed(self, error: OSError, size: int) -> None:
        if self._lost is None:
            _log.warning("%s: output is lost: %s", self._name, error.strerror or error)
        self._lost = (self._lost or 0) + size

    def worked(self) -> None:
        if self._lost is not None:
            _log.warning("%s: writing works again, %d bytes were lost", self._name, self._lost)
            self._lost = None


class LogFile(_Destination):
    """A file, which takes everything at once or fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._descriptor = -1

    def open(self) -> None:
        """Make the file; if that fails, every write tries again."""
        try:
            self._descriptor = open_log_file(self._path)
        except OSError as error:
            self.failed(error, 0)

    def write(self, data: bytes) -> None:
        """Write it all, or lose the rest of it."""
        left = memoryview(data)
        try:
            if self._descriptor < 0:
                self._descriptor = open_log_file(self._path)
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            self.failed(error, len(left))
        else:
            self.worked()

    def close(self) -> None:
        """Close it."""
        if self._descriptor >= 0:
            try:
                os.close(self._descriptor)
            except OSError as error:  # such as a quota that a network file system checks only now
                self.failed(error, 0)
            self._descriptor = -1


class Console(_Destination):
    """The agent's own standard output or error: a terminal, a pipe or a file; may be slow.

    Blocks of whole lines are written in the order in which they came. The descriptor is shared
    with other programs, which did not ask for one that never blocks: so we open it anew where the
    system lets us, and write small pieces when it says that it is ready where not.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(name)
        self._shared = descriptor
        self._descriptor = -1
        self._may_block = False
        self._blocks: deque[tuple[memoryview, OutputSource]] = deque()
        self.taken = 0
        """How many bytes it has taken so far."""

    def open(self) -> None:
        """Take the descriptor; a console that is not there is one that fails."""
        try:
            kind = os.fstat(self._shared).st_mode
            self._may_block = not stat.S_ISREG(kind)
            if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                with suppress(OSError):  # the pipe has no reader, or the terminal is another user's
                    self._descriptor = os.open(f"/proc/self/fd/{self._shared}", flags)
                    self._may_block = False
                    return
            self._descriptor = os.dup(self._shared)
        except OSError as error:
            self.failed(error, 0)

    def fileno(self) -> int:
        return self._descriptor

    @property
    def waits(self) -> bool:
        """Whether there is something to write."""
        return bool(self._blocks)

    def put(self, block: bytes, source: OutputSource) -> bool:
        """Write a block of lines; say whether it is all written, else it waits its turn."""
        waits = self.waits
        self._blocks.append((memoryview(block), source))
        return not waits and bool(self.flush())

    def flush(self) -> list[OutputSource]:
        """Write as much as the console takes now; return the sources whose block is written."""
        done = []
        while self._blocks:
            block, source = self._blocks.popleft()
            done_with = self._write(block)
            self.taken += done_with
            block = block[done_with:]
            if block:
                self._blocks.appendleft((block, source))
                break
            done.append(source)
        return done

    def _write(self, data: memoryview) -> int:
        """Return how much is done with: written, or lost."""
        if self._descriptor < 0:
            return len(data)
        total = 0
        try:
            while total < len(data):
                end = len(data)
                if self._may_block:
                    ready = select.poll()
                    ready.register(self._descriptor, select.POLLOUT)
                    if not ready.poll(0):
                        return total
                    end = min(end, total + select.PIPE_BUF)
                total += os.write(self._descriptor, data[total:end])
        except BlockingIOError:
            return total
        except OSError as error:
            self.failed(error, len(data) - total)
            return len(data)
        self.worked()
        return total

    def give_up(self, why: str) -> None:
        """Drop what has not been taken, and say how much that is."""
        lines = sum(bytes(block).count(b"\n") for block, _ in self._blocks)
        if lines:
            _log.warning("%s: the last %d lines are lost: %s", self._name, lines, why)
        self._blocks.clear()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@dataclass(eq=False, slots=True, kw_only=True)
class OutputSource:
    """A worker's stream: the end of its pipe that we read, which is owned, and where it goes."""

    pipe: int
    name: str
    file: LogFile
    console: Console
    prefix: bytes
    filtered: LogFile | None = None
    needles: tuple[bytes, ...] = ()
    lines: LineSplitter = field(default_factory=LineSplitter)

    def fileno(self) -> int:
        return self.pipe

    def carry(self, chunk: bytes) -> bool:
        """Pass a chunk on; say whether it is all written."""
        self.file.write(chunk)
        return self._show(self.lines.feed(chunk))

    def finish(self) -> bool:
        """Pass on the line that the end left unfinished; say whether it is written."""
        return self._show(self.lines.finish())

    def _show(self, lines: bytes) -> bool:
        if not lines:
            return True
        if self.filtered is not None and (found := matching_lines(lines, self.needles)):
            self.filtered.write(prefix_lines(found, self.prefix))
        return self.console.put(prefix_lines(lines, self.prefix), self)


_Watched: TypeAlias = OutputSource | Console | None


class Pump:
    """Carries the output of some sources until each has ended, or until it is closed.

    Owns the sources with their pipes and files, and the consoles.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._pipes: list[int] = []
        self._places: set[LogFile | Console] = set()
        self._open: set[OutputSource] = set()  # their ends have not been read yet
        self._waiting: set[OutputSource] = set()  # their consoles have not taken the last block yet
        self._watched: set[Console] = set()
        self._clock = clock
        self._deadline = Deadline(None, clock)
        self._timeout_s = 0.0
        self._hurried = False
        # Unlike epoll it also takes plain files, which a console may be.
        self._selector = selectors.PollSelector()
        self._wakeup: list[int] = []
        self._lock = threading.Lock()  # guards `_wakeup`
        self._thread: threading.Thread | None = None

    def add(self, source: OutputSource) -> None:
        """Take over a source, before the start."""
        self._pipes.append(source.pipe)
        self._places |= {source.file, source.console, source.filtered or source.file}
        self._open.add(source)
        self._selector.register(source, selectors.EVENT_READ, source)

    def start(self) -> None:
        """Open the files and consoles and begin to read. Raises OSError."""
        self._wakeup += os.pipe()
        self._selector.register(self._wakeup[0], selectors.EVENT_READ, None)
        for place in self._places:
            place.open()
        thread = threading.Thread(target=self._run, name="holdfast-pump", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        self._thread = thread

    def close(self, timeout: float) -> None:
        """Wait until every stream has ended and is written, then stop.

        Afterwards what a worker wrote before it ended is in its file. A process that holds a stream
        for `timeout` seconds more, such as a grandchild in the background, is not waited for, and
        neither is a console that takes nothing for so long, or any longer after `hurry`.
        """
        if self._thread is None:
            self._release()
        else:
            self._timeout_s = timeout
            self._deadline = Deadline.after(timeout, self._clock)
            self._wake()
            late: Deadline | None = None
            while self._thread.is_alive():
                self._thread.join(_END_S)
                if late is self._deadline:  # it was late the last time, and has not moved since
                    break
                late = self._deadline if self._hangs() else None
            if self._thread.is_alive():
                _log.warning("the workers' output: a write does not return, the rest is lost")
                return
        with self._lock:
            while self._wakeup:
                os.close(self._wakeup.pop())

    def hurry(self) -> None:
        """Let a `close` in another thread wait for no console any longer."""
        self._hurried = True
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._wakeup:
                os.write(self._wakeup[1], b"!")

    def _hangs(self) -> bool:
        """Say whether the thread should have moved the deadline, or ended, and did not."""
        return self._clock.monotonic() > (self._deadline.at or 0.0) + _END_S

    def _run(self) -> None:
        try:
            self._carry_until_end()
            self._take_the_rest()
            self._wait_for_consoles()
        finally:
            self._release()

    def _carry_until_end(self) -> None:
        while (self._open or self._waiting) and not (self._deadline.passed() or self._hurried):
            for key, _ in self._selector.select(self._deadline.remaining()):
                watched: _Watched = key.data
                match watched:
                    case OutputSource() as source:
                        self._read(source)
                    case Console() as console:
                        self._flush(console)
                    case None:
                        os.read(self._wakeup[0], _WAKEUP_BYTES)

    def _read(self, source: OutputSource) -> None:
        try:
            chunk = os.read(source.pipe, CHUNK_BYTES)
        except BlockingIOError:
            return
        written = source.carry(chunk) if chunk else source.finish()
        if chunk and written:
            return
        self._selector.unregister(source)
        if not chunk:
            self._open.remove(source)
        if not written:
            self._waiting.add(source)
            if source.console not in self._watched:
                self._watched.add(source.console)
                self._selector.register(source.console, selectors.EVENT_WRITE, source.console)

    def _flush(self, console: Console) -> None:
        for source in console.flush():
            self._waiting.remove(source)
            if source in self._open:
                self._selector.register(source, selectors.EVENT_READ, source)
        if not console.waits:
            self._watched.remove(console)
            self._selector.unregister(console)

    def _take_the_rest(self) -> None:
        """Read what lies in the pipes of those that have not ended, and no more than that."""
        for source in self._open:
            _log.debug("%s: a process still holds it open; it is not read any further", source.name)
            left = PIPE_BYTES
            with suppress(BlockingIOError):
                while left > 0 and (chunk := os.read(source.pipe, min(CHUNK_BYTES, left))):
                    source.carry(chunk)
                    left -= len(chunk)
            source.finish()

    def _wait_for_consoles(self) -> None:
        """Wait for what the consoles have not taken, as long as they take something."""
        slow = {place for place in self._places if isinstance(place, Console) and place.waits}
        self._deadline = Deadline.after(self._timeout_s, self._clock)
        with selectors.PollSelector() as selector:
            selector.register(self._wakeup[0], selectors.EVENT_READ)
            for console in slow:
                selector.register(console, selectors.EVENT_WRITE, console)
            while slow and not (self._deadline.passed() or self._hurried):
                for key, _ in selector.select(self._deadline.remaining()):
                    if key.data is None:
                        os.read(self._wakeup[0], _WAKEUP_BYTES)
                    elif self._takes_more(key.data):
                        self._deadline = Deadline.after(self._timeout_s, self._clock)
                for console in [console for console in slow if not console.waits]:
                    selector.unregister(console)
                    slow.remove(console)
        why = "a signal ended the wait" if self._hurried else "no process reads them"
        for console in slow:
            console.give_up(why)

    def _takes_more(self, console: Console) -> bool:
        before = console.taken
        console.flush()
        return console.taken > before

    def _release(self) -> None:
        self._selector.close()
        while self._pipes:
            os.close(self._pipes.pop())
        while self._places:
            self._places.pop().close()
