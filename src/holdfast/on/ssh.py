"""Run a command on several hosts by the system's ssh, and bring back what they print.

One thread reads the output of all hosts, and writes it line by line, each with the host's name
before it. It also sends the signs of life without which a host ends its part. Signals that come
are passed on by their handler, so that a reader that does not read holds none of them up.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from signal import Signals
from typing import NamedTuple

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import UsageError
from holdfast.on.hosts_end import HostsEnd, Todo
from holdfast.on.order import ALIVE_EVERY_S
from holdfast.process.output.prefix import LineSplitter, prefix_lines
from holdfast.process.signals import HeldSignals, SignalEvents
from holdfast.records import dataclass

__all__ = ["HostCommand", "run_on_hosts"]

_EXIT_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class HostCommand:
    """What runs for one host: its name, the command here, and what the command reads first."""

    host: str
    command: tuple[str, ...]
    order: bytes


class _Stream(NamedTuple):
    """One of the two streams that a host prints."""

    host: int
    to: int
    prefix: bytes
    splitter: LineSplitter


def run_on_hosts(
    commands: Sequence[HostCommand],
    fewest: int,
    environment: Mapping[str, str],
    signals: Iterable[Signals],
    tell: Callable[[str], None],
) -> int:
    """Run all of them and return the exit code of the whole. Blocks until the last has ended.

    `tell` is called on this thread with a line about the hosts.
    """
    with HeldSignals(signals) as held, contextlib.ExitStack() as stack:
        run = _Hosts(commands, fewest, environment, tell)
        stack.callback(run.close)
        try:
            with SignalEvents(signals, run.pass_on):
                run.start()
                return run.follow()
        finally:
            held.hold()


class _Hosts:
    """The processes of all hosts."""

    def __init__(
        self,
        commands: Sequence[HostCommand],
        fewest: int,
        environment: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self._commands = commands
        self._environment = environment
        self._tell = tell
        self._ends = HostsEnd([one.host for one in commands], fewest)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._open: dict[int, int] = {}  # how many streams each host has open
        self._selector = selectors.DefaultSelector()
        self._dead: set[int] = set()  # our own streams that cannot be written

    def start(self) -> None:
        """Start what runs for each host."""
        width = max(len(one.host) for one in self._commands)
        for host, one in enumerate(self._commands):
            try:
                process = subprocess.Popen(
                    one.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=dict(self._environment),
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C is for us, and we pass it on
                )
            except OSError as error:
                raise UsageError(f"program {one.command[0]!r}: {error.strerror}") from None
            prefix = f"[{one.host}]{' ' * (width - len(one.host))} ".encode()
            self._open[host] = 2
            for pipe, to in ((process.stdout, 1), (process.stderr, 2)):
                assert pipe is not None  # noqa: S101  # for mypy
                stream = _Stream(host, to, prefix, LineSplitter())
                self._selector.register(pipe, selectors.EVENT_READ, stream)
            self._running[host] = process
            _write(process, one.order)

    def pass_on(self, number: int) -> None:
        """Tell every host of a signal. Called by a signal's handler."""
        self._ends.signalled(number)
        self._send_all(Signals(number).name.encode() + b"\n")

    def follow(self) -> int:
        """Read until every host has ended."""
        alive_at = SYSTEM_CLOCK.monotonic() + ALIVE_EVERY_S
        while not self._ends.is_over:
            next_at = self._ends.next_at()
            until = alive_at if next_at is None else min(alive_at, next_at)
            ready = self._selector.select(max(0.0, until - SYSTEM_CLOCK.monotonic()))
            for key, _ in ready:
                self._read(key.fd, key.data)
            now = SYSTEM_CLOCK.monotonic()
            if now >= alive_at:
                alive_at = now + ALIVE_EVERY_S
                self._send_all(b"\n")
            self._do(self._ends.passed(now))
        return self._ends.code()

    def _read(self, fd: int, stream: _Stream) -> None:
        chunk = os.read(fd, 65536)
        lines = stream.splitter.feed(chunk) if chunk else stream.splitter.finish()
        if lines:
            self._show(stream.to, prefix_lines(lines, stream.prefix))
        if not chunk:
            self._selector.unregister(fd)
            self._open[stream.host] -= 1
            if not self._open[stream.host]:
                self._ended(stream.host)

    def _ended(self, host: int) -> None:
        process = self._running.pop(host)
        try:
            status = process.wait(_EXIT_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        _close(process)
        # A signal that has killed ssh itself has cut the connection.
        code = 255 if status < 0 else status
        self._do(self._ends.ended(host, code, SYSTEM_CLOCK.monotonic()))

    def _do(self, todo: Todo) -> None:
        for line in todo.lines:
            self._tell(line)
        if todo.stop:
            self._send_all(b"SIGTERM\n")
        if todo.close:
            for process in self._running.values():
                process.kill()

    def _send_all(self, line: bytes) -> None:
        for process in [*self._running.values()]:
            _write(process, line)

    def _show(self, fd: int, data: bytes) -> None:
        try:
            while data and fd not in self._dead:
                data = data[os.write(fd, data) :]
        except OSError:  # its reader is gone: the job goes on
            self._dead.add(fd)

    def close(self) -> None:
        """End what is left. A host whose connection ends so ends what it started."""
        for process in self._running.values():
            process.send_signal(signal.SIGKILL)
            process.wait()
            _close(process)
        self._selector.close()


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write to a process that may be gone."""
    with contextlib.suppress(OSError, ValueError):
        assert process.stdin is not None  # noqa: S101  # for mypy
        process.stdin.write(data)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
