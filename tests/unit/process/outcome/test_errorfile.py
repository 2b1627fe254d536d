"""Error files on disk: whatever lies there, the worker's failure is told, and no thread waits."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.env import Environment
from holdfast.errors import WorkersFailed
from holdfast.process.outcome import errorfile
from holdfast.process.outcome.errorfile import (
    ERROR_FILE_BYTES_MAX,
    ErrorFile,
    Unreadable,
    examine,
    read_error_file,
    record,
    write_error_file,
    write_reply_file,
)
from holdfast.process.outcome.failure import STACK_CHARS_MAX, Failure, visible
from holdfast.process.outcome.memory import MemoryWatch
from holdfast.process.spec import Exit, Launch, Script

STARTED, NOTICED = 1_700_000_000.0, 1_700_000_010.5
GOOD = {
    "message": {
        "message": "ValueError: bad",
        "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1700000009"},
    }
}
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def worker(folder: Path) -> Launch:
    return Launch(
        entrypoint=Script("train.py"),
        local_rank=1,
        rank=3,
        role="trainer",
        environment={},
        folder=folder,
    )


def look(folder: Path, code: int = 1, memory: MemoryWatch | None = None) -> Failure:
    return examine(
        worker(folder),
        77,
        Exit(code),
        host="node-a",
        started_at=STARTED,
        noticed_at=NOTICED,
        memory=memory,
    )


def leave(folder: Path, data: object, written_at: float | None = None) -> None:
    path = worker(folder).error_file
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    if written_at is not None:
        os.utime(path, (written_at, written_at))


# What a worker may leave in place of an error file.


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def given_away(path: Path) -> None:
    path.write_text(json.dumps(GOOD))
    os.chown(path, 65534, 65534)


def closed(path: Path) -> None:
    path.write_text(json.dumps(GOOD))
    path.chmod(0)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def link_to_good(path: Path) -> None:
    good = path.with_name("elsewhere.json")
    good.write_text(json.dumps(GOOD))
    path.symlink_to(good)


def link_to_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("fifo"))
    path.symlink_to(path.with_name("fifo"))


THINGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (os.mkfifo, "is not a regular file"),
    "directory": (Path.mkdir, "is not a regular file"),
    "socket": (bound_socket, "cannot be opened"),
    "symlink": (link_to_good, "is a symbolic link"),
    "dangling symlink": (link_to("nowhere"), "is a symbolic link"),
    "symlink to itself": (link_to("error.json"), "is a symbolic link"),
    "symlink to a fifo": (link_to_fifo, "is a symbolic link"),
    "symlink to a device": (link_to("/dev/zero"), "is a symbolic link"),
    "symlink to a terminal": (link_to("/dev/tty"), "is a symbolic link"),
    "symlink to a folder": (link_to("/"), "is a symbolic link"),
    "symlink to a secret": (link_to("/etc/shadow"), "is a symbolic link"),
    "symlink to ourselves": (link_to("/proc/self/mem"), "is a symbolic link"),
    "huge sparse file": (sparse, "is larger than 1 MiB"),
}


@pytest.mark.parametrize("thing", THINGS)
def test_only_a_regular_file_of_our_own_is_read(thing: str, tmp_path: Path) -> None:
    make, reason = THINGS[thing]
    make(worker(tmp_path).error_file)
    found = read_error_file(worker(tmp_path).error_file)
    assert isinstance(found, Unreadable)
    assert found.reason.startswith(reason)
    told = look(tmp_path, code=3)
    assert (told.message, told.at) == ("exit code 3", NOTICED)
    assert told.hint.startswith(f"its error file {reason}")
    assert told.error_file == str(worker(tmp_path).error_file)
    assert told.error_data is None


@pytest.mark.parametrize("thing", ["device", "owner"])
@AS_ROOT
def test_devices_and_files_of_others_are_not_read(thing: str, tmp_path: Path) -> None:
    path = worker(tmp_path).error_file
    if thing == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # as /dev/zero: it never ends
        except PermissionError:
            pytest.skip("a device cannot be made here")
    else:
        given_away(path)
    found = read_error_file(path)
    assert isinstance(found, Unreadable)
    assert found.reason in (
        "is not a regular file",
        "belongs to another user (65534)",
        "cannot be opened: Permission denied",  # a file system that has no devices
    )
    assert look(tmp_path).error_data is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root can open everything")
def test_a_closed_file_is_not_read(tmp_path: Path) -> None:
    closed(worker(tmp_path).error_file)
    assert look(tmp_path).hint.startswith("its error file cannot be opened: Permission denied")


WHOLE = json.dumps(GOOD).encode()
CONTENTS: dict[str, bytes] = {
    **{f"cut at {at}": WHOLE[:at] for at in range(0, len(WHOLE), 6)},
    "one byte too many": WHOLE + b"}",
    "two objects": WHOLE * 2,
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"message":' * 90_000,
    "deep and closed": b'{"message": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "just over the limit": b" " * ERROR_FILE_BYTES_MAX + WHOLE,
    "zeros": bytes(1000),
    "NUL behind": WHOLE + b"\0",
    "NUL before": b"\0" + WHOLE,
    "a byte order mark": b"\xef\xbb\xbf" + WHOLE,
    "UTF-16": json.dumps(GOOD).encode("utf-16"),
    "no UTF-8 at all": bytes(range(128, 256)),
    "a number": b"17",
    "a text": b'"it broke"',
    "null": b"null",
    "an array": b'[{"message": "x"}]',
    "no message": b'{"msg": "x"}',
    "a huge number": b'{"message": ' + b"9" * 5000 + b"}",
    "a pickle": pickle.dumps({"message": "x"}),
    "plain text": b"Segmentation fault (core dumped)\n",
    "escapes": b"\x1b[2J\x1b]0;owned\x07",
    "shell": b"$(touch /tmp/owned)",
    "an unclosed string": b'{"message": "' + b'\\"' * 400_000,
    "single quotes": b"{'message': 'x'}",
    "a comment": b'{"message": "x"} // so it is',
}


@pytest.mark.parametrize("content", CONTENTS)
def test_content_that_makes_no_sense_does_not_hide_the_failure(
    content: str, tmp_path: Path
) -> None:
    leave(tmp_path, CONTENTS[content])
    told = look(tmp_path, code=-9)
    assert told.message == "killed by SIGKILL"
    assert told.at == NOTICED
    assert told.hint.startswith("its error file ")
    assert "something outside the job killed it" in told.hint
    assert visible(told.hint) == told.hint
    assert "\n" not in told.hint
    assert told.error_data is None


def test_the_limit_itself_is_read(tmp_path: Path) -> None:
    leave(tmp_path, b" " * (ERROR_FILE_BYTES_MAX - len(WHOLE)) + WHOLE)
    assert look(tmp_path).message == "ValueError: bad"


def test_bad_characters_are_shown_and_kept_in_the_data(tmp_path: Path) -> None:
    leave(tmp_path, b'{"message": "\\u001b[31mred\\u0000 \xff"}')
    told = look(tmp_path)
    assert told.message == "\\x1b[31mred\\x00 \N{REPLACEMENT CHARACTER}"
    assert told.error_data == {"message": "\x1b[31mred\0 \N{REPLACEMENT CHARACTER}"}


@settings(max_examples=50)
@given(data=st.binary(max_size=200))
def test_any_content_gives_a_failure(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("worker")
    leave(folder, data)
    assert look(folder).message


# What a good one tells.


def test_a_good_error_file_tells_it_all(tmp_path: Path) -> None:
    leave(tmp_path, GOOD, written_at=1_700_000_009.75)
    assert look(tmp_path) == Failure(
        rank=3,
        local_rank=1,
        role="trainer",
        host="node-a",
        pid=77,
        exit=Exit(1),
        at=1_700_000_009.75,
        message="ValueError: bad",
        traceback="Traceback …",
        error_file=str(tmp_path / "error.json"),
        error_data=GOOD,
    )


def test_without_an_error_file_the_end_is_told(tmp_path: Path) -> None:
    told = look(tmp_path, code=-11)
    assert told.message == "killed by SIGSEGV"
    assert told.hint == "a crash in native code"
    assert told.error_file == ""
    assert told.at == NOTICED


def test_an_empty_message_is_none(tmp_path: Path) -> None:
    leave(tmp_path, {"message": {"extraInfo": {}}})
    assert look(tmp_path, code=2).message == "exit code 2"


def timed(**extra: object) -> dict[str, Any]:
    return {"message": {"message": "m", "extraInfo": extra}}


@pytest.mark.parametrize(
    ("data", "written_at", "at"),
    [
        # Its own word, if that is exact, and not in the future.
        (timed(moment=NOTICED - 5.25, timestamp="1"), NOTICED - 1, NOTICED - 5.25),
        (timed(moment=NOTICED + 60), NOTICED - 1, NOTICED - 1),
        # A whole second says in which second; the file says when in it.
        (timed(timestamp="1700000009"), 1_700_000_009.25, 1_700_000_009.25),
        (timed(timestamp="1700000009"), 1_700_000_010.25, 1_700_000_009.999),
        (timed(timestamp="1700000009"), 1_700_000_000.0, 1_700_000_009.0),
        (timed(timestamp="1700000010"), NOTICED + 0.25, NOTICED),
        # None, or one that makes no sense.
        (timed(), NOTICED - 2, NOTICED - 2),
        (timed(), NOTICED + 2, NOTICED),
        (timed(timestamp="1800000000"), NOTICED - 2, NOTICED - 2),
        # Before it lived: a clock that was wrong, or a program that writes what it likes.
        (timed(moment=STARTED - 1, timestamp="0"), NOTICED - 2, NOTICED - 2),
        (timed(timestamp="1699999999"), NOTICED - 2, NOTICED - 2),
        (timed(timestamp="0"), STARTED - 1, NOTICED),
    ],
)
def test_when_it_happened(
    data: dict[str, Any], written_at: float, at: float, tmp_path: Path
) -> None:
    leave(tmp_path, data, written_at)
    assert look(tmp_path).at == pytest.approx(at, abs=1e-4)


def test_the_stack_of_a_crash_is_read_as_carefully(tmp_path: Path) -> None:
    stack = worker(tmp_path).stack_file
    stack.write_bytes(b"Fatal Python error: \x1b[2J\xff\n" + b"x" * 10**6)
    told = look(tmp_path, code=-11)
    assert told.stack.startswith("Fatal Python error: \\x1b[2J\N{REPLACEMENT CHARACTER}\nxxx")
    assert len(told.stack) <= STACK_CHARS_MAX
    stack.unlink()
    os.mkfifo(stack)
    assert look(tmp_path, code=-11).stack == ""


def test_the_stack_of_a_crash_ends_where_the_users_code_began(tmp_path: Path) -> None:
    ours = Path(errorfile.__file__).parents[1]
    worker(tmp_path).stack_file.write_text(
        "Fatal Python error: Aborted\n\n"
        'Thread 0x1 (most recent call first):\n  File "/lib/threading.py", line 1 in run\n\n'
        'Current thread 0x2 (most recent call first):\n  File "/job/train.py", line 3 in f\n'
        f'  File "{ours}/outcome/errorfile.py", line 9 in recorded\n'
        '  File "/job/train.py", line 4 in <module>\n'
        f'  File "{ours}/start/child.py", line 8 in call\n'
        f'  File "{ours}/start/forked.py", line 7 in run\n'
        '  File "/job/launch.py", line 6 in <module>\n\nExtension modules: a (total: 1)\n'
    )
    assert look(tmp_path, code=-6).stack.splitlines() == [
        "Fatal Python error: Aborted",
        "",
        "Thread 0x1 (most recent call first):",
        '  File "/lib/threading.py", line 1 in run',
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "/job/train.py", line 3 in f',
        f'  File "{ours}/outcome/errorfile.py", line 9 in recorded',
        '  File "/job/train.py", line 4 in <module>',
        "",
        "Extension modules: a (total: 1)",
    ]


def test_a_real_crash_leaves_its_stack(tmp_path: Path) -> None:
    stack = worker(tmp_path).stack_file
    code = (
        "import faulthandler, ctypes, sys\n"
        f"faulthandler.enable(open({str(stack)!r}, 'w'))\n"
        "def crash():\n    ctypes.string_at(0)\n"
        "crash()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    told = look(tmp_path, code=done.returncode)
    assert told.exit == Exit(-signal.SIGSEGV)
    assert "in crash" in told.stack


# A full disk.


@pytest.mark.parametrize(
    ("blocks", "available", "hint"),
    [(100, 0, "the disk of the log folder is full"), (100, 1, ""), (0, 0, "")],
)
def test_a_full_disk_is_told_if_the_worker_told_nothing(
    blocks: int, available: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = os.statvfs_result((4096, 4096, blocks, available, available, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: {tmp_path: disk}[path])
    assert look(tmp_path).hint == hint
    leave(tmp_path, GOOD)
    assert look(tmp_path).hint == ""


def test_a_folder_that_was_removed_tells_nothing(tmp_path: Path) -> None:
    assert look(tmp_path / "gone").hint == ""


# Want of memory.


def memory_watch(folder: Path, kills: int) -> MemoryWatch:
    counts = folder / "memory.events"
    counts.write_text("oom_kill 0\n")
    watch = MemoryWatch.take(folder)
    counts.write_text(f"oom_kill {kills}\n")
    return watch


def test_a_kill_for_want_of_memory_is_told_once_for_each(tmp_path: Path) -> None:
    watch = memory_watch(tmp_path, kills=1)
    assert "killed by the kernel: out of memory" in look(tmp_path, -9, watch).hint
    assert "something outside the job killed it" in look(tmp_path, -9, watch).hint


def test_a_worker_that_raised_hears_that_another_process_was_killed(tmp_path: Path) -> None:
    leave(tmp_path, GOOD)
    watch = memory_watch(tmp_path, kills=1)
    assert (
        "a process beside it was killed by the kernel: out of memory"
        in look(tmp_path, 1, watch).hint
    )
    assert look(tmp_path, -9, watch).hint.startswith("killed by the kernel: out of memory")
    assert look(tmp_path, 1, watch).hint == ""


# Writing.


def test_a_written_file_is_private_whole_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    target = tmp_path / "target"
    target.write_text("untouched")
    path.symlink_to(target)
    before = os.umask(0)
    try:
        write_error_file(path, GOOD)
    finally:
        os.umask(before)
    assert json.loads(path.read_text()) == GOOD
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert target.read_text() == "untouched"
    assert isinstance(read_error_file(path), ErrorFile)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "error.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_error_file(tmp_path / "error.json", GOOD)
    assert [path.name for path in tmp_path.iterdir()] == ["error.json"]


def test_the_launchers_own_error_file_is_the_first_causes(tmp_path: Path) -> None:
    leave(tmp_path, GOOD)
    first = look(tmp_path, code=-6)
    reply = tmp_path / "reply.json"
    environment = Environment(error_file=reply)
    assert write_reply_file([first, look(tmp_path / "none")], environment) == ""
    data = json.loads(reply.read_text())["message"]
    assert data == {**GOOD["message"], "errorCode": -6}
    assert int(data["extraInfo"]["timestamp"]) == int(first.at)


def test_without_a_failure_or_a_place_nothing_is_written(tmp_path: Path) -> None:
    reply = tmp_path / "reply.json"
    assert write_reply_file([], Environment(error_file=reply)) == ""
    assert write_reply_file([look(tmp_path)], Environment()) == ""
    assert not reply.exists()
    nowhere = tmp_path / "no" / "reply.json"
    problem = write_reply_file([look(tmp_path)], Environment(error_file=nowhere))
    assert problem == f"{nowhere}: No such file or directory"


# record.


@pytest.fixture
def reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "reply.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("HOLDFAST_MISSPELT", "1")  # nothing may stand between an error and its file
    return path


@record
def divide(by: int, *, of: int = 6) -> float:
    """Divide."""
    return of / by


def test_a_recorded_function_is_the_same_function(reply: Path) -> None:
    assert divide(3) == 2
    assert divide(3, of=9) == 3
    assert (divide.__name__, divide.__doc__) == ("divide", "Divide.")
    assert not reply.exists()


def test_what_a_recorded_function_raises_is_written_and_goes_on(reply: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        divide(0)
    told = json.loads(reply.read_text())["message"]
    assert told["message"] == "ZeroDivisionError: division by zero"
    extra = told["extraInfo"]
    assert "return of / by" in extra["py_callstack"]
    assert "errorfile.py" not in extra["py_callstack"].replace(__file__, "")
    assert extra["rank"] == 3
    assert extra["type"] == "ZeroDivisionError"
    assert extra["timestamp"] == str(int(extra["moment"]))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit("no data"), "SystemExit: no data"),
        (SystemExit(3), None),
        (SystemExit(0), None),
        (SystemExit(), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_an_end_without_words_is_not_recorded(
    error: BaseException, message: str | None, reply: Path
) -> None:
    @record
    def main() -> None:
        raise error

    with pytest.raises(type(error)):
        main()
    assert reply.exists() == (message is not None)
    if message:
        assert json.loads(reply.read_text())["message"]["message"] == message


def test_failed_workers_pass_on_the_first_causes_file(reply: Path, tmp_path: Path) -> None:
    leave(tmp_path, GOOD)
    failure = look(tmp_path)

    @record
    def launch() -> None:
        raise WorkersFailed("report", failures=(failure,))

    with pytest.raises(WorkersFailed):
        launch()
    told = json.loads(reply.read_text())["message"]
    assert told["message"] == "ValueError: bad"
    assert int(told["extraInfo"]["timestamp"]) == int(failure.at)


def test_without_the_variable_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZeroDivisionError) as caught:
        divide(0)
    assert not hasattr(caught.value, "__notes__")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_noted_on_the_exception(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "no" / "error.json"))
    monkeypatch.setenv("RANK", "none")
    with pytest.raises(ZeroDivisionError) as caught:
        divide(0)
    assert "No such file or directory" in caught.value.__notes__[0]


TORCH = """
import json
import sys
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure, record

ours = ProcessFailure(local_rank=1, pid=77, exitcode=1, error_file=sys.argv[1])
print(json.dumps([ours.timestamp, ours.message["message"]]))

@record
def main():
    raise ValueError("theirs")

main()
"""


def test_torch_reads_our_files_and_we_read_torchs(reply: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        divide(0)
    told = json.loads(reply.read_text())["message"]
    theirs = worker(tmp_path).error_file
    done = subprocess.run(
        [sys.executable, "-c", TORCH, str(reply)],
        check=False,
        capture_output=True,
        timeout=100,
        env={"TORCHELASTIC_ERROR_FILE": str(theirs)},
    )
    assert json.loads(done.stdout) == [
        int(told["extraInfo"]["timestamp"]),
        "ZeroDivisionError: division by zero",
    ], done.stderr.decode()
    ended = Exit(done.returncode)
    found = examine(worker(tmp_path), 77, ended, host="h", started_at=0.0, noticed_at=float(2**32))
    assert found.message == "ValueError: theirs"
    assert found.traceback.endswith("ValueError: theirs\n")
    assert found.error_data is not None
    assert int(found.at) == int(found.error_data["message"]["extraInfo"]["timestamp"])
    assert int(found.at) <= theirs.stat().st_mtime
