"""The callee's side of calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.rpc import internal

from holdfast.rpc.client.future import Future
from holdfast.torch_compat.autograd.contexts import CONTEXTS
from holdfast.torch_compat.rpc import serving
from holdfast.torch_compat.rpc.wire import pack, unpack
from tests.unit.torch_compat.group import TRIPLE, group


def double(value: Any) -> Any:
    return value * 2


def fail() -> None:
    raise KeyError("no way")


def promised(value: Any) -> Any:
    future = torch.futures.Future()
    future.set_result(value)
    return future


def asked(function: Any, *args: Any) -> Any:
    return pack(internal.PythonUDF(function, args, {}))


def test_a_value_stays_and_its_payload_goes() -> None:
    assert serving.run_udf(asked(double, 2), False) == 4
    assert unpack(serving.answer_udf(asked(double, 2), False)) == 4
    args = pack(((1, 2), {}))
    assert serving.run_builtin("aten::add", args) == 3
    assert unpack(serving.answer_builtin("aten::add", args)) == 3
    args = pack(((3,), {}))
    assert serving.run_script(TRIPLE, args, False) == 9
    assert unpack(serving.answer_script(TRIPLE, args, False)) == 9


def test_what_a_python_function_raises_is_a_value(capfd: pytest.CaptureFixture[str]) -> None:
    with group("a"):
        value = serving.run_udf(asked(fail), False)
    assert isinstance(value, internal.RemoteException)
    assert value.exception_type is KeyError
    assert "On WorkerInfo(id=0, name=a)" in value.msg
    assert "no way" in capfd.readouterr().err


def test_what_an_operator_or_a_script_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="schema"):
        serving.run_builtin("aten::add", pack((("x",), {})))
    with pytest.raises(RuntimeError):
        serving.run_script(TRIPLE, pack((("x",), {})), False)
    with pytest.raises(RuntimeError, match="script nobody.knows: this worker has not compiled it"):
        serving.run_script("nobody.knows", pack(((), {})), False)


def test_an_answer_may_come_later() -> None:
    value = serving.run_udf(asked(promised, 5), True)
    assert isinstance(value, Future)
    assert value.wait(10) == 5
    assert unpack(serving.answer_udf(asked(promised, 5), True).wait(10)) == 5


promises: list[Any] = []


def promise() -> Any:
    promises.append(torch.futures.Future())
    return promises[-1]


def answered_by(contexts: list[int], stamped: Any) -> Any:
    """Ask for what is promised; return the stamp of the answer, which is given within a context.

    `contexts` are those that are known when it is asked for; they are released then.
    """
    CONTEXTS.begin(0)
    data, tensors, references, _ = asked(promise)
    answer = serving.answer_udf((data, tensors, references, stamped), True)
    assert [context.number for context in CONTEXTS.all()] == contexts
    for number in contexts:
        CONTEXTS.take(number)
    other = CONTEXTS.make()
    promises.pop().set_result(torch.ones(2, requires_grad=True))
    assert CONTEXTS.take(other.number) is other
    assert CONTEXTS.all() == []
    assert other._known_worker_ids() == set()
    payload = answer.wait(60)
    assert torch.equal(unpack(payload), torch.ones(2))
    return payload[3]


def test_a_context_that_is_released_before_the_answer_stays_released() -> None:
    assert answered_by([4242], (4242, 5, 0, ())) is None


def test_an_answer_gets_no_context_from_the_thread_that_gives_it() -> None:
    assert answered_by([], None) is None


def test_a_function_that_promises_an_answer_must_return_a_future() -> None:
    with pytest.raises(RuntimeError, match="must return a torch.futures.Future object.*builtins"):
        serving.run_udf(asked(double, 5), True)
    with pytest.raises(RuntimeError, match="must return an IValue of Future type, but got int"):
        serving.run_script(TRIPLE, pack(((3,), {})), True)
