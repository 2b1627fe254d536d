"""A forked worker begins with what its parent had, less what is the parent's own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process.spec import Function, StartMethod
from holdfast.process.start.returns import read_return
from holdfast.process.start.spawn import Starter
from tests.unit.process.workers import launch_of, run


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.close()


def test_a_forked_function_may_be_anything(starter: Starter, tmp_path: Path) -> None:
    lock = threading.Lock()
    call = Function(lambda held: held is lock, (lock,), StartMethod.FORK)
    ended = run(starter, launch_of(tmp_path, call))
    assert read_return(ended.launch) is True


def test_a_forked_function_has_its_own_environment_and_signals(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> tuple[dict[str, str], object, object, set[signal.Signals]]:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        return dict(os.environ), *(str(handler) for handler in handlers), set(mask)  # type: ignore[return-value]

    launch = launch_of(tmp_path, Function(look, (), StartMethod.FORK), environment={"A": "b"})
    monkeypatch.setenv("OF_THE_PARENT", "1")
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        ended = run(starter, launch)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    environment, term, interrupt, mask = read_return(ended.launch)
    assert environment == launch.environment
    assert term == str(signal.SIG_DFL)
    assert interrupt == str(signal.default_int_handler)
    assert mask == set()


def test_a_forked_function_lets_go_of_what_is_the_parents(tmp_path: Path) -> None:
    import atexit

    reading, writing = os.pipe()
    pipe = os.readlink(f"/proc/self/fd/{reading}")

    def close_both() -> None:
        os.close(reading)
        os.close(writing)

    starter = Starter(close_in_child=close_both)

    def look() -> set[str]:
        links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return {os.readlink(link) for link in links if os.path.exists(link)}

    def never() -> None:
        print("the parent's")

    atexit.register(never)
    try:
        ended = run(starter, launch_of(tmp_path, Function(look, (), StartMethod.FORK)))
    finally:
        atexit.unregister(never)
        os.close(reading)
        os.close(writing)
    assert ended.stdout == ""
    names = read_return(ended.launch)
    assert pipe not in names
    named = {name for name in names if str(tmp_path) in name}
    folder = ended.launch.folder
    assert named == {str(folder / name) for name in ("stdout.log", "stderr.log", "stack.txt")}


def test_a_forked_function_leaves_the_parents_children_alone(
    starter: Starter, tmp_path: Path
) -> None:
    daemon = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    daemon.start()
    try:
        call = Function(multiprocessing.active_children, (), StartMethod.FORK)
        ended = run(starter, launch_of(tmp_path, call))
        assert read_return(ended.launch) == []
        assert daemon.is_alive()
    finally:
        daemon.kill()
        daemon.join()
        daemon.close()


def test_a_native_crash_of_a_forked_function_leaves_its_stack(
    starter: Starter, tmp_path: Path
) -> None:
    import ctypes

    call = Function(lambda: ctypes.string_at(0), (), StartMethod.FORK)
    ended = run(starter, launch_of(tmp_path, call))
    assert ended.exit.code == -signal.SIGSEGV
    assert "in string_at" in ended.launch.stack_file.read_text()


def test_a_forked_function_whose_exit_functions_fail_still_ends(
    starter: Starter, tmp_path: Path
) -> None:
    def spoil() -> None:
        import sys

        sys.stdout.close()

    ended = run(starter, launch_of(tmp_path, Function(spoil, (), StartMethod.FORK)))
    assert ended.exit.code >= 0
