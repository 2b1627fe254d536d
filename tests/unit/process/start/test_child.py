"""A worker's program runs as under plain Python, and what ends it is told."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process.outcome.errorfile import ErrorFile, read_error_file
from holdfast.process.outcome.failure import (
    MESSAGE_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
    parse_error_data,
)
from holdfast.process.spec import Entrypoint, Module, Program, Script
from holdfast.process.start import child
from holdfast.process.start.orders import write_order
from holdfast.process.start.spawn import Starter
from tests.unit.process.workers import TIMEOUT_S, Ended, Running, await_end, launch_of, run

DUMP = """
'''A docstring.'''
import json, signal, sys
import beside
names = sorted(globals())
known: int = 1
print(json.dumps({
    "names": names, "name": __name__, "file": __file__,
    "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached],
    "package": __package__, "doc": __doc__, "loader": type(__loader__).__name__,
    "registered": sys.modules["__main__"].__dict__ is globals(),
    "annotations": str(__annotations__),
    "argv": sys.argv, "orig_argv": sys.orig_argv[:2], "path": sys.path, "flags": str(sys.flags),
    "unbuffered": sys.stdout.write_through, "beside": beside.__file__,
    "signals": {n: str(signal.getsignal(n)).partition(" at ")[0] for n in signal.valid_signals()},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
}))
"""


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, which is the current one."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.chdir(programs)
    return programs


def plain(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run plain Python."""
    return subprocess.run(
        [sys.executable, "-u", *arguments],
        env={**os.environ, "RANK": "0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def ours(starter: Starter, folder: Path, entrypoint: Entrypoint) -> Ended:
    return run(starter, launch_of(folder.parent, entrypoint))


def same(starter: Starter, folder: Path, entrypoint: Script | Module, *command: str) -> Ended:
    """Run both ways and compare all that shows."""
    expected = plain(*command)
    ended = ours(starter, folder, entrypoint)
    assert ended.stderr == expected.stderr
    assert ended.exit.code == expected.returncode
    assert ended.stdout == expected.stdout
    return ended


# As under plain Python.


@pytest.mark.parametrize("path", ["dump.py", "./dump.py", "../programs/dump.py", "link.py", "/"])
def test_a_script_finds_what_it_would_find(starter: Starter, folder: Path, path: str) -> None:
    (folder / "dump.py").write_text(DUMP)
    (folder / "beside.py").touch()
    (folder.parent / "link.py").symlink_to(folder / "dump.py")
    path = {"link.py": "../link.py", "/": str(folder / "dump.py")}.get(path, path)
    ended = same(starter, folder, Script(path, ("-x", "é \n")), path, "-x", "é \n")
    assert json.loads(ended.stdout)["argv"] == [path, "-x", "é \n"]


def test_a_module_finds_what_it_would_find(starter: Starter, folder: Path) -> None:
    package = folder / "package" / "inner"
    package.mkdir(parents=True)
    for place in (package, package.parent):
        (place / "__init__.py").touch()
    (package / "part.py").write_text("WORD = 'relative'")
    (package / "dump.py").write_text(DUMP.replace("import beside", "from . import part as beside"))
    (package / "__main__.py").write_text("from .part import WORD; print(WORD, __package__)")
    inner = Module("package.inner.dump", ("1",))
    assert same(starter, folder, inner, "-m", "package.inner.dump", "1").exit.ok
    ended = same(starter, folder, Module("package.inner"), "-m", "package.inner")
    assert ended.stdout == "relative package.inner\n"


def test_a_module_that_is_not_there_is_told_as_python_tells_it(
    starter: Starter, folder: Path
) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("__path__ = [*__path__]")  # so that none knows
    ended = same(starter, folder, Module("package.missing"), "-m", "package.missing")
    assert ended.error is not None
    assert "No module named package.missing" in ended.error["message"]


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_folder_or_archive_with_a_main_runs(starter: Starter, folder: Path, kind: str) -> None:
    import zipfile

    application = folder / "application"
    application.mkdir()
    (application / "beside.py").touch()
    (application / "__main__.py").write_text(DUMP.replace("import beside", "import json as beside"))
    path = "application"
    if kind == "archive":
        path = "application.pyz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(application / "__main__.py", "__main__.py")
    assert same(starter, folder, Script(path, ("1",)), path, "1").exit.ok


def test_a_compiled_script_runs(starter: Starter, folder: Path) -> None:
    import py_compile

    (folder / "source.py").write_text("print(__name__, 'compiled')")
    py_compile.compile(str(folder / "source.py"), str(folder / "script.pyc"), doraise=True)
    assert same(starter, folder, Script("script.pyc"), "script.pyc").stdout == "__main__ compiled\n"


ENDS = {
    "good": "print('done')",
    "message": "import sys; sys.exit('x')",
    "number": "import sys; sys.exit(3)",
    "none": "import sys; sys.exit()",
    "hard": "import os; os._exit(3)",
    "raised": "def f():\n    raise ValueError('boom')\nf()",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "grouped": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT); signal.pause()",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); signal.pause()",
    "syntax": "def f(:\n  pass",
    "encoding": "# coding: latin-1\nprint('a')",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hooked', a[0], a[2].tb_lineno)\n1/0",
    "atexit": "import atexit; atexit.register(print, 'at exit'); raise ValueError",
    "exit_in_atexit": "import atexit, os; atexit.register(os._exit, 5); raise ValueError",
    "thread": "import threading as t\nt.Thread(target=lambda: print('thread')).start(); 1/0",
    "pipe": "import os, signal\nr, w = os.pipe(); os.close(r)\nos.write(w, b'x')",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_script_ends_as_it_would(starter: Starter, folder: Path, name: str) -> None:
    (folder / "end.py").write_text(ENDS[name])
    same(starter, folder, Script("end.py"), "end.py")


def test_multiprocessing_spawns_inside_a_script(starter: Starter, folder: Path) -> None:
    (folder / "spawning.py").write_text(
        "import multiprocessing as mp\n"
        "def f(queue):\n    queue.put(__name__)\n"
        "if __name__ == '__main__':\n"
        "    context = mp.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=f, args=(queue,))\n"
        "    process.start()\n    print(queue.get(timeout=50))\n    process.join()\n"
    )
    assert same(starter, folder, Script("spawning.py"), "spawning.py").stdout == "__mp_main__\n"


def test_what_python_was_told_to_search_is_respected(starter: Starter, folder: Path) -> None:
    (folder / "paths.py").write_text("import sys; print(sys.path, sys.flags.safe_path)")
    safe = {**os.environ, "PYTHONSAFEPATH": "1"}
    expected = subprocess.run(
        [sys.executable, "-u", "paths.py"], env=safe, capture_output=True, text=True, check=True
    )
    launch = launch_of(folder.parent, Script("paths.py"), environment=safe)
    assert run(starter, launch).stdout == expected.stdout


# The error file.


def test_an_exception_is_left_in_the_error_file(starter: Starter, folder: Path) -> None:
    (folder / "fail.py").write_text("def inner():\n    raise ValueError('boom é')\ninner()\n")
    ended = ours(starter, folder, Script("fail.py"))
    assert ended.error is not None
    assert ended.error["message"] == "ValueError: boom é"
    extra = ended.error["extraInfo"]
    assert extra["py_callstack"] == ended.stderr
    assert "child.py" not in ended.stderr
    assert extra["timestamp"] == str(int(extra["moment"]))
    rank = ended.launch.environment.get("RANK")
    told = {"type": "ValueError", "host": os.uname().nodename, "rank": rank and int(rank)}
    assert extra.items() >= told.items()
    mode = ended.launch.error_file.stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    names = sorted(path.name for path in ended.launch.folder.iterdir())
    assert names == ["error.json", "stack.txt", "stderr.log", "stdout.log"]


@pytest.mark.parametrize("name", ["good", "number", "none", "hard", "terminated"])
def test_an_end_that_says_nothing_leaves_no_error_file(
    starter: Starter, folder: Path, name: str
) -> None:
    (folder / "end.py").write_text(ENDS[name])
    assert ours(starter, folder, Script("end.py")).error is None


def test_a_message_for_the_end_is_an_error(starter: Starter, folder: Path) -> None:
    (folder / "end.py").write_text(ENDS["message"])
    error = ours(starter, folder, Script("end.py")).error
    assert error is not None
    assert error["message"] == "SystemExit: x"


def test_the_error_file_that_the_program_wrote_stays(starter: Starter, folder: Path) -> None:
    launch = launch_of(folder.parent, Script("fail.py"))
    (folder / "fail.py").write_text(
        f"open({str(launch.error_file)!r}, 'w').write('{{\"message\": {{\"message\": 1}}}}')\n1/0"
    )
    assert run(starter, launch).error == {"message": 1}


def test_an_error_file_that_cannot_be_written_costs_one_line(
    starter: Starter, folder: Path
) -> None:
    launch = launch_of(folder.parent, Script("fail.py"))
    (folder / "fail.py").write_text(
        f"import os\nos.rename({str(launch.folder)!r}, {str(launch.folder)!r} + '2')\n1/0"
    )
    running = Running(starter, launch)
    with pytest.raises(FileNotFoundError):
        running.end()
    moved = launch.folder.with_name(f"{launch.folder.name}2")
    lines = (moved / "stderr.log").read_text().splitlines()
    assert lines[0].startswith(f"holdfast: cannot write the error file {launch.error_file}: ")
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert len([line for line in lines if "holdfast" in line]) == 1


def test_an_exception_that_cannot_be_told_does_no_harm(starter: Starter, folder: Path) -> None:
    (folder / "fail.py").write_text(
        "class Bad(Exception):\n    def __str__(self):\n        raise ValueError('no text')\n"
        "raise Bad"
    )
    ended = ours(starter, folder, Script("fail.py"))
    assert ended.exit.code == 1
    assert "no text" in ended.stderr


def test_a_huge_message_is_cut(starter: Starter, folder: Path) -> None:
    (folder / "fail.py").write_text("raise ValueError('x' * 10_000_000)")
    launch = ours(starter, folder, Script("fail.py")).launch
    assert launch.error_file.stat().st_size < 1_000_000


@pytest.mark.parametrize("letter", ["é", "語", "\\x01", "\\ud800", "😀"])
def test_a_long_message_does_not_cost_the_traceback(
    starter: Starter, folder: Path, letter: str
) -> None:
    """Whatever it is written in: an error file that is too large would not be read."""
    script = folder / "fail.py"
    script.write_text(f"def here():\n    raise ValueError('{letter}' * 150_000)\nhere()\n")
    ended = run(starter, launch_of(folder, Script(str(script))))
    found = read_error_file(ended.launch.error_file)
    assert isinstance(found, ErrorFile)
    report = parse_error_data(found.data)
    assert report.error_type == "ValueError"
    assert report.message.startswith("ValueError: ")
    assert "in here\n" in report.traceback


def test_an_error_file_holds_what_is_read_of_it() -> None:
    assert (child._MESSAGE_MAX, child._TRACEBACK_MAX) == (MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX)


def test_a_native_crash_leaves_its_stack(starter: Starter, folder: Path) -> None:
    (folder / "crash.py").write_text("import ctypes\ndef f():\n    ctypes.string_at(0)\nf()")
    ended = ours(starter, folder, Script("crash.py"))
    assert ended.exit.code == -signal.SIGSEGV
    stack = ended.launch.stack_file.read_text()
    assert 'crash.py", line 3 in f' in stack
    assert ended.error is None


def test_a_user_can_have_the_stack_on_stderr(starter: Starter, folder: Path) -> None:
    (folder / "crash.py").write_text("import ctypes\nctypes.string_at(0)")
    environment = {"PYTHONFAULTHANDLER": "1"}
    ended = run(starter, launch_of(folder.parent, Script("crash.py"), environment=environment))
    assert 'crash.py", line 2' in ended.stderr


def test_a_program_leaves_no_file_for_stacks(starter: Starter, folder: Path) -> None:
    ended = ours(starter, folder, Program("true"))
    assert not ended.launch.stack_file.exists()


# Making the process ours.


def test_the_order_is_not_seen_by_the_program(starter: Starter, folder: Path) -> None:
    (folder / "look.py").write_text("import os; print('HOLDFAST_WORKER' in os.environ)")
    assert ours(starter, folder, Script("look.py")).stdout == "False\n"
    launch = launch_of(folder.parent, Program("env"))
    assert "HOLDFAST_WORKER" not in run(starter, launch).stdout


def test_what_the_parent_ignored_or_blocked_does_not_reach_a_worker(
    starter: Starter, folder: Path
) -> None:
    (folder / "dump.py").write_text(DUMP)
    (folder / "beside.py").touch()
    expected = plain("dump.py")
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        running = Running(starter, launch_of(folder.parent, Script("dump.py")))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        for number, handler in before.items():
            signal.signal(number, handler)
    assert running.end().stdout == expected.stdout


def test_a_program_has_the_signals_of_a_program(starter: Starter, folder: Path) -> None:
    ended = ours(starter, folder, Program("grep", ("Sig[BI]", "/proc/self/status")))
    masks = dict(line.split(":\t") for line in ended.stdout.splitlines())
    # nohup's word is kept; and 32 and 33 are the C library's own: they cannot be set, and make
    # lets its children begin with them ignored.
    kept = sum(1 << (number - 1) for number in (signal.SIGHUP, 32, 33))
    assert int(masks["SigBlk"], 16) == 0
    assert int(masks["SigIgn"], 16) & ~kept == 0


def test_a_worker_runs_on_its_processors(starter: Starter, folder: Path) -> None:
    (folder / "where.py").write_text("import os; print(os.sched_getaffinity(0))")
    one = min(os.sched_getaffinity(0))
    launch = launch_of(folder.parent, Script("where.py"), cpus=frozenset({one}))
    assert run(starter, launch).stdout == f"{{{one}}}\n"


def test_a_processor_that_is_not_there_does_not_stop_a_worker(
    starter: Starter, folder: Path
) -> None:
    (folder / "where.py").write_text("print('here')")
    launch = launch_of(folder.parent, Script("where.py"), cpus=frozenset({1000}))
    assert run(starter, launch).stdout == "here\n"


def test_a_worker_enters_its_control_group(folder: Path) -> None:
    (folder / "nothing.py").touch()
    list_of_processes = folder / "cgroup.procs"
    list_of_processes.touch()
    starter = Starter(cgroup=list_of_processes)
    assert run(starter, launch_of(folder.parent, Script("nothing.py"))).exit.ok
    assert list_of_processes.read_text() == "0"
    starter = Starter(cgroup=folder / "missing" / "cgroup.procs")
    assert run(starter, launch_of(folder.parent, Script("nothing.py"))).exit.ok


AGENT = """
import os, signal, sys
from pathlib import Path
from holdfast.process.start.orders import write_order
from holdfast.process.start.spawn import Starter
from holdfast.process.spec import Function, Launch, Program, Script, StartMethod
def work():
    print(os.getpid(), flush=True)
    signal.pause()
kind = sys.argv[1]
if kind == "program":
    entrypoint = Program("sh", ("-c", "echo $$; exec sleep 1000"))
elif kind == "script":
    entrypoint = Script("wait.py")
else:
    entrypoint = Function(work, (), StartMethod(kind))
worker = Starter().start(Launch(entrypoint=entrypoint, local_rank=0, rank=0, role="",
    environment=dict(os.environ), folder=Path(sys.argv[2])), None, None)
signal.pause()
"""


@pytest.mark.parametrize("kind", ["program", "script", "fork"])
def test_a_worker_dies_with_its_parent(folder: Path, kind: str) -> None:
    (folder / "wait.py").write_text("import os, signal; print(os.getpid()); signal.pause()")
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, kind, str(folder)], stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    with agent, agent.stdout:
        pid = int(agent.stdout.readline())  # the worker's own word that it runs
        agent.kill()
    await_end(pid)


def test_a_worker_whose_parent_is_gone_already_runs_nothing(folder: Path) -> None:
    (folder / "run.py").write_text("open('ran', 'w')")
    order = {"kind": "script", "parent": "1" if os.getpid() != 1 else "2", "folder": str(folder)}
    done = subprocess.run(
        [sys.executable, "-u", child.SCRIPT, "run.py"],
        env={**os.environ, child.ORDER: write_order(order)},
        check=False,
        timeout=TIMEOUT_S,
        start_new_session=True,
    )
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "ran").exists()
