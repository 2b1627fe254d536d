"""A program as a user writes it, for type checkers: nothing runs it.

`test_user_program.py` lets mypy and pyright read it. A line that ends with a type reveals that
type, a line that ends with the word mistake must be refused, and no other line may be.
"""

from __future__ import annotations

from typing import reveal_type

import holdfast
from holdfast import rpc


def add(left: int, right: int = 1) -> int:
    return left + right


async def look_up(name: str) -> bytes:
    return name.encode()


@rpc.async_execution
def ask_next(number: int) -> rpc.Future[str]:
    return rpc.rpc_async("next", str, args=(number,))


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    def increase(self, by: int) -> int:
        self.value += by
        return self.value


def call_by_name() -> None:
    reveal_type(rpc.rpc_sync("a", add, args=(1, 2)))  # int
    reveal_type(rpc.rpc_sync("a", look_up, args=("n",), timeout=3))  # bytes
    reveal_type(rpc.rpc_sync("a", ask_next, args=(1,)))  # str
    reveal_type(rpc.rpc_async("a", add, args=(1, 2)))  # Future[int]
    reveal_type(rpc.rpc_async("a", look_up, kwargs={"name": "n"}))  # Future[bytes]
    reveal_type(rpc.rpc_async("a", ask_next, args=(1,)).wait())  # str
    reveal_type(rpc.remote("a", Counter, args=(1,)))  # RRef[Counter]
    reveal_type(rpc.remote("a", look_up, args=("n",)).to_here())  # bytes
    rpc.rpc_sync("a", add, args=(1, 2)).upper()  # mistake
    rpc.rpc_sync("a", "add", args=(1, 2))  # mistake
    rpc.rpc_sync(add, args=(1, 2))  # mistake
    rpc.rpc_async("a", add, args=7)  # mistake
    rpc.rpc_async("a", add, args=(1, 2)) + 1  # mistake


def call_with_checked_arguments() -> None:
    worker = rpc.RemoteWorker("a", timeout=5, retries=rpc.RetryPolicy(max_retries=3))
    reveal_type(worker.rpc_sync(add, 1, right=2))  # int
    reveal_type(worker.rpc_sync(look_up, "n"))  # bytes
    reveal_type(worker.rpc_async(ask_next, number=1))  # Future[str]
    reveal_type(worker.remote(Counter, start=1))  # RRef[Counter]
    reveal_type(worker.remote(list, ["a"]).rpc_sync().index("a"))  # int
    worker.rpc_sync(add, "1")  # mistake
    worker.rpc_sync(add)  # mistake
    worker.rpc_sync(add, 1, wrong=2)  # mistake
    worker.rpc_async(look_up, 7)  # mistake
    worker.remote(Counter, 1, 2)  # mistake
    rpc.RemoteWorker("a", 5)  # mistake


def use_references() -> None:
    counter = rpc.remote("a", Counter, args=(1,))
    reveal_type(counter.rpc_sync().increase(2))  # int
    reveal_type(counter.rpc_async().increase(2))  # Future[Any]
    reveal_type(counter.remote(timeout=1).increase(2))  # RRef[Any]
    reveal_type(counter.to_here())  # Counter
    counter.rpc_sync().decrease(2)  # mistake
    counter.rpc_sync().increase("2")  # mistake


def combine_futures() -> None:
    one, other = rpc.rpc_async("a", add, args=(1,)), rpc.rpc_async("a", look_up, args=("n",))
    reveal_type(rpc.wait_all([one, one]))  # list[int]
    reveal_type(rpc.wait_all([one, other]))  # list[Any]
    reveal_type(rpc.collect_all([one]))  # Future[list[Future[int]]]
    reveal_type(one.then(lambda done: str(done.value())))  # Future[str]
    rpc.wait_all([1, 2])  # mistake


async def use_asyncio() -> None:
    reveal_type(await rpc.rpc_async("a", add, args=(1, 2)))  # int


def launch(config: holdfast.LaunchConfig) -> None:
    reveal_type(holdfast.elastic_launch(config, add)(1, right=2))  # dict[int, int]
    reveal_type(holdfast.elastic_launch(config, "train.sh")("--epochs", "3"))  # dict[int, Any]
    holdfast.elastic_launch(config, add)("1")  # mistake
    holdfast.elastic_launch(config, add)(1, 2, 3)  # mistake
    holdfast.elastic_launch(config, 7)  # mistake
