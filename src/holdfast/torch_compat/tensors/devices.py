"""Tensors on devices: where they arrive, and how they get there.

A device map says which of a caller's devices is which of a callee's. Core knows of none of this: it
is taught to ask here when it pickles a tensor, if there is an agent to which that matters.

Guarantees
    DV-1  A tensor arrives on the device that the caller's map names for its own: by the map towards
          the callee in a request, by the same map read backwards in the answer, and a gradient
          by the way back of the tensor. One on the CPU stays there if the map does not name it; any
          other device that the map does not name is an error at the sender.
    DV-2  Whatever was launched on a tensor's device before it was sent is over when it is read, and
          its copy is over when it has arrived: no stream need be told.
    DV-3  The receiver owns what it gets, also where both are on the same device.
    DV-4  Between processes of one host that see the same GPU, a tensor of HANDLE_BYTES and more is
          copied once, from GPU to GPU, by a handle of its memory. Others go through the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast
from weakref import WeakKeyDictionary

import torch

from holdfast.rpc.agent import Agent
from holdfast.rpc.client.contact import Contact
from holdfast.rpc.values.pickling import is_plain, teach
from holdfast.rpc.values.references import Packing, here
from holdfast.torch_compat.tensors.pickling import collecting, reduce_strided, reduce_tensor

if TYPE_CHECKING:
    from holdfast.rpc.rref.table import RRefTable

__all__ = ["HANDLE_BYTES", "Devices", "Gradients", "Maps", "visible"]

HANDLE_BYTES = 1 << 18
"""Opening a handle costs more than to copy less than this twice."""

Maps: TypeAlias = "Mapping[str, Mapping[torch.device, torch.device]]"

_CPU = torch.device("cpu")


def visible() -> list[str]:
    """Return the GPUs that this process sees, by names that mean the same to all processes."""
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]


class _GradientsLeaving(threading.local):
    gradients_of: Packing | None = None
    """The message of which all tensors are gradients."""


_here = _GradientsLeaving()


class Gradients:
    """Gradients, as all the tensors of a message: they go the way back of the tensors."""

    def __init__(self, given: list[Any]) -> None:
        self._given = given

    def __reduce__(self) -> Any:
        _here.gradients_of = here.packing
        return _arrived_gradients, (self._given,)


def _arrived_gradients(given: list[Any]) -> list[Any]:
    return given


class Devices:
    """The devices of one agent, and of its peers.

    `towards` has its own maps, by the callee's name; `back` those of others towards it, read
    backwards, by the caller's.
    """

    _of: ClassVar[WeakKeyDictionary[Agent, Devices]] = WeakKeyDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()  # agents may be made at the same time

    def __init__(self, agent: Agent, places: Any, towards: Maps, back: Maps) -> None:
        self.back = back
        self._towards = towards
        self._places = places
        self._matters = bool(towards or back or torch.cuda.is_available())
        with self._lock:
            self._of[agent] = self
            is_asked = any(one._matters for one in self._of.values())
            teach(torch.Tensor, _reduce if is_asked else reduce_tensor)

    def where(self, name: str, device: torch.device, is_answer: bool) -> torch.device:
        """Return on which of a worker's devices a tensor arrives that is on one of ours (DV-1)."""
        towards, back = self._towards.get(name, {}), self.back.get(name, {})
        if here.packing is not None and here.packing is _here.gradients_of:
            found = back.get(device) or towards.get(device)
        else:
            found = (back if is_answer else towards).get(device)
        if found is None and device != _CPU:
            raise RuntimeError(
                "TensorPipe RPC backend only supports CPU tensors by default, please move your "
                "tensors to CPU before sending them over RPC, or call `set_device_map` on "
                "`TensorPipeRpcBackendOptions` to explicitly configure device mapping. "
                f"{'Response' if is_answer else 'Request'} device mapping is not available for "
                f"destination {name} (the tensor is on {device})"
            )
        return found or _CPU

    def reduce(self, tensor: Any, mine: Contact | None, to: str, is_answer: bool) -> Any:
        """Reduce a tensor of ours for an incarnation of a worker."""
        contact = self._places.find_incarnation(to)
        target = self.where(contact.info.name, tensor.device, is_answer)
        if tensor.is_cuda:
            if is_plain(tensor) and not tensor.is_contiguous():
                return reduce_strided(tensor, lambda dense: self.reduce(dense, mine, to, is_answer))
            torch.cuda.synchronize(tensor.device)
            place = self._place_there(tensor, mine, contact)
            if place is not None:
                return _by_handle(tensor, place, str(target))
        elif target == _CPU:
            return reduce_tensor(tensor)
        return _through_host, (*reduce_tensor(tensor.cpu()), str(target))

    def _place_there(self, tensor: Any, mine: Contact | None, contact: Contact) -> int | None:
        """Return which GPU of another process ours is, if that can read it there (DV-4)."""
        if (
            mine is None
            or contact.machine != mine.machine
            or contact.incarnation == mine.incarnation
            or tensor.nbytes < HANDLE_BYTES
            or not is_plain(tensor)
        ):
            return None
        name = str(torch.cuda.get_device_properties(tensor.device).uuid)
        theirs = self._places.devices(contact.incarnation)
        return theirs.index(name) if name in theirs else None


def _reduce(tensor: Any) -> Any:
    """Reduce a tensor that core meets; it knows the receiver."""
    packing = here.packing
    if tensor.requires_grad and collecting.head is not None:
        collected = collecting.head.collect(tensor, _reduce)
        if collected is not None:
            return collected
    if packing is None or tensor.layout is not torch.strided:
        return reduce_tensor(tensor)  # what is not strided is made of tensors that are
    table, to, _, is_answer = packing
    agent = cast("Agent", cast("RRefTable", table).agent)
    devices = Devices._of.get(agent)
    if devices is None:
        return reduce_tensor(tensor)
    return devices.reduce(tensor, agent.contact, to, is_answer)


def _by_handle(tensor: Any, place: int, target: str) -> Any:
    plain = tensor.detach()
    _, *shared = plain.untyped_storage()._share_cuda_()
    facts = (plain.dtype, plain.storage_offset(), tuple(plain.shape), plain.stride())
    return _rebuild, ((place, *shared), facts, target, tensor.requires_grad)


def _rebuild(shared: tuple[Any, ...], facts: Any, target: str, requires_grad: bool) -> Any:
    dtype, offset, shape, strides = facts
    torch.cuda._lazy_init()
    storage = torch.UntypedStorage._new_shared_cuda(*shared)
    theirs = torch.empty(0, dtype=dtype, device=storage.device).set_(
        storage, offset, shape, strides
    )
    return _arrived(theirs.to(target, copy=True), requires_grad)


def _through_host(rebuild: Callable[..., Any], parts: tuple[Any, ...], target: str) -> Any:
    tensor = rebuild(*parts)
    return _arrived(tensor.detach().to(target), tensor.requires_grad)


def _arrived(tensor: Any, requires_grad: bool) -> Any:
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor.requires_grad_() if requires_grad else tensor
