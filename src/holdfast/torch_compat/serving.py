"""The callee's side of calls: runs Python functions, operators and TorchScript functions.

Callers name these functions. `run_…` return the value, which stays here; `answer_…` the parcel of
it, which goes back; or futures of those. A Python function never fails for us: torch's Python makes
a value of what it raised, which raises again when somebody asks for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from holdfast.clock import Deadline
from holdfast.rpc.api import async_execution
from holdfast.rpc.way import make_way
from holdfast.torch_compat.agents import current
from holdfast.torch_compat.futures import as_torch_error, follow
from holdfast.torch_compat.graph import working
from holdfast.torch_compat.wire import Parcel, pack, unpack

__all__ = [
    "answer_builtin",
    "answer_script",
    "answer_udf",
    "run_builtin",
    "run_script",
    "run_udf",
]

CONFIRM_WITHIN_S = 60.0


@async_execution
def run_udf(parcel: Parcel, is_async: bool) -> Any:
    """Run a Python function; return its value."""
    return _run_udf(parcel, is_async, _same)


@async_execution
def answer_udf(parcel: Parcel, is_async: bool) -> Any:
    """Run a Python function; return the parcel of its value."""
    return _run_udf(parcel, is_async, _packer(parcel))


def _run_udf(parcel: Parcel, is_async: bool, finish: Callable[[Any], Any]) -> Any:
    internal = sys.modules["torch.distributed.rpc.internal"]
    with working(parcel[3]):
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
    """Run an operator of torch; return its value."""
    try:
        with working(parcel[3]):
            args, kwargs = unpack(parcel)
            return _operator(name)(*args, **kwargs)
    except Exception as error:
        raise as_torch_error(error) from None


def answer_builtin(name: str, parcel: Parcel) -> Any:
    """Run an operator of torch; return the parcel of its value."""
    return _packer(parcel)(run_builtin(name, parcel))


@async_execution
def run_script(name: str, parcel: Parcel, is_async: bool) -> Any:
    """Run a TorchScript function; return its value."""
    return _run_script(name, parcel, is_async, _same)


@async_execution
def answer_script(name: str, parcel: Parcel, is_async: bool) -> Any:
    """Run a TorchScript function; return the parcel of its value."""
    return _run_script(name, parcel, is_async, _packer(parcel))


def _run_script(name: str, parcel: Parcel, is_async: bool, finish: Callable[[Any], Any]) -> Any:
    function = torch.jit._state._python_cu.find_function(name)
    if function is None:
        raise RuntimeError(f"script {name}: this worker has not compiled it")
    try:
        with working(parcel[3]):
            args, kwargs = unpack(parcel)
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


def _packer(parcel: Parcel) -> Callable[[Any], Parcel]:
    """Return what makes the parcel of a value that answers this one."""
    stamped = parcel[3]
    if stamped is None:
        return pack

    def pack_stamped(value: Any) -> Parcel:
        with working(stamped):
            return pack(value, stamped[1])

    return pack_stamped


def _same(value: Any) -> Any:
    return value
