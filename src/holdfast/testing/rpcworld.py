"""Tests of programs that use RPC: a function in several real workers, with faults if wanted.

    @rpc_workers(4, messages_to_fail=["RREF_FORK_REQUEST"], num_fail_sends=3)
    def test_something(rank: int) -> None:
        if rank == 0:
            assert rpc_sync("worker1", add, args=(1, 2)) == 3

The function runs in each of the workers `worker0`, `worker1` …, after `init_rpc` and before
`shutdown`. What one of them raises fails the test, with its traceback.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.launch.config import LaunchConfig
from holdfast.launch.launcher import elastic_launch
from holdfast.rpc.api import DEFAULT_TIMEOUT_S, init_rpc, shutdown

__all__ = ["rpc_workers", "run_workers"]

_FAULTS = ("plan", "messages_to_fail", "messages_to_delay", "num_fail_sends")


def run_workers(
    function: Callable[..., Any],
    *args: Any,
    workers: int = 4,
    backend: str = "default",
    options: Mapping[str, Any] | None = None,
    rpc_timeout: float = DEFAULT_TIMEOUT_S,
    graceful: bool = True,
) -> dict[int, Any]:
    """Call `function(rank, *args)` in so many workers; return what they return, by rank.

    The function must be found by its name in its module. WorkersFailed if one of them raises.
    """
    where = (function.__module__, function.__qualname__)
    config = LaunchConfig(1, 1, workers, rdzv_endpoint="localhost:0", max_restarts=0)
    world = (backend, dict(options or {}), rpc_timeout, graceful)
    return elastic_launch(config, _work)(where, args, world)


def rpc_workers(
    workers: int = 4, *, rpc_timeout: float = DEFAULT_TIMEOUT_S, **faults: Any
) -> Callable[[Callable[[int], None]], Callable[[], None]]:
    """Let a test run in several workers. `faults` are the options of the backend `faulty`."""
    odd = sorted(set(faults) - set(_FAULTS))
    if odd:
        raise TypeError(f"rpc_workers: {odd[0]!r} is unknown; faults are {', '.join(_FAULTS)}")

    def decorate(test: Callable[[int], None]) -> Callable[[], None]:
        @functools.wraps(test)
        def run() -> None:
            backend = "faulty" if faults else "default"
            run_workers(
                test, workers=workers, backend=backend, options=faults, rpc_timeout=rpc_timeout
            )

        del run.__wrapped__  # or pytest would look for a fixture named rank
        run.in_worker = test  # type: ignore[attr-defined]
        return run

    return decorate


def _work(
    where: tuple[str, str], args: tuple[Any, ...], world: tuple[str, dict[str, Any], float, bool]
) -> Any:
    backend, options, rpc_timeout, graceful = world
    function: Any = importlib.import_module(where[0])
    for name in where[1].split("."):
        function = getattr(function, name)
    function = getattr(function, "in_worker", function)
    rank = int(os.environ["RANK"])
    init_rpc(f"worker{rank}", backend=backend, options=options, rpc_timeout=rpc_timeout)
    try:
        return function(rank, *args)
    finally:
        shutdown(graceful)
