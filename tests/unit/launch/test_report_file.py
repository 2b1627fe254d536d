"""Where a report may be written. What a job writes there: test_launcher.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.launch.report_file import check_report_file, write_report_file


def test_a_report_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    check_report_file(None)
    check_report_file(path)
    write_report_file(path, "first, and long\n")
    check_report_file(path)
    write_report_file(path, "second\n")
    assert path.read_text() == "second\n"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_but_a_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "report.json"
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="must be a regular file"):
        check_report_file(path)
    write_report_file(path, "text")
    assert "must be a regular file" in caplog.text
    assert not (tmp_path / "victim").exists()


def test_a_folder_that_is_not_there_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_report_file(tmp_path / "no" / "report.json", "text")
    assert "No such file or directory" in caplog.text
