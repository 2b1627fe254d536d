"""A pytest plugin: the fixture `rpc_world`, for tests of programs that use RPC. Nothing else.

Load it with `-p holdfast.testing.rpcfixture`, or in the top conftest.py by
`pytest_plugins = ["holdfast.testing.rpcfixture"]`. The plugin with the leak checks brings it too.

    def test_something(rpc_world):
        world = rpc_world(3, messages_to_delay={"PYTHON_CALL": 0.1})  # this test is worker0
        assert rpc.rpc_sync("worker1", operator.add, args=(1, 2)) == 3
        world.kill("worker2")
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from holdfast.testing.rpcworld import RpcWorld

__all__ = ["MakeWorld"]


class MakeWorld(Protocol):
    """What the fixture gives: it starts workers; see `RpcWorld` for what it takes."""

    def __call__(self, workers: int = 4, **options: Any) -> RpcWorld: ...


@pytest.fixture
def rpc_world() -> Iterator[MakeWorld]:
    """Start workers of which this test is the first; they end with the test."""
    with ExitStack() as stack:

        def make(workers: int = 4, **options: Any) -> RpcWorld:
            return stack.enter_context(RpcWorld(workers, **options))

        yield make
