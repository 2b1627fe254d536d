"""Calls, by the names of torch's binding: of Python and TorchScript functions, and of operators.

Arguments and results travel as parcels (`wire.py`). A Python function never fails for us: torch's
Python makes a value of what it raised, which raises again when somebody asks for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from holdfast.clock import Deadline
from holdfast.rpc.answering import ASYNC_MARK
from holdfast.rpc.messages import Kind
from holdfast.rpc.way import make_way
from holdfast.torch_compat.agents import current
from holdfast.torch_compat.futures import CallFuture, as_torch_error, follow
from holdfast.torch_compat.rrefs import PyRRef, check_value
from holdfast.torch_compat.wire import Parcel, pack, seal, unpack

__all__ = [
    "invoke_remote_builtin",
    "invoke_remote_python_udf",
    "invoke_remote_torchscript",
    "invoke_rpc_builtin",
    "invoke_rpc_python_udf",
    "invoke_rpc_torchscript",
]

CONFIRM_WITHIN_S = 60.0
_HERE = f"{__name__}:"


# The caller's side.


def invoke_rpc_python_udf(
    dst: Any, pickled: bytes, tensors: list[Any], timeout: float, is_async: bool
) -> Any:
    """Call a Python function."""
    agent, parcel = current(), seal(pickled, tensors)
    call = agent.core.call_async(
        dst.name, _HERE + "answer_udf", (parcel, is_async), None, seconds(timeout)
    )
    return CallFuture(call, agent.later, _read_udf)


def _read_udf(parcel: Parcel) -> Any:
    """Return what a Python function returned, or raise what it raised.

    As torch does it: as a ValueError or a TypeError if it was one, else as a RuntimeError.
    """
    value = unpack(parcel)
    try:
        check_value(value)
    except Exception as error:
        if type(error) in (ValueError, TypeError, RuntimeError):
            raise
        told = next((one for one in (ValueError, TypeError) if isinstance(error, one)), None)
        raise (told or RuntimeError)(f"{type(error).__name__}: {error}") from None
    return value


def invoke_rpc_builtin(dst: Any, name: str, timeout: float, *args: Any, **kwargs: Any) -> Any:
    """Call an operator of torch."""
    return _call_script(dst.name, "answer_builtin", (name, pack((args, kwargs))), timeout)


def invoke_rpc_torchscript(
    dst_name: str, name: str, args: Any, kwargs: Any, timeout: float, is_async: bool = False
) -> Any:
    """Call a TorchScript function."""
    parcel = pack((tuple(args), dict(kwargs)))
    return _call_script(dst_name, "answer_script", (name, parcel, is_async), timeout)


def _call_script(to: str, function: str, args: tuple[Any, ...], timeout: float) -> Any:
    agent = current()
    call = agent.core.call_async(
        to, _HERE + function, args, None, seconds(timeout), kind=Kind.SCRIPT_CALL
    )
    return CallFuture(call, agent.later, unpack)


def invoke_remote_python_udf(
    dst: Any, pickled: bytes, tensors: list[Any], timeout: float, is_async: bool
) -> PyRRef:
    """Call a Python function and leave its result there."""
    args = (seal(pickled, tensors), is_async)
    return _remote(dst.name, "run_udf", args, timeout, Kind.PYTHON_REMOTE_CALL)


def invoke_remote_builtin(dst: Any, name: str, timeout: float, *args: Any, **kwargs: Any) -> PyRRef:
    """Call an operator of torch and leave its result there."""
    value = (name, pack((args, kwargs)))
    return _remote(dst.name, "run_builtin", value, timeout, Kind.SCRIPT_REMOTE_CALL)


def invoke_remote_torchscript(
    dst_name: str, name: str, timeout: float, is_async: bool, *args: Any, **kwargs: Any
) -> PyRRef:
    """Call a TorchScript function and leave its result there."""
    value = (name, pack((args, kwargs)), is_async)
    return _remote(dst_name, "run_script", value, timeout, Kind.SCRIPT_REMOTE_CALL)


def _remote(to: str, function: str, args: tuple[Any, ...], timeout: float, kind: Kind) -> PyRRef:
    core = current().core
    made = core.remote(to, _HERE + function, args, None, seconds(timeout), kind=kind)
    return PyRRef._of(made, kind is Kind.SCRIPT_REMOTE_CALL)


def seconds(timeout: float) -> float | None:
    """Return a timeout as core has it: torch's says "the default" with a negative number."""
    return None if timeout < 0 else timeout


# The callee's side: `run_…` return the value, `answer_…` the parcel of it, or futures of those.


def _may_answer_later(function: Callable[..., Any]) -> Callable[..., Any]:
    setattr(function, ASYNC_MARK, True)
    return function


@_may_answer_later
def run_udf(parcel: Parcel, is_async: bool) -> Any:
    return _run_udf(parcel, is_async, _same)


@_may_answer_later
def answer_udf(parcel: Parcel, is_async: bool) -> Any:
    return _run_udf(parcel, is_async, pack)


def _run_udf(parcel: Parcel, is_async: bool, finish: Callable[[Any], Any]) -> Any:
    internal = sys.modules["torch.distributed.rpc.internal"]
    function = unpack(parcel)
    _wait_confirmed(parcel)
    value = internal._run_function(function)
    if not is_async or isinstance(value, internal.RemoteException):
        return finish(value)
    return _later(value, finish)


def _wait_confirmed(parcel: Parcel) -> None:
    """Wait until the references in a parcel are counted by their owners, as torch does."""
    forks = [one._fork for one in (parcel[2] or {}).values() if one._fork is not None]
    if forks:
        make_way()
        limit = Deadline.after(CONFIRM_WITHIN_S)
        current().core.holdings.wait_confirmed(forks, limit.remaining)


def run_builtin(name: str, parcel: Parcel) -> Any:
    args, kwargs = unpack(parcel)
    try:
        return _operator(name)(*args, **kwargs)
    except Exception as error:
        raise as_torch_error(error) from None


def answer_builtin(name: str, parcel: Parcel) -> Any:
    return pack(run_builtin(name, parcel))


@_may_answer_later
def run_script(name: str, parcel: Parcel, is_async: bool) -> Any:
    return _run_script(name, parcel, is_async, _same)


@_may_answer_later
def answer_script(name: str, parcel: Parcel, is_async: bool) -> Any:
    return _run_script(name, parcel, is_async, pack)


def _run_script(name: str, parcel: Parcel, is_async: bool, finish: Callable[[Any], Any]) -> Any:
    args, kwargs = unpack(parcel)
    function = torch.jit._state._python_cu.find_function(name)
    if function is None:
        raise RuntimeError(f"TorchScript function {name}: this worker has not compiled it")
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        raise as_torch_error(error) from None
    return _later(value, finish) if is_async else finish(value)


def _later(value: Any, finish: Callable[[Any], Any]) -> Any:
    if not isinstance(value, torch._C.Future):
        kind = type(value)
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future "
            f"object, but got {kind.__module__}.{kind.__qualname__}"
        )
    return follow(value, finish)


@functools.cache
def _operator(name: str) -> Any:
    return torch._C._jit_get_operation(name)[0]


def _same(value: Any) -> Any:
    return value
