"""The short path of calls: from torch's `rpc_sync`, `rpc_async` and `remote` straight to core.

A call takes it if all of this holds. Any other goes on through torch's Python (`calls.py`).

    what is called is an operator of torch, or a Python function that is found by its name
    the program has put no pickler in the place of torch's own
    nothing profiles
    the call may take a second or longer: by the short path the time for pickling counts

Then core pickles the function's name and the arguments at once, as they are, and the value that
comes back: no payload is made. Core is taught what torch's pickler knows: references, and classes
for which that has reducers of its own, whose values travel as payloads within. Within a context of
distributed autograd the message joins the graph while it is pickled (`autograd/stamps.py`).

Guarantees
    QK-1  What cannot be pickled is refused with the pickler's error, and nothing is sent.
    QK-2  A reference arrives as torch's, wherever it is within a value. The function runs when the
          owners of those among its arguments have counted them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.jit._builtins import _find_builtin

from holdfast.errors import UsageError
from holdfast.rpc.values.funcref import encode_function
from holdfast.rpc.values.pickling import teach
from holdfast.rpc.values.references import sender
from holdfast.rpc.wire.messages import Kind
from holdfast.torch_compat.autograd.contexts import CONTEXTS, NO_CONTEXT
from holdfast.torch_compat.autograd.stamps import MessageHead, MessageSeal
from holdfast.torch_compat.rpc import serving
from holdfast.torch_compat.rpc.agents import current, is_set
from holdfast.torch_compat.rpc.calls import checked, seconds
from holdfast.torch_compat.rpc.futures import CallFuture, as_torch_error
from holdfast.torch_compat.rpc.rrefs import UNSET, PyRRef
from holdfast.torch_compat.rpc.wire import pack
from holdfast.torch_compat.theirs import TheirWorkerInfo

__all__ = ["shorten"]

Way: TypeAlias = "tuple[Callable[..., Any], str]"
"""What runs a function over there, and by what name."""

Asked: TypeAlias = "tuple[str, Callable[..., Any], tuple[Any, ...]]"
"""The worker that is asked, what it runs, and with which arguments."""

LEAST_S = 1.0

# Members of an enumeration cost a search each time they are named.
_CALL, _SCRIPT_CALL = Kind.PYTHON_CALL, Kind.SCRIPT_CALL


def shorten(rpc: Any) -> None:
    """Give `rpc_sync`, `rpc_async` and `remote` of torch's package the short path.

    The first two have it within what they call, so all else about them stays as it is.
    """
    api = rpc.api
    pickler = api._internal_rpc_pickler
    _teach(api.RRef, pickler)
    long_call, long_remote, sync = api._invoke_rpc, api.remote, api.RPCExecMode.SYNC

    def way(func: Any, timeout: float) -> Way | None:
        if (
            api._default_pickler is not pickler
            or torch.autograd._profiler_enabled()
            or not is_set()
            or 0 < (current().core.timeout_s if timeout < 0 else timeout) < LEAST_S
        ):
            return None
        return _way(func)

    def call(
        to: Any, func: Any, how: Any, args: Any = None, kwargs: Any = None, timeout: float = UNSET
    ) -> Any:
        found = way(func, timeout)
        if found is None:
            return long_call(to, func, how, args, kwargs, timeout)
        if how is sync:
            return _Answered(_call(to, found, args, kwargs, timeout))
        return _call_async(to, found, args, kwargs, timeout)

    @functools.wraps(long_remote)
    def remote(
        to: Any, func: Any, args: Any = None, kwargs: Any = None, timeout: float = UNSET
    ) -> Any:
        found = way(func, timeout)
        if found is None:
            return long_remote(to, func, args, kwargs, timeout)
        return _remote(to, found, args, kwargs, timeout)

    api._invoke_rpc = call
    api.remote = rpc.remote = remote


class _Answered:
    """The future of a call that is over, for `rpc_sync`, which waits for it at once."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self._value


def _way(func: Any) -> Way | None:
    """Return how a function is called; None if it cannot be by a name."""
    operator = _find_builtin(func)
    if operator is not None:
        return serving.run_operator, operator
    if not callable(func):
        return None
    name = encode_function(func)
    if type(name) is not str:
        return None
    promising = getattr(func, "_wrapped_async_rpc_function", None)
    if promising is None:
        return serving.run_function, name
    if isinstance(promising, torch.jit.ScriptFunction):
        return None
    return serving.run_promising, name


def _call(to: Any, way: Way, args: Any, kwargs: Any, timeout: float) -> Any:
    agent = current()
    name, run, asked = _asked(agent, to, way, args, kwargs)
    limit = seconds(timeout)
    try:
        if way[0] is serving.run_operator:
            return agent.core.call_async(name, run, asked, None, limit, kind=_SCRIPT_CALL).wait()
        value = agent.core.call(name, run, asked, None, limit)
    except Exception as error:
        raise _told(error) from None
    return checked(value)


def _call_async(to: Any, way: Way, args: Any, kwargs: Any, timeout: float) -> CallFuture:
    agent = current()
    kind = _SCRIPT_CALL if way[0] is serving.run_operator else _CALL
    name, run, asked = _asked(agent, to, way, args, kwargs)
    try:
        call = agent.core.call_async(name, run, asked, None, seconds(timeout), kind=kind)
    except UsageError as error:
        raise _told(error) from None
    return CallFuture(call, agent.later, checked)


def _remote(to: Any, way: Way, args: Any, kwargs: Any, timeout: float) -> PyRRef:
    agent = current()
    is_script = way[0] is serving.run_operator
    kind = Kind.SCRIPT_REMOTE_CALL if is_script else Kind.PYTHON_REMOTE_CALL
    name, run, asked = _asked(agent, to, way, args, kwargs, is_kept=True)
    try:
        made = agent.core.remote(name, run, asked, None, seconds(timeout), kind=kind)
    except UsageError as error:
        raise _told(error) from None
    return PyRRef._of(made, is_script)


def _asked(
    agent: Any, to: Any, way: Way, args: Any, kwargs: Any, *, is_kept: bool = False
) -> Asked:
    """Return what to ask of a worker; `is_kept` says whether the value stays there."""
    run, name = way
    worker = _worker(agent, to)
    context = CONTEXTS.here()
    if context is None:
        return worker, run, (name, args or (), kwargs)
    with context.lock:
        context.workers.add(agent.places.find(worker).info.id)
    head = MessageHead(context)
    within = serving.promise_within if run is serving.run_promising else serving.run_within
    is_operator = run is serving.run_operator
    return worker, within, (name, is_operator, head, args or (), kwargs, MessageSeal(head), is_kept)


def _worker(agent: Any, to: Any) -> str:
    """Return the name of a worker that is known, as torch lets it be named."""
    if isinstance(to, TheirWorkerInfo):
        return str(to.name)
    if isinstance(to, (str, int)):
        return str(agent.places.find(to).info.name)
    raise ValueError(f"Cannot get WorkerInfo from name {to}")


def _told(error: Exception) -> BaseException:
    """Return what is raised for an error of core: of what it could not pickle, why (QK-1)."""
    if isinstance(error, UsageError) and error.__cause__ is not None:
        return error.__cause__
    return as_torch_error(error)


# What core is taught.


def _teach(rref_type: type, pickler: Any) -> None:
    for kind in (PyRRef, rref_type):
        teach(kind, _reduce_reference)
    teach(torch.jit.RecursiveScriptModule, _reduce_as_payload)
    register = pickler._register_reducer

    def also_teach(kind: type, reducer: Any) -> None:
        register(kind, reducer)
        teach(kind, _reduce_as_payload)

    pickler._register_reducer = also_teach
    for kind in pickler._class_reducer_dict:
        teach(kind, _reduce_as_payload)


def _reduce_reference(rref: PyRRef) -> Any:
    rref._check("call fork an UserRRef")
    return serving.reference_came, (rref._rref, rref._is_script, _is_argument(rref))


def _reduce_as_payload(value: Any) -> Any:
    with CONTEXTS.within(NO_CONTEXT):  # the message that the payload is in joins its tensors
        payload = pack(value)
    return serving.payload_came, (payload, _is_argument(value))


def _is_argument(value: Any) -> bool:
    *_, is_answer = sender(value)
    return not is_answer
