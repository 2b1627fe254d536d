"""A FIFO is made where nothing else is, and only it is removed: WD-3."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import Unavailable, UsageError
from holdfast.process.fifo import make_fifo, remove_fifo


def close(ends: tuple[int, int]) -> None:
    for end in ends:
        os.close(end)


def test_what_is_no_fifo_is_left_alone(tmp_path: Path) -> None:
    """WD-3."""
    path = tmp_path / "results"
    path.write_text("precious")
    link = tmp_path / "link"
    link.symlink_to(path)
    for place in (path, link, tmp_path):
        with pytest.raises(UsageError, match="exists, and is not a FIFO of this user"):
            make_fifo(place)
    assert path.read_text() == "precious"


def test_neither_end_blocks_and_only_its_owner_may_use_it(tmp_path: Path) -> None:
    """WD-3."""
    path = tmp_path / "timers"
    reading, writing = make_fifo(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    os.write(writing, b"x")
    assert os.read(reading, 2) == b"x"
    remove_fifo(path, reading)
    assert not path.exists()
    close((reading, writing))


def test_what_took_the_place_of_the_fifo_stays(tmp_path: Path) -> None:
    """WD-3."""
    path = tmp_path / "timers"
    ends = make_fifo(path)
    path.unlink()
    path.write_text("precious")
    remove_fifo(path, ends[0])
    assert path.read_text() == "precious"
    close(ends)


def test_a_fifo_that_is_gone_already_is_only_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "timers"
    ends = make_fifo(path)
    path.unlink()
    remove_fifo(path, ends[0])
    assert "cannot be removed: No such file or directory" in caplog.text
    close(ends)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"timer file .*/no/timers: No such file or directory"):
        make_fifo(tmp_path / "no" / "timers")
