"""Error files on disk, which are not trusted; `record`.

A worker leaves its error file, and its stacks if it crashed or hung, in a folder of its own. What
lies there may be anything: a FIFO that would block the reader, a link to another user's file, a
terabyte of zeros. So a file is opened without waiting and without following a link, is used only
if it is a regular one of our own, and is read to a limit.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGKILL
from types import NoneType
from typing import Any, ParamSpec, TypeVar

from holdfast import env
from holdfast.clock import SYSTEM_CLOCK
from holdfast.env import Environment
from holdfast.errors import PeerViolation, WorkerFailure, WorkersFailed
from holdfast.process.outcome.failure import (
    STACK_CHARS_MAX,
    ErrorReport,
    Failure,
    clip,
    dump_json,
    hint_for,
    make_error_data,
    parse_error_data,
    reply_data,
    visible,
)
from holdfast.process.outcome.memory import MemoryWatch
from holdfast.process.spec import Exit, Launch
from holdfast.records import dataclass

__all__ = [
    "ErrorFile",
    "Unreadable",
    "examine",
    "is_whole_stack",
    "read_error_file",
    "read_stack",
    "record",
    "replace_file",
    "write_error_file",
    "write_reply_file",
]

ERROR_FILE_BYTES_MAX = 1 << 20
_STACK_BYTES_MAX = STACK_CHARS_MAX
_START = Path(__file__).parents[1] / "start"
_OUR_FRAMES = tuple(f'  File "{_START / name}"' for name in ("child.py", "forked.py", "worker.py"))

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ErrorFile:
    """A file as it was found: its content, and when it was written, in seconds since 1970."""

    data: bytes
    written_at: float


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a file that is there cannot be used."""

    reason: str


def read_error_file(path: Path) -> ErrorFile | Unreadable | None:
    """Read a file that is not trusted; None if there is none. Never waits or raises."""
    found = _read(path, ERROR_FILE_BYTES_MAX + 1)
    if isinstance(found, ErrorFile) and len(found.data) > ERROR_FILE_BYTES_MAX:
        return Unreadable(f"is larger than {ERROR_FILE_BYTES_MAX >> 20} MiB")
    return found


def write_error_file(path: Path, data: dict[str, Any]) -> None:
    """Write an error file, for this user alone; a reader sees all of it or none. OSError.

    What was there before is replaced, also a link, which is not followed.
    """
    replace_file(path, dump_json(data), 0o600)


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Put a new file in the place of whatever is there, whole or not at all. Raises OSError.

    Nothing that another process put at the path is opened: a link is replaced, not followed.
    """
    draft = path.with_name(f".{path.name[:100]}-{os.urandom(8).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def write_reply_file(failures: Sequence[WorkerFailure], environment: Environment) -> str:
    """Write the first cause where the parent of this agent looks for it.

    That is TORCHELASTIC_ERROR_FILE of the agent itself. Does nothing without it, or without a
    failure. Return why it could not be written; empty if all is well.
    """
    if environment.error_file is None or not failures:
        return ""
    return _try_to_write(environment.error_file, reply_data(failures[0]))


def record(function: Callable[P, R]) -> Callable[P, R]:
    """Leave an error file when the function raises; for the main function of a worker.

    It is written to TORCHELASTIC_ERROR_FILE, where that is set, and the exception goes on as it is.
    `sys.exit("text")` counts as one. For failed workers, which a launcher in the function raises as
    WorkersFailed, it says what the first cause's own error file says.
    """

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            problem = _record(error)
            if problem:  # the exception itself is what matters: it must go on, whatever happens
                error.add_note(f"No error file was written: {problem}")
            raise

    return recorded


def examine(
    launch: Launch,
    pid: int,
    exit_: Exit,
    *,
    host: str,
    started_at: float,
    noticed_at: float,
    memory: MemoryWatch | None = None,
    known: str = "",
) -> Failure:
    """Find out why a worker failed, from what it left and how it ended.

    `started_at` and `noticed_at` are when it was about to be started and when its end was noticed,
    in seconds since 1970; `known` is what the agent knows without looking, such as that it ended
    the worker itself.
    """
    found = read_error_file(launch.error_file)
    report: ErrorReport | None = None
    hints: list[str] = []
    if isinstance(found, ErrorFile):
        try:
            report = parse_error_data(found.data)
        except PeerViolation as error:
            found = Unreadable(f"is malformed: {error}")
    if isinstance(found, Unreadable):
        hints.append(f"its error file {found.reason}")
    killed = memory.killed() if memory and exit_.code == -SIGKILL else None
    starved = killed or (memory and exit_.code != -SIGKILL and memory.killed_another())
    causes = [known, starved or "", "" if found else _full_disk(launch.folder)]
    hints += causes if report or any(causes) else [hint_for(exit_)]
    return Failure(
        rank=launch.rank,
        local_rank=launch.local_rank,
        role=launch.role,
        host=host,
        pid=pid,
        exit=exit_,
        at=_happened_at(found, report, started_at, noticed_at),
        message=(report.message if report else "") or str(exit_),
        error_type=report.error_type if report else "",
        traceback=report.traceback if report else "",
        stack=read_stack(launch.stack_file),
        hint="; ".join(filter(None, hints)),
        error_file=str(launch.error_file) if found else "",
        error_data=report.data if report else None,
        kind="oom" if killed else "",
    )


def _happened_at(
    found: ErrorFile | Unreadable | None,
    report: ErrorReport | None,
    started_at: float,
    noticed_at: float,
) -> float:
    """Return when a failure happened: as the file says, as exactly as one can know, or noticed.

    A word that lies outside the worker's life does not count, nor makes a victim the first cause.
    """
    if report is None or not isinstance(found, ErrorFile):
        return noticed_at
    if report.moment is not None and started_at <= report.moment <= noticed_at:
        return report.moment
    if report.timestamp is None or not int(started_at) <= report.timestamp <= noticed_at:
        return found.written_at if started_at <= found.written_at <= noticed_at else noticed_at
    # A second is long: a whole job dies in it. When the file was written says more, within it.
    within = min(max(found.written_at, report.timestamp), report.timestamp + 0.999)
    return min(within, noticed_at)


def _full_disk(folder: Path) -> str:
    """Say that the disk is full to which a worker may have wanted to write; empty if it is not."""
    try:
        disk = os.statvfs(folder)
    except OSError:  # it was removed
        return ""
    # Systems of files that do not count their blocks have none at all.
    return "the disk of the log folder is full" if disk.f_blocks and not disk.f_bavail else ""


def _record(error: BaseException) -> str:
    """Leave the error file of an exception that ends this process; return why that cannot be."""
    says_why = isinstance(error, Exception) or (
        isinstance(error, SystemExit) and not isinstance(error.code, (int, NoneType))
    )
    variables = env.variables()  # not env.current(), which refuses: nothing may hide the exception
    path = variables.get("TORCHELASTIC_ERROR_FILE")
    if not path or not says_why:
        return ""
    if isinstance(error, WorkersFailed):
        return write_reply_file(error.failures, Environment(error_file=Path(path)))
    rank = variables.get("RANK", "")
    theirs = error.__traceback__ and error.__traceback__.tb_next  # without the frame of `record`
    data = make_error_data(
        error,
        "".join(traceback.format_exception(type(error), error, theirs)),
        SYSTEM_CLOCK.wall(),
        host=os.uname().nodename,
        rank=int(rank) if rank.isascii() and rank.isdigit() else None,
    )
    return _try_to_write(Path(path), data)


def _try_to_write(path: Path, data: dict[str, Any]) -> str:
    try:
        write_error_file(path, data)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def read_stack(path: Path) -> str:
    """Read the stacks that a worker left, if any, without what led to the user's code."""
    found = _read(path, _STACK_BYTES_MAX, after_hole=True)
    if not isinstance(found, ErrorFile):
        return ""
    text = found.data.lstrip(b"\0").decode("utf-8", "replace")
    return clip(visible(_theirs(text)), STACK_CHARS_MAX)


def is_whole_stack(path: Path) -> bool:
    """Say whether stacks surely end here: with the first frame of the main thread, which is ours.

    Those of a worker that was forked end with a frame of the agent's, and are never sure.
    """
    found = _read(path, _STACK_BYTES_MAX, after_hole=True)
    if not isinstance(found, ErrorFile) or not found.data.endswith(b"\n"):
        return False
    last = found.data.rstrip(b"\n").rpartition(b"\n")[2].decode("utf-8", "replace")
    return last.startswith(_OUR_FRAMES)


def _theirs(stack: str) -> str:
    """Leave out of a stack, whose newest frame is first, what led to the user's code."""
    lines, ours = [], False
    for line in stack.splitlines(keepends=True):
        is_frame = line.startswith("  File ")
        ours = is_frame and (ours or line.startswith(_OUR_FRAMES))
        if not ours:
            lines.append(line)
    return "".join(lines)


def _read(path: Path, most: int, *, after_hole: bool = False) -> ErrorFile | Unreadable | None:
    """Read at most so many bytes of a regular file of our own, or of what follows its hole."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        link = error.errno == errno.ELOOP
        return Unreadable("is a symbolic link" if link else f"cannot be opened: {error.strerror}")
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return Unreadable("is not a regular file")
        if status.st_uid != os.geteuid():
            return Unreadable(f"belongs to another user ({status.st_uid})")
        if after_hole and status.st_size:
            os.lseek(fd, 0, getattr(os, "SEEK_DATA", os.SEEK_SET))
        with open(fd, "rb", closefd=False) as file:
            return ErrorFile(file.read(most), status.st_mtime)
    except OSError as error:
        return Unreadable(f"cannot be read: {error.strerror}")
    finally:
        os.close(fd)
