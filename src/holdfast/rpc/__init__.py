"""RPC between named workers: calls, futures, and references to values that live elsewhere.

    from holdfast import rpc

    rpc.init_rpc("worker0", rank=0, world_size=2)
    rpc.rpc_sync("worker1", operator.add, args=(1, 2))
    rpc.shutdown()

Layout, in reading order
    wire/             messages, their bytes, and connections
    values/           arguments, results, errors and functions as bytes
    client/           the caller's side: calls, deadlines, retries, futures
    rref/             references and their counting
    server/           the callee's side: accepts, runs, replies
    completion.py     completes a call's future from its reply
    metrics.py        what an agent is doing, in numbers and words
    membership/       which worker is where, and which is gone
    agent.py          one worker: everything above together
    backends.py       transports by name
    bootstrap.py      where the workers of a job meet
    current.py        the current agent of this process
    remote_worker.py  a worker to call, with arguments that a type checker checks
    api.py            the functions of this package

The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.rpc.agent import Agent
    from holdfast.rpc.api import (
        async_execution,
        debug_info,
        get_worker_info,
        init_rpc,
        remote,
        rpc_async,
        rpc_sync,
        shutdown,
    )
    from holdfast.rpc.backends import register_backend
    from holdfast.rpc.client.deadlines import detached
    from holdfast.rpc.client.future import Future, collect_all, wait_all
    from holdfast.rpc.client.retry_policy import RetryPolicy
    from holdfast.rpc.remote_worker import RemoteWorker
    from holdfast.rpc.rref.rref import RRef
    from holdfast.rpc.wire.worker_info import WorkerInfo

__all__ = [
    "Agent",
    "Future",
    "RRef",
    "RemoteWorker",
    "RetryPolicy",
    "WorkerInfo",
    "async_execution",
    "collect_all",
    "debug_info",
    "detached",
    "get_worker_info",
    "init_rpc",
    "register_backend",
    "remote",
    "rpc_async",
    "rpc_sync",
    "shutdown",
    "wait_all",
]

_HOMES = {
    "Agent": "agent",
    "Future": "client.future",
    "RRef": "rref.rref",
    "RemoteWorker": "remote_worker",
    "RetryPolicy": "client.retry_policy",
    "WorkerInfo": "wire.worker_info",
    "collect_all": "client.future",
    "detached": "client.deadlines",
    "register_backend": "backends",
    "wait_all": "client.future",
}


if not TYPE_CHECKING:  # or type checkers would believe in any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'holdfast.rpc' has no attribute {name!r}")
        import importlib

        home = importlib.import_module(f"holdfast.rpc.{_HOMES.get(name, 'api')}")
        value = getattr(home, name)
        globals()[name] = value  # so that this is asked once
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
