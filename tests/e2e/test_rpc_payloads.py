"""What calls carry between real processes, by every way: whole, and owned by the receiver."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import RemoteError, UsageError
from holdfast.rpc import current
from holdfast.rpc.agent import Agent
from holdfast.rpc.client.future import wait_all
from tests.e2e.rpc_world import Way, workers

pytestmark = [
    pytest.mark.allow_leaks("the tests share workers, and with them open connections"),
    pytest.mark.filterwarnings("ignore:Sparse CSR"),
]

SOON = 120.0
SIZES = (64, 64 << 10, 4 << 20)


@pytest.fixture(scope="module", params=list(Way))
def agent(request: pytest.FixtureRequest) -> Iterator[Agent]:
    """One of two workers between which messages go this way."""
    with workers(2, lease_s=60.0, way=request.param) as (agent, _):
        current.set_agent(agent)
        try:
            yield agent
        finally:
            current.reset_agent()


# What the callee does.

kept: list[Any] = []


def keep(value: Any) -> Any:
    kept[:] = [value]
    return value


def again() -> Any:
    return kept[0]


def spoil() -> None:
    """Write over what was kept."""
    overwrite(kept.pop())


def overwrite(value: Any) -> None:
    if isinstance(value, torch.Tensor):
        memory = value.detach() if value.layout is torch.strided else value.values()
        if 0 not in memory.stride():  # or many numbers are one
            memory.zero_()
    elif isinstance(value, np.ndarray):
        value.flags.writeable = True
        value[...] = np.zeros((), value.dtype)
    elif isinstance(value, bytearray | memoryview):
        memoryview(value).cast("B")[:] = bytes(memoryview(value).nbytes)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if (one.dtype, one.layout, one.requires_grad) != (
            other.dtype,
            other.layout,
            other.requires_grad,
        ):
            return False
        return bool(torch.equal(one.detach().to_dense(), other.detach().to_dense()))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other))
    return bool(one == other)


# Each of about as many bytes as it is told.

ARRAYS: dict[str, Callable[[int], Any]] = {
    "contiguous": lambda n: np.arange(n // 8, dtype="f8"),
    "every other": lambda n: np.arange(n // 4, dtype="i8")[::2],
    "backwards": lambda n: np.arange(n, dtype="u1")[::-1],
    "by columns": lambda n: np.asfortranarray(np.arange(n // 8, dtype="i4").reshape(-1, 2)),
    "transposed": lambda n: np.arange(n // 8, dtype="i4").reshape(-1, 2).T,
    "of records": lambda n: np.zeros(n // 16, dtype=[("a", "i4"), ("b", "f8")]),
    "of nothing": lambda n: np.empty((0, n)),
    "of one number": lambda n: np.array(3.5),
}
TENSORS: dict[str, Callable[[int], Any]] = {
    "contiguous": lambda n: torch.arange(n // 8),
    "every other": lambda n: torch.arange(n // 4)[::2],
    "transposed": lambda n: torch.arange(n // 8, dtype=torch.float32).reshape(-1, 2).T,
    "expanded": lambda n: torch.tensor([1.5]).expand(n // 4),
    "a part": lambda n: torch.arange(2 * n, dtype=torch.uint8)[n // 2 : n],
    "bf16": lambda n: torch.arange(n // 2).to(torch.bfloat16),
    "complex": lambda n: torch.arange(n // 8).to(torch.complex64).conj(),
    "sparse": lambda n: torch.eye(min(n // 32, 500)).to_sparse(),
    "by rows": lambda n: torch.eye(min(n // 32, 500)).to_sparse_csr(),
    "of nothing": lambda n: torch.empty((0, n)),
    "of one number": lambda n: torch.tensor(3.5),
    "with a gradient": lambda n: torch.arange(n // 4, dtype=torch.float32).requires_grad_(),
    "a parameter": lambda n: torch.nn.Parameter(torch.ones(n // 4)),
}
BYTES: dict[str, Callable[[int], Any]] = {
    "bytes": lambda n: bytes(range(64)) * (n // 64),
    "bytearray": lambda n: bytearray(range(64)) * (n // 64),
    "memoryview": lambda n: memoryview(bytearray(range(64)) * (n // 64)),
    "of numbers": lambda n: memoryview(bytearray(n)).cast("d", (n // 64, 8)),
}
EVERY = [
    pytest.param(make, id=f"{family}-{name}")
    for family, kinds in (("array", ARRAYS), ("tensor", TENSORS), ("bytes", BYTES))
    for name, make in kinds.items()
]


@pytest.mark.parametrize("make", EVERY)
def test_values_arrive_whole_and_are_not_shared(agent: Agent, make: Callable[[int], Any]) -> None:
    for size in SIZES:
        for target in ("w1", "w0"):
            mine, right = make(size), make(size)
            first = agent.call(target, keep, (mine,))
            second = agent.call_async(target, again).wait(SOON)
            assert same(first, right)
            assert same(second, right)
            overwrite(mine)
            assert same(agent.call(target, again), right)  # what is there is not ours
            agent.call(target, spoil)
            assert same(first, right)  # what is here is not theirs
            overwrite(first)
            assert same(second, right)


def test_the_way_is_the_one_that_is_meant(agent: Agent, request: pytest.FixtureRequest) -> None:
    way = request.node.callspec.params["agent"]
    agent.call("w1", keep, (bytearray(1 << 20),))
    assert agent.contact is not None
    links = agent.peer("w1").connections
    assert {link.peer_memory.open for link in links} == {way is Way.FETCHED}
    same_machine = agent.peer("w1").contact.machine == agent.contact.machine
    assert same_machine == (way is not Way.TCP)


def test_many_values_in_one_call(agent: Agent) -> None:
    values = [make(size) for make in (*ARRAYS.values(), *TENSORS.values()) for size in SIZES]
    got = agent.call("w1", keep, (values,))
    assert all(map(same, got, values))
    futures = [agent.call_async("w1", keep, (value,)) for value in values]
    assert all(map(same, wait_all(futures), values))


def test_the_gradient_stays_and_its_history_goes(agent: Agent) -> None:
    weights = torch.ones(3, requires_grad=True)
    got = agent.call("w1", keep, (weights * 2,))
    assert got.requires_grad
    assert got.is_leaf
    got.sum().backward()
    assert weights.grad is None


# Errors.


class Grumpy(Exception):
    """Made of more than its message."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


class Careful(Exception):
    """Says how it is made again."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(code, why)
        self.code, self.why = code, why

    def __reduce__(self) -> Any:
        return _careful, (self.code, self.why)


def _careful(code: int, why: str) -> Careful:
    return Careful(code, why=why)


class Deadly:
    """Raises SystemExit when it is unpickled."""

    def __reduce__(self) -> Any:
        return sys.exit, (5,)


def grumble() -> None:
    raise Grumpy(7, why="tired")


def be_careful() -> None:
    raise Careful(7, why="tired")


def raise_group() -> None:
    try:
        raise OSError("the cause")
    except OSError as cause:
        raise ExceptionGroup("both", [ValueError(1), Grumpy(2, why="x"), KeyError(3)]) from cause


def raise_plain_group() -> None:
    raise ExceptionGroup("both", [ValueError(1), KeyError(3)])


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


def raise_with_value() -> None:
    raise ValueError("it holds", kept, lambda: 1)


def deadly() -> Deadly:
    return Deadly()


def raised(agent: Agent, job: Callable[..., Any], *args: Any) -> Iterator[BaseException]:
    """Yield what a call raises, made in each way."""
    for target in ("w1", "w0"):
        with pytest.raises((Exception, SystemExit)) as caught:
            agent.call(target, job, args)
        yield caught.value
        error = agent.call_async(target, job, args).exception(SOON)
        assert error is not None
        yield error


def test_an_error_with_odd_arguments_comes_back_as_itself(agent: Agent) -> None:
    for error in raised(agent, grumble):
        assert isinstance(error, Grumpy)
        assert "7: tired" in str(error)
        assert "in grumble" in error.__notes__[0]
    for error in raised(agent, be_careful):
        assert isinstance(error, Careful)
        assert (error.code, error.why) == (7, "tired")


def test_error_groups_keep_the_errors_that_can_be_sent(agent: Agent) -> None:
    for error in raised(agent, raise_plain_group):
        assert isinstance(error, ExceptionGroup)
        assert [repr(each) for each in error.exceptions] == ["ValueError(1)", "KeyError(3)"]
    for error in raised(agent, raise_group):
        assert isinstance(error, RemoteError)
        for text in ("the cause", "2: x", "KeyError: 3"):
            assert text in error.traceback_text


def test_a_value_nested_too_deeply_is_an_error_and_no_crash(agent: Agent) -> None:
    for error in raised(agent, recurse):
        assert isinstance(error, RecursionError)
        assert len("".join(error.__notes__)) < 10_000
    for error in raised(agent, deep):
        assert isinstance(error, UsageError)
        assert "cannot be pickled" in str(error)
    with pytest.raises(UsageError, match="cannot be pickled"):
        agent.call("w1", keep, (deep(),))


def test_an_error_with_contents_that_cannot_be_pickled_arrives_as_another_one(agent: Agent) -> None:
    for error in raised(agent, raise_with_value):
        assert isinstance(error, RemoteError)
        assert "it holds" in str(error)


def test_a_value_that_raises_systemexit_when_read_ends_no_other_call(agent: Agent) -> None:
    for error in raised(agent, keep, Deadly()):  # the callee reads it
        assert isinstance(error, RemoteError)
        assert error.type_name == "builtins.SystemExit"
    for error in raised(agent, deadly):  # the caller does, and gets its own exception
        assert isinstance(error, SystemExit)
    assert agent.call("w1", len, ("abc",)) == 3
