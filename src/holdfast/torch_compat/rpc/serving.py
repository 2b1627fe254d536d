"""The callee's side of calls: runs Python functions, operators and TorchScript functions.

Callers name these functions. `run_…` return the value, which stays here, or goes back by the short
path (`quick.py`); `answer_…` the payload of it, which goes back; or futures of those. A Python
function never fails for us: what it raised becomes a value (`raised.py`), which raises again when
the value is asked for.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from functools import partial
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
from holdfast.torch_compat.autograd.stamps import Arriving, ContextAnswer
from holdfast.torch_compat.rpc.agents import current
from holdfast.torch_compat.rpc.futures import as_torch_error, follow
from holdfast.torch_compat.rpc.raised import run
from holdfast.torch_compat.rpc.rrefs import PyRRef
from holdfast.torch_compat.rpc.wire import NO_RECEIVER, Payload, pack, unpack

__all__ = [
    "answer_builtin",
    "answer_script",
    "answer_udf",
    "payload_came",
    "promise_within",
    "reference_came",
    "run_builtin",
    "run_function",
    "run_operator",
    "run_promising",
    "run_script",
    "run_udf",
    "run_within",
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


@named_by(0)
def run_within(
    name: str, is_operator: bool, head: Arriving, args: Any, kwargs: Any, _: None, is_kept: bool
) -> Any:
    """Run a function or an operator within a context; return its value, or the answer of it."""
    with CONTEXTS.within(head.context):
        value = (run_operator if is_operator else run_function)(name, args, kwargs)
    return value if is_kept else ContextAnswer(value, head)


@async_execution
@named_by(0)
def promise_within(
    name: str, is_operator: bool, head: Arriving, args: Any, kwargs: Any, _: None, is_kept: bool
) -> Any:
    """Do the same with a Python function that promises its value; return the future of that."""
    with CONTEXTS.within(head.context):
        value = run_function(name, args, kwargs)
    return _promised(value, _same if is_kept else partial(ContextAnswer, call=head))


def reference_came(reference: RRef[Any], is_script: bool, is_argument: bool) -> PyRRef:
    """Return a reference that came within an argument of a call, or within a value."""
    if is_argument:
        _here.came.append(reference._fork)
    return PyRRef._of(reference, is_script)


def payload_came(payload: Payload, is_argument: bool) -> Any:
    """Return the value of a payload that came so."""
    if is_argument:
        _here.came.extend(_forks(payload))
    return unpack(payload)


def _taken() -> list[Number | None]:
    came = _here.came
    if came:
        _here.came = []
    return came


# By payloads.


@async_execution
def run_udf(payload: Payload, is_async: bool) -> Any:
    """Run a Python function; return its value."""
    return _run_udf(payload, is_async, _same)


@async_execution
def answer_udf(payload: Payload, is_async: bool) -> Any:
    """Run a Python function; return the payload of its value."""
    return _run_udf(payload, is_async, _packer(payload))


def _run_udf(payload: Payload, is_async: bool, finish: Callable[[Any], Any]) -> Any:
    with working(payload[3]):
        asked = unpack(payload)
        _wait_confirmed(_forks(payload))
        value = _run(asked)
    return _promised(value, finish) if is_async else finish(value)


def _promised(value: Any, finish: Callable[[Any], Any]) -> Any:
    """Return the future of what a Python function promised; or what it raised, as a value."""
    internal = sys.modules["torch.distributed.rpc.internal"]
    return finish(value) if isinstance(value, internal.RemoteException) else _later(value, finish)


def _forks(payload: Payload) -> list[Number | None]:
    return [one._fork for one in (payload[2] or {}).values()]


def _wait_confirmed(came: list[Number | None]) -> None:
    """Wait until these references are counted by their owners, as torch does; None for our own."""
    forks = [fork for fork in came if fork is not None]
    if forks:
        before_block()
        limit = Deadline.after(CONFIRM_WITHIN_S)
        current().core.rrefs.wait_confirmed(forks, limit.remaining)


def run_builtin(name: str, payload: Payload) -> Any:
    """Run an operator of torch; return its value."""
    try:
        with working(payload[3]):
            args, kwargs = unpack(payload)
            return _operator(name)(*args, **kwargs)
    except Exception as error:
        raise as_torch_error(error) from None


def answer_builtin(name: str, payload: Payload) -> Any:
    """Run an operator of torch; return the payload of its value."""
    return _packer(payload)(run_builtin(name, payload))


@async_execution
def run_script(name: str, payload: Payload, is_async: bool) -> Any:
    """Run a TorchScript function; return its value."""
    return _run_script(name, payload, is_async, _same)


@async_execution
def answer_script(name: str, payload: Payload, is_async: bool) -> Any:
    """Run a TorchScript function; return the payload of its value."""
    return _run_script(name, payload, is_async, _packer(payload))


def _run_script(name: str, payload: Payload, is_async: bool, finish: Callable[[Any], Any]) -> Any:
    function = torch.jit._state._python_cu.find_function(name)
    if function is None:
        raise RuntimeError(f"script {name}: this worker has not compiled it")
    try:
        with working(payload[3]):
            args, kwargs = unpack(payload)
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


def _packer(payload: Payload) -> Callable[[Any], Payload]:
    """Return what makes the payload of a value that answers this one, in the same context.

    That is not joined again: it may have been released since, and is not released twice.
    """
    stamped = payload[3]
    number, to = (NO_CONTEXT, NO_RECEIVER) if stamped is None else stamped[:2]

    def pack_within(value: Any) -> Payload:
        with CONTEXTS.within(number):
            return pack(value, to)

    return pack_within


def _same(value: Any) -> Any:
    return value
