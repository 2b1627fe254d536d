"""The end of a process is heard of and told, however the system tells it."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.process.spec import Exit, Function, StartMethod
from holdfast.process.start.spawn import Starter
from holdfast.process.start.warm import Standbys
from holdfast.process.stop import handle
from holdfast.process.stop.handle import (
    WorkerProcess,
    end,
    exit_of,
    is_ending,
    is_stopped,
    open_process,
    readable,
)
from tests.unit.process.workers import TIMEOUT_S, launch_of, slow_to_end


def start(*command: str) -> WorkerProcess:
    return open_process(command, os.environ, None, None)


@pytest.fixture(params=["pidfd", "thread"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How ends are noticed: by the system's descriptor, or where there is none."""
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_the_end_of_a_process_is_told_once_it_has_come() -> None:
    process = start("sleep", "1000")
    assert not select.select([process.fileno()], [], [], 0)[0]
    assert process.reap() is None
    os.killpg(process.pid, signal.SIGTERM)
    assert select.select([process.fileno()], [], [], TIMEOUT_S)[0]
    for _ in range(2):
        ended = process.reap()
        assert ended is not None
        assert ended.code == -signal.SIGTERM
    process.close()
    process.close()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("command", [("sleep", "1000"), ("true",)])
def test_a_process_can_be_ended(command: tuple[str, ...]) -> None:
    process = start(*command)
    end(process)
    assert process.reap() is not None
    end(process)


def test_a_system_without_descriptors_of_processes_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(handle._WaitedFor, "_told", False)
    for _ in range(2):
        end(start("true"))
    (record,) = caplog.records
    assert "workers may outlive an agent that is killed" in record.getMessage()


def test_an_exit_status_that_another_thread_took_is_no_success() -> None:
    process = start("true")
    os.waitpid(process.pid, 0)
    ended = process.reap()
    assert ended is not None
    assert not ended.ok
    process.close()


def test_a_process_that_cannot_be_watched_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many"):
        start("sleep", "1000")


@contextmanager
def no_low_descriptors() -> Iterator[None]:
    """Let every new descriptor have a number that `select` does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2048)), hard))
    kept = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while kept[-1] < 1024:
            kept.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in kept:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048, reason="needs many descriptors"
)
@pytest.mark.parametrize("method", StartMethod)
@pytest.mark.parametrize("warm", [False, True])
def test_a_program_may_have_many_descriptors(
    tmp_path: Path, method: StartMethod, warm: bool
) -> None:
    function = Function(os.getpid, (), method)
    work = launch_of(tmp_path, function)
    standbys = Standbys((), function, count=1, environment=os.environ) if warm else None
    with no_low_descriptors():
        starter = Starter(standbys=standbys)
        try:
            if standbys is not None:
                standbys.fill(0.01)
            process = starter.start(work, None, None)
            assert readable(process.fileno(), TIMEOUT_S)
            assert process.reap() == Exit(0)
            process.close()
        finally:
            starter.close()


# On the way out.


def test_a_process_is_ending_before_it_has_ended_and_until_it_is_reaped() -> None:
    with slow_to_end() as slow:
        descriptor = os.pidfd_open(slow.pid)
        try:
            assert not is_ending(slow.pid)
            slow.kill()
            assert not readable(descriptor, 0)
            slow.let_go()
            assert readable(descriptor, TIMEOUT_S)
        finally:
            os.close(descriptor)
        assert is_ending(slow.pid)
        os.waitpid(slow.pid, 0)
        assert not is_ending(slow.pid)


# The main thread ends, another stays until it reads something.
HEADLESS = """
import ctypes, os, threading
def stay():
    os.write(1, b".")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_main_thread_alone_has_ended_is_not_ending() -> None:
    command = [sys.executable, "-c", HEADLESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        stat = Path(f"/proc/{process.pid}/stat")
        while b") Z " not in stat.read_bytes():
            assert process.poll() is None
        assert not is_ending(process.pid)
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_ending(process.pid)


def test_a_thread_that_goes_while_it_is_looked_at_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = start("true")
    assert readable(process.fileno(), TIMEOUT_S)
    monkeypatch.setattr(os, "listdir", lambda _: [str(process.pid), "999999999"])
    assert is_ending(process.pid)
    end(process)


def test_where_the_system_does_not_tell_no_process_is_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(path)

    process = start("true")
    assert readable(process.fileno(), TIMEOUT_S)
    monkeypatch.setattr(os, "listdir", refuse)
    assert not is_ending(process.pid)
    end(process)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", -signal.SIGSEGV)]
)
def test_how_a_process_ended_that_its_parent_has_not_reaped(script: str, code: int) -> None:
    process = start("/bin/sh", "-c", script)
    assert readable(process.fileno(), TIMEOUT_S)
    assert exit_of(process.pid) == Exit(code)
    assert process.reap() == Exit(code)
    process.close()


def test_a_process_that_is_stopped_has_not_ended() -> None:
    process = start("sleep", "1000")
    with process_stopped(process.pid):
        assert is_stopped(process.pid)
        assert exit_of(process.pid) is None
    assert not is_stopped(process.pid)
    end(process)
    assert exit_of(process.pid) is None  # it is not there any more
    assert not is_stopped(process.pid)


@contextmanager
def process_stopped(pid: int) -> Iterator[None]:
    """Stop a child, wait until it is, and let it go on."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    yield
    os.kill(pid, signal.SIGCONT)
    os.waitid(os.P_PID, pid, os.WCONTINUED)


def test_a_process_that_lives_on_without_its_first_thread_has_not_ended() -> None:
    code = (
        "import ctypes, os, threading\n"
        "def wait():\n"
        "    os.write(1, b'x'); os.read(0, 1)\n"
        "threading.Thread(target=wait, daemon=True).start()\n"
        "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            pass  # its first thread is about to end
        assert exit_of(process.pid) is None
        process.kill()


def test_an_exit_that_the_system_hides_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> str:
        raise PermissionError(path)

    process = start("true")
    assert readable(process.fileno(), TIMEOUT_S)
    with monkeypatch.context() as patch:
        patch.setattr(os, "readlink", refuse)
        assert exit_of(process.pid) == Exit(255)
    assert process.reap() == Exit(0)
    process.close()
