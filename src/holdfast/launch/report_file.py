"""The file with the report of a failed job: where it may be, and how it is written."""

from __future__ import annotations

import contextlib
import logging
import stat
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.process.outcome.errorfile import replace_file

__all__ = ["check_report_file", "write_report_file"]

_log = logging.getLogger("holdfast.launch")


def check_report_file(path: Path | None) -> None:
    """Raise UsageError if what is there is nothing that a report may replace."""
    with contextlib.suppress(OSError):  # nothing is there, or writing will tell
        if path is not None and not stat.S_ISREG(path.lstat().st_mode):
            raise UsageError(
                f"report {str(path)!r}: must be a regular file, or must not exist; symbolic "
                "links are not followed"
            )


def write_report_file(path: Path, text: str) -> None:
    """Replace the file; a warning says why it cannot be, since the job's own failure counts."""
    try:
        check_report_file(path)
        replace_file(path, text.encode(), 0o666)
    except OSError as error:
        _log.warning("report %s: %s", path, error.strerror)
    except UsageError as error:  # another process put it there while the job ran
        _log.warning("%s", error)
