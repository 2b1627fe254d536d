"""Workers of every kind start, what is missing is told before, and nothing is left behind."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import Deadline
from holdfast.errors import Unavailable, UsageError
from holdfast.process.spec import Entrypoint, Function, Module, Program, Script, StartMethod
from holdfast.process.start.returns import read_return
from holdfast.process.start.spawn import Starter
from tests.unit.process.workers import TIMEOUT_S, Running, launch_of, run
from tests.waiting import until


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


# The limits of open files.


SHOW_LIMIT = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"


def show_limit() -> None:
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))


@pytest.mark.parametrize("kind", ["script", "program", *StartMethod])
def test_a_worker_gets_the_limits_of_open_files_that_it_should(tmp_path: Path, kind: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    (tmp_path / "show.py").write_text(SHOW_LIMIT)
    entrypoint: Entrypoint
    match kind:
        case "script":
            entrypoint = Script(str(tmp_path / "show.py"))
        case "program":
            entrypoint = Program("sh", ("-c", "ulimit -Sn; ulimit -Hn"))
        case method:
            entrypoint = Function(show_limit, (), StartMethod(method))
    for files in ((200, hard), None):
        starter = Starter(files=files)
        try:
            ended = run(starter, launch_of(tmp_path, entrypoint))
        finally:
            starter.close()
        assert [int(word) for word in ended.stdout.split()] == list(files or (soft, hard))


# Functions that workers call.


def rank_and(*values: Any) -> tuple[Any, ...]:
    return (int(os.environ["RANK"]), *values)


def fail(text: str) -> None:
    raise ValueError(text)


def leave(code: object) -> None:
    sys.exit(code)  # type: ignore[arg-type]


def send(connection: Connection, value: object) -> None:
    connection.send(value)


def unpicklable() -> object:
    return threading.Lock()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


def speak() -> None:
    print("out")
    print("err", file=sys.stderr)


def end_late() -> None:
    import atexit

    def outlast() -> None:
        until(Deadline.after(0.2).passed)
        print("thread", flush=True)

    threading.Thread(target=outlast).start()
    atexit.register(print, "at exit")


def abort_natively_at_exit() -> None:
    """Register what a destructor does that finds a thread of its library ended."""
    library = ctypes.CDLL(None)
    library.on_exit(library.abort, None)


def print_natively() -> None:
    """Leave text in the buffer of the C library."""
    ctypes.CDLL(None).printf(b"native\n")


def where() -> tuple[int, int, int, str]:
    return os.getpid(), os.getpgid(0), os.getsid(0), os.getcwd()


METHODS = list(StartMethod)


@pytest.mark.parametrize("method", METHODS)
class TestFunctions:
    def test_what_they_return_comes_back(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        call = Function(rank_and, ({"a": [1]}, b"x"), method)
        running = [Running(starter, launch_of(tmp_path, call, rank=rank)) for rank in range(3)]
        for rank, worker in enumerate(running):
            ended = worker.end()
            assert ended.exit.code == 0, ended.stderr
            assert read_return(ended.launch) == (rank, {"a": [1]}, b"x")

    def test_an_exception_is_told(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        ended = run(starter, launch_of(tmp_path, Function(fail, ("boom",), method)))
        assert ended.exit.code == 1
        assert ended.error is not None
        assert ended.error["message"] == "ValueError: boom"
        assert ended.error["extraInfo"]["py_callstack"] == ended.stderr
        assert "child.py" not in ended.stderr
        assert "in fail" in ended.stderr

    @pytest.mark.parametrize(
        ("code", "status", "stderr"), [(3, 3, ""), (None, 0, ""), (0, 0, ""), ("bye", 1, "bye\n")]
    )
    def test_they_may_leave(
        self,
        starter: Starter,
        tmp_path: Path,
        method: StartMethod,
        code: object,
        status: int,
        stderr: str,
    ) -> None:
        ended = run(starter, launch_of(tmp_path, Function(leave, (code,), method)))
        assert (ended.exit.code, ended.stderr) == (status, stderr)
        assert (ended.error is not None) == isinstance(code, str)
        if ended.exit.ok:
            assert read_return(ended.launch) is None

    def test_they_may_end_their_process_at_once(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        ended = run(starter, launch_of(tmp_path, Function(os._exit, (0,), method)))
        assert ended.exit.ok, ended.stderr
        assert read_return(ended.launch) is None

    def test_an_interrupt_ends_them_by_its_signal(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        ended = run(starter, launch_of(tmp_path, Function(interrupt, (), method)))
        assert ended.exit.code == -signal.SIGINT
        assert ended.stderr.endswith("KeyboardInterrupt\n")

    def test_a_value_that_cannot_be_pickled_fails_them(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        ended = run(starter, launch_of(tmp_path, Function(unpicklable, (), method)))
        assert ended.exit.code == 1
        assert ended.error is not None
        assert ended.error["message"].startswith(
            "TypeError: unpicklable returned a _thread.lock, which cannot be pickled"
        )

    def test_their_output_goes_where_it_should(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        ended = run(starter, launch_of(tmp_path, Function(speak, (), method)))
        assert (ended.stdout, ended.stderr) == ("out\n", "err\n")

    def test_threads_and_exit_functions_run_to_their_end(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        ended = run(starter, launch_of(tmp_path, Function(end_late, (), method)))
        assert ended.stdout == "thread\nat exit\n"

    def test_they_end_without_native_destructors(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        """A destructor that finds its threads ended by Python's finalization aborts."""
        ended = run(starter, launch_of(tmp_path, Function(abort_natively_at_exit, (), method)))
        assert ended.exit.code == 0, ended.stderr

    def test_they_may_be_given_a_connection(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        reading, writing = multiprocessing.get_context(method.value).Pipe(duplex=False)
        with reading, writing:
            ended = run(starter, launch_of(tmp_path, Function(send, (writing, "value"), method)))
            assert ended.exit.code == 0, ended.stderr
            assert reading.recv() == "value"

    def test_they_are_a_session_of_their_own(
        self, starter: Starter, tmp_path: Path, method: StartMethod
    ) -> None:
        running = Running(starter, launch_of(tmp_path, Function(where, (), method)))
        pid = running.process.pid
        assert read_return(running.end().launch) == (pid, pid, pid, os.getcwd())


def test_what_a_function_printed_by_native_code_is_not_lost(
    starter: Starter, tmp_path: Path
) -> None:
    ended = run(starter, launch_of(tmp_path, Function(print_natively, (), StartMethod.SPAWN)))
    assert ended.stdout == "native\n"


@pytest.mark.parametrize("method", [m for m in METHODS if m is not StartMethod.FORK])
def test_a_function_that_cannot_be_pickled_is_refused_at_once(
    starter: Starter, tmp_path: Path, method: StartMethod
) -> None:
    call = Function(rank_and, (threading.Lock(),), method)
    with pytest.raises(UsageError, match="rank_and.*cannot be pickled.*start_method=fork"):
        starter.start(launch_of(tmp_path, call), None, None)


@pytest.mark.parametrize("method", METHODS)
def test_functions_of_the_main_module_work(tmp_path: Path, method: StartMethod) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'")
    (tmp_path / "main.py").write_text(
        "import multiprocessing, os, select, sys\n"
        "from pathlib import Path\n"
        "from holdfast.process.start.returns import read_return\n"
        "from holdfast.process.start.spawn import Starter\n"
        "from holdfast.process.spec import Function, Launch, StartMethod\n"
        "import beside\n"
        "class Value:\n    def __init__(self, text):\n        self.text = text\n"
        "def work(queue, text):\n    queue.put('queued')\n    return Value(text + beside.WORD)\n"
        "if __name__ == '__main__':\n"
        f"    queue = multiprocessing.get_context({method.value!r}).Queue()\n"
        f"    function = Function(work, (queue, 'and ',), StartMethod({method.value!r}))\n"
        "    launch = Launch(entrypoint=function, local_rank=0, rank=0, role='',\n"
        "                    environment=dict(os.environ), folder=Path(sys.argv[1]))\n"
        "    print('begun')\n"
        "    starter = Starter()\n"
        "    worker = starter.start(launch, None, None)\n"
        "    select.select([worker.fileno()], [], [], 50)\n"
        "    print(worker.reap(), queue.get(), read_return(launch).text)\n"
        "    worker.close()\n    starter.close()\n"
    )
    folder = tmp_path / "out"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(tmp_path / "main.py"), str(folder)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout == "begun\nexit code 0 queued and beside\n", done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("method", [StartMethod.SPAWN, StartMethod.FORKSERVER])
def test_a_main_module_without_its_guard_does_not_start_itself_for_ever(
    tmp_path: Path, method: StartMethod
) -> None:
    (tmp_path / "main.py").write_text(
        "import os, select, sys\n"
        "from pathlib import Path\n"
        "from holdfast.process.start.spawn import Starter\n"
        "from holdfast.process.spec import Function, Launch, StartMethod\n"
        "def work(): pass\n"
        f"launch = Launch(entrypoint=Function(work, (), StartMethod({method.value!r})),\n"
        "    local_rank=0, rank=0, role='', environment=dict(os.environ),\n"
        "    folder=Path(sys.argv[1]))\n"
        "worker = Starter().start(launch, None, None)\n"
        "select.select([worker.fileno()], [], [], 50)\n"
        "print(worker.reap())\n"
        "worker.close()\n"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "main.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "RuntimeError" in done.stderr
    assert "if __name__ == '__main__'" in done.stderr
    if method is StartMethod.SPAWN:
        assert done.stdout == "exit code 1\n"


# What is missing, and what the process is.


def test_what_the_system_cannot_take_is_told(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "plain.txt").touch()
    launch = launch_of(tmp_path, Script(str(tmp_path / "plain.txt"), ("a\0b",)))
    with pytest.raises(UsageError, match=r"cannot start plain.txt .rank 0.: embedded null byte"):
        starter.start(launch, None, None)


def test_a_system_without_room_is_told_apart(starter: Starter, tmp_path: Path) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    launch = launch_of(tmp_path, Program("true"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(Unavailable, match="cannot start true .rank 0.*Too many open files"):
            starter.start(launch, None, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_module_is_found_where_the_worker_will_look(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "only_here.py").write_text("print('here')")
    assert run(starter, launch_of(tmp_path, Module("only_here"))).stdout == "here\n"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "only_there.py").write_text("print('there')")
    environment = {"PYTHONPATH": str(elsewhere)}
    launch = launch_of(tmp_path, Module("only_there"), environment=environment)
    assert run(starter, launch).stdout == "there\n"


def test_a_program_is_found_in_the_path_of_the_worker(starter: Starter, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text('#!/bin/sh\necho "$0" "$@" "$RANK"; exit 7\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    launch = launch_of(tmp_path, Program("mine", ("a b",)), rank=2, environment=environment)
    ended = run(starter, launch)
    assert (ended.exit.code, ended.stdout) == (7, f"{program} a b 2\n")


def test_another_interpreter_can_be_named(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "which.py").write_text("import sys; print(sys.executable)")
    python = tmp_path / "my-python"
    python.symlink_to(sys.executable)
    script = Script(str(tmp_path / "which.py"), python=str(python))
    assert run(starter, launch_of(tmp_path, script)).stdout == f"{python}\n"


def test_the_environment_is_exactly_the_given_one(starter: Starter, tmp_path: Path) -> None:
    launch = launch_of(tmp_path, Program("env"), environment={"ODD": "é\n=x"})
    shown = run(starter, launch).stdout
    assert set(shown.split("\n")) == set(
        "\n".join(f"{name}={value}" for name, value in launch.environment.items()).split("\n")
    ) | {""}


def test_a_list_of_processes_shows_the_program(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print(open('/proc/self/cmdline').read())")
    script = Script(str(tmp_path / "show.py"), ("--lr", "1"))
    words = run(starter, launch_of(tmp_path, script)).stdout.strip("\0\n").split("\0")
    assert words[-3:] == [str(tmp_path / "show.py"), "--lr", "1"]


def test_a_worker_has_no_descriptor_of_ours(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(
        "import os\nfor n in os.listdir('/proc/self/fd'):\n"
        "    try:\n        print(n, os.readlink(f'/proc/self/fd/{n}'))\n"
        "    except OSError:\n        pass\n"
    )
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        ended = run(starter, launch_of(tmp_path, Script(str(tmp_path / "show.py"))))
    finally:
        os.close(reading)
        os.close(writing)
    shown = dict(line.split(" ", 1) for line in ended.stdout.splitlines())
    del shown["0"]
    folder = ended.launch.folder
    assert set(shown.values()) == {
        str(folder / name) for name in ("stdout.log", "stderr.log", "stack.txt")
    }


def test_where_no_descriptor_is_given_output_goes_to_ours(
    starter: Starter, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = starter.start(launch_of(tmp_path, Program("echo", ("hello",))), None, None)
    assert select.select([worker.fileno()], [], [], TIMEOUT_S)[0]
    assert worker.reap() is not None
    worker.close()
    assert capfd.readouterr().out == "hello\n"


def test_an_interpreter_may_be_wrapped(starter: Starter, tmp_path: Path) -> None:
    wrapper = tmp_path / "python.sh"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o700)
    script = tmp_path / "script.py"
    script.write_text("print('here')")
    ended = run(starter, launch_of(tmp_path, Script(str(script), (), str(wrapper))))
    assert (ended.exit.code, ended.stdout) == (0, "here\n")


def test_a_program_without_standard_output_can_fork(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    ended = run(starter, launch_of(tmp_path, Function(rank_and, (1,), StartMethod.FORK)))
    assert read_return(ended.launch) == (0, 1)
