"""The callee's side of calls: runs Python functions, operators and TorchScript functions.

Callers name these functions. `run_…` return the value, which stays here, or goes back by the short
path (`quick.py`); `answer_…` the parcel of it, which goes back; or futures of those. A Python
function never fails for us: what it raised becomes a value (`raised.py`), which raises again when
the value is asked for.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from holdfast.clock import Deadline
from holdfast.rpc.api import async_execution
from holdfast.rpc.client.blocking import before_block
from holdfast.rpc.rref.rref import RRef
from holdfast.rpc.values.funcref import named_by, resolve_function
from holdfast.rpc.wire.tickets import Number
from holdfast.torch_compat.autograd.contexts import CONTEXTS, NO_CONTEXT
from holdfast.torch_compat.autograd.graph import working
from holdfast.torch_compat.rpc.agents import current
from holdfast.torch_compat.rpc.futures import as_torch_error, follow
from holdfast.torch_compat.rpc.raised import run
from holdfast.torch_compat.rpc.rrefs import PyRRef
from holdfast.torch_compat.rpc.wire import NOBODY, Parcel, pack, unpack

__all__ = [
    "answer_builtin",
    "answer_script",
    "answer_udf",
    "parcel_came",
    "reference_came",
    "run_builtin",
    "run_function",
    "run_operator",
    "run_promising",
    "run_script",
    "run_udf",
]

CONFIRM_WITHIN_S = 60.0


class _ReadingThread(threading.local):
    def __init__(self) -> None:
        self.came: list[Number | None] = []


_here = _ReadingThread()
"""The numbers of the references among the arguments of the call that this thread reads."""


# By the short path.


@named_by(0)
def run_function(name: str, args: Any, kwargs: Any) -> Any:
    """Run a Python function that has this name; return its value."""
    _wait_confirmed(_taken())
    try:
        function = resolve_function(name)
    except AttributeError:  # torch's words for it
        module, _, own = name.partition(":")
        internal = sys.modules["torch.distributed.rpc.internal"]
        return _run(internal.deserialize(f"c{module}\n{own}\n.".encode(), []))
    return run(function, args, kwargs or {})


def _run(asked: Any) -> Any:
    """Run what torch's pickler has read: a function with its arguments, or why there is none."""
    if isinstance(asked, AttributeError):
        return run(_raise, (asked,), {})
    return run(*asked)


def _raise(error: Exception) -> NoReturn:
    raise error


@async_execution
@named_by(0)
def run_promising(name: str, args: Any, kwargs: Any) -> Any:
    """Run a Python function that promises its value; return the future of that."""
    return _promised(run_function(name, args, kwargs), _same)


@named_by(0)
def run_operator(name: str, args: Any, kwargs: Any) -> Any:
    """Run an operator of torch; return its value."""
    _taken()
    try:
        return _operator(name)(*args, **(kwargs or {}))
    except Exception as error:
        raise as_torch_error(error) from None


def reference_came(reference: RRef[Any], is_script: bool, is_argument: bool) -> PyRRef:
    """Return a reference that came within an argument of a call, or within a value."""
    if is_argument:
        _here.came.append(reference._fork)
    return PyRRef._of(reference, is_script)


def parcel_came(parcel: Parcel, is_argument: bool) -> Any:
    """Return the value of a parcel that came so."""
    if is_argument:
        _here.came.extend(_forks(parcel))
    return unpack(parcel)


def _taken() -> list[Number | None]:
    came = _here.came
    if came:
        _here.came = []
    return came


# By parcels.


@async_execution
def run_udf(parcel: Parcel, is_async: bool) -> Any:
    """Run a Python function; return its value."""
    return _run_udf(parcel, is_async, _same)


@async_execution
def answer_udf(parcel: Parcel, is_async: bool) -> Any:
    """Run a Python function; return the parcel of its value."""
    return _run_udf(parcel, is_async, _packer(parcel))


def _run_udf(parcel: Parcel, is_async: bool, finish: Callable[[Any], Any]) -> Any:
    with working(parcel[3]):
        asked = unpack(parcel)
        _wait_confirmed(_forks(parcel))
        value = _run(asked)
    return _promised(value, finish) if is_async else finish(value)


def _promised(value: Any, finish: Callable[[Any], Any]) -> Any:
    """Return the future of what a Python function promised; or what it raised, as a value."""
    internal = sys.modules["torch.distributed.rpc.internal"]
    return finish(value) if isinstance(value, internal.RemoteException) else _later(value, finish)


def _forks(parcel: Parcel) -> list[Number | None]:
    return [one._fork for one in (parcel[2] or {}).values()]


def _wait_confirmed(came: list[Number | None]) -> None:
    """Wait until these references are counted by their owners, as torch does; None for our own."""
    forks = [fork for fork in came if fork is not None]
    if forks:
        before_block()
        limit = Deadline.after(CONFIRM_WITHIN_S)
        current().core.rrefs.wait_confirmed(forks, limit.remaining)


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
    if is_async and not isinstance(value, torch._C.Future):
        raise RuntimeError(
            f"Async functions must return an IValue of Future type, but got {type(value).__name__}"
        )
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
    """Return what makes the parcel of a value that answers this one, in the same context.

    That is not joined again: it may have been released since, and is not released twice.
    """
    stamped = parcel[3]
    number, to = (NO_CONTEXT, NOBODY) if stamped is None else stamped[:2]

    def pack_within(value: Any) -> Parcel:
        with CONTEXTS.within(number):
            return pack(value, to)

    return pack_within


def _same(value: Any) -> Any:
    return value
