"""Tests of programs that use RPC: several real workers, with faults if wanted. Two ways.

A test that runs in every worker:

    @rpc_workers(4, messages_to_fail=["RREF_FORK_REQUEST"], num_fail_sends=3)
    def test_something(rank: int) -> None:
        if rank == 0:
            assert rpc_sync("worker1", add, args=(1, 2)) == 3

The function runs in each of the workers `worker0`, `worker1` …, after `init_rpc` and before
`shutdown`. What one of them raises fails the test, with its traceback. It may be a method, which
takes `self` and then `rank`: each worker calls it on an object of its own, which is new.

A test that is a worker itself, `worker0`, and has others that serve it; they can be killed:

    with RpcWorld(3, plan="drop PYTHON_CALL p=0.1") as world:
        assert rpc_sync("worker1", add, args=(1, 2)) == 3
        world.kill("worker2")

The fixture `rpc_world` of `rpcfixture.py` makes such worlds, and ends them with the test.

Workers find functions by their names, so the module of a test must be one that can be imported.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import PeerLost, UsageError, WorkersFailed
from holdfast.faults.backends import plan_of
from holdfast.faults.plan import FaultPlan
from holdfast.launch.config import LaunchConfig
from holdfast.launch.launcher import elastic_launch
from holdfast.rpc import current
from holdfast.rpc.api import DEFAULT_TIMEOUT_S, init_rpc, shutdown
from holdfast.store.open import open_store, serve_store

__all__ = ["RpcWorld", "rpc_workers", "run_workers"]

START_WITHIN_S = 60.0
END_WITHIN_S = 10.0


# A function in every worker.


def run_workers(
    function: Callable[..., Any],
    *args: Any,
    workers: int = 4,
    setup_rpc: bool = True,
    clean_shutdown: bool = True,
    backend: str = "default",
    options: Mapping[str, Any] | None = None,
    rpc_timeout: float = DEFAULT_TIMEOUT_S,
    named: Mapping[str, Any] | None = None,
) -> dict[int, Any]:
    """Call `function(rank, *args, **named)` in so many workers; return what they return, by rank.

    With `setup_rpc=False` it must call `init_rpc` itself, and `shutdown`. With
    `clean_shutdown=False` workers end without waiting for each other.

    The function must be found by its name in its module; a method is called on a new object of its
    class. WorkersFailed if one of them raises.
    """
    where = _where(function)
    config = LaunchConfig(1, 1, workers, rdzv_endpoint="localhost:0", max_restarts=0)
    setup = {"backend": backend, "options": dict(options or {}), "rpc_timeout": rpc_timeout}
    how = (setup if setup_rpc else None, clean_shutdown)
    work = functools.partial(_work, where, args, dict(named or {}), how)
    work.__qualname__ = where.path  # type: ignore[attr-defined]  # as what it is told to have failed
    return elastic_launch(config, work)()


def rpc_workers(
    workers: int | Callable[..., None] = 4,
    *,
    setup_rpc: bool = True,
    clean_shutdown: bool = True,
    rpc_timeout: float = DEFAULT_TIMEOUT_S,
    **faults: Any,
) -> Callable[..., Any]:
    """Let a test run in several workers. `faults` are the options of the backend `faulty`.

    The test takes its rank, and then whatever pytest gives it: parameters and fixtures that can
    be pickled. For the rest see `run_workers`; what has `self` as its first parameter is a method.
    """
    if callable(workers):  # without brackets
        return rpc_workers()(workers)  # type: ignore[no-any-return]
    backend = _backend(faults)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        whole = inspect.signature(test)
        parameters = list(whole.parameters.values())
        is_method = bool(parameters) and parameters[0].name == "self"
        if len(parameters) <= is_method:
            raise UsageError(f"{test.__qualname__}: must take its rank")

        @functools.wraps(test)
        def run(*args: Any, **named: Any) -> None:
            __tracebackhide__ = True
            function = test.__get__(args[0]) if is_method else test
            try:
                run_workers(
                    function,
                    *args[is_method:],
                    workers=workers,
                    setup_rpc=setup_rpc,
                    clean_shutdown=clean_shutdown,
                    backend=backend,
                    options=faults,
                    rpc_timeout=rpc_timeout,
                    named=named,
                )
            except WorkersFailed as failure:
                raise failure.with_traceback(None) from None  # it tells where: in a worker

        del parameters[is_method]  # or pytest would look for a fixture named rank
        run.__signature__ = whole.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.in_worker = test  # type: ignore[attr-defined]
        return run

    return decorate


def _backend(faults: Mapping[str, Any]) -> str:
    """Return what carries messages with these faults; UsageError names what is wrong with them."""
    if not faults:
        return "default"
    plan_of(faults)
    return "faulty"


class _Where(NamedTuple):
    """Where a function is found."""

    module: str
    path: str
    is_method: bool


def _where(function: Callable[..., Any]) -> _Where:
    if not inspect.ismethod(function):
        return _Where(function.__module__, function.__qualname__, False)
    one: Any = function.__self__
    of_class = inspect.isclass(one)
    owner: type = one if of_class else type(one)  # which may have inherited it
    return _Where(owner.__module__, f"{owner.__qualname__}.{function.__name__}", not of_class)


def _work(
    where: _Where,
    args: tuple[Any, ...],
    named: dict[str, Any],
    how: tuple[dict[str, Any] | None, bool],
) -> Any:
    setup, clean_shutdown = how
    owner: Any = None
    function: Any = importlib.import_module(where.module)
    for name in where.path.split("."):
        owner, function = function, getattr(function, name)
    function = getattr(function, "in_worker", function)
    if where.is_method:
        function = functools.partial(function, owner())
    rank = int(os.environ["RANK"])
    if setup is None:
        return function(rank, *args, **named)
    init_rpc(f"worker{rank}", **setup)
    try:
        return function(rank, *args, **named)
    finally:
        shutdown(clean_shutdown)


# A test that is a worker itself.


class RpcWorld:
    """Workers for a test: the test is `worker0`, the others are processes that serve.

    Use it in a `with` statement; what it has started ends with that. All workers have the same
    faults, those of `rpc_workers`. A `plan` that is a `FaultPlan` is the test's own: it has the
    record of what happened to the test's messages, and the others have plans like it.
    """

    def __init__(
        self, workers: int = 4, *, rpc_timeout: float = DEFAULT_TIMEOUT_S, **faults: Any
    ) -> None:
        if workers < 1:
            raise UsageError(f"workers: {workers}: must be at least 1, the test itself")
        self._names = [f"worker{rank}" for rank in range(workers)]
        self._setup: dict[str, Any] = {
            "backend": _backend(faults),
            "options": faults,
            "rpc_timeout": rpc_timeout,
        }
        plan = faults.get("plan")
        if isinstance(plan, FaultPlan):
            faults = faults | {"plan": str(plan)}
        self._others = self._setup | {"options": faults}
        self._stack = ExitStack()
        self._endpoint = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # A worker ends with its leash, whose other end it reads. Not with its input: handlers that
        # fork would hang as soon as the child closes an input that a thread is reading.
        self._leashes: dict[str, int] = {}

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            server = undo.enter_context(serve_store())
            self._endpoint = server.endpoint
            undo.callback(self._end)
            self._start(self._names[1:])
            store = undo.enter_context(open_store(self._endpoint))
            init_rpc(self._names[0], rank=0, store=store, **self._setup)
            undo.callback(_leave, current.current_agent())
            self._stack = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def kill(self, name: str) -> None:
        """End a worker as a crash does. Returns when its process is gone."""
        process = self._known(name)
        process.kill()
        process.wait()

    def start(self, name: str) -> None:
        """Start a worker that was killed, under its old name. Returns when the test can call it."""
        if self._known(name).poll() is None:
            raise UsageError(f"{name}: it runs")
        del self._processes[name]
        self._release(name)
        before = _incarnation(name)
        self._start([name])
        # The new worker has registered; the test's own directory hears of it a moment later.
        deadline = Deadline.after(START_WITHIN_S)
        while _incarnation(name) in ("", before):
            if deadline.passed():
                raise RuntimeError(f"{name} came, but did not become known to the test")
            SYSTEM_CLOCK.sleep(0.005)

    def send_signal(self, name: str, number: int) -> None:
        """Send a signal to a worker; SIGSTOP pauses it, SIGCONT resumes it."""
        self._known(name).send_signal(number)

    def _known(self, name: str) -> subprocess.Popen[bytes]:
        if name not in self._processes:
            known = ", ".join(self._processes) or "none"
            raise UsageError(f"{name!r:.60}: no worker that was started here; there are {known}")
        return self._processes[name]

    def _start(self, names: list[str]) -> None:
        """Start workers, all at once, and wait until they are there."""
        ready_pipes = {}
        try:
            for name in names:
                ready_pipes[name], ready = os.pipe()
                leash, self._leashes[name] = os.pipe()
                rank = self._names.index(name)
                order = [self._endpoint, {"name": name, "rank": rank, **self._others}]
                argv = ["-m", __name__, json.dumps(order), str(ready), str(leash)]
                try:
                    self._processes[name] = subprocess.Popen(
                        [sys.executable, *argv],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[ready, leash],
                        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    )
                finally:
                    os.close(ready)
                    os.close(leash)
            deadline = Deadline.after(START_WITHIN_S)
            for name, ready in ready_pipes.items():
                _wait_for(name, ready, deadline)
        finally:
            for ready in ready_pipes.values():
                os.close(ready)

    def _release(self, name: str) -> None:
        """Close the pipe that keeps a worker alive: it ends."""
        os.close(self._leashes.pop(name))

    def _end(self) -> None:
        for name in list(self._leashes):
            self._release(name)
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
        deadline = Deadline.after(END_WITHIN_S)
        for process in self._processes.values():
            try:
                process.wait(deadline.remaining())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(name: str, ready: int, deadline: Deadline) -> None:
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    left = deadline.remaining()
    if not poll.poll(None if left is None else left * 1000) or not os.read(ready, 1):
        raise RuntimeError(f"{name} did not come; what it has printed says why")


def _incarnation(name: str) -> str:
    """Return which life of a worker the test would call now; nothing if none."""
    try:
        return current.current_agent().find(name).incarnation
    except PeerLost:
        return ""


def _leave(agent: Any) -> None:
    """End the test's own part, unless the test has done it."""
    if current.is_agent_set() and current.current_agent() is agent:
        shutdown(graceful=False)


def _serve(order: str, ready: int, leash: int) -> None:
    """Be a worker until the pipe `leash` is closed; write to `ready` when it can be called."""
    endpoint, setup = json.loads(order)
    with open_store(endpoint) as store:
        init_rpc(store=store, **setup)
        os.write(ready, b".")
        os.close(ready)
        while os.read(leash, 1):
            pass
        shutdown(graceful=False)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
