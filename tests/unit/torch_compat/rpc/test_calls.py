"""Calls, by the names of torch's binding."""

from __future__ import annotations

import queue
from typing import Any

import pytest
import torch
from torch.distributed.rpc import internal

from holdfast.clock import SYSTEM_CLOCK
from holdfast.rpc.client.deadlines import deadline_here
from holdfast.torch_compat.rpc import agents, calls
from tests.unit.torch_compat.group import TRIPLE, group
from tests.waiting import until

outlived: queue.SimpleQueue[int] = queue.SimpleQueue()


def double(value: Any) -> Any:
    return value * 2


def fail(kind: type[Exception]) -> None:
    raise kind("no way")


class Odd(ValueError):
    pass


def promised(value: Any) -> Any:
    future = torch.futures.Future()
    future.set_result(value)
    return future


def broken_promise() -> Any:
    future = torch.futures.Future()
    future.set_exception(ValueError("broken"))
    return future


def udf(to: Any, function: Any, *args: Any, is_async: bool = False) -> Any:
    data, tensors = internal.serialize(internal.PythonUDF(function, args, {}))
    return calls.invoke_rpc_python_udf(to, data, tensors, -1, is_async)


def remote(to: Any, function: Any, *args: Any, is_async: bool = False) -> Any:
    data, tensors = internal.serialize(internal.PythonUDF(function, args, {}))
    return calls.invoke_remote_python_udf(to, data, tensors, -1, is_async)


def test_a_python_function_returns_its_value() -> None:
    with group("a", "b") as (_, b):
        to = b.get_worker_info()
        assert udf(to, double, 21).wait() == 42
        assert torch.equal(udf(to, double, torch.ones(3)).wait(), torch.full((3,), 2.0))


def outlive() -> None:
    """Make a call after the deadline of the one that runs here."""
    until(lambda: SYSTEM_CLOCK.monotonic() > deadline_here())
    outlived.put(udf(agents.current().get_worker_info(), double, 4).wait())


def test_a_call_within_a_call_does_not_inherit_its_deadline() -> None:
    """As with torch: what a training loop calls outlives the call that began the loop."""
    with group("a", "b") as (_, b):
        data, tensors = internal.serialize(internal.PythonUDF(outlive, (), {}))
        late = calls.invoke_rpc_python_udf(b.get_worker_info(), data, tensors, 0.1, False)
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            late.wait()
        assert outlived.get(timeout=60) == 8


@pytest.mark.parametrize(
    ("raised", "heard", "text"),
    [
        (ValueError, ValueError, "no way"),
        (TypeError, TypeError, "no way"),
        (Odd, ValueError, "Odd: "),
        (KeyError, RuntimeError, "KeyError: "),
    ],
)
def test_what_a_python_function_raises_is_raised_as_torch_does(
    raised: Any, heard: Any, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with group("a", "b") as (_, b), pytest.raises(heard, match=text) as error:
        udf(b.get_worker_info(), fail, raised).wait()
    assert type(error.value) is heard
    assert "no way" in str(error.value)
    capfd.readouterr()  # torch's Python prints it at the callee


def test_a_function_may_answer_later() -> None:
    with group("a", "b") as (_, b):
        to = b.get_worker_info()
        assert udf(to, promised, 1, is_async=True).wait() == 1
        assert remote(to, promised, 2, is_async=True).to_here() == 2
        with pytest.raises(ValueError, match="broken"):
            udf(to, broken_promise, is_async=True).wait()
        with pytest.raises(RuntimeError, match="must return a torch.futures.Future .* builtins"):
            udf(to, double, 1, is_async=True).wait()


def test_a_result_stays_where_it_was_made() -> None:
    with group("a", "b") as (_, b):
        rref = remote(b.get_worker_info(), double, 4)
        assert rref.to_here() == 8


def test_what_a_remote_function_raised_is_raised_when_its_value_is_asked_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with group("a", "b") as (_, b):
        rref = remote(b.get_worker_info(), fail, KeyError)
        rref._get_future().wait()
        with pytest.raises(KeyError, match="no way"):
            rref.to_here()
    capfd.readouterr()


def test_an_operator_is_called_by_name() -> None:
    with group("a", "b") as (_, b):
        to = b.get_worker_info()
        found = calls.invoke_rpc_builtin(to, "aten::add", -1, torch.ones(2), 1, alpha=3).wait()
        assert torch.equal(found, torch.full((2,), 4.0))
        with pytest.raises(RuntimeError, match="schema"):
            calls.invoke_rpc_builtin(to, "aten::add", -1, "x").wait()


def test_a_script_function_is_called_by_name() -> None:
    with group("a", "b"):
        assert calls.invoke_rpc_torchscript("b", TRIPLE, (3,), {}, -1, False).wait() == 9
        assert calls.invoke_remote_torchscript("b", TRIPLE, -1, False, 4).to_here() == 12
        with pytest.raises(RuntimeError, match="nobody.knows.*has not compiled it"):
            calls.invoke_rpc_torchscript("b", "nobody.knows", (), {}, -1, False).wait()


def test_arguments_that_a_script_function_does_not_take_are_refused_here() -> None:
    with group("a", "b"):
        with pytest.raises(RuntimeError, match="expected at most 1 argument"):
            calls.invoke_rpc_torchscript("b", TRIPLE, (3, 4), {}, -1, False)
        with pytest.raises(RuntimeError, match="missing value for argument 'x'"):
            calls.invoke_remote_torchscript("b", TRIPLE, -1, False)


def test_a_timeout_is_the_calls_own_or_the_default() -> None:
    assert calls.seconds(-1) is None
    assert calls.seconds(0) == 0
    assert calls.seconds(1.5) == 1.5
