"""Folders of runs and attempts, and what their workers are given."""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import InternalError, Unavailable, UsageError
from holdfast.process.output.logs import AttemptLogs, RunLogs, WorkerPlace
from holdfast.process.output.streams import LogOptions, Std

WAIT_S = 60.0
PLACES = (WorkerPlace(0, 4, "trainer"), WorkerPlace(1, 5, "trainer"))
SAY = "import os; os.write(1, b'an apple\\nout'); os.write(2, b'a pear\\nerr')"


class Consoles:
    """The files that stand for the agent's standard output and error."""

    def __init__(self, folder: Path) -> None:
        self._paths = folder / "console-out", folder / "console-err"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self.descriptors = os.open(self._paths[0], flags), os.open(self._paths[1], flags)

    def lines(self) -> tuple[list[str], list[str]]:
        out, err = (sorted(path.read_text().splitlines()) for path in self._paths)
        return out, err

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def consoles(tmp_path: Path) -> Iterator[Consoles]:
    made = Consoles(tmp_path)
    yield made
    made.close()


@contextmanager
def logs_of(options: LogOptions, consoles: Consoles, run_id: str = "job") -> Iterator[RunLogs]:
    run_logs = RunLogs(options, run_id, console=consoles.descriptors)
    run_logs.open()
    try:
        yield run_logs
    finally:
        run_logs.close()


def work(logs: AttemptLogs, consoles: Consoles, code: str = SAY) -> None:
    """Let both workers say something, then close the attempt."""
    workers = []
    for place in PLACES:
        out, err = (
            own if given is None else given
            for given, own in zip(
                logs.descriptors(place.local_rank), consoles.descriptors, strict=True
            )
        )
        workers.append(subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=err))
        logs.started(place.local_rank)
    for worker in workers:
        assert worker.wait(WAIT_S) == 0
    logs.close(WAIT_S)


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_folders_are_private_and_per_attempt(tmp_path: Path, consoles: Consoles) -> None:
    with logs_of(LogOptions(log_dir=tmp_path / "a" / "b"), consoles) as run_logs:
        assert run_logs.folder.parent == tmp_path / "a" / "b"
        assert run_logs.folder.name.startswith("job_")
        assert not run_logs.temporary
        for number in (0, 1):
            logs = run_logs.attempt(number, PLACES)
            assert logs.folder(1) == run_logs.folder / f"attempt_{number}" / "1"
            for folder in (run_logs.folder, logs.folder(0).parent, logs.folder(0), logs.folder(1)):
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            logs.close(0)
    assert run_logs.folder.is_dir()


@pytest.mark.parametrize("kept", [False, True])
def test_the_private_folder_is_removed_though_logs_are_kept(
    tmp_path: Path, consoles: Consoles, kept: bool
) -> None:
    with logs_of(LogOptions(log_dir=tmp_path if kept else None), consoles) as run_logs:
        assert stat.S_IMODE(run_logs.private.stat().st_mode) == 0o700
        assert run_logs.folder in (run_logs.private, *run_logs.private.parents)
        (run_logs.private / "secret").touch()
    assert not run_logs.private.exists()
    assert run_logs.folder.exists() == kept


def test_streams_that_were_not_asked_for_are_inherited(tmp_path: Path, consoles: Consoles) -> None:
    with logs_of(LogOptions(log_dir=tmp_path), consoles) as run_logs:
        logs = run_logs.attempt(0, PLACES)
        assert logs.descriptors(0) == (None, None)
        work(logs, consoles)
        assert tree(run_logs.folder) == set()


def test_redirected_streams_are_files(tmp_path: Path, consoles: Consoles) -> None:
    options = LogOptions(log_dir=tmp_path / "logs", redirects={0: Std.ALL, 1: Std.OUT})
    with logs_of(options, consoles) as run_logs:
        logs = run_logs.attempt(0, PLACES)
        work(logs, consoles)
        files = {"attempt_0/0/stdout.log", "attempt_0/0/stderr.log", "attempt_0/1/stdout.log"}
        assert tree(run_logs.folder) == files
        assert (logs.folder(0) / "stderr.log").read_text() == "a pear\nerr"
        path = logs.folder(1) / "stdout.log"
        assert path.read_text() == "an apple\nout"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert consoles.lines() == ([], ["a pear", "err"])


def test_tee_goes_to_files_and_prefixed_to_the_console(tmp_path: Path, consoles: Consoles) -> None:
    with logs_of(LogOptions(log_dir=tmp_path / "logs", tee=Std.ALL), consoles) as run_logs:
        logs = run_logs.attempt(0, PLACES)
        work(logs, consoles)
        for place in PLACES:
            folder = logs.folder(place.local_rank)
            assert (folder / "stdout.log").read_text() == "an apple\nout"
            assert (folder / "stderr.log").read_text() == "a pear\nerr"
    marks = "[trainer0]:", "[trainer1]:"
    assert consoles.lines() == (
        [mark + text for mark in marks for text in ("an apple", "out")],
        [mark + text for mark in marks for text in ("a pear", "err")],
    )


def test_the_prefix_is_the_users(tmp_path: Path, consoles: Consoles) -> None:
    options = LogOptions(
        log_dir=tmp_path / "logs",
        tee={1: Std.OUT},
        prefix="${hostname} ${attempt} ${rank} ",
        local_ranks_filter=frozenset({1}),
    )
    with logs_of(options, consoles) as run_logs:
        work(run_logs.attempt(3, PLACES), consoles)
    mark = f"{socket.gethostname()} 3 5 "
    assert consoles.lines() == ([mark + "an apple", mark + "out"], ["a pear", "err"])


def test_the_filter_silences_ranks_and_leaves_their_files(
    tmp_path: Path, consoles: Consoles
) -> None:
    options = LogOptions(log_dir=tmp_path / "logs", tee=Std.OUT, local_ranks_filter=frozenset({0}))
    with logs_of(options, consoles) as run_logs:
        logs = run_logs.attempt(0, PLACES)
        work(logs, consoles)
        assert (logs.folder(1) / "stdout.log").read_text() == "an apple\nout"
        assert tree(logs.folder(1)) == {"stdout.log"}
    assert consoles.lines() == (["[trainer0]:an apple", "[trainer0]:out"], ["a pear", "err"])


def test_lines_are_duplicated_by_filters(tmp_path: Path, consoles: Consoles) -> None:
    options = LogOptions(
        log_dir=tmp_path / "logs", tee=Std.ALL, duplicate_stdout_filters=("apple", "pear")
    )
    with logs_of(options, consoles) as run_logs:
        logs = run_logs.attempt(0, PLACES)
        work(logs, consoles)
        attempt = logs.folder(0).parent
        lines = sorted((attempt / "filtered_stdout.log").read_text().splitlines())
        assert lines == ["[trainer0]:an apple", "[trainer1]:an apple"]
        assert not (attempt / "filtered_stderr.log").exists()


def test_without_a_given_folder_logs_are_temporary(
    consoles: Consoles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.process")
    with logs_of(LogOptions(), consoles) as run_logs:
        assert run_logs.temporary
        assert run_logs.folder.parent == Path(tempfile.gettempdir())
        assert run_logs.folder.name.startswith("holdfast_job_")
        work(run_logs.attempt(0, PLACES), consoles)
        assert run_logs.folder.is_dir()
    assert not run_logs.folder.exists()
    assert caplog.messages == []


def test_a_temporary_folder_stays_if_files_were_asked_for(
    tmp_path: Path,
    consoles: Consoles,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a user who gave no folder is told."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with logs_of(LogOptions(redirects=Std.ERR), consoles) as run_logs:
        assert not run_logs.temporary
        work(run_logs.attempt(0, PLACES), consoles)
    assert tree(run_logs.folder) == {"attempt_0/0/stderr.log", "attempt_0/1/stderr.log"}
    assert caplog.messages == [f"the logs of this run are in {run_logs.folder}"]


def test_nothing_is_kept_in_dev_null(consoles: Consoles) -> None:
    options = LogOptions(
        log_dir=Path(os.devnull), redirects=Std.ERR, tee=Std.OUT, duplicate_stdout_filters=("a",)
    )
    with logs_of(options, consoles) as run_logs:
        assert run_logs.temporary
        logs = run_logs.attempt(0, PLACES)
        work(logs, consoles)
        assert tree(run_logs.folder) == set()
        assert logs.folder(1).is_dir()
    assert len(consoles.lines()[0]) == 4
    assert consoles.lines()[1] == []


@pytest.mark.parametrize(
    ("run_id", "start"),
    [
        ("a-b_c.1", "a-b_c.1_"),
        ("../../etc/passwd", "_._.._etc_passwd_"),
        ("/absolute", "_absolute_"),
        ("..", "_._"),
        ("$(reboot) ;\n\0é", "__reboot______"),
        ("", "_"),
        ("x" * 5000, "x" * 100 + "_"),
    ],
)
def test_no_run_id_leaves_the_folder(
    tmp_path: Path, consoles: Consoles, run_id: str, start: str
) -> None:
    with logs_of(LogOptions(log_dir=tmp_path / "logs"), consoles, run_id) as run_logs:
        assert run_logs.folder.parent == tmp_path / "logs"
        assert run_logs.folder.name.startswith(start)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("file", "File exists"),
        ("file/below", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("nul\0", "embedded null byte"),
        ("/proc/self/logs", "No such file or directory"),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(
    tmp_path: Path, consoles: Consoles, place: str, why: str
) -> None:
    (tmp_path / "file").touch()
    run_logs = RunLogs(LogOptions(log_dir=tmp_path / place), "job", console=consoles.descriptors)
    with pytest.raises(UsageError) as caught:
        run_logs.open()
    assert str(caught.value) == f"log folder {str(tmp_path / place)!r}: cannot be made: {why}"
    run_logs.close()
    with pytest.raises(InternalError):
        _ = run_logs.folder


def test_a_temporary_folder_for_which_there_is_no_room_is_told(
    consoles: Consoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine whose temporary folders are full: Python tries each of them."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc", "/sys"])
    with pytest.raises(Unavailable) as caught:
        RunLogs(LogOptions(), "job", console=consoles.descriptors).open()
    why = "No usable temporary directory found in ['/proc', '/sys']"
    assert str(caught.value) == f"temporary folder: cannot be made: {why}"


def test_too_many_open_files_are_told_and_undone(tmp_path: Path) -> None:
    # In a process of its own, because the limit holds for all of its threads.
    code = """
import os, resource, sys
from pathlib import Path
from holdfast.errors import Unavailable
from holdfast.process.output.logs import WorkerPlace, RunLogs
from holdfast.process.output.streams import LogOptions, Std
logs = RunLogs(LogOptions(log_dir=Path(sys.argv[1]), tee=Std.ALL), "job")
logs.open()
before = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
try:
    logs.attempt(0, [WorkerPlace(rank, rank, "x") for rank in range(100)])
except Unavailable as error:
    print(str(error).rpartition(": ")[2], os.listdir("/proc/self/fd") == before)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    text = subprocess.check_output(command, text=True, timeout=WAIT_S)
    assert text == "Too many open files True\n"


def test_a_temporary_folder_goes_though_no_descriptor_is_left(tmp_path: Path) -> None:
    code = """
import os, resource
from holdfast.process.output.logs import WorkerPlace, RunLogs
from holdfast.process.output.streams import LogOptions
logs = RunLogs(LogOptions(), "job")
logs.open()
deep = logs.attempt(0, [WorkerPlace(0, 0, "x")]).folder(0) / "a" / "b" / "c"
deep.mkdir(parents=True)
(deep / "file").touch()
(deep / "link").symlink_to(os.environ["TMPDIR"] + "/kept")
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
try:
    while True:
        os.dup(2)
except OSError as error:
    print(error.strerror)
logs.close()
print(logs.folder.exists())
"""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine").touch()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    text = subprocess.check_output(
        [sys.executable, "-c", code], text=True, timeout=WAIT_S, env=environment
    )
    assert text == "Too many open files\nFalse\n"
    assert (kept / "mine").exists()


def test_an_attempt_number_is_taken_once(tmp_path: Path, consoles: Consoles) -> None:
    with logs_of(LogOptions(log_dir=tmp_path), consoles) as run_logs:
        run_logs.attempt(0, PLACES)
        with pytest.raises(UsageError, match="logs of attempt 0 in .*: File exists"):
            run_logs.attempt(0, PLACES)


def test_workers_that_were_never_started_leave_nothing_open(
    tmp_path: Path, consoles: Consoles
) -> None:
    options = LogOptions(
        log_dir=tmp_path / "logs", tee={0: Std.ALL}, redirects={1: Std.OUT, 2: Std.NONE}
    )
    with logs_of(options, consoles) as run_logs:
        logs = run_logs.attempt(0, PLACES)
        given = [fd for rank in (0, 1) for fd in logs.descriptors(rank) if fd is not None]
        assert len(given) == 3
        assert not any(os.get_inheritable(fd) for fd in given)
    for fd in given:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
