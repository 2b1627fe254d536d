"""One process imports, and forks the standbys that replace used ones."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.process.spec import Exit, Function, Launch, Module, Script
from holdfast.process.start.returns import read_return
from holdfast.process.start.spawn import Starter
from holdfast.process.start.standby_parent import StandbyParent
from holdfast.process.start.warm import Standbys
from holdfast.process.start.zygote import StartGivenUp
from tests.unit.process.start.test_warm import DUMP
from tests.unit.process.workers import TIMEOUT_S, Running, await_end, launch_of, run

ENVIRONMENT = {**os.environ, "SHARED": "1", "OMP_NUM_THREADS": "1"}
WHO = "import os, json, slow; print(json.dumps([os.getpid(), os.getppid(), slow.IMPORTED_BY]))"


class Warm:
    """Standbys of a script, all of them asked of a parent."""

    def __init__(self, *modules: str, entrypoint: Any = None, **options: Any) -> None:
        self.entrypoint = entrypoint or Script("who.py")
        options = {"count": 1, "environment": ENVIRONMENT, **options}
        self.standbys = Standbys(modules or ("slow",), self.entrypoint, **options)
        self.starter = Starter(standbys=self.standbys)
        self.starter.replenish()

    @property
    def parent(self) -> StandbyParent:
        assert self.standbys._parent is not None
        return self.standbys._parent

    def launch(self, folder: Path, rank: int = 0, entrypoint: Any = None, **more: str) -> Launch:
        environment = {**ENVIRONMENT, **more}
        entrypoint = entrypoint or self.entrypoint
        return launch_of(folder.parent, entrypoint, rank=rank, environment=environment)

    def who(self, folder: Path, rank: int = 0) -> list[int]:
        """Return the number of a worker's process, of its parent, and of what imported for it."""
        ended = run(self.starter, self.launch(folder, rank))
        assert ended.exit.ok, ended.stderr
        numbers: list[int] = json.loads(ended.stdout.splitlines()[-1])
        return numbers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, which is the current one."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.chdir(programs)
    (programs / "slow.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    (programs / "who.py").write_text(WHO)
    return programs


@pytest.fixture
def opened() -> Iterator[list[Warm]]:
    every: list[Warm] = []
    yield every
    for warm in every:
        warm.starter.close()


def test_one_import_serves_all_workers_and_rounds(folder: Path, opened: list[Warm]) -> None:
    warm = Warm(count=2)
    opened.append(warm)
    seen = []
    for _ in range(2):
        running = [Running(warm.starter, warm.launch(folder, rank)) for rank in range(2)]
        seen += [json.loads(worker.end().stdout) for worker in running]
        warm.starter.replenish()
    assert len({pid for pid, _, _ in seen}) == 4
    (imported_by,) = {imported_by for _, _, imported_by in seen}
    assert {parent for _, parent, _ in seen} == {imported_by}


@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_forked_worker_is_as_a_cold_one(folder: Path, opened: list[Warm], kind: str) -> None:
    """Its parent is another process; nothing else that a program can see differs."""
    (folder / "dump.py").write_text(DUMP)
    arguments = ("--lr", "é\n")
    entrypoint = Script("dump.py", arguments) if kind == "script" else Module("dump", arguments)
    warm = Warm(entrypoint=entrypoint, count=2)
    opened.append(warm)
    work = warm.launch(folder, MINE="a\nb=c")
    cold = json.loads(run(Starter(), work).stdout)
    found = json.loads(run(warm.starter, work).stdout)
    warm.starter.replenish()
    other = json.loads(run(warm.starter, warm.launch(folder, MINE="a\nb=c")).stdout)
    assert "slow" in found.pop("modules")
    assert "slow" in other.pop("modules")
    cold.pop("modules")
    assert len({cold.pop("random"), found.pop("random"), other.pop("random")}) == 3
    assert found["session"][2] == other["session"][2] != cold["session"][2]
    for dump in (cold, found, other):
        dump["session"].pop()
    assert found == cold
    assert other == cold


def test_a_forked_standby_takes_any_function(
    folder: Path, opened: list[Warm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    function = Function(json.dumps, ({"a": 1},))
    warm = Warm("slow", "json", entrypoint=function)
    opened.append(warm)
    work = warm.launch(folder)
    assert read_return(run(warm.starter, work).launch) == '{"a": 1}'


def test_random_numbers_of_forked_workers_differ(folder: Path, opened: list[Warm]) -> None:
    (folder / "draw.py").write_text(
        "import json, os, random, numpy, torch\n"
        "print(json.dumps([os.getppid(), random.random(), numpy.random.random(),\n"
        "    torch.rand(1).item(), torch.initial_seed()]))"
    )
    warm = Warm("torch", "random", entrypoint=Script("draw.py"), count=2)
    opened.append(warm)
    running = [Running(warm.starter, warm.launch(folder, rank)) for rank in range(2)]
    drawn = [json.loads(worker.end().stdout) for worker in running]
    assert drawn[0][0] == drawn[1][0]  # forks of one process
    assert all(one != other for one, other in zip(drawn[0][1:], drawn[1][1:], strict=True))


LEAVES = {
    "a thread": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
    "a descriptor": "import socket; kept = socket.socket()",
    "a child": "if os.fork() == 0:\n    os._exit(0)",  # which is not reaped
    "a timer": "import signal; signal.setitimer(signal.ITIMER_REAL, 1000)",
    "a seed": "import random; random.seed(1)",
    "a seed of numpy": "import numpy; numpy.random.seed(1)",
    "numbers of numpy": "import numpy; numpy.random.random()",
}


@pytest.mark.parametrize("what", LEAVES)
def test_imports_that_leave_more_than_a_fork_may_share_are_done_by_each(
    folder: Path, opened: list[Warm], what: str
) -> None:
    (folder / "slow.py").write_text(f"import os\nIMPORTED_BY = os.getpid()\n{LEAVES[what]}\n")
    warm = Warm(count=2)
    opened.append(warm)
    for _ in range(2):
        for rank in range(2):
            pid, _, imported_by = warm.who(folder, rank)
            assert imported_by == pid
        warm.starter.replenish()


def test_what_imports_print_is_printed_by_each_forked_worker(
    folder: Path, opened: list[Warm]
) -> None:
    (folder / "loud.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    (folder / "tell.py").write_text("print('done')")
    warm = Warm("loud", entrypoint=Script("tell.py"))
    opened.append(warm)
    for _ in range(2):
        ended = run(warm.starter, warm.launch(folder))
        assert (ended.stdout, ended.stderr) == ("out\ndone\n", "err\n")
        warm.starter.replenish()


@pytest.mark.parametrize(
    ("text", "exit_"),
    [
        ("import os; os._exit(3)", Exit(3)),
        ("import os; os.kill(os.getpid(), 9)", Exit(-9)),
        ("raise ValueError('boom')", Exit(1)),
    ],
)
def test_a_forked_worker_ends_and_fails_as_others(
    folder: Path, opened: list[Warm], text: str, exit_: Exit
) -> None:
    (folder / "fail.py").write_text(text)
    warm = Warm(entrypoint=Script("fail.py"))
    opened.append(warm)
    ended = run(warm.starter, warm.launch(folder))
    assert ended.exit == exit_
    if exit_ == Exit(1):
        assert ended.error is not None
        assert ended.error["message"] == "ValueError: boom"
        assert ended.error["extraInfo"]["py_callstack"] == ended.stderr
        assert "child.py" not in ended.stderr


def test_a_parent_that_dies_leaves_no_standby_and_workers_start_cold(
    folder: Path, opened: list[Warm]
) -> None:
    """SP-1, SP-2."""
    warm = Warm(count=2)
    opened.append(warm)
    _, parent, imported_by = warm.who(folder)
    assert parent == imported_by
    standby = warm.standbys.take(warm.launch(folder, rank=1))
    assert standby is not None
    os.kill(imported_by, signal.SIGKILL)
    assert select.select([standby.process.fileno()], [], [], TIMEOUT_S)[0]
    await_end(standby.process.pid)
    await_end(imported_by)  # it closes what it holds a moment before it has ended
    standby.close()
    warm.starter.replenish()  # another parent
    assert warm.who(folder)[1] not in (imported_by, os.getpid())


def test_nothing_waits_for_a_parent_that_died(folder: Path, opened: list[Warm]) -> None:
    """SP-2"""
    (folder / "dies.py").write_text("import os; os._exit(9)")
    warm = Warm("dies")
    opened.append(warm)
    pid, parent, imported_by = warm.who(folder)
    assert (parent, imported_by) == (os.getpid(), pid)


def test_nothing_waits_for_a_parent_that_is_stopped(
    folder: Path, opened: list[Warm], caplog: pytest.LogCaptureFixture
) -> None:
    """SP-2"""
    (folder / "stops.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    warm = Warm("stops")
    opened.append(warm)
    pid, _, imported_by = warm.who(folder)
    assert imported_by == pid
    assert "the parent of the standbys is stopped: a worker starts cold" in caplog.messages


def test_asking_a_parent_that_reads_nothing_does_not_wait(folder: Path, opened: list[Warm]) -> None:
    """SP-2"""
    warm = Warm()
    opened.append(warm)
    os.kill(warm.who(folder)[1], signal.SIGSTOP)

    def ask_many() -> None:
        for _ in range(100_000):
            warm.parent.ask().close()

    with pytest.raises(BlockingIOError):
        ask_many()


def test_a_start_that_is_needless_does_not_wait_for_imports(
    folder: Path, opened: list[Warm]
) -> None:
    (folder / "waits.py").write_text("import signal; signal.pause()")
    warm = Warm("waits")
    opened.append(warm)
    warm.starter.begin(lambda: True)
    with pytest.raises(StartGivenUp):
        warm.starter.start(warm.launch(folder), None, None)
    warm.starter.replenish()
    warm.starter.begin()
    warm.starter.interrupt()
    with pytest.raises(StartGivenUp):
        warm.starter.start(warm.launch(folder), None, None)


def test_a_worker_that_is_needed_ends_the_delay_before_the_imports(
    folder: Path, opened: list[Warm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.process.start.warm.REFILL_DELAY_S", 100_000.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    warm = Warm(count=2)
    opened.append(warm)
    assert warm.who(folder)[1] == warm.who(folder, rank=1)[1] != os.getpid()


def test_forked_standbys_are_in_the_control_group_of_their_parent(
    folder: Path, opened: list[Warm]
) -> None:
    group, later = folder.parent / "group", folder.parent / "later"
    for file in (group, later):
        file.touch()
    (folder / "slow.py").write_text("import os\nIMPORTED_BY = os.getpid(), open('../group').read()")
    warm = Warm(cgroup=group)
    opened.append(warm)
    starter = Starter(standbys=warm.standbys, cgroup=later)
    ended = run(starter, warm.launch(folder))
    assert json.loads(ended.stdout)[2][1] == "0"
    assert later.read_text() == ""


AGENT = """
import json, os, signal, sys
from pathlib import Path
from holdfast.process.spec import Script
from holdfast.process.start.warm import Standbys
from tests.unit.process.workers import launch_of
standbys = Standbys(("slow",), Script("who.py"), count=2, environment=dict(os.environ))
standbys.replace()
taken = [standbys.take(launch_of(Path(), Script("who.py"), rank=rank)) for rank in range(2)]
print(json.dumps([one.process.pid for one in taken]), flush=True)
signal.pause()
"""


def test_forked_standbys_die_with_their_agent(folder: Path) -> None:
    """SP-1"""
    root = Path(__file__).parents[4]
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT],
        stdout=subprocess.PIPE,
        env={**ENVIRONMENT, "PYTHONPATH": str(root)},
    )
    assert agent.stdout is not None
    with agent, agent.stdout:
        pids = json.loads(agent.stdout.readline())
        agent.kill()
    assert len(set(pids)) == 2
    for pid in pids:
        await_end(pid)


def test_closing_ends_standbys_that_nobody_took(folder: Path) -> None:
    """SP-1: whether one is left is looked at after every test."""
    warm = Warm(count=3)
    standby = warm.standbys.take(warm.launch(folder))
    assert standby is not None  # so the parent forks
    standby.close()
    warm.starter.close()
    warm.starter.close()
