"""Calls, by the names of torch's binding: of Python and TorchScript functions, and of operators.

The caller's side. Arguments and results travel as payloads (`wire.py`); `serving.py` runs what is
called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from holdfast.rpc.wire.messages import Kind
from holdfast.torch_compat.rpc import serving
from holdfast.torch_compat.rpc.agents import current
from holdfast.torch_compat.rpc.futures import CallFuture
from holdfast.torch_compat.rpc.rrefs import PyRRef, check_value
from holdfast.torch_compat.rpc.wire import Payload, pack, seal, unpack

__all__ = [
    "checked",
    "invoke_remote_builtin",
    "invoke_remote_python_udf",
    "invoke_remote_torchscript",
    "invoke_rpc_builtin",
    "invoke_rpc_python_udf",
    "invoke_rpc_torchscript",
    "seconds",
]

Serving: TypeAlias = Callable[..., Any]


def invoke_rpc_python_udf(
    dst: Any, pickled: bytes, tensors: list[Any], timeout: float, is_async: bool
) -> Any:
    """Call a Python function."""
    agent, payload = current(), seal(pickled, tensors, dst.id)
    call = agent.core.call_async(
        dst.name, serving.answer_udf, (payload, is_async), None, seconds(timeout)
    )
    return CallFuture(call, agent.later, _read_udf)


def _read_udf(payload: Payload) -> Any:
    return checked(unpack(payload))


def checked(value: Any) -> Any:
    """Return what a Python function returned, or raise what it raised.

    As torch does it: as a ValueError or a TypeError if it was one, else as a RuntimeError.
    """
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
    value = (name, pack((args, kwargs), dst.id))
    return _call_script(dst.name, serving.answer_builtin, value, timeout)


def invoke_rpc_torchscript(
    dst_name: str, name: str, args: Any, kwargs: Any, timeout: float, is_async: bool = False
) -> Any:
    """Call a TorchScript function."""
    _check_script(name, args, kwargs)
    payload = pack((tuple(args), dict(kwargs)), _id_of(dst_name))
    return _call_script(dst_name, serving.answer_script, (name, payload, is_async), timeout)


def _check_script(name: str, args: Any, kwargs: Any) -> None:
    """Raise here what it would raise there: that it does not take these arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, PyRRef):
            value._check("call fork an UserRRef")  # one that is no good has an error of its own
    function = torch.jit._state._python_cu.find_function(name)
    if function is not None:
        torch._C._check_schema_allow_fake_script_object(function.schema, *args, **kwargs)


def _call_script(to: str, function: Serving, args: tuple[Any, ...], timeout: float) -> Any:
    agent = current()
    call = agent.core.call_async(to, function, args, None, seconds(timeout), kind=Kind.SCRIPT_CALL)
    return CallFuture(call, agent.later, unpack)


def invoke_remote_python_udf(
    dst: Any, pickled: bytes, tensors: list[Any], timeout: float, is_async: bool
) -> PyRRef:
    """Call a Python function and leave its result there."""
    args = (seal(pickled, tensors, dst.id), is_async)
    return _remote(dst.name, serving.run_udf, args, timeout, Kind.PYTHON_REMOTE_CALL)


def invoke_remote_builtin(dst: Any, name: str, timeout: float, *args: Any, **kwargs: Any) -> PyRRef:
    """Call an operator of torch and leave its result there."""
    value = (name, pack((args, kwargs), dst.id))
    return _remote(dst.name, serving.run_builtin, value, timeout, Kind.SCRIPT_REMOTE_CALL)


def invoke_remote_torchscript(
    dst_name: str, name: str, timeout: float, is_async: bool, *args: Any, **kwargs: Any
) -> PyRRef:
    """Call a TorchScript function and leave its result there."""
    _check_script(name, args, kwargs)
    value = (name, pack((args, kwargs), _id_of(dst_name)), is_async)
    return _remote(dst_name, serving.run_script, value, timeout, Kind.SCRIPT_REMOTE_CALL)


def _remote(
    to: str, function: Serving, args: tuple[Any, ...], timeout: float, kind: Kind
) -> PyRRef:
    core = current().core
    made = core.remote(to, function, args, None, seconds(timeout), kind=kind)
    return PyRRef._of(made, kind is Kind.SCRIPT_REMOTE_CALL)


def _id_of(name: str) -> int:
    return int(current().places.find(name).info.id)


def seconds(timeout: float) -> float | None:
    """Return a timeout as core has it: torch's says "the default" with a negative number."""
    return None if timeout < 0 else timeout
