"""A part of a log file, in lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.page.log_window import WINDOW_BYTES, LogWindow, read_window


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


def test_whole_lines_and_then_what_is_new(log: Path) -> None:
    log.write_bytes(b"one\ntw")
    assert read_window(log, 0) == LogWindow(("one",), 4)
    assert read_window(log, 4) == LogWindow((), 4)
    with log.open("ab") as file:
        file.write(b"o\n\n\xff\n")
    assert read_window(log, 4) == LogWindow(("two", "", "\ufffd"), 11)


def test_of_a_long_file_the_end(log: Path) -> None:
    line = b"x" * 99 + b"\n"
    log.write_bytes(line * 2000)
    window = read_window(log, 0)
    assert window is not None
    assert window.offset == 200_000
    assert set(window.lines) == {"x" * 99}
    assert window.skipped + 100 * len(window.lines) == 200_000
    assert WINDOW_BYTES - 100 < 100 * len(window.lines) <= WINDOW_BYTES


def test_a_line_longer_than_the_window_is_cut(log: Path) -> None:
    log.write_bytes(b"x" * (WINDOW_BYTES + 10))
    window = read_window(log, 0)
    assert window == LogWindow(("x" * WINDOW_BYTES,), WINDOW_BYTES + 10, 10)


def test_a_file_that_was_written_anew_is_read_from_its_beginning(log: Path) -> None:
    log.write_bytes(b"a\n")
    assert read_window(log, 100) == LogWindow(("a",), 2)


def test_only_a_file_is_read(log: Path, tmp_path: Path) -> None:
    assert read_window(log, 0) is None
    log.symlink_to(tmp_path / "other")
    (tmp_path / "other").write_text("a\n")
    assert read_window(log, 0) is None
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read_window(pipe, 0) is None
