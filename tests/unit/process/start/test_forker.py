"""Programs start by way of the forker as they do without it, and its troubles hurt no worker."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import Unavailable, UsageError
from holdfast.process.spec import Exit, Launch, Program
from holdfast.process.start import forker as module
from holdfast.process.start.forker import Forker, ProgramOrder
from holdfast.process.start.spawn import Starter
from holdfast.process.stop.handle import WorkerProcess, end, readable, watch
from holdfast.process.stop.search import children
from tests.unit.process.workers import TIMEOUT_S, launch_of


@pytest.fixture
def forker() -> Iterator[Forker]:
    one = Forker(os.environ)
    yield one
    one.close()


def order(code: str, output: int, **more: str) -> ProgramOrder:
    return ProgramOrder(
        "/bin/sh", ("sh", "-c", code), {**os.environ, **more}, (output, output), None
    )


def ended(process: WorkerProcess) -> Exit | None:
    assert readable(process.fileno(), TIMEOUT_S)
    try:
        return process.reap()
    finally:
        process.close()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def process_of(forker: Forker) -> WorkerProcess:
    assert forker._process is not None
    return forker._process


def test_programs_run_as_children_of_ours(forker: Forker, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        orders = [order("echo $RANK; exit $RANK", out.fileno(), RANK=str(n)) for n in range(5)]
        processes = forker.start(orders)
    assert [ended(processes[n]) for n in range(5)] == [Exit(n) for n in range(5)]
    assert sorted((tmp_path / "out").read_text().split()) == list("01234")


def test_each_leads_its_group_and_dies_with_us_and_not_with_the_forker(forker: Forker) -> None:
    """FO-3."""
    process = forker.start([order("exec sleep 1000", 2)])[0]
    assert os.getpgid(process.pid) == os.getsid(process.pid) == process.pid
    assert parent_of(process.pid) == os.getpid()
    os.kill(process_of(forker).pid, signal.SIGKILL)
    assert readable(process_of(forker).fileno(), TIMEOUT_S)
    assert not readable(process.fileno(), 0)
    second = forker.start([order("exit 3", 2)])[0]  # by another forker
    assert ended(second) == Exit(3)
    end(process)


DIES = """
import os, signal, sys
from holdfast.process.start.forker import Forker, ProgramOrder
forker = Forker(os.environ)
order = ProgramOrder("/bin/sh", ("sh", "-c", "exec sleep 1000"), os.environ, (2, 2))
print(forker.start([order])[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_programs_die_with_the_process_that_asked_for_them() -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", DIES], capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    try:
        descriptor = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    try:
        assert readable(descriptor, TIMEOUT_S)
    finally:
        os.close(descriptor)


SHOW = """
import os, resource, signal, sys
ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
files = sorted(os.listdir("/proc/self/fd"))
print(os.getcwd(), os.sched_getaffinity(0), sorted(os.environ.items()), sys.argv,
      ignored, signal.pthread_sigmask(signal.SIG_BLOCK, ()), len(files),
      os.readlink("/proc/self/fd/0"), resource.getrlimit(resource.RLIMIT_NOFILE),
      open("/proc/self/cgroup").read())
"""


def test_a_program_cannot_tell_how_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    program = Program(sys.executable, ("-I", "-S", str(tmp_path / "show.py"), "é", ""))
    cpus = frozenset([min(os.sched_getaffinity(0))])
    launch = launch_of(tmp_path, program, environment={"A": "b=c\nd"}, cpus=cpus)
    files = (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    shown = []
    for forker in (None, Forker({}, files=files)):
        starter = Starter(files=files, forker=forker)
        monkeypatch.chdir(tmp_path)  # after the forker has begun
        try:
            shown.append(output(starter, launch))
        finally:
            starter.close()
            monkeypatch.undo()
    assert shown[0] == shown[1]


def output(starter: Starter, launch: Launch) -> str:
    path = launch.folder / "out"
    with path.open("w") as out:
        (process,) = starter.start_all([(launch, out.fileno(), out.fileno())])
    assert ended(process) == Exit(0), path.read_text()
    return path.read_text()


def test_programs_enter_the_control_group(tmp_path: Path) -> None:
    group = tmp_path / "cgroup.procs"
    group.touch()
    forker = Forker(os.environ, cgroup=group)
    try:
        ended(forker.start([order("exit", 2)])[0])
        assert group.read_text() == "0"  # the forker itself: what it forks is where it is
    finally:
        forker.close()


def test_what_cannot_be_executed_is_told(tmp_path: Path, forker: Forker) -> None:
    (tmp_path / "odd").write_text("no program")
    (tmp_path / "odd").chmod(0o755)
    with (tmp_path / "out").open("w") as out:
        streams = (out.fileno(), out.fileno())
        wrong = ProgramOrder(str(tmp_path / "odd"), ("odd",), {}, streams)
        assert ended(forker.start([wrong])[0]) == Exit(126)
    told = f"holdfast: cannot run {tmp_path}/odd: Exec format error\n"
    assert (tmp_path / "out").read_text() == told


def test_what_the_system_cannot_take_is_refused_at_once(tmp_path: Path) -> None:
    starter = Starter(forker=Forker(os.environ))
    try:
        long = "a" * 200_000
        for word, why in (("a\0b", "embedded null byte"), (long, "Argument list too long")):
            launch = launch_of(tmp_path, Program("true", (word,)))
            with pytest.raises(UsageError, match=f"cannot start true .rank 0.: .*{why}"):
                list(starter.start_all([(launch, None, None)]))
    finally:
        starter.close()


def test_a_forker_that_is_stopped_is_not_waited_for(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FO-2, FO-1."""
    ended(forker.start([order("exit", 2)])[0])
    monkeypatch.setattr(module, "ANSWER_WITHIN_S", 0.2)
    os.kill(process_of(forker).pid, signal.SIGSTOP)
    assert forker.start([order("exec sleep 1000", 2)]) == {}
    assert forker._process is None
    assert forker.start([order("exec sleep 1000", 2)]) == {}


def test_a_forker_that_reads_nothing_is_not_waited_for(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FO-2."""
    ended(forker.start([order("exit", 2)])[0])
    monkeypatch.setattr(module, "ANSWER_WITHIN_S", 0.2)
    os.kill(process_of(forker).pid, signal.SIGSTOP)
    assert forker.start([order("exec sleep 1000", 2, LONG="x" * 100_000)] * 20) == {}


def test_programs_start_without_a_forker_where_it_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a wrapper of the interpreter, which would be the programs' parent."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))
    starter = Starter(forker=Forker(os.environ))
    try:
        assert output(starter, launch_of(tmp_path, Program("echo", ("hello",)))) == "hello\n"
        assert starter._forker is not None
        assert starter._forker._process is None
    finally:
        starter.close()


def test_there_is_none_where_the_machine_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS", {})
    forker = Forker(os.environ)
    assert forker.start([order("exit", 2)]) == {}
    forker.close()


def test_there_is_none_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(module, "open_process", refuse)
    forker = Forker(os.environ)
    assert forker.start([order("exit", 2)]) == {}
    forker.close()


def test_if_one_cannot_be_watched_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def watch_two(pid: int) -> WorkerProcess:
        pids.append(pid)
        if len(pids) == 3:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise OSError(24, "Too many open files")
        return watch(pid)

    monkeypatch.setattr(module, "watch", watch_two)
    starter = Starter(forker=Forker(os.environ))
    launches = [launch_of(tmp_path, Program("sleep", ("1000",)), rank=n) for n in range(4)]
    try:
        with pytest.raises(Unavailable, match="Too many open files"):
            list(starter.start_all([(launch, None, None) for launch in launches]))
    finally:
        starter.close()
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_is_not_taken_is_not_left_running(tmp_path: Path) -> None:
    starter = Starter(forker=Forker(os.environ))
    before = set(children(os.getpid()))
    launches = [launch_of(tmp_path, Program("sleep", ("1000",)), rank=n) for n in range(3)]
    try:
        processes = starter.start_all([(launch, None, None) for launch in launches])
        first = next(processes)
        assert len(set(children(os.getpid())) - before) == 3
        processes.close()
        assert set(children(os.getpid())) - before == {first.pid}
        end(first)
    finally:
        starter.close()
