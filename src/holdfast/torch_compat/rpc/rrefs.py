"""References by torch's name for them, around ours."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import torch

from holdfast.errors import HoldfastError
from holdfast.rpc.rref.rref import RRef, make_rref
from holdfast.rpc.wire.messages import Kind
from holdfast.rpc.wire.tickets import Number
from holdfast.torch_compat.autograd.contexts import CONTEXTS
from holdfast.torch_compat.rpc.agents import current
from holdfast.torch_compat.rpc.futures import CallFuture, as_torch_error
from holdfast.torch_compat.rpc.raised import raise_again
from holdfast.torch_compat.rpc.wire import arrived, leave
from holdfast.torch_compat.theirs import TheirWorkerInfo

__all__ = ["PyRRef", "check_value"]

UNSET = -1.0


def check_value(value: Any) -> None:
    """Raise what a Python function raised, if the value says that it did."""
    internal = sys.modules["torch.distributed.rpc.internal"]
    if type(value) is internal.RemoteException:
        raise_again(value)


class PyRRef:
    """A reference to a value that lives at another worker, or here."""

    def __init__(self, value: Any, type_hint: Any = None) -> None:
        """Make a reference to a value of this worker."""
        if isinstance(value, torch.jit.ScriptModule) and type_hint is None:
            raise RuntimeError(
                "The RRef being created contains a ScriptModule, "
                "must provide its ModuleInterface type hint."
            )
        rrefs = current().core.rrefs
        number = rrefs.own(value)
        made = make_rref(rrefs, number, rrefs.me, rrefs.incarnation, None)
        self._set_fields(made, False)

    @classmethod
    def _of(cls, reference: RRef[Any], is_script: bool) -> PyRRef:
        made = PyRRef.__new__(PyRRef)
        made._set_fields(reference, is_script)
        return made

    def _set_fields(self, reference: RRef[Any], is_script: bool) -> None:
        self._rref = reference
        self._is_script = is_script
        self._types: dict[bool, Any] = {}  # the type, or its future, by whether one is to wait
        self._profiling: Any = None

    # Where it is.

    def is_owner(self) -> bool:
        """Say whether the value lives here."""
        return self._rref.is_owner()

    def confirmed_by_owner(self) -> bool:
        """Say whether the owner is known to count this reference."""
        return self._rref.confirmed_by_owner()

    def owner(self) -> Any:
        """Return the worker at which the value lives."""
        info = self._rref.owner()
        return TheirWorkerInfo(info.name, info.id)

    def owner_name(self) -> str:
        """Return its name."""
        return self._rref.owner_name()

    # What it is.

    def to_here(self, timeout: float = UNSET) -> Any:
        """Return a copy of the value; on the owner the value itself."""
        rref = self._rref
        self._check("call to_here() on it")
        if rref.is_owner():
            return self._own_value()
        kind = Kind.SCRIPT_RREF_FETCH_CALL if self._is_script else Kind.PYTHON_RREF_FETCH_CALL
        try:
            value = self._fetch(None if timeout < 0 else timeout, kind)
        except Exception as error:
            raise as_torch_error(error) from None
        check_value(value)
        return value

    def _fetch(self, timeout: float | None, kind: Kind) -> Any:
        rref, context = self._rref, CONTEXTS.here()
        if context is None:
            return rref._fetch(timeout, kind)
        with context.lock:
            context.workers.add(rref.owner().id)
        request = (*rref._reference, context.number, CONTEXTS.worker)
        return rref._rrefs.agent.request(rref._incarnation, kind, request, timeout).wait()

    def _check(self, what: str) -> None:
        """Refuse a reference whose creation has failed, or that has been given up."""
        rref = self._rref
        rref._check()
        if rref._fork is not None and not rref._rrefs.is_held(rref._fork):
            raise RuntimeError(f"{self._named()} has been deleted. Cannot {what} after deletion.")

    def local_value(self) -> Any:
        """Return the value, which must live here."""
        if not self._rref.is_owner():
            raise RuntimeError(
                f"For {self._named()}, can't call localValue() on user "
                f"{current().get_worker_info()}. Call it on owner {self.owner()}"
            )
        return self._own_value()

    def _own_value(self) -> Any:
        try:
            value = self._rref._fetch(0)
        except Exception as error:
            raise as_torch_error(error) from None
        check_value(value)
        return value

    def _get_type(self, timeout: float = UNSET, blocking: bool = True) -> Any:
        found = self._types.get(blocking)
        if found is None:
            api = sys.modules["torch.distributed.rpc.api"]
            if self.is_owner():
                found = api._rref_typeof_on_owner(self, blocking)
            else:
                found = api._rref_typeof_on_user(self, timeout, blocking)
            self._types[blocking] = found
        return found

    def _get_future(self) -> Any:
        try:
            creation = self._rref._get_future()
        except ValueError as error:
            raise as_torch_error(error) from None
        return CallFuture(creation, current().later, lambda value: value)

    def _get_profiling_future(self) -> Any:
        return self._profiling

    def _set_profiling_future(self, future: Any) -> None:
        self._profiling = future

    # What can be done with it.

    def rpc_sync(self, timeout: float = UNSET) -> Any:
        """Call methods of the value where it lives: `rref.rpc_sync().method(x)`."""
        return self._proxy("rpc_sync", timeout)

    def rpc_async(self, timeout: float = UNSET) -> Any:
        """Call methods of the value where it lives, and get futures."""
        return self._proxy("rpc_async", timeout)

    def remote(self, timeout: float = UNSET) -> Any:
        """Call methods of the value where it lives, and get references to what they return."""
        return self._proxy("remote", timeout)

    def _proxy(self, how: str, timeout: float) -> Any:
        from torch.distributed import rpc
        from torch.distributed.rpc.rref_proxy import RRefProxy

        return RRefProxy(self, getattr(rpc, how), timeout)

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        """Run the backward pass from the value, where it lives."""
        if not self.is_owner():
            if dist_autograd_ctx_id == -1:
                raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
            api = sys.modules["torch.distributed.rpc.api"]
            api.rpc_sync(self.owner(), _backward, (self, dist_autograd_ctx_id, retain_graph))
            return
        _backward(self, dist_autograd_ctx_id, retain_graph)

    # Passing it on.

    def _serialize(self) -> tuple[int, bool]:
        """Put it into the payload that this thread packs; return where it is there."""
        self._check("call fork an UserRRef")
        return leave(self._rref), self._is_script

    @staticmethod
    def _deserialize(data: tuple[int, bool]) -> PyRRef:
        """Take it out of the payload that this thread reads."""
        number, is_script = data
        return PyRRef._of(arrived(number), is_script)

    def __reduce__(self) -> NoReturn:
        raise RuntimeError(
            "Can not pickle rref in python pickler, rref can only be pickled when using RPC"
        )

    def __str__(self) -> str:
        """Say which one it is."""
        reference, fork = self._rref._reference, self._rref._fork
        if self.is_owner() or fork is None:
            return f"OwnerRRef({_shown(reference)})"
        return f"UserRRef(RRefId = {_shown(reference)}, ForkId = {_shown(fork)})"

    def __repr__(self) -> str:
        """Say it where torch shows it: in the error of a script function that was to take it."""
        return f"<{self} of holdfast, which TorchScript cannot take>"

    def _named(self) -> str:
        """Return the same as torch's errors say it."""
        return str(self).replace("RRefId = ", "rref_id=").replace("ForkId = ", "fork_id=")


def _shown(number: Number) -> str:
    """Return a number as torch shows it; its maker is a worker's life, shown as that worker."""
    try:
        maker = current().places.find_incarnation(number.maker).info.id
    except (HoldfastError, RuntimeError):  # it is gone, or we are
        maker = -1
    return f"GloballyUniqueId(created_on={maker}, local_id={number.serial - 1})"


def _backward(rref: PyRRef, context: int, retain_graph: bool) -> None:
    root = rref.local_value()
    if not isinstance(root, torch.Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if context == -1:
        root.backward(retain_graph=retain_graph)
        return
    autograd = sys.modules["torch.distributed.autograd"]
    autograd.backward(context, [root], retain_graph)
