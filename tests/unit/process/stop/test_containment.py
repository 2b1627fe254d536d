"""Tests of containment with real processes. What an agent's death does is in tests/e2e."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import env
from holdfast.process.stop import containment as module
from holdfast.process.stop import handle, search
from holdfast.process.stop.containment import Containment, outlive_group
from tests.unit.process.workers import slow_to_end

SLEEP = "import os, sys, signal; os.write(1, b'.\\n'); signal.pause()"
# Starts a process that has left its session, says the number of it, and waits.
PARENT = (
    "import subprocess, sys, signal, os;"
    "p = subprocess.Popen([sys.executable, '-S', '-c', 'import signal; signal.pause()'],"
    " start_new_session={detached}, env={environment});"
    "os.write(1, b'%d\\n' % p.pid); {then}"
)


@pytest.fixture
def containment() -> Iterator[Containment]:
    with Containment() as one:
        yield one


@contextlib.contextmanager
def running(
    code: str, environment: dict[str, str], *, wait: bool = True
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run Python code in a session of its own; give what it says first, as a number."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline() if wait else b""
        yield process, int(said) if said.strip().isdigit() else 0
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


@contextlib.contextmanager
def held(pid: int) -> Iterator[Callable[[], bool]]:
    """Hold a process; the function waits for its end, and says whether it came."""
    fd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    try:
        yield lambda: bool(poll.poll(10_000))
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


def parent(*, detached: bool, environment: str = "None", then: str = "signal.pause()") -> str:
    return PARENT.format(detached=detached, environment=environment, then=then)


def reaper_of(containment: Containment) -> subprocess.Popen[bytes]:
    reaper = containment._reaper
    assert reaper is not None
    return reaper


def ignores(pid: int, one: int) -> bool:
    """Say whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask.split()[1], 16) >> (one - 1) & 1)


def test_every_containment_and_group_has_its_own_mark(containment: Containment) -> None:
    token = containment.environment[env.GROUP]
    first, second = containment.group_environment(), containment.group_environment()
    assert first != second
    assert first[env.GROUP].startswith(token)
    assert Containment().environment != containment.environment


def test_a_signal_goes_to_the_whole_group(containment: Containment) -> None:
    with running(parent(detached=False), {}) as (process, child), held(child) as ended:
        containment.signal(process.pid, signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
        assert ended()


def test_a_signal_reaches_a_process_that_leads_no_group_yet(containment: Containment) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    containment.signal(process.pid, signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    containment.signal(process.pid, signal.SIGTERM)  # no process is there any more


def test_what_a_worker_leaves_in_its_group_is_killed(containment: Containment) -> None:
    code = parent(detached=False, then="")
    with running(code, {}) as (process, child), held(child) as ended:  # even if it lost its mark
        containment.entered(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        containment.left(process.pid)
        assert ended()
        assert process.wait(10) == 0


@pytest.mark.parametrize("marked", [True, False])
def test_the_group_of_a_reaped_worker_is_killed_only_if_it_bears_the_mark(
    containment: Containment, marked: bool
) -> None:
    environment = containment.environment if marked else {}
    code = parent(detached=False, then="")
    with running(code, environment) as (process, child), held(child) as ended:
        assert process.wait(10) == 0  # reaped: from here on its number proves nothing
        containment.left(process.pid)
        if marked:
            assert ended()
        else:
            os.kill(child, 0)


# A forkserver: its child leads a group, leaves a process in it, and is not reaped.
FORKSERVER = (
    "import os, signal\n"
    "if (leader := os.fork()) == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0: signal.pause()\n"
    "    os._exit(0)\n"
    "os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)\n"
    "os.write(1, b'%d\\n' % leader)\n"
    "signal.pause()\n"
)


@pytest.mark.parametrize("marked", [True, False])
def test_a_worker_that_another_process_has_to_reap(containment: Containment, marked: bool) -> None:
    """Its number is its own only if that process is ours."""
    environment = containment.environment if marked else {}
    with running(FORKSERVER, environment) as (server, leader):
        containment.left(leader)
        # The process that was left holds the server's standard output.
        server.kill()
        assert server.stdout is not None
        poll = select.poll()
        poll.register(server.stdout, select.POLLIN)
        assert bool(poll.poll(10_000 if marked else 100)) == marked
        if not marked:
            os.killpg(leader, signal.SIGKILL)


def test_a_worker_that_is_gone_without_a_trace(containment: Containment) -> None:
    with running("", {}, wait=False) as (process, _):
        process.wait(10)
        containment.left(process.pid)


def test_a_sweep_kills_daemons_and_no_other_process(containment: Containment) -> None:
    with (
        running(parent(detached=True, then=""), containment.environment) as (process, daemon),
        held(daemon) as ended,
        Containment() as other,
        running(SLEEP, other.environment) as (stranger, _),
    ):
        assert process.wait(10) == 0
        assert containment.empty() == ()
        assert ended()
        assert stranger.poll() is None


def test_a_sweep_waits_for_exiting_processes(
    containment: Containment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KILL_WAIT_S", 0.05)
    with slow_to_end() as slow:
        found = iter([[slow.pid], []])
        monkeypatch.setattr(containment, "_near", lambda: next(found))
        mark = containment.group_environment()
        item = f"{env.GROUP}={mark[env.GROUP]}".encode()
        monkeypatch.setattr(search, "environment_of", lambda _: [item])
        descriptor = os.pidfd_open(slow.pid)

        def let_go(_: int) -> bool:
            slow.await_ending()
            slow.let_go()
            return True

        monkeypatch.setattr(handle, "is_ending", let_go)  # asked when the first wait is over
        try:
            assert containment.kill_leftovers(mark) == ()
            assert handle.readable(descriptor, 0)
        finally:
            os.close(descriptor)
        assert containment._stuck == set()
        monkeypatch.undo()


def test_leftovers_of_one_group_are_killed_and_not_those_of_another(
    containment: Containment,
) -> None:
    marks = [containment.group_environment() for _ in range(12)]
    code = parent(detached=True, then="")
    with (
        running(code, marks[0]) as (_, first),
        held(first) as ended,
        running(code, marks[11]) as (_, twelfth),
        held(twelfth) as other_ended,
    ):
        assert containment.kill_leftovers(marks[0]) == ()
        assert ended()
        os.kill(twelfth, 0)
        containment.close()
        assert other_ended()


def entering(procs: Path, code: str) -> str:
    """Return code that enters a control group first, as workers do."""
    return f"open({str(procs)!r}, 'w').write('0');" + code


def test_leftovers_are_looked_for_in_the_control_group_alone(
    containment: Containment, monkeypatch: pytest.MonkeyPatch
) -> None:
    if containment.procs_path is None:
        pytest.skip("no control group of version 2 can be made here")

    def never() -> list[int]:
        raise AssertionError("every process of the host was looked at")

    monkeypatch.setattr(module, "all_pids", never)
    mark = containment.group_environment()
    code = entering(containment.procs_path, parent(detached=True, then=""))
    with running(code, mark) as (_, daemon), held(daemon) as ended:
        assert containment.kill_leftovers(mark) == ()
        assert ended()
    monkeypatch.undo()


def test_what_left_the_control_group_is_found_a_little_later(
    containment: Containment, monkeypatch: pytest.MonkeyPatch
) -> None:
    if containment.procs_path is None:
        pytest.skip("no control group of version 2 can be made here")
    monkeypatch.setattr(module, "LOOK_WIDELY_AFTER_S", 0.01)
    marks = [containment.group_environment() for _ in range(2)]
    code = parent(detached=True, then="")  # it never enters
    for mark in marks:
        with running(code, mark) as (_, daemon), held(daemon) as ended:
            containment.kill_leftovers(mark)
            assert ended()


ADOPTING = """
import os, subprocess, sys
from holdfast.process.stop import containment as module
def never():
    raise AssertionError("every process of the host was looked at")
with module.Containment(cgroup=False, adopt=True) as containment:
    mark = containment.group_environment()
    # The daemon itself says its number: it has a session of its own by then.
    code = "setsid sh -c 'echo $$; exec sleep 1000 > /dev/null 2>&1' &"
    variables = {**os.environ, **mark}
    worker = subprocess.run(
        ["sh", "-c", code], env=variables, capture_output=True, start_new_session=True
    )
    everything, module.all_pids = module.all_pids, never
    left = containment.kill_leftovers(mark)
    module.all_pids = everything
    try:
        os.kill(int(worker.stdout), 0)
    except ProcessLookupError:
        print(left, "killed and reaped")
"""


def test_leftovers_are_looked_for_among_adopted_orphans_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("() killed and reaped\n", "")


def test_what_serves_several_groups_lives_until_the_end(containment: Containment) -> None:
    mark = containment.group_environment()
    environment = outlive_group(mark)
    assert environment == containment.environment
    assert outlive_group({"A": "b.c"}) == {"A": "b.c"}
    with running(SLEEP, environment) as (server, _):
        assert containment.kill_leftovers(mark) == ()
        assert server.poll() is None
        containment.close()
        assert server.wait(10) == -signal.SIGKILL


def test_closing_twice_is_fine_and_ends_the_reaper() -> None:
    containment = Containment().open()
    reaper = reaper_of(containment)
    assert containment.close() == ()
    assert reaper.returncode == 0
    assert containment.close() == ()


def test_the_reaper_stays_until_the_close() -> None:
    containment = Containment().open()
    reaper = reaper_of(containment)
    with running(SLEEP, containment.environment) as (worker, _):
        assert containment.empty() == ()
        assert worker.wait(10) == -signal.SIGKILL
    assert reaper.poll() is None
    containment.close()
    assert reaper.returncode == 0


def test_the_end_of_a_good_agent_leaves_the_folder_alone(tmp_path: Path) -> None:
    with Containment(tmp_path):
        pass
    assert tmp_path.exists()


def test_the_reaper_kills_only_the_groups_that_have_not_left(tmp_path: Path) -> None:
    """Hundreds come and go, pids that are gone among them; then the pipe breaks off."""
    folder = tmp_path / "it's $(here); *"
    folder.mkdir()
    containment = Containment(folder, cgroup=False).open()
    reaper = reaper_of(containment)
    with (
        running(SLEEP, {}) as (stays, _),
        running(SLEEP, {}) as (goes, _),
        running("", {}, wait=False) as (ended, _),
    ):
        ended.wait(10)
        for pid in range(2**22 + 1, 2**22 + 501):  # beyond the kernel's largest
            containment._tell(f"+{pid}")
        for process in (stays, goes, ended):
            containment.entered(process.pid)
        for pid in range(2**22 + 100, 2**22 + 501):
            containment._tell(f"-{pid}")
        containment._tell(f"-{stays.pid}")
        containment.forget()
        assert goes.wait(10) == -signal.SIGKILL
        assert reaper.wait(20) == 0
        assert stays.poll() is None
    assert not folder.exists()
    containment._end_reaper()


def test_the_reaper_does_not_listen_to_signals() -> None:
    containment = Containment().open()
    reaper = reaper_of(containment)
    with running(SLEEP, containment.environment) as (worker, _):
        while not ignores(reaper.pid, signal.SIGQUIT):  # the last one that it sets
            assert reaper.poll() is None
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(reaper.pid, one)
        containment.forget()
        assert worker.wait(10) == -signal.SIGKILL
        assert reaper.wait(20) == 0
    containment._end_reaper()


def test_a_fork_of_the_agent_does_not_keep_the_reaper_from_its_work() -> None:
    containment = Containment().open()
    reaper = reaper_of(containment)
    hold_read, hold_write = os.pipe()
    closed_read, closed_write = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.close(hold_write)
        containment.close()  # does nothing here: it is the agent's
        os.write(closed_write, b".")
        os.read(hold_read, 1)
        os._exit(0)
    os.close(hold_read)
    os.read(closed_read, 1)
    os.close(closed_read)
    os.close(closed_write)
    try:
        with running(SLEEP, containment.environment) as (worker, _):
            containment.entered(worker.pid)
            containment.forget()
            assert worker.wait(10) == -signal.SIGKILL
            assert reaper.wait(20) == 0
    finally:
        os.close(hold_write)
        assert os.waitpid(fork, 0)[1] == 0
    containment._end_reaper()


def test_a_reaper_that_died_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with Containment() as containment:
        reaper_of(containment).kill()
        reaper_of(containment).wait(10)
        containment.entered(1)
        containment.entered(2)
    assert caplog.text.count("the reaper is lost") == 1


def test_a_reaper_that_reads_nothing_kills_no_process(caplog: pytest.LogCaptureFixture) -> None:
    with Containment() as containment, running(SLEEP, containment.environment) as (worker, _):
        reaper = reaper_of(containment)
        os.kill(reaper.pid, signal.SIGSTOP)
        containment.entered(worker.pid)
        while containment._pipe is not None:
            containment._tell("+1" * 100)
        assert reaper.wait(30) == -signal.SIGKILL
        assert worker.poll() is None
    assert caplog.text.count("the reaper is lost") == 1


def test_a_reaper_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REAPER_WAIT_S", 0.2)
    containment = Containment().open()
    reaper = reaper_of(containment)
    os.kill(reaper.pid, signal.SIGSTOP)
    containment.close()
    assert reaper.returncode == -signal.SIGKILL


def test_without_a_shell_there_is_no_reaper_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_SHELL", "/nowhere/sh")
    with Containment() as containment:
        containment.entered(1)
    assert caplog.text.count("no reaper") == 1


def test_without_pidfds_nothing_is_swept_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with Containment() as containment, running(SLEEP, containment.environment) as (worker, _):
        assert containment.empty() == ()
        assert worker.poll() is None
    assert caplog.text.count("no /proc or no pidfd") == 1


def test_a_process_that_becomes_another_program_is_found(tmp_path: Path) -> None:
    """It has no environment in the moment of the change."""
    changing = tmp_path / "changing.sh"
    changing.write_text('exec /bin/sh "$0"')
    with Containment(cgroup=False) as containment:  # where all processes are looked at, at once
        for _ in range(30):
            environment = {**os.environ, **containment.environment}
            process = subprocess.Popen(["/bin/sh", changing], env=environment)
            try:
                assert containment.kill_leftovers(environment) == ()
                assert process.wait(10) == -signal.SIGKILL
            finally:
                process.kill()
                process.wait()


# Control groups.


def needs_cgroup(containment: Containment) -> Path:
    if containment.procs_path is None:
        pytest.skip("no control group of version 2 can be made here")
    return containment.procs_path


def test_closing_kills_and_removes_the_control_group() -> None:
    """Even a process without a mark, in a group that it made itself."""
    with Containment() as containment:
        procs = needs_cgroup(containment)
        nested = procs.parent / "nested"
        nested.mkdir()
        code = parent(detached=True, environment="{}")
        with running(code, {}) as (process, child), held(child) as ended:
            procs.write_text(str(process.pid))
            (nested / "cgroup.procs").write_text(str(child))
            containment.close()
            assert process.wait(10) == -signal.SIGKILL
            assert ended()
        assert not procs.parent.exists()


def test_no_control_group_is_made_if_none_is_wanted() -> None:
    with Containment(cgroup=False) as containment:
        assert containment.procs_path is None


def test_workers_may_come_and_go_in_many_threads(containment: Containment) -> None:
    reaper = reaper_of(containment)

    def come_and_go(first: int) -> None:
        for pid in range(first, first + 100):
            containment.entered(pid)
            containment._tell(f"-{pid}")

    threads = [threading.Thread(target=come_and_go, args=(2**22 + 100 * n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    containment.close()
    assert reaper.returncode == 0
