"""Tests of a group of workers: real processes, real pipes, no waiting but for events."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import selectors
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import Unavailable, UsageError
from holdfast.process import group as group_module
from holdfast.process.outcome.failure import Failure
from holdfast.process.spec import (
    Exit,
    Function,
    GroupEnded,
    Launch,
    Script,
    StartMethod,
)
from holdfast.process.start.spawn import Starter, WorkerProcess
from holdfast.process.start.warm import Standbys
from holdfast.process.stop import handle
from holdfast.process.stop.escalation import ENDING_WAIT_S
from holdfast.process.stop.handle import watch
from holdfast.testing.clock import ManualClock
from tests.unit.process.groups import (
    FOREVER,
    POLITE,
    STUBBORN,
    Bench,
    bench_in,
    examine,
    wait_for_end,
)
from tests.unit.process.workers import SlowToEnd, await_end, slow_to_end
from tests.waiting import until, with_more_time


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path) as bench:
        yield bench


def test_every_end_is_reported_and_the_groups_last(bench: Bench) -> None:
    group = bench.group("exit 0", "exit 7", "kill -SEGV $$")
    pids = group.start()
    exits = sorted((bench.next_exit() for _ in range(3)), key=lambda event: event.local_rank)
    assert {event.local_rank: event.pid for event in exits} == pids
    assert [event.exit.code for event in exits] == [0, 7, -signal.SIGSEGV]
    assert [event.failure and event.failure.message for event in exits] == [
        None,
        "exit code 7",
        "killed by SIGSEGV",
    ]
    assert not any(event.asked for event in exits)
    assert bench.next() == GroupEnded()
    assert group.pids() == {}
    assert group.close() == ()
    assert bench.events.empty()


def test_a_group_of_none_ends_at_once(bench: Bench) -> None:
    bench.group().start()
    assert bench.next() == GroupEnded()


def test_pids_are_those_of_the_workers_and_leaders_of_their_groups(bench: Bench) -> None:
    group = bench.group(FOREVER, FOREVER)
    group.start()
    said = dict(bench.hear(2))
    assert group.pids() == said
    assert [os.getpgid(pid) for pid in said.values()] == list(said.values())
    os.kill(said[1], signal.SIGKILL)
    event = bench.next_exit()
    assert (event.local_rank, event.pid, event.exit) == (1, said[1], Exit(-signal.SIGKILL))
    assert group.pids() == {0: said[0]}


def test_a_stop_by_the_signal(bench: Bench) -> None:
    group = bench.group(POLITE, FOREVER)
    group.start()
    bench.hear(2)
    group.stop(signal.SIGTERM, 1000.0)
    exits = sorted((bench.next_exit() for _ in range(2)), key=lambda event: event.local_rank)
    assert [(event.exit.code, event.asked) for event in exits] == [(3, True), (-15, True)]
    assert bench.next() == GroupEnded()


def test_a_stop_by_kill_when_the_grace_is_over(bench: Bench) -> None:
    def stop(grace_s: float) -> None:
        group = bench.group(STUBBORN, POLITE)
        group.start()
        bench.hear(2)
        group.stop(signal.SIGTERM, grace_s)
        exits = [bench.next_exit().exit for _ in range(2)]
        assert bench.next() == GroupEnded()
        assert exits == [Exit(3), Exit(-signal.SIGKILL)]

    with_more_time(stop)


def test_a_shorter_grace_wins_and_a_longer_changes_nothing(bench: Bench) -> None:
    group = bench.group(STUBBORN)
    group.start()
    bench.hear(1)
    group.stop(signal.SIGTERM, 1000.0)
    group.stop(signal.SIGTERM, 0.1)
    group.stop(signal.SIGTERM, 1000.0)
    assert bench.next_exit().exit == Exit(-signal.SIGKILL)
    assert bench.next() == GroupEnded()
    group.stop(signal.SIGTERM, 0.0)


def test_many_stops_at_once_from_many_threads(bench: Bench) -> None:
    group = bench.group(*[FOREVER] * 4)
    group.start()
    bench.hear(4)

    def stop() -> None:
        for number in range(200):
            group.signal(0)
            group.stop(signal.SIGTERM, number)
            group.pids()

    threads = [threading.Thread(target=stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert {bench.next_exit().local_rank for _ in range(4)} == {0, 1, 2, 3}
    assert bench.next() == GroupEnded()
    for thread in threads:
        thread.join(30)


def test_a_signal_goes_to_the_workers_and_what_they_started(bench: Bench) -> None:
    child = "sh -c \"trap 'echo 9 0 > $SAY; exit' USR1; echo 8 0 > $SAY; sleep 1000 & wait\""
    worker = f"trap 'echo 7 0 > $SAY' USR1; {child} & wait; wait; exit 0"
    group = bench.group(worker)
    group.start()
    assert bench.hear(1) == [(8, 0)]
    group.signal(signal.SIGUSR1)
    assert bench.hear(2) == [(7, 0), (9, 0)]
    assert bench.next_exit().exit == Exit(0)


@pytest.mark.parametrize("daemon", ["", "setsid "])
def test_what_workers_leave_behind_is_gone_when_the_group_has_ended(
    bench: Bench, daemon: str
) -> None:
    started = f"{daemon}sh -c 'echo 5 $$ > $SAY; exec sleep 1000' & read go < {{}}; exit 0"
    gate = bench._folder / "gate"
    os.mkfifo(gate)
    group = bench.group(started.format(gate))
    group.start()
    [(_, pid)] = bench.hear(1)
    fd = os.pidfd_open(pid)
    try:
        gate.write_text("go\n")
        assert bench.next_exit().exit == Exit(0)
        assert bench.next() == GroupEnded()
        assert wait_for_end(fd)
    finally:
        os.close(fd)


def test_the_end_of_one_group_leaves_another_alone(bench: Bench) -> None:
    daemon = "setsid sh -c 'echo 5 $$ > $SAY; exec sleep 1000' & exec sleep 1000"
    first, second = bench.group("exit 0"), bench.group(daemon)
    second.start()
    [(_, pid)] = bench.hear(1)
    first.start()
    assert bench.next_exit().exit == Exit(0)
    assert bench.next() == GroupEnded()
    os.kill(pid, 0)
    assert second.pids()


def test_closing_kills_whatever_runs_and_may_be_repeated(bench: Bench) -> None:
    group = bench.group(STUBBORN, FOREVER)
    group.start()
    bench.hear(2)
    assert group.close() == ()
    assert {bench.next_exit().exit for _ in range(2)} == {Exit(-signal.SIGKILL)}
    assert bench.next() == GroupEnded()
    assert group.close() == ()


def test_closing_what_was_never_started(bench: Bench) -> None:
    group = bench.group(FOREVER)
    group.stop(signal.SIGTERM, 1.0)
    assert group.close() == ()
    assert bench.events.empty()


def test_a_group_is_started_once(bench: Bench) -> None:
    group = bench.group("exit 0")
    group.start()
    with pytest.raises(UsageError, match="started already"):
        group.start()


class FailingStarter(Starter):
    """Starts a number of workers, and then no more."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._left = number
        self.pidfds: list[int] = []

    def start(self, launch: Launch, stdout: int | None, stderr: int | None) -> WorkerProcess:
        if not self._left:
            raise UsageError("no such file")
        self._left -= 1
        process = super().start(launch, stdout, stderr)
        self.pidfds.append(os.pidfd_open(process.pid))
        return process


@pytest.mark.parametrize("number", [0, 1, 3])
def test_if_one_cannot_be_started_none_is_left(bench: Bench, number: int) -> None:
    starter = FailingStarter(number)
    group = bench.group(*[STUBBORN] * 4, starter=starter)
    with pytest.raises(UsageError, match="no such file"):
        group.start()
    assert len(starter.pidfds) == number
    for fd in starter.pidfds:
        assert wait_for_end(fd)
        with pytest.raises(ChildProcessError):  # reaped, too
            os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
        os.close(fd)
    assert group.pids() == {}
    assert group.close() == ()
    assert bench.events.empty()


def test_if_no_thread_can_watch_no_worker_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    starter = FailingStarter(2)
    group = bench.group(STUBBORN, STUBBORN, starter=starter)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable, match="new thread"):
            group.start()
    for fd in starter.pidfds:
        assert wait_for_end(fd)
        os.close(fd)
    assert group.close() == ()


class MeddlingStarter(Starter):
    """Does something before the last of two workers is started."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        super().__init__()
        self._meddle = meddle

    def start(self, launch: Launch, stdout: int | None, stderr: int | None) -> WorkerProcess:
        if launch.rank == 1:
            self._meddle()
        return super().start(launch, stdout, stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_while_the_workers_are_being_started_stops_them_all(
    bench: Bench, number: int
) -> None:
    starter = MeddlingStarter(lambda: group.stop(number, 1000.0))
    group = bench.group(FOREVER, FOREVER, starter=starter)
    assert set(group.start()) == {0, 1}
    exits = [bench.next_exit() for _ in range(2)]
    assert [(event.exit.code, event.asked) for event in exits] == [(-number, True)] * 2
    assert bench.next() == GroupEnded()


def test_a_started_worker_is_entered_under_the_lock(bench: Bench) -> None:
    """Else a thread that counts them at that moment finds that they change meanwhile."""
    group = bench.group("exit 0", "exit 0")

    class Watched(dict[int, object]):
        def __setitem__(self, pid: int, worker: object) -> None:
            assert group._lock.locked()
            super().__setitem__(pid, worker)

    group._workers = Watched()  # type: ignore[assignment]
    assert set(group.start()) == {0, 1}


def test_a_wait_may_be_longer_than_the_system_takes(bench: Bench) -> None:
    group = bench.group("exit 3", "exit 3", monitor_interval_s=1e10)
    group.start()
    group.stop(0, 1e8)
    assert [bench.next_exit().exit for _ in range(2)] == [Exit(3)] * 2
    assert bench.next() == GroupEnded()


@pytest.mark.parametrize(
    ("script", "raised_at", "told"),
    [
        (FOREVER, 0.0, Exit(1)),  # our signal found it when it was on its way out
        (POLITE, 0.0, Exit(3)),
        (FOREVER, math.inf, None),
        (POLITE, math.inf, None),
        (POLITE, -1.0, None),  # it said nothing
    ],
)
def test_a_worker_that_was_asked_to_end_failed_only_if_it_had_before(
    bench: Bench, script: str, raised_at: float, told: Exit | None
) -> None:
    def examine_at(launch: Launch, pid: int, exit_: Exit) -> Failure:
        return replace(examine(launch, pid, exit_), at=raised_at)

    group = bench.group(script, examine=examine_at)
    group.start()
    bench.hear(1)
    if raised_at >= 0:
        group._launches[0].error_file.touch()
    group.stop(signal.SIGTERM, 1000.0)
    event = bench.next_exit()
    assert event.asked
    assert (event.failure and event.failure.exit) == told


@pytest.mark.parametrize("script", [FOREVER, "trap 'exit 143' TERM; " + POLITE.partition("; ")[2]])
def test_a_signal_to_a_worker_and_then_to_its_agent_is_no_failure(
    bench: Bench, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "SIGNALLED_TOGETHER_S", 30.0)
    group = bench.group(script, script, examine=examine_late)
    group.start()
    said = dict(bench.hear(2))
    fd = os.pidfd_open(said[0])
    os.kill(said[0], signal.SIGTERM)
    assert wait_for_end(fd)
    os.close(fd)
    group.stop(signal.SIGTERM, 1000.0)
    for _ in range(2):
        event = bench.next_exit()
        assert (event.asked, event.failure) == (True, None)


def test_a_signal_to_a_worker_alone_is_a_failure(bench: Bench) -> None:
    group = bench.group(FOREVER)
    group.start()
    os.kill(dict(bench.hear(1))[0], signal.SIGTERM)
    event = bench.next_exit()
    assert not event.asked
    assert event.failure is not None


def test_a_worker_that_ended_before_a_stop_failed_though_it_is_noticed_later(bench: Bench) -> None:
    may_go_on = threading.Event()

    def examine_slowly(launch: Launch, pid: int, exit_: Exit) -> Failure:
        assert may_go_on.wait(30)
        return replace(examine(launch, pid, exit_), at=math.inf)  # noticed after everything

    group = bench.group(FOREVER, FOREVER, FOREVER, examine=examine_slowly)
    group.start()
    said = dict(bench.hear(3))
    fd = os.pidfd_open(said[1])
    os.kill(said[0], signal.SIGKILL)
    os.kill(said[1], signal.SIGKILL)
    assert wait_for_end(fd)
    os.close(fd)
    group.stop(signal.SIGTERM, 1000.0)
    may_go_on.set()
    exits = {event.local_rank: event for event in (bench.next_exit() for _ in range(3))}
    assert exits[1].exit.code == -signal.SIGKILL
    assert not exits[1].asked
    assert exits[1].failure is not None
    assert exits[2].asked
    assert exits[2].failure is None


class SlowStarter(Starter):
    """Starts workers, but the one of rank 1 is slow to end."""

    def __init__(self, slow: SlowToEnd) -> None:
        super().__init__()
        self._slow = slow

    def start(self, launch: Launch, stdout: int | None, stderr: int | None) -> WorkerProcess:
        return watch(self._slow.pid) if launch.rank == 1 else super().start(launch, stdout, stderr)


def test_a_worker_that_was_exiting_before_a_stop_failed_when_it_began_to_exit(bench: Bench) -> None:
    examined, may_go_on = threading.Event(), threading.Event()

    def examine_slowly(launch: Launch, pid: int, exit_: Exit) -> Failure:
        examined.set()
        assert may_go_on.wait(30)
        return examine_late(launch, pid, exit_)

    with slow_to_end() as slow:
        group = bench.group(FOREVER, "", starter=SlowStarter(slow), examine=examine_slowly)
        group.start()
        [(_, pid)] = bench.hear(1)
        os.kill(pid, signal.SIGKILL)
        assert examined.wait(30)  # the waiter is busy: only the stopping thread sees what follows
        slow.kill()
        group.stop(signal.SIGTERM, 1000.0)
        stopped_at = SYSTEM_CLOCK.wall()
        may_go_on.set()
        assert bench.next_exit().local_rank == 0
        slow.let_go()
        event = bench.next_exit()
        assert event.exit.code == -signal.SIGKILL
        assert not event.asked
        assert event.failure is not None
        assert event.failure.at <= stopped_at
        assert bench.next() == GroupEnded()


def examine_late(launch: Launch, pid: int, exit_: Exit) -> Failure:
    """Tell of an end that was noticed after everything else."""
    return replace(examine(launch, pid, exit_), at=math.inf)


def test_a_worker_that_begins_to_end_is_seen_though_nothing_is_heard_of_it(bench: Bench) -> None:
    with slow_to_end() as slow:
        group = bench.group(
            FOREVER, "", starter=SlowStarter(slow), examine=examine_late, monitor_interval_s=0.01
        )
        group.start()
        [(_, pid)] = bench.hear(1)
        slow.kill()
        while slow.pid not in group._ending_at:
            assert group.pids()[1] == slow.pid
        seen_by = SYSTEM_CLOCK.wall()
        os.kill(pid, signal.SIGKILL)
        assert bench.next_exit().local_rank == 0
        slow.let_go()
        failure = bench.next_exit().failure
        assert failure is not None
        assert failure.at <= seen_by


@pytest.mark.parametrize("interval_s", [1000.0, 0.01])
def test_the_waiter_sleeps_while_nothing_happens(bench: Bench, interval_s: float) -> None:
    """A busy loop would show in the switches of the waiter's thread, as an interval does."""
    group = bench.group(FOREVER, FOREVER, monitor_interval_s=interval_s)
    group.start()
    said = dict(bench.hear(2))
    os.kill(said[0], signal.SIGKILL)
    bench.next_exit()
    [waiter] = [thread for thread in threading.enumerate() if thread.name == "holdfast-waiter"]
    status = Path(f"/proc/self/task/{waiter.native_id}/status")

    def wakes_within(seconds: float) -> bool:
        before = status.read_text().partition("voluntary_ctxt_switches:")[2].split()
        until(Deadline.after(seconds).passed)
        return status.read_text().partition("voluntary_ctxt_switches:")[2].split() != before

    if interval_s > 1:
        assert not all(wakes_within(0.1) for _ in range(50))
    else:
        assert any(wakes_within(0.1) for _ in range(50))
    os.kill(said[1], signal.SIGKILL)


def test_a_bug_in_examining_does_not_hide_the_end(bench: Bench) -> None:
    def broken(launch: Launch, pid: int, exit_: Exit) -> Failure:
        raise RuntimeError("a bug")

    bench.group("exit 5", examine=broken).start()
    event = bench.next_exit()
    assert event.exit == Exit(5)
    assert event.failure is not None
    assert "exit code 5" in event.failure.message
    assert bench.next() == GroupEnded()


# Functions, whose parent may be another process.


def leave_a_child(held: Connection) -> None:
    """End, and leave a process in this group; `held` is open for as long as it lives."""
    if os.fork() == 0:
        signal.pause()


@pytest.mark.parametrize("method", list(StartMethod))
def test_what_functions_leave_behind(bench: Bench, method: StartMethod) -> None:
    reading, writing = Pipe(duplex=False)
    with reading, writing:
        bench.group(Function(leave_a_child, (writing,), method)).start()
        writing.close()
        assert bench.next_exit().exit == Exit(0)
        assert bench.next() == GroupEnded()
        assert reading.poll(20)
        with pytest.raises(EOFError):
            reading.recv_bytes()


def test_a_forkserver_serves_one_group_after_another(bench: Bench) -> None:
    parents, said = Pipe(duplex=False)
    with parents, said:
        for _ in range(2):
            bench.group(Function(say_parent, (said,), StartMethod.FORKSERVER)).start()
            assert bench.next_exit().exit == Exit(0)
            assert bench.next() == GroupEnded()
        assert parents.recv() == parents.recv()


def say_parent(said: Connection) -> None:
    said.send(os.getppid())


def test_a_standby_becomes_a_worker_of_any_group(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    environment = {**os.environ, **bench.containment.environment}
    standbys = Standbys((), Script(str(script)), count=1, environment=environment)
    starter = Starter(standbys=standbys)
    try:
        for _ in range(2):
            standbys.fill()
            waiting = [standby.process.pid for standby in standbys._waiting.values()]
            group = bench.group(Script(str(script)), starter=starter)
            group.start()
            event = bench.next_exit()
            assert ([event.pid], event.exit) == (waiting, Exit(0))
            assert bench.next() == GroupEnded()
    finally:
        starter.close()
        standbys.close()


def test_a_daemon_of_a_warm_worker_ends_with_its_group(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess\n"
        "daemon = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "open(os.environ['SAY'], 'w').write(f'0 {daemon.pid}\\n')\n"
    )
    environment = {**os.environ, **bench.containment.environment}
    standbys = Standbys((), Script(str(script)), count=1, environment=environment)
    standbys.fill()
    starter = Starter(standbys=standbys)
    try:
        bench.group(Script(str(script)), starter=starter).start()
        [(_, pid)] = bench.hear(1)
        assert bench.next_exit().exit == Exit(0)
        assert bench.next() == GroupEnded()
        await_end(pid)
    finally:
        starter.close()


def no_descriptors(*_: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_workers_that_cannot_be_watched_are_killed_and_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    starter = FailingStarter(1)
    group = bench.group(STUBBORN, starter=starter)
    with monkeypatch.context() as patch:
        patch.setattr(selectors, "DefaultSelector", no_descriptors)
        pids = group.start()
        assert bench.next() == GroupEnded((pids[0],))
    [fd] = starter.pidfds
    assert wait_for_end(fd)
    os.close(fd)
    assert group.close() == (pids[0],)
    os.waitpid(pids[0], 0)


def test_a_group_ends_though_nothing_can_be_swept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = bench.group("exit 0")
    monkeypatch.setattr(bench.containment, "kill_leftovers", no_descriptors)
    group.start()
    assert bench.next_exit().exit == Exit(0)
    assert bench.next() == GroupEnded()


# A worker that takes its time to end.


def test_a_worker_that_is_on_its_way_out_is_not_given_up(bench: Bench) -> None:
    clock = ManualClock()
    with slow_to_end() as slow:
        group = bench.group("", "", starter=SlowStarter(slow), kill_wait_s=5.0, clock=clock)
        group.start()
        assert bench.next_exit().local_rank == 0
        group.stop(signal.SIGKILL, 0.0)
        slow.await_ending()
        clock.advance(6.0)
        group.stop(signal.SIGKILL, 0.0)  # does what is due
        assert group.pids() == {1: slow.pid}
        slow.let_go()
        assert bench.next_exit().exit == Exit(-signal.SIGKILL)
        assert bench.next() == GroupEnded()


def test_a_worker_that_is_on_its_way_out_for_ever_is_given_up(bench: Bench) -> None:
    clock = ManualClock()
    with slow_to_end() as slow:
        group = bench.group("", "", starter=SlowStarter(slow), clock=clock)
        group.start()
        assert bench.next_exit().local_rank == 0
        group.stop(signal.SIGKILL, 0.0)
        slow.await_ending()
        clock.advance(ENDING_WAIT_S)
        group.stop(signal.SIGKILL, 0.0)
        assert bench.next() == GroupEnded((slow.pid,))


def test_a_worker_whose_start_is_undone_may_take_its_time_to_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Starting(SlowStarter):
        def start(self, launch: Launch, stdout: int | None, stderr: int | None) -> WorkerProcess:
            if launch.rank == 2:
                raise UsageError("no such file")
            return super().start(launch, stdout, stderr)

    with slow_to_end() as slow:

        def let_go(_: int) -> bool:
            slow.await_ending()
            slow.let_go()
            return True

        monkeypatch.setattr(handle, "is_ending", let_go)  # asked when the first wait is over
        group = bench.group("", "", "", starter=Starting(slow), kill_wait_s=0.0)
        with pytest.raises(UsageError, match="no such file"):
            group.start()
        assert slow.pid not in group.close()
        with pytest.raises(ChildProcessError):
            os.waitpid(slow.pid, 0)


# A worker that even KILL does not end.

FREEZER = Path("/sys/fs/cgroup/freezer")


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process so that not even KILL ends it, until the context is left."""
    cgroup = FREEZER / f"holdfast-test-{pid}"
    cgroup.mkdir()
    fd = os.pidfd_open(pid)
    try:
        (cgroup / "cgroup.procs").write_text(str(pid))
        (cgroup / "freezer.state").write_text("FROZEN")
        while (cgroup / "freezer.state").read_text() != "FROZEN\n":
            pass
        yield
    finally:
        (cgroup / "freezer.state").write_text("THAWED")
        wait_for_end(fd)
        os.waitid(os.P_PIDFD, fd, os.WEXITED)
        os.close(fd)
        cgroup.rmdir()


@pytest.mark.skipif(
    not os.access(FREEZER / "cgroup.procs", os.W_OK), reason="needs a cgroup v1 freezer, as root"
)
def test_a_worker_that_cannot_be_killed_is_given_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    group = bench.group(FOREVER, FOREVER, kill_wait_s=0.5)
    group.start()
    said = dict(bench.hear(2))
    with frozen(said[1]):
        group.stop(signal.SIGTERM, 0.1)
        assert bench.next_exit().local_rank == 0
        assert bench.next() == GroupEnded(abandoned=(said[1],))
        assert group.close() == (said[1],)
        assert group.pids() == {}
        assert str(said[1]) in caplog.text
        assert bench.containment.close() == (said[1],)
    cgroup = bench.containment.procs_path
    if cgroup is not None:  # it could not be removed while the worker was in it
        cgroup.parent.rmdir()
