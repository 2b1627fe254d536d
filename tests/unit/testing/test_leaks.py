"""The leak check sees each kind of thing that can be left behind, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.testing import leaks
from holdfast.testing.leaks import (
    MARK,
    Kind,
    Leak,
    describe_leaks,
    find_leaks,
    mark,
    take_snapshot,
)

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_nothing_new_is_no_leak(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    assert find_leaks(take_snapshot(tmp_path), grace_s=0) == []


def test_a_thread_that_runs_on_is_found_by_its_name() -> None:
    before = take_snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten", daemon=True)
    thread.start()
    found = find_leaks(before, grace_s=0)
    stop.set()
    thread.join(10)
    assert found == [Leak(Kind.THREAD, "'forgotten' (daemon)")]


def test_a_thread_that_is_just_ending_gets_its_grace() -> None:
    before = take_snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    threading.Timer(0.05, stop.set).start()
    assert find_leaks(before, grace_s=10) == []
    thread.join(10)


def test_an_open_file_is_found_with_its_path(tmp_path: Path) -> None:
    before = take_snapshot()
    with (tmp_path / "file").open("w") as file:
        assert find_leaks(before, grace_s=0) == [
            Leak(Kind.FD, f"{file.fileno()} -> {tmp_path / 'file'}")
        ]
    assert find_leaks(before, grace_s=0) == []


def test_what_the_garbage_collector_closes_is_no_leak() -> None:
    class Holder:
        """Closes its pipe when it goes, but is held by itself."""

        def __init__(self) -> None:
            self.me = self
            self.pipe = os.pipe()

        def __del__(self) -> None:
            for fd in self.pipe:
                os.close(fd)

    before = take_snapshot()
    Holder()
    assert find_leaks(before, grace_s=0) == []


def test_a_reused_descriptor_is_found(tmp_path: Path) -> None:
    first = os.open(tmp_path, os.O_RDONLY)
    before = take_snapshot()
    os.close(first)
    reader, writer = os.pipe()
    found = {leak.kind for leak in find_leaks(before, grace_s=0)}
    os.close(reader)
    os.close(writer)
    assert found == {Kind.FD}
    assert first in (reader, writer)


def test_what_the_driver_of_a_gpu_opens_is_no_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "_DRIVER", str(tmp_path / "nvidia"))
    before = take_snapshot()
    with ExitStack() as opened:
        opened.enter_context((tmp_path / "nvidia0").open("w"))
        opened.enter_context(socket.socket())
        assert find_leaks(before, grace_s=0) == []
        file = opened.enter_context((tmp_path / "other").open("w"))
        assert [leak.what for leak in find_leaks(before, grace_s=0)] == [
            f"{file.fileno()} -> {tmp_path}/other"
        ]
        # The driver is there now: a socket that comes later is not its own.
        before = take_snapshot()
        opened.enter_context((tmp_path / "nvidia1").open("w"))
        late = opened.enter_context(socket.socket())
        assert [leak.what.split()[0] for leak in find_leaks(before, grace_s=0)] == [
            f"{late.fileno()}"
        ]


def test_a_child_is_found_with_its_command() -> None:
    before = take_snapshot()
    child = subprocess.Popen(SLEEPER)
    running = find_leaks(before, grace_s=0)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    unreaped = find_leaks(before, grace_s=0)
    child.wait(10)
    assert [leak.kind for leak in running] == [Kind.PROCESS]
    assert running[0].what.startswith(f"{child.pid} ")
    assert "not reaped" in unreaped[0].what
    assert find_leaks(before, grace_s=0) == []


def test_an_orphan_is_found_by_its_mark() -> None:
    before = take_snapshot()
    code = (
        "import subprocess, sys;"
        "p = subprocess.Popen(sys.argv[1:], start_new_session=True,"
        " stdout=subprocess.DEVNULL); print(p.pid)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *SLEEPER],
        env=os.environ | {MARK: mark()},
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
    )
    orphan = int(result.stdout)
    found = find_leaks(before, grace_s=0)
    os.kill(orphan, signal.SIGKILL)
    assert [leak.what.split()[0] for leak in found] == [str(orphan)]
    assert find_leaks(before, grace_s=10) == []


def test_the_children_of_an_older_child_are_its_own_business() -> None:
    code = (
        "import subprocess, sys; sys.stdin.readline();"
        "p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL); print('on', flush=True);"
        "sys.stdin.readline(); p.kill(); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *SLEEPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {MARK: mark()},
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        before = take_snapshot()
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == b"on\n"
        found = find_leaks(before, grace_s=0)
        parent.communicate(b"\n", timeout=10)
    assert found == []


def test_a_process_of_another_parent_is_not_ours() -> None:
    before = take_snapshot()
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=2).pid)"
    result = subprocess.run(
        [sys.executable, "-c", code, *SLEEPER],
        env=os.environ | {MARK: "somebody else"},
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
    )
    found = find_leaks(before, grace_s=0)
    os.kill(int(result.stdout), signal.SIGKILL)
    assert found == []


def test_a_temporary_file_is_found(tmp_path: Path) -> None:
    before = take_snapshot(tmp_path)
    (tmp_path / "scrap").touch()
    assert find_leaks(before, grace_s=0) == [Leak(Kind.FILE, "scrap")]


def test_the_description_names_whose_and_what() -> None:
    leaks = [Leak(Kind.FILE, "scrap"), Leak(Kind.THREAD, "'t'")]
    assert describe_leaks(leaks, "the test x") == (
        "the test x left 2 things behind:\n  temporary file: scrap\n  thread: 't'"
    )
    assert "1 thing behind" in describe_leaks(leaks[:1], "it")
