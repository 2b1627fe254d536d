"""The zygote forks workers that have imported already, and they end with it."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.errors import Unavailable
from holdfast.process.spec import Exit, Function, GroupEnded, Launch, StartMethod
from holdfast.process.start import zygote
from holdfast.process.start.returns import read_return
from holdfast.process.start.spawn import Starter, WorkerProcess
from tests.unit.process.groups import Bench, bench_in
from tests.unit.process.workers import TIMEOUT_S, Running, await_end, launch_of, run

MODULE = """
import os, signal
IMPORTED_BY = os.getpid()
def who():
    return IMPORTED_BY, os.getppid(), os.getpid(), dict(os.environ)
def descriptors():
    numbers = set(os.listdir("/proc/self/fd")) - {"0"}
    links = (f"/proc/self/fd/{number}" for number in numbers)
    return sorted(os.readlink(link) for link in links if os.path.exists(link))
"""


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that says which process imported it."""
    (tmp_path / "zygote_test_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "zygote_test_module"
    sys.modules.pop("zygote_test_module", None)


def function(name: str, module: str = "signal") -> Function:
    return Function(getattr(__import__(module), name), (), StartMethod.FORKSERVER)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_workers_need_is_imported_once(starter: Starter, tmp_path: Path, module: str) -> None:
    call = function("who", module)
    answers = []
    for rank in range(3):
        launch = launch_of(tmp_path, call, rank=rank, environment={"MINE": f"{rank}\n"})
        ended = run(starter, launch)
        assert ended.exit.ok, ended.stderr
        imported_by, parent, pid, environment = read_return(ended.launch)
        assert environment == launch.environment
        assert imported_by == parent != os.getpid()
        answers.append((parent, pid))
    assert len({parent for parent, _ in answers}) == 1
    assert len({pid for _, pid in answers}) == 3


def test_a_worker_has_no_descriptor_of_another(
    starter: Starter, tmp_path: Path, module: str
) -> None:
    other = Running(starter, launch_of(tmp_path, function("pause"), rank=1))
    ended = run(starter, launch_of(tmp_path, function("descriptors", module)))
    names = read_return(ended.launch)
    assert [name for name in names if "rank1" in name and "forkserver" not in name] == []
    assert len([name for name in names if name.startswith(("pipe:", "socket:"))]) == 0
    os.killpg(other.process.pid, signal.SIGKILL)
    other.end()


def test_the_number_of_a_dead_worker_is_not_free_until_the_agent_lets_go(
    starter: Starter, tmp_path: Path
) -> None:
    worker = starter.start(launch_of(tmp_path, function("pause")), None, None)
    assert worker.reap() is None
    assert os.getpgid(worker.pid) == worker.pid
    os.killpg(worker.pid, signal.SIGTERM)
    assert select.select([worker.fileno()], [], [], TIMEOUT_S)[0]
    assert state(worker.pid) == "Z"
    for _ in range(2):
        assert worker.reap() == Exit(-signal.SIGTERM)
    descriptor = os.pidfd_open(worker.pid)
    parent = int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])
    worker.close()
    worker.close()
    os.close(descriptor)
    await_reaped(starter, tmp_path, worker.pid, parent)


def await_reaped(starter: Starter, tmp_path: Path, pid: int, parent: int) -> None:
    """The zygote does one thing after another: once it has forked anew, it has reaped."""
    ended = run(starter, launch_of(tmp_path, function("getpid", "os"), rank=7))
    assert ended.exit.ok
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    assert str(pid) not in children


def test_a_worker_that_the_agent_released_early_is_reaped_when_it_ends(
    starter: Starter, tmp_path: Path
) -> None:
    worker = starter.start(launch_of(tmp_path, function("pause")), None, None)
    parent = int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])
    worker.close()
    other = run(starter, launch_of(tmp_path, function("getpid", "os"), rank=1))
    assert other.exit.ok
    os.killpg(worker.pid, signal.SIGKILL)
    await_end(worker.pid)
    await_reaped(starter, tmp_path, worker.pid, parent)


def test_workers_end_with_the_zygote_and_another_takes_its_place(
    starter: Starter, tmp_path: Path, module: str
) -> None:
    worker = Running(starter, launch_of(tmp_path, function("pause")))
    _, parent, _, _ = read_return(
        run(starter, launch_of(tmp_path, function("who", module), rank=1)).launch
    )
    os.kill(parent, signal.SIGKILL)
    assert worker.end().exit == Exit(-signal.SIGKILL)
    await_end(worker.process.pid)
    again = run(starter, launch_of(tmp_path, function("who", module), rank=2))
    assert read_return(again.launch)[1] != parent


def test_closing_ends_the_zygote_and_its_workers(tmp_path: Path) -> None:
    starter = Starter()
    worker = starter.start(launch_of(tmp_path, function("pause")), None, None)
    parent = int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])
    starter.close()
    starter.close()
    assert select.select([worker.fileno()], [], [], TIMEOUT_S)[0]
    assert worker.reap() == Exit(-signal.SIGKILL)
    worker.close()
    await_end(worker.pid)
    assert not Path(f"/proc/{parent}").exists()


def test_a_zygote_that_starts_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(zygote, "START_LIMIT_S", 0.0)
    with pytest.raises(Unavailable, match="started no worker within 0 s"):
        zygote.Forked(reading)
    reading, writing2 = os.pipe()
    os.close(writing)
    os.close(writing2)
    with pytest.raises(Unavailable, match="could not start the worker"):
        zygote.Forked(reading)


def test_the_end_of_a_worker_is_not_taken_for_its_number() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"1")  # what the zygote tells of a worker that died before it told its own
    os.close(writing)
    with pytest.raises(Unavailable, match="could not start the worker"):
        zygote.Forked(reading)


def test_a_pipe_that_the_agent_closed_as_the_worker_ended_is_not_polled_any_more() -> None:
    reading, writing = os.pipe()
    orders, other = socket.socketpair()
    with orders, other, zygote._Nursery(orders) as nursery:
        pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        nursery._pipes[pid] = writing
        nursery._poll.register(writing, 0)
        os.close(reading)
        nursery._tell_ends()
        assert nursery._poll.poll(0) == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def stop(pid: int) -> None:
    """Stop a process and wait until it is."""
    os.kill(pid, signal.SIGSTOP)
    while state(pid) != "T":
        pass


def test_the_end_of_a_worker_is_known_though_the_zygote_is_stopped(
    starter: Starter, tmp_path: Path
) -> None:
    worker = starter.start(launch_of(tmp_path, function("pause")), None, None)
    stop(parent_of(worker.pid))
    assert worker.reap() is None
    os.killpg(worker.pid, signal.SIGTERM)
    await_end(worker.pid)
    for _ in range(2):
        assert worker.reap() == Exit(-signal.SIGTERM)
    worker.close()


def test_a_stopped_zygote_is_replaced_before_the_first_start_of_a_group(
    starter: Starter, tmp_path: Path
) -> None:
    worker = starter.start(launch_of(tmp_path, function("pause")), None, None)
    zygote_pid = parent_of(worker.pid)
    stop(zygote_pid)
    starter.begin()
    other = starter.start(launch_of(tmp_path, function("pause"), rank=1), None, None)
    assert parent_of(other.pid) != zygote_pid
    assert worker.reap() == Exit(-signal.SIGKILL)
    for one in (worker, other):
        one.close()


def test_a_start_that_waits_for_a_stopped_zygote_is_given_up_once_needless(
    starter: Starter, tmp_path: Path
) -> None:
    answers: list[bool] = []
    starter.begin(lambda: bool(answers) and answers.pop())
    worker = starter.start(launch_of(tmp_path, function("pause")), None, None)
    answers += [True, False]
    stop(parent_of(worker.pid))
    with pytest.raises(zygote.StartGivenUp):
        starter.start(launch_of(tmp_path, function("pause"), rank=1), None, None)
    assert not answers
    assert worker.reap() is None  # what runs goes on
    worker.close()


def test_a_worker_whose_start_was_given_up_ends_at_once(starter: Starter, tmp_path: Path) -> None:
    needless: list[bool] = []
    starter.begin(lambda: bool(needless))
    worker = starter.start(launch_of(tmp_path, function("pause")), None, None)
    parent = parent_of(worker.pid)
    stop(parent)
    needless.append(True)
    with pytest.raises(zygote.StartGivenUp):
        starter.start(launch_of(tmp_path, function("pause"), rank=1), None, None)
    needless.clear()
    os.kill(parent, signal.SIGCONT)
    # The zygote forks in the order in which it is asked to.
    ended = run(starter, launch_of(tmp_path, function("getpid", "os"), rank=2))
    assert ended.exit.ok
    mine = Path(f"/proc/{parent}/task/{parent}/children")
    while len(mine.read_text().split()) > 1:
        pass
    assert mine.read_text().split() == [str(worker.pid)]
    worker.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path) as bench:
        yield bench


class PatientStarter(Starter):
    """Starts each worker when the one before has ended."""

    before = 0

    def start(self, launch: Launch, stdout: int | None, stderr: int | None) -> WorkerProcess:
        if launch.local_rank:
            await_end(self.before)
        worker = super().start(launch, stdout, stderr)
        if isinstance(worker, zygote.Forked):  # else it is the forkserver itself
            self.before = worker.pid
        return worker


def stop_the_parent_and_exit(code: int) -> NoReturn:
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(code)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_is_heard_though_the_forkserver_is_stopped(bench: Bench, workers: int) -> None:
    """Also while it does not start the next worker, which is not waited for."""
    starter = PatientStarter()
    call = Function(stop_the_parent_and_exit, (7,), StartMethod.FORKSERVER)
    try:
        group = bench.group(*[call] * workers, starter=starter)
        assert list(group.start()) == ([0] if workers == 1 else [])
        event = bench.next_exit()
        assert (event.local_rank, event.exit, event.asked) == (0, Exit(7), False)
        assert event.failure is not None
        assert bench.next() == GroupEnded()
        group.close()
    finally:
        starter.close()


def test_an_end_is_heard_though_the_forkserver_is_stopped_after_a_stop(bench: Bench) -> None:
    group = bench.group(Function(stop_the_parent_and_wait, (), StartMethod.FORKSERVER))
    [pid] = group.start().values()
    bench.hear(1)
    group.stop(signal.SIGTERM, 1000.0)
    event = bench.next_exit()
    assert (event.pid, event.exit, event.asked) == (pid, Exit(-signal.SIGTERM), True)
    assert bench.next() == GroupEnded()


def stop_the_parent_and_wait() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    with open(os.environ["SAY"], "w") as say:
        say.write(f"0 {os.getpid()}\n")
    signal.pause()
