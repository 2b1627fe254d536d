"""RPC between named workers: calls, futures, and references to values that live elsewhere.

    from holdfast import rpc

    rpc.init_rpc("worker0", rank=0, world_size=2)
    rpc.rpc_sync("worker1", operator.add, args=(1, 2))
    rpc.shutdown()

Layout, in reading order (◦ = pure)
    messages.py ◦       the kinds of messages
    codec.py ◦          messages as bytes
    names.py ◦          workers by name and number
    greeting.py ◦       the first words on a connection
    retry.py ◦          trying again: how often, after how long
    eagerness.py ◦      when to look before one sleeps
    receipts.py ◦       what may be asked again runs once
    rref_answers.py ◦   references in answers that may not have been read
    rref_protocol.py ◦  counting references: when a value may go
    callables.py        functions by name
    serialize.py        values as bytes
    raised.py           errors as bytes
    big.py              large buffers on one machine
    forks.py            sockets of this process alone
    link.py             one connection
    deadlines.py        the deadline that calls inherit
    way.py              making way before blocking
    future.py           a value to come
    readers.py          the reader of last resort
    replies.py          those who hear answers
    unsent.py ◦         what is to be sent of calls that are given up
    pipe.py             many calls at once over one link
    opening.py          calls that wait for a pipe
    errands.py          things to be done later
    loop.py             coroutines of those who are called
    peers.py            the caller's side of one worker
    outlet.py           answers on their way out
    transport.py        what carries requests
    server.py           the callee's side: accepts, reads, runs
    passing.py          references within messages
    rref.py             references as users see them
    holdings.py         the references of an agent
    reading.py          reads answers, and sees to what is not read
    answering.py        runs what others ask for
    entry.py            where a worker is, as bytes
    worldsize.py        how many workers a world has
    refusals.py         words to workers of worlds of other sizes
    directory.py        who is where
    insight.py          what an agent is doing, in numbers and words
    insisting.py        requests that are sent until they are answered
    agent.py            everything together
    backends.py         what carries messages, by name
    meeting.py          where the workers of a job meet
    current.py          the current agent of this process
    remote_worker.py    a worker to call, with arguments that a type checker checks
    api.py              the functions of this package

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
    from holdfast.rpc.deadlines import detached
    from holdfast.rpc.future import Future, collect_all, wait_all
    from holdfast.rpc.names import WorkerInfo
    from holdfast.rpc.remote_worker import RemoteWorker
    from holdfast.rpc.retry import RetryPolicy
    from holdfast.rpc.rref import RRef

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
    "Future": "future",
    "RRef": "rref",
    "RemoteWorker": "remote_worker",
    "RetryPolicy": "retry",
    "WorkerInfo": "names",
    "collect_all": "future",
    "detached": "deadlines",
    "register_backend": "backends",
    "wait_all": "future",
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
