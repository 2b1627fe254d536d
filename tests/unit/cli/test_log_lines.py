"""Lines of log files, as they are written."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.log_lines import LINE_BYTES_MAX, LogReader


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    reader = LogReader(path, "rank 3", None)
    assert list(reader.lines()) == []  # not there yet
    with path.open("wb", buffering=0) as file:
        file.write(b"one\ntw")
        assert list(reader.lines()) == ["rank 3: one"]
        file.write(b"o\nthree")
        assert list(reader.lines()) == ["rank 3: two"]
        assert list(reader.lines()) == []
        assert list(reader.lines(last=True)) == ["rank 3: three"]
        assert list(reader.lines(last=True)) == []


def test_only_lines_with_the_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a loss\nb\nloss: 3")
    assert list(LogReader(path, "r", "loss").lines(last=True)) == ["r: a loss", "r: loss: 3"]


def test_nothing_plays_with_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\tb\x1b[2J\r\n\xff\n")
    assert list(LogReader(path, "r", None).lines()) == ["r: a\tb\\x1b[2J", "r: \ufffd"]


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * LINE_BYTES_MAX)
    reader = LogReader(path, "r", None)
    assert list(reader.lines()) == []
    with path.open("ab") as file:
        file.write(b"x")
    assert [len(line) for line in reader.lines()] == [LINE_BYTES_MAX + 1 + len("r: ")]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"secret\n")
    (tmp_path / "log").symlink_to(tmp_path / "real")
    assert list(LogReader(tmp_path / "log", "r", None).lines()) == []
