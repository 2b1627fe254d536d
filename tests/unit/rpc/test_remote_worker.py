"""A worker to call, with arguments that a type checker checks."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import pytest

from holdfast.errors import CallTimedOut
from holdfast.rpc.api import init_rpc, shutdown
from holdfast.rpc.client.future import Future
from holdfast.rpc.remote_worker import RemoteWorker
from holdfast.store.memory import MemoryStore


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    init_rpc("w0", store=MemoryStore())
    yield
    shutdown()


async def never() -> None:
    await Future[None]()


def test_its_calls_take_the_arguments_as_the_function_does() -> None:
    worker = RemoteWorker("w0")
    assert worker.rpc_sync(int, "11", base=2) == 3
    assert worker.rpc_async(operator.mul, 6, 7).wait() == 42
    words = worker.remote(list, ["hold", "fast"])
    assert words.rpc_sync().index("fast") == 1
    assert repr(worker) == "RemoteWorker('w0')"


def test_its_time_limit_holds_for_each_call() -> None:
    worker = RemoteWorker("w0", timeout=0.01)
    with pytest.raises(CallTimedOut):
        worker.rpc_sync(never)
    with pytest.raises(CallTimedOut):
        worker.rpc_async(never).wait()
