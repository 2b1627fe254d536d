"""A reader that does not read blocks no writer; one that reads misses nothing."""

from __future__ import annotations

import fcntl
import io
import os
import select
import sys
import threading
from collections.abc import Iterator

import pytest

from holdfast.observe.patient import PatientFile, patient_stderr

SOON_S = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes one page."""
    there, here = os.pipe()
    fcntl.fcntl(here, fcntl.F_SETPIPE_SZ, 4096)
    yield there, here
    os.close(there)
    os.close(here)


def read_all(there: int) -> bytes:
    os.set_blocking(there, False)
    found = b""
    try:
        while True:
            found += os.read(there, 1 << 20)
    except BlockingIOError:
        return found


def test_ps1_a_reader_that_does_not_read_is_waited_for_once(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = pipe
    waits: list[float] = []
    poll = select.poll

    class Counted:
        def __init__(self) -> None:
            self._poll = poll()

        def register(self, fd: int, events: int) -> None:
            self._poll.register(fd, events)

        def poll(self, timeout_ms: float) -> object:
            found = self._poll.poll(0)
            if not found:
                waits.append(timeout_ms)
            return found

    monkeypatch.setattr(select, "poll", Counted)
    file = PatientFile(here, wait_s=1.5)
    for _ in range(3):
        assert file.write(b"x" * 10_000) == 10_000
    assert waits == [1500, 0, 0]
    assert read_all(there) == b"x" * 4096
    assert file.write(b"again") == 5  # since it reads again
    assert read_all(there) == b"again"
    file.write(b"x" * 5000)
    assert waits[3:] == [1500]


def test_ps2_a_slow_reader_misses_nothing(pipe: tuple[int, int]) -> None:
    there, here = pipe
    text = os.urandom(200_000)
    writer = threading.Thread(target=PatientFile(here, wait_s=SOON_S).write, args=(text,))
    writer.start()
    found = b""
    while len(found) < len(text):
        found += os.read(there, 777)
    writer.join(SOON_S)
    assert found == text


def test_what_is_told_goes_by_it_and_the_descriptor_stays(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = pipe
    with open(here, "w", encoding="utf-8", closefd=False) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with patient_stderr(stream):
            assert (sys.stderr.fileno(), sys.stderr.isatty()) == (here, False)
            print("é\udc80 one", file=sys.stderr)
            assert read_all(there) == b"\xc3\xa9\\udc80 one\n"
            sys.stderr.write("half a line")
        assert sys.stderr is stream
    assert read_all(there) == b"half a line"
    os.write(here, b"still open")


def test_a_stream_that_is_not_the_systems_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with patient_stderr(stream):
        print("one", file=sys.stderr)
    assert stream.getvalue() == "one\n"
