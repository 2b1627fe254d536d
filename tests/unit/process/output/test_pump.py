"""The pump, with real pipes and processes."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import resource
import select
import socket
import stat
import subprocess
import sys
import threading
import tty
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.process.output.prefix import LINE_MAX
from holdfast.process.output.pump import (
    PIPE_BYTES,
    Console,
    LogFile,
    OutputSource,
    Pump,
    open_log_file,
    open_pipe,
)
from holdfast.testing.clock import ManualClock

WAIT_S = 60.0
MIB = 1024 * 1024


class Reader:
    """A console: the end to write to, and a thread that collects what comes out of the other."""

    def __init__(self, reading: int, writing: int) -> None:
        self.writing = writing
        self._reading = reading
        self._pieces: list[bytes] = []
        self._thread = threading.Thread(target=self._collect, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _collect(self) -> None:
        with suppress(OSError):  # a terminal ends with an error
            while piece := os.read(self._reading, MIB):
                self._pieces.append(piece)

    def text(self) -> bytes:
        """Return everything that was written; the console ends with this."""
        os.close(self.writing)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        os.close(self._reading)
        return b"".join(self._pieces)


def by_pipe() -> tuple[int, int]:
    return os.pipe()


def by_socket() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def by_terminal() -> tuple[int, int]:
    master, slave = pty.openpty()
    tty.setraw(slave)
    return master, slave


@pytest.fixture
def console() -> Iterator[Reader]:
    reader = Reader(*by_pipe())
    reader.start()
    yield reader
    with suppress(OSError):
        reader.text()


@contextmanager
def pumping(
    folder: Path,
    console: int,
    ranks: int = 1,
    path: Path | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[tuple[Pump, list[int]]]:
    """Run a pump; yield it with the workers' ends, which the block must close."""
    pump, ends = Pump(clock), []
    shared = Console(console, "standard output")
    for rank in range(ranks):
        reading, writing = open_pipe()
        ends.append(writing)
        pump.add(
            OutputSource(
                pipe=reading,
                name=f"rank {rank}",
                file=LogFile(path or folder / f"{rank}.log"),
                console=shared,
                prefix=b"[%d]:" % rank,
            )
        )
    pump.start()
    try:
        yield pump, ends
    finally:
        pump.close(WAIT_S)


def run(code: str, end: int, *args: str) -> subprocess.Popen[bytes]:
    """Start Python code whose output is `end`, which is closed here."""
    process = subprocess.Popen([sys.executable, "-c", code, *args], stdout=end)
    os.close(end)
    return process


def same(found: bytes, expected: bytes) -> None:
    """Compare much: pytest would take minutes to show how it differs."""
    if found != expected:
        pytest.fail(f"{len(found)} bytes, not the {len(expected)} that were expected")


def accept(end: int, data: bytes, quiet_ms: int = 300) -> int:
    """Write until nothing is taken any more; return how much was."""
    os.set_blocking(end, False)
    poll, total = select.poll(), 0
    poll.register(end, select.POLLOUT)
    while total < len(data) and poll.poll(quiet_ms):
        with suppress(BlockingIOError):
            total += os.write(end, data[total : total + PIPE_BYTES])
    return total


@pytest.mark.parametrize("kind", [by_pipe, by_socket, by_terminal])
def test_output_goes_to_the_file_as_it_is_and_to_the_console_with_prefixes(
    tmp_path: Path, kind: Callable[[], tuple[int, int]]
) -> None:
    reader = Reader(*kind())
    reader.start()
    code = "for i in range(30000): print('line', i)"
    with pumping(tmp_path, reader.writing) as (_, [end]), run(code, end) as process:
        pass
    assert process.returncode == 0
    lines = [b"line %d\n" % i for i in range(30000)]
    same((tmp_path / "0.log").read_bytes(), b"".join(lines))
    same(reader.text(), b"".join(b"[0]:" + line for line in lines))
    assert stat.S_IMODE((tmp_path / "0.log").stat().st_mode) == 0o600


def test_a_console_that_is_a_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "console"
    path.write_text("before\n")
    descriptor = open_log_file(path)
    with pumping(tmp_path, descriptor) as (_, [end]):
        os.write(end, b"line\n")
        os.close(end)
    os.close(descriptor)
    assert path.read_text() == "before\n[0]:line\n"


def test_our_console_does_not_change_the_one_of_others(tmp_path: Path, console: Reader) -> None:
    with pumping(tmp_path, console.writing) as (_, [end]):
        assert os.get_blocking(console.writing)
        os.close(end)
    assert os.get_blocking(console.writing)


def test_the_last_line_needs_no_newline(tmp_path: Path, console: Reader) -> None:
    with pumping(tmp_path, console.writing) as (_, [end]):
        os.write(end, b"first\nlast words")
        os.close(end)
    assert (tmp_path / "0.log").read_bytes() == b"first\nlast words"
    assert console.text() == b"[0]:first\n[0]:last words\n"


def test_a_process_that_writes_much_and_exits_at_once_loses_nothing(
    tmp_path: Path, console: Reader
) -> None:
    code = "import os; os.write(1, b'x' * 1048575 + b'\\n'); os._exit(0)"
    with pumping(tmp_path, console.writing) as (_, [end]), run(code, end):
        pass
    same((tmp_path / "0.log").read_bytes(), b"x" * 1048575 + b"\n")
    same(console.text().replace(b"[0]:", b"").replace(b"\n", b""), b"x" * 1048575)


def test_binary_output_survives(tmp_path: Path, console: Reader) -> None:
    data = bytes(range(256)) * 1000
    with pumping(tmp_path, console.writing) as (_, [end]):
        os.write(end, data)
        os.close(end)
    same((tmp_path / "0.log").read_bytes(), data)
    shown = b"".join(b"[0]:" + line for line in data.splitlines(keepends=True))
    same(console.text(), shown + b"\n")


def test_fifty_megabytes_without_a_newline(tmp_path: Path, console: Reader) -> None:
    code = "import os\nfor _ in range(50): os.write(1, b'x' * 1048576)"
    with pumping(tmp_path, console.writing) as (_, [end]), run(code, end):
        pass
    assert (tmp_path / "0.log").stat().st_size == 50 * MIB
    text = console.text()
    assert text.count(b"x") == 50 * MIB
    assert max(map(len, text.splitlines())) < LINE_MAX + MIB


def test_lines_of_eight_workers_do_not_mix(tmp_path: Path, console: Reader) -> None:
    # Pieces of lines, of all sizes, written one by one.
    code = """
import os, random, sys
rng, out = random.Random(sys.argv[1]), b""
for number in range(400):
    out += b"%d:%s.\\n" % (number, b"ab" * rng.choice([0, 5, 50, 3000]))
at = 0
while at < len(out):
    at += os.write(1, out[at : at + rng.choice([1, 100, 10000])])
"""
    with pumping(tmp_path, console.writing, ranks=8) as (_, ends):
        processes = [run(code, end, str(rank)) for rank, end in enumerate(ends)]
        for process in processes:
            assert process.wait(WAIT_S) == 0
    lines = console.text().splitlines(keepends=True)
    for rank in range(8):
        mark = b"[%d]:" % rank
        mine = b"".join(line.removeprefix(mark) for line in lines if line.startswith(mark))
        assert mine == (tmp_path / f"{rank}.log").read_bytes()
        assert mine.count(b"\n") == 400
    assert len(lines) == 8 * 400


def test_a_console_without_a_reader_blocks_its_workers_and_takes_little_memory(
    tmp_path: Path,
) -> None:
    reader = Reader(*by_pipe())
    data = b"0123456789abcdef" * (50 * MIB // 16)
    data = data.replace(b"f0", b"f\n")
    with pumping(tmp_path, reader.writing) as (_, [end]):
        taken = accept(end, data)
        # Its pipe, a chunk that is under way, and what the console's pipe holds.
        assert taken <= PIPE_BYTES + 2 * MIB
        reader.start()
        os.set_blocking(end, True)
        with os.fdopen(end, "wb") as file:
            file.write(data[taken:])
    same((tmp_path / "0.log").read_bytes(), data)
    same(reader.text().replace(b"[0]:", b""), data + b"\n")


def test_all_workers_go_on_when_their_console_does(tmp_path: Path) -> None:
    reader = Reader(*by_pipe())
    code = "for i in range(60000): print('a line of text', i)"
    with pumping(tmp_path, reader.writing, ranks=4) as (_, ends):
        # The console is stuck before the workers write, so that each comes to wait for it.
        accept(ends[0], b"a line of text\n" * MIB)
        processes = [run(code, end) for end in ends[1:]]
        reader.start()
        os.close(ends[0])
        for process in processes:
            assert process.wait(WAIT_S) == 0
    lines = reader.text().splitlines()
    for rank in (1, 2, 3):
        assert sum(line.startswith(b"[%d]:" % rank) for line in lines) == 60000


@pytest.mark.parametrize("kind", [by_pipe, by_socket, by_terminal])
def test_a_stuck_console_does_not_hold_up_workers_of_another(
    tmp_path: Path, console: Reader, kind: Callable[[], tuple[int, int]]
) -> None:
    stuck = Reader(*kind())
    pump, ends = Pump(), []
    for rank, writing in enumerate((stuck.writing, console.writing)):
        reading, end = open_pipe()
        ends.append(end)
        file = LogFile(tmp_path / f"{rank}.log")
        pump.add(
            OutputSource(pipe=reading, name="", file=file, console=Console(writing, ""), prefix=b"")
        )
    pump.start()
    data = b"a line of text\n" * (MIB // 3)
    assert accept(ends[0], data) < len(data)
    assert accept(ends[1], data, quiet_ms=int(WAIT_S * 1000)) == len(data)
    stuck.start()
    for end in ends:
        os.close(end)
    pump.close(WAIT_S)
    same(console.text(), data)
    same(stuck.text(), (tmp_path / "0.log").read_bytes() + b"\n")


def test_a_console_that_stays_stuck_is_given_up_at_the_end_and_the_file_is_whole(
    tmp_path: Path,
) -> None:
    reading, writing = os.pipe()
    with pumping(tmp_path, writing) as (pump, [end]):
        taken = accept(end, b"a line of text\n" * (MIB // 3))
        os.close(end)
        pump.close(0)
    assert (tmp_path / "0.log").stat().st_size == taken
    os.close(reading)
    os.close(writing)


def small_pipe() -> tuple[int, int]:
    """Make a pipe that holds one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
    return reading, writing


def test_a_slow_console_is_waited_for_at_the_end_while_it_takes_something(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reading, writing = small_pipe()
    lines, clock, taken = 4096, ManualClock(start=0.0), b""
    data, shown = b"a line of text\n" * lines, b"[0]:a line of text\n" * lines
    with pumping(tmp_path, writing, clock=clock) as (pump, [end]):
        assert accept(end, data) == len(data)
        os.close(end)
        with ThreadPoolExecutor(1) as pool:
            closed = pool.submit(pump.close, 5.0)
            while len(taken) < len(shown):  # it takes 17 s in all by this clock
                assert select.select([reading], [], [], WAIT_S)[0], "the rest is lost"
                clock.advance(0.9)
                taken += os.read(reading, select.PIPE_BUF)
            closed.result(WAIT_S)
    for end in (reading, writing):
        os.close(end)
    same(taken, shown)
    assert clock.monotonic() > 10
    assert caplog.messages == []


class LateThread:
    """A thread of a pump that is not run for a while, as on a busy machine."""

    def __init__(self, pump: Pump, clock: ManualClock, moves: bool) -> None:
        self._pump = pump
        self._clock = clock
        self._moves = moves
        self.looks = 0

    def is_alive(self) -> bool:
        return not (self._moves and self.looks == 3)

    def join(self, timeout: float) -> None:
        self.looks += 1
        if self.looks == 1:
            self._clock.advance(100.0)
        elif self._moves:
            self._pump._deadline = Deadline.after(5.0, self._clock)


@pytest.mark.parametrize("moves", [True, False])
def test_a_thread_that_is_late_and_goes_on_is_waited_for(
    caplog: pytest.LogCaptureFixture, moves: bool
) -> None:
    clock = ManualClock()
    pump = Pump(clock)
    late = LateThread(pump, clock, moves)
    pump._thread = cast("threading.Thread", late)
    pump.close(5.0)
    assert late.looks == (3 if moves else 2)
    assert ("a write does not return" in caplog.text) is not moves


@pytest.mark.parametrize("hurried", [False, True])
def test_lines_that_the_console_has_not_taken_at_the_end_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hurried: bool
) -> None:
    reading, writing = small_pipe()
    with pumping(tmp_path, writing) as (pump, [end]):
        assert accept(end, b"a line of text\n" * 2000) == 30000
        os.close(end)
        if hurried:
            with ThreadPoolExecutor(1) as pool:
                closed = pool.submit(pump.close, 10 * WAIT_S)
                pump.hurry()
                closed.result(WAIT_S)
        else:
            pump.close(0)
    shown = os.read(reading, select.PIPE_BUF).count(b"\n")
    why = "a signal ended the wait" if hurried else "no process reads them"
    lost = f"standard output: the last {2000 - shown} lines are lost: {why}"
    assert 0 < shown < 2000
    assert caplog.messages == [lost]
    for end in (reading, writing):
        os.close(end)


@pytest.mark.parametrize("kind", [by_pipe, by_socket])
def test_a_console_that_goes_is_told_once_and_files_go_on(
    tmp_path: Path, kind: Callable[[], tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    reading, writing = kind()
    os.close(reading)
    code = "import sys\nfor i in range(1000): print(i); sys.stdout.flush()"
    with pumping(tmp_path, writing) as (_, [end]), run(code, end) as process:
        pass
    os.close(writing)
    assert process.returncode == 0
    assert (tmp_path / "0.log").read_text().splitlines() == [str(i) for i in range(1000)]
    assert caplog.messages == ["standard output: output is lost: Broken pipe"]


def test_a_console_that_was_never_there_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pumping(tmp_path, 1_000_000) as (_, [end]):
        os.write(end, b"line\n")
        os.close(end)
    assert (tmp_path / "0.log").read_text() == "line\n"
    assert caplog.messages == ["standard output: output is lost: Bad file descriptor"]


def test_a_full_disk_is_told_once_and_the_console_goes_on(
    tmp_path: Path, console: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import sys\nfor i in range(1000): print(i); sys.stdout.flush()"
    full = pumping(tmp_path, console.writing, path=Path("/dev/full"))
    with full as (_, [end]), run(code, end) as process:
        pass
    assert process.returncode == 0
    assert console.text() == b"".join(b"[0]:%d\n" % i for i in range(1000))
    assert caplog.messages == ["/dev/full: output is lost: No space left on device"]


def test_writing_goes_on_when_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = LogFile(tmp_path / "log")
    file.open()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    file.write(b"one\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, hard))
    try:
        file.write(b"two\n")
        file.write(b"three\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.write(b"four\n")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntwfour\n"
    assert caplog.messages == [
        f"{tmp_path / 'log'}: output is lost: File too large",
        f"{tmp_path / 'log'}: writing works again, 8 bytes were lost",
    ]


def test_a_file_that_cannot_be_opened_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = LogFile(tmp_path / "folder" / "log")
    file.open()
    file.write(b"one\n")
    (tmp_path / "folder").mkdir()
    file.write(b"two\n")
    file.close()
    assert (tmp_path / "folder" / "log").read_text() == "two\n"
    assert len(caplog.messages) == 2


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="log"):
        open_log_file(tmp_path / "log")
    assert not (tmp_path / "elsewhere").exists()


def test_a_grandchild_that_holds_the_pipe_is_not_waited_for(
    tmp_path: Path, console: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast.process")
    with pumping(tmp_path, console.writing) as (pump, [end]):
        kept = os.dup(end)
        with run("print('done', end='')", end):
            pass
        pump.close(0)
        with pytest.raises(BrokenPipeError):
            os.write(kept, b"too late")
        os.close(kept)
    assert (tmp_path / "0.log").read_bytes() == b"done"
    assert console.text() == b"[0]:done\n"
    assert caplog.messages == ["rank 0: a process still holds it open; it is not read any further"]


def test_lines_that_match_are_duplicated_in_one_file(tmp_path: Path, console: Reader) -> None:
    filtered = LogFile(tmp_path / "filtered.log")
    shared = Console(console.writing, "standard output")
    pump, ends = Pump(), []
    for rank in range(2):
        reading, end = open_pipe()
        ends.append(end)
        pump.add(
            OutputSource(
                pipe=reading,
                name="",
                file=LogFile(tmp_path / f"{rank}.log"),
                console=shared,
                prefix=b"[%d]:" % rank,
                filtered=filtered,
                needles=(b"apple", b"orange"),
            )
        )
    pump.start()
    for end in ends:
        os.write(end, b"an apple\na pear\nora")
        os.write(end, b"nge")
        os.close(end)
    pump.close(WAIT_S)
    lines = sorted((tmp_path / "filtered.log").read_bytes().splitlines())
    assert lines == [b"[0]:an apple", b"[0]:orange", b"[1]:an apple", b"[1]:orange"]
    assert console.text().count(b"\n") == 6


def test_closing_a_pump_that_was_never_started_or_twice(tmp_path: Path) -> None:
    pump = Pump()
    reading, writing = open_pipe()
    console = Console(writing, "")
    pump.add(
        OutputSource(
            pipe=reading, name="", file=LogFile(tmp_path / "log"), console=console, prefix=b""
        )
    )
    pump.close(0)
    pump.close(0)
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)
