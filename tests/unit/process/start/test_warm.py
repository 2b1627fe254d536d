"""A warm worker cannot be told from a cold one, except that it has imported already."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.process.spec import Function, Launch, Module, Program, Script, for_local_rank
from holdfast.process.start import warm as warm_module
from holdfast.process.start.returns import read_return
from holdfast.process.start.spawn import Starter
from holdfast.process.start.warm import Standbys
from tests.unit.process.workers import TIMEOUT_S, Running, await_end, launch_of, run

DUMP = """
'''A docstring.'''
import json, os, random, signal, sys, threading
def descriptors():
    for number in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            yield number, os.readlink(f"/proc/self/fd/{number}"), os.get_inheritable(int(number))
        except OSError:
            pass
main = sys.modules["__main__"]
umask = os.umask(0o77); os.umask(umask)
print(json.dumps({
    "environment": dict(os.environ), "descriptors": list(descriptors()), "cwd": os.getcwd(),
    "umask": umask, "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "signals": {n: str(signal.getsignal(n)).partition(" at ")[0] for n in signal.valid_signals()},
    "argv": sys.argv, "path": sys.path, "flags": str(sys.flags), "names": sorted(vars(main)),
    "file": __file__, "name": __name__, "doc": __doc__, "spec": str(__spec__).partition("<")[0],
    "same": vars(main) is globals(), "threads": threading.active_count(),
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.getppid()],
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.write_through, s.line_buffering,
                 type(s.buffer).__name__] for s in (sys.stdout, sys.stderr)],
    "affinity": sorted(os.sched_getaffinity(0)), "hook": sys.excepthook is sys.__excepthook__,
    "modules": sorted(sys.modules), "random": random.random(),
}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, which is the current one."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.chdir(programs)
    (programs / "slow.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    return programs


ENVIRONMENT = {**os.environ, "SHARED": "1"}


@contextmanager
def warm(
    entrypoint: Script | Module | Function, *modules: str, count: int = 1, **environment: str
) -> Iterator[Starter]:
    standbys = Standbys(
        modules or ("slow",), entrypoint, count=count, environment={**ENVIRONMENT, **environment}
    )
    standbys.fill()
    starter = Starter(standbys=standbys)
    try:
        yield starter
    finally:
        starter.close()
        starter.close()


def launch(folder: Path, entrypoint: Any, rank: int = 0, **environment: str) -> Launch:
    return launch_of(
        folder.parent, entrypoint, rank=rank, environment={**ENVIRONMENT, **environment}
    )


@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_warm_worker_is_as_a_cold_one(folder: Path, kind: str) -> None:
    (folder / "dump.py").write_text(DUMP)
    arguments = ("--lr", "é\n")
    entrypoint = Script("dump.py", arguments) if kind == "script" else Module("dump", arguments)
    work = launch(folder, entrypoint, MINE="a\nb=c")
    cold_starter = Starter()
    cold = json.loads(run(cold_starter, work).stdout)
    with warm(entrypoint) as starter:
        found = json.loads(run(starter, work).stdout)
        again = json.loads(run(starter, work).stdout)
    assert cold["environment"] == work.environment
    assert "slow" in found.pop("modules")
    assert "slow" not in cold.pop("modules")
    assert len({cold.pop("random"), found.pop("random"), again.pop("random")}) == 3
    assert found == cold
    again.pop("modules")
    assert again == cold


def pids() -> tuple[int, int]:
    import slow  # type: ignore[import-not-found]

    return os.getpid(), slow.IMPORTED_BY


def test_a_warm_function_is_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    function = Function(json.dumps, ({"a": 1},))
    with warm(function, "slow", "json") as starter:
        assert read_return(run(starter, launch(folder, function)).launch) == '{"a": 1}'
        ended = run(starter, launch(folder, Function(pids)))
        assert ended.exit.ok, ended.stderr
        pid, imported_by = read_return(ended.launch)
        assert pid == imported_by


def test_every_worker_has_a_standby_of_its_own(folder: Path) -> None:
    (folder / "who.py").write_text("import os, slow; print(os.getpid(), slow.IMPORTED_BY)")
    script = Script("who.py")
    with warm(script, count=3) as starter:
        for _ in range(2):
            running = [Running(starter, launch(folder, script, rank=rank)) for rank in range(3)]
            numbers = set()
            for worker in running:
                ended = worker.end()
                assert ended.stdout.split() == [str(worker.process.pid)] * 2
                numbers.add(worker.process.pid)
            assert len(numbers) == 3


def test_arguments_that_name_the_local_rank_are_those_of_each_standby(folder: Path) -> None:
    (folder / "tell.py").write_text("import sys; print(sys.argv, 'slow' in sys.modules)")
    script = Script("tell.py", ("--gpu=${local_rank}",))
    with warm(script, count=2) as starter:
        for rank in (1, 0, 1):
            ended = run(starter, launch(folder, for_local_rank(script, rank), rank=rank))
            assert ended.stdout == f"{['tell.py', f'--gpu={rank}']} True\n"
            starter.replenish()


OPTIONS = """
import sys
sys.path.insert(0, sys.argv[1])
import holdfast
def look():
    return sys.flags.optimize, sys.flags.safe_path, sys.warnoptions, "early" in sys.modules
if __name__ == "__main__":
    config = holdfast.LaunchConfig(1, 1, 1, warm=("early",), max_restarts=0)
    print(holdfast.elastic_launch(config, look)() == {0: (1, True, ["error"], True)})
"""


def test_a_warm_function_has_the_options_of_its_interpreter(folder: Path) -> None:
    (folder / "main.py").write_text(OPTIONS)
    (folder / "more").mkdir()
    (folder / "more" / "early.py").touch()
    command = [sys.executable, "-O", "-P", "-W", "error", "main.py", str(folder / "more")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_random_state_of_workers_differs(folder: Path) -> None:
    (folder / "draw.py").write_text(
        "import numpy.random as r, random\nprint(r.random(), random.random())"
    )
    script = Script("draw.py")
    with warm(script, "numpy", "random", count=2) as starter:
        running = [Running(starter, launch(folder, script, rank=rank)) for rank in range(2)]
        numbers = [number for worker in running for number in worker.end().stdout.split()]
    assert len(set(numbers)) == 4


def was_warm(folder: Path, starter: Starter, work: Launch) -> bool:
    ended = run(starter, work)
    assert ended.exit.ok, ended.stderr
    return json.loads(ended.stdout) is True


def test_a_standby_is_used_only_where_it_fits(folder: Path) -> None:
    (folder / "look.py").write_text("import sys; print(str('slow' in sys.modules).lower())")
    script = Script("look.py")
    with warm(script) as starter:
        assert not was_warm(folder, starter, launch(folder, Script("look.py", ("other",))))
        assert not was_warm(folder, starter, launch(folder, script, SHARED="2"))
        assert not was_warm(folder, starter, launch(folder, script, PYTHONHASHSEED="0"))
        assert not was_warm(folder, starter, launch(folder, script, LD_PRELOAD=""))
        assert not was_warm(folder, starter, launch(folder, Module("look")))
        assert run(starter, launch(folder, Program("true"))).exit.ok
        assert was_warm(folder, starter, launch(folder, script))
        starter.replenish()
        assert was_warm(folder, starter, launch(folder, script, OTHER="3"))


def test_imports_see_the_environment_arguments_and_folder_of_the_script(folder: Path) -> None:
    (folder / "seen.py").write_text(
        "import os, sys\nSEEN = os.environ['OMP_NUM_THREADS'], sys.argv, sys.path[0]\n"
    )
    (folder / "tell.py").write_text("import seen; print(seen.SEEN)")
    script = Script("tell.py", ("x",))
    with warm(script, "seen", OMP_NUM_THREADS="3") as starter:
        ended = run(starter, launch(folder, script, OMP_NUM_THREADS="3"))
    assert ended.stdout == f"{('3', ['tell.py', 'x'], str(folder))}\n"


def test_what_imports_set_in_the_environment_stays(folder: Path) -> None:
    (folder / "sets.py").write_text(
        "import os\nos.environ['SET'] = 'x'\nos.environ.setdefault('RANK', '9')\n"
        "del os.environ['SHARED']\n"
    )
    (folder / "tell.py").write_text("import os, sets; print(sorted(os.environ.items()))")
    script = Script("tell.py")
    cold = run(Starter(), launch(folder, script))
    with warm(script, "sets") as starter:
        assert run(starter, launch(folder, script)).stdout == cold.stdout


def test_what_imports_print_is_printed_by_the_worker(folder: Path) -> None:
    (folder / "loud.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    (folder / "tell.py").write_text("print('done')")
    script = Script("tell.py")
    with warm(script, "loud") as starter:
        ended = run(starter, launch(folder, script))
    assert (ended.stdout, ended.stderr) == ("out\ndone\n", "err\n")


@pytest.mark.parametrize("text", ["1/0", "raise SystemExit(3)", "import no_such_thing"])
def test_a_module_that_cannot_be_imported_costs_one_line(folder: Path, text: str) -> None:
    (folder / "broken.py").write_text(text)
    (folder / "tell.py").write_text("import slow; print('done')")
    script = Script("tell.py")
    with warm(script, "broken", "slow") as starter:
        ended = run(starter, launch(folder, script))
    assert ended.stdout == "done\n"
    (line,) = ended.stderr.splitlines()
    assert line.startswith("holdfast: cannot import broken ahead of time: ")


def test_an_order_that_comes_during_the_import_is_carried_out_after_it(folder: Path) -> None:
    os.mkfifo(folder / "gate")
    (folder / "waits.py").write_text("word = open('gate').read()")
    (folder / "tell.py").write_text("import waits; print(waits.word)")
    script = Script("tell.py")
    with warm(script, "waits") as starter:
        # Big enough to fill any buffer between the two.
        running = Running(starter, launch(folder, script, HUGE="x" * 100_000, MORE="y" * 100_000))
        assert running.process.reap() is None
        (folder / "gate").write_text("opened")
        assert running.end().stdout == "opened\n"


def await_death(standbys: Standbys) -> None:
    (standby,) = standbys._waiting.values()
    assert select.select([standby.process.fileno()], [], [], TIMEOUT_S)[0]


def test_a_standby_that_died_is_replaced_by_a_cold_start(folder: Path) -> None:
    (folder / "dies.py").write_text("import os; os._exit(9)")
    (folder / "tell.py").write_text("print('done')")
    script = Script("tell.py")
    standbys = Standbys(("dies",), script, count=1, environment=ENVIRONMENT)
    starter = Starter(standbys=standbys)
    standbys.fill()
    await_death(standbys)
    assert run(starter, launch(folder, script)).stdout == "done\n"
    starter.close()


def test_a_standby_that_dies_when_it_is_taken_is_no_worker(folder: Path) -> None:
    script = Script("tell.py")
    standbys = Standbys(("slow",), script, count=1, environment=ENVIRONMENT)
    standbys.fill()
    work = launch(folder, script)
    standby = standbys.take(work)
    assert standby is not None
    os.killpg(standby.process.pid, signal.SIGKILL)
    assert select.select([standby.process.fileno()], [], [], TIMEOUT_S)[0]
    order = {"folder": str(work.folder)}
    assert not standby.become(order, work.environment, (1, 2))


def test_a_worker_that_was_warm_ends_and_fails_as_others(folder: Path) -> None:
    (folder / "fail.py").write_text("def f():\n    raise ValueError('boom')\nf()\n")
    script = Script("fail.py")
    with warm(script) as starter:
        ended = run(starter, launch(folder, script))
    assert ended.exit.code == 1
    assert ended.error is not None
    assert ended.error["message"] == "ValueError: boom"
    assert ended.error["extraInfo"]["py_callstack"] == ended.stderr
    assert "child.py" not in ended.stderr


def test_the_current_folder_is_that_of_the_start_of_the_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "where.py").write_text("import os; print(os.getcwd())")
    script = Script(str(folder / "where.py"))
    with warm(script) as starter:
        monkeypatch.chdir(folder.parent)
        assert run(starter, launch(folder, script)).stdout == f"{folder.parent}\n"


AGENT = """
import os, signal, sys
from holdfast.process.spec import Script
from holdfast.process.start.warm import Standbys
standbys = Standbys(("waits",), Script("x.py"), count=1, environment=dict(os.environ))
standbys.fill()
print(standbys._waiting[0].process.pid, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("text", ["", "import signal; signal.pause()"])
def test_a_standby_dies_with_its_agent(folder: Path, text: str) -> None:
    """Whether it waits for its order, or still imports."""
    os.mkfifo(folder / "gate")
    (folder / "waits.py").write_text(f"open('gate', 'w').close()\n{text}\n")
    agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    with agent, agent.stdout:
        pid = int(agent.stdout.readline())
        (folder / "gate").read_text()
        agent.kill()
    await_end(pid)


def test_replacements_wait_before_they_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_module, "REFILL_DELAY_S", 1000.0)  # however slow the worker is
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    (folder / "tell.py").write_text("print('done')")
    (folder / "marks.py").write_text("import os; open(f'mark{os.getpid()}', 'w')")
    script = Script("tell.py")
    with warm(script, "marks") as starter:
        running = Running(starter, launch(folder, script))
        starter.replenish()
        assert running.end().stdout == "done\n"
        marks = [path.name for path in folder.glob("mark[0-9]*")]
        assert marks == [f"mark{running.process.pid}"]


def test_closing_ends_standbys_that_import(folder: Path) -> None:
    """Whether one is left is looked at after every test."""
    (folder / "waits.py").write_text("import signal; signal.pause()")
    standbys = Standbys(("waits",), Script("x.py"), count=2, environment=ENVIRONMENT)
    standbys.fill()
    standbys.close()
    standbys.close()


@pytest.mark.parametrize("kind", ["script", "module"])
def test_where_the_folder_is_gone_workers_start_cold(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second standby is made there, too."""
    (folder.parent / "modules").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder.parent / "modules"))
    path = folder.parent / "modules" / "hello.py"
    path.write_text("import sys; print('hello', *sys.path[1:2])")
    entrypoint = Script(str(path)) if kind == "script" else Module("hello")
    work = launch(folder, entrypoint, PYTHONPATH=str(path.parent))
    with warm(entrypoint, PYTHONPATH=str(path.parent)) as starter:
        monkeypatch.chdir(folder)  # so that it is left at the end
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        for _ in range(2):
            assert run(starter, work).stdout.startswith("hello")


@pytest.mark.parametrize(
    ("args", "processors", "delays"),
    [
        ((), 2, [warm_module.REFILL_DELAY_S]),
        ((), 3, [0.0]),
        (("${local_rank}",), 3, [warm_module.REFILL_DELAY_S] * 2),
        (("${local_rank}",), 4, [0.0] * 2),
    ],
)
def test_replacements_wait_only_where_processors_are_few(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    processors: int,
    delays: list[float],
) -> None:
    """One process imports for all, unless the arguments of each are others."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    standbys = Standbys(("slow",), Script("x.py", args), count=2, environment=ENVIRONMENT)
    seen: list[float] = []
    real = standbys._open

    def started(rank: int, delay: float, fields: Any) -> Any:
        seen.append(delay)
        return real(rank, delay, fields)

    monkeypatch.setattr(standbys, "_open", started)
    standbys.replace()
    standbys.close()
    assert seen == delays


def test_a_standby_enters_the_control_group_before_it_is_needed(folder: Path) -> None:
    """The kernel may take longer for that than all the rest of a warm start takes."""
    (folder / "hello.py").write_text("print('hello')")
    (folder / "slow.py").write_text("print(open('../group').read())")
    group, later = folder.parent / "group", folder.parent / "later"
    for file in (group, later):
        file.touch()
    script = Script("hello.py")
    standbys = Standbys(("slow",), script, count=1, environment=ENVIRONMENT, cgroup=group)
    standbys.fill()
    starter = Starter(standbys=standbys, cgroup=later)
    try:
        assert run(starter, launch(folder, script)).stdout == "0\nhello\n"
        assert later.read_text() == ""
    finally:
        starter.close()


def test_standbys_for_which_there_is_no_room_fail_no_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "hello.py").write_text("print('hello')")
    entrypoint = Script("hello.py")

    def refuse(*args: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    with warm(entrypoint) as starter:
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.process.start.warm.open_process", refuse)
            assert run(starter, launch(folder, entrypoint)).stdout == "hello\n"
            starter.replenish()
        assert [r.getMessage() for r in caplog.records if r.name == "holdfast.process"] == [
            "no worker can be kept warm: no more processes"
        ]
        assert run(starter, launch(folder, entrypoint)).stdout == "hello\n"
