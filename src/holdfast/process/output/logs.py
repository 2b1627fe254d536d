"""The folders of a run, and the streams of an attempt.

Below `log_dir`, or below the system's folder for temporary files:

    <run id>_<random>/             0700, new for every agent and run
        report.json                what --report writes, if the job failed and no FILE was given
        private/                   what is not kept, as the job's secret; gone with the agent
        attempt_<n>/
            filtered_stdout.log    lines of all workers that a filter chose
            <local rank>/          the worker's private folder
                stdout.log, stderr.log

A stream that goes to a file only is the file itself: no thread of ours stands between. A stream
that is also shown on the console is a pipe, which the attempt's pump reads.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, assert_never

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError, InternalError, Unavailable, UsageError
from holdfast.process.output.prefix import render_prefix
from holdfast.process.output.pump import (
    Console,
    LogFile,
    OutputSource,
    Pump,
    open_log_file,
    open_pipe,
)
from holdfast.process.output.streams import Destination, LogOptions, Std
from holdfast.process.stop.leftovers import remove_folder

__all__ = ["AttemptLogs", "RunLogs", "WorkerPlace"]

_FILE_NAMES = {Std.OUT: "stdout.log", Std.ERR: "stderr.log"}
_CONSOLE_NAMES = {Std.OUT: "standard output", Std.ERR: "standard error"}
_NAME_MAX = 100
_NULL = Path(os.devnull)
# What may pass, or what an operator can make pass, without another call.
_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)

_log = logging.getLogger("holdfast.process")


class WorkerPlace(NamedTuple):
    """Which worker of the attempt it is."""

    local_rank: int
    rank: int
    role: str


class RunLogs:
    """The logs of one agent in one run. `open()` makes the folder, `close()` ends its use.

    `console` are the descriptors that stand for the agent's own standard output and error.
    """

    def __init__(
        self,
        options: LogOptions,
        run_id: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        console: tuple[int, int] = (1, 2),
    ) -> None:
        self._options = options
        self._run_id = run_id
        self._clock = clock
        self._console = console
        self._folder: Path | None = None
        self._spare: int | None = None  # given up at the end, when all others may be taken
        self._attempts: list[AttemptLogs] = []

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        if self._folder is None:
            raise InternalError("the logs of a run have a folder only after open()")
        return self._folder

    @property
    def private(self) -> Path:
        """The folder for files that are not kept; the reaper of the agent removes it, too."""
        return self.folder if self.temporary else self.folder / "private"

    @property
    def temporary(self) -> bool:
        """Whether the folder goes when the agent does: the user asked for no file in it."""
        return self._options.log_dir in {None, _NULL} and not self._options.keeps_files

    def open(self) -> None:
        """Make the folder. Raises UsageError or Unavailable if it cannot be."""
        named = self._options.log_dir not in {None, _NULL}
        try:
            if self.temporary:
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if named:
                parent, start = os.path.abspath(str(self._options.log_dir)), ""
                os.makedirs(parent, exist_ok=True)
            else:
                parent, start = tempfile.gettempdir(), "holdfast_"
            made = tempfile.mkdtemp(prefix=f"{start}{_safe_name(self._run_id)}_", dir=parent)
            self._folder = Path(made)
            self.private.mkdir(mode=0o700, exist_ok=True)
        except (OSError, ValueError) as error:
            self._close_spare()
            what = f"log folder {str(self._options.log_dir)!r}" if named else "temporary folder"
            raise _refusal(what, error, may_pass=not named) from error
        if not self.temporary:
            # A user who named no folder has no other way to know.
            level = logging.INFO if self._options.log_dir else logging.WARNING
            _log.log(level, "the logs of this run are in %s", made)

    def attempt(self, number: int, places: Sequence[WorkerPlace]) -> AttemptLogs:
        """Make the folders and the streams of an attempt; each number is taken once."""
        folder = self.folder / f"attempt_{number}"
        logs = AttemptLogs(self._options, folder, clock=self._clock, console=self._console)
        try:
            logs.open(number, places)
        except BaseException as error:
            logs.close(timeout=0)
            if isinstance(error, OSError):
                raise _refusal(f"logs of attempt {number} in {str(folder)!r}", error) from error
            raise
        self._attempts.append(logs)
        return logs

    def close(self, timeout: float = 1.0) -> None:
        """Close what attempts are open, and remove what is not to be kept."""
        while self._attempts:
            self._attempts.pop().close(timeout)
        self._close_spare()
        if self._folder is not None:
            remove_folder(self.private)

    def _close_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


class AttemptLogs:
    """The folders and streams of the workers of one attempt; made by `RunLogs.attempt`.

    For each worker: hand `descriptors()` to its process, then call `started()`.
    """

    def __init__(
        self, options: LogOptions, folder: Path, *, clock: Clock, console: tuple[int, int]
    ) -> None:
        self._options = options
        self._folder = folder
        self._clock = clock
        self._console = console
        self._given: dict[int, list[int | None]] = {}
        self._pump: Pump | None = None

    def open(self, number: int, places: Sequence[WorkerPlace]) -> None:
        """Make everything. Raises OSError; then `close()` ends what was made."""
        self._folder.mkdir(mode=0o700)
        host = socket.gethostname()
        consoles = self._consoles()
        for place in places:
            self.folder(place.local_rank).mkdir(mode=0o700)
            prefix = render_prefix(
                self._options.template,
                role=place.role,
                local_rank=place.local_rank,
                rank=place.rank,
                host=host,
                attempt=number,
            )
            given = self._given.setdefault(place.local_rank, [])
            for std, console in consoles.items():
                given.append(self._stream(place.local_rank, std, console, prefix))
        if self._pump is not None:
            self._pump.start()

    def folder(self, local_rank: int) -> Path:
        """Return the private folder of a worker; it is there."""
        return self._folder / str(local_rank)

    def descriptors(self, local_rank: int) -> tuple[int | None, int | None]:
        """Return the standard output and error for a worker's process; None for the agent's own."""
        out, err = self._given[local_rank]
        return out, err

    def started(self, local_rank: int) -> None:
        """Close our copies of what the worker's process holds now."""
        for descriptor in self._given.pop(local_rank, ()):
            if descriptor is not None:
                os.close(descriptor)

    def close(self, timeout: float) -> None:
        """Write out what the workers wrote, which have ended.

        Waits for a console that takes nothing for `timeout` at most, and for one that is slow until
        it has taken all.
        """
        for local_rank in list(self._given):
            self.started(local_rank)
        if self._pump is not None:
            self._pump.close(timeout)

    def hurry(self) -> None:
        """Let a `close` in another thread wait for no console any longer."""
        if self._pump is not None:
            self._pump.hurry()

    def _consoles(self) -> dict[Std, _Shown]:
        shown = {}
        for std, descriptor in zip(_FILE_NAMES, self._console, strict=True):
            needles = self._options.filters(std)
            path = self._path(self._folder / f"filtered_{_FILE_NAMES[std]}")
            console = Console(descriptor, _CONSOLE_NAMES[std])
            shown[std] = _Shown(console, needles, LogFile(path) if needles else None)
        return shown

    def _path(self, path: Path) -> Path:
        return _NULL if self._options.log_dir == _NULL else path

    def _stream(self, local_rank: int, std: Std, shown: _Shown, prefix: bytes) -> int | None:
        """Make a stream, and return what the worker's process is to hold of it."""
        path = self._path(self.folder(local_rank) / _FILE_NAMES[std])
        destination = self._options.destination(local_rank, std)
        match destination:
            case Destination.INHERIT:
                return None
            case Destination.NOWHERE:
                return open_log_file(_NULL)
            case Destination.FILE:
                return open_log_file(path)
            case Destination.TEE:
                self._pump = self._pump or Pump(self._clock)
                pipe, workers = open_pipe()
                self._pump.add(
                    OutputSource(
                        pipe=pipe,
                        name=f"{_CONSOLE_NAMES[std]} of local rank {local_rank}",
                        file=LogFile(path),
                        console=shown.console,
                        prefix=prefix,
                        filtered=shown.filtered,
                        needles=shown.needles,
                    )
                )
                return workers
            case _:
                assert_never(destination)


class _Shown(NamedTuple):
    """What the streams of one kind, of all workers, have in common."""

    console: Console
    needles: tuple[bytes, ...]
    filtered: LogFile | None


def _safe_name(text: str) -> str:
    """Make one plain, visible file name of any text."""
    return re.sub(r"^\.|[^A-Za-z0-9._-]", "_", text[:_NAME_MAX])


def _refusal(what: str, error: OSError | ValueError, *, may_pass: bool = False) -> HoldfastError:
    """Make the error; `may_pass` for a place that the user did not choose."""
    why: object = error
    if isinstance(error, OSError):
        why = error.strerror or error
        may_pass = may_pass or error.errno in _PASSING
    message = f"{what}: cannot be made: {why}"
    return Unavailable(message) if may_pass else UsageError(message)
