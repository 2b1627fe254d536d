"""Values as bytes, and back: the arguments and results of calls.

This uses pickle, protocol 5: large data lies outside of the pickle, in buffers that are sent
without a copy and received into the memory that the value keeps (`stream.py`). Reducers in this
file do that for arrays of numpy, tensors of torch and memoryviews; bytes need none. cloudpickle
handles what pickle cannot (lambdas, closures, classes made within functions).

Only bytes from peers that have proved that they hold the job's secret are unpickled: such a peer
runs code of the same user.

Guarantees
    SZ-1  A loaded value shares no memory with the dumped one, and is writable: arrays and tensors
          are whole, in memory of their own, whatever they were a view of.
    SZ-2  A tensor that requires a gradient arrives as a leaf that requires one: its history is not
          sent.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import pickle
import reprlib
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, TypeAlias

from holdfast.errors import UsageError
from holdfast.rpc.values.references import start_over
from holdfast.rpc.values.stream import BYTES_OUTSIDE, OUTSIDE_BYTES, PickleStream
from holdfast.rpc.wire.messages import Buffer

__all__ = [
    "dump",
    "dump_plain",
    "is_plain",
    "load",
    "reduce_tensor",
    "teach",
]

Reducer: TypeAlias = Callable[[Any], Any]

_NONE = pickle.dumps(None, 5)
_PLAIN = frozenset({NoneType, bool, int, float, str})
_SHORT = reprlib.Repr()
_SHORT.maxother = 100  # a shorter text would show only an object's address


def dump_plain(value: Any) -> bytes | None:
    """Return a value as `dump` would if it is plain: no reducer applies to it. None otherwise.

    Plain values are numbers, strings, bytes, and tuples of them and of such tuples. Most calls and
    results are plain, and this costs a quarter of `dump`.
    """
    if value is None:  # the result of most functions without a value
        return _NONE
    if type(value) is not tuple:
        return pickle.dumps(value, 5) if type(value) in _PLAIN or _is_small((value,)) else None
    for item in value:
        kind = type(item)
        if (
            kind not in _PLAIN
            and (kind is not tuple or (item and not _PLAIN.issuperset(map(type, item))))
            and not _is_small(item if kind is tuple else (item,))
        ):
            return None
    return pickle.dumps(value, 5)


def _is_small(items: tuple[Any, ...]) -> bool:
    """Say whether all items are plain, and no bytes object among them is large."""
    for item in items:
        if type(item) is bytes:
            if len(item) >= BYTES_OUTSIDE:
                return False
        elif type(item) not in _PLAIN:
            return False
    return True


def dump(value: Any) -> tuple[bytes, list[Buffer]]:
    """Return a value as a body and the buffers that it refers to.

    The buffers are the value's own memory: the value must not change before they are sent.
    UsageError if it cannot be pickled.
    """
    stream = PickleStream()
    pickler = pickle.Pickler(stream, 5, buffer_callback=stream.keep)
    pickler.dispatch_table = _table()
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        start_over()
        stream = _dump_anything(value, error)
    return stream.body(), stream.buffers()


def load(body: Buffer, buffers: Sequence[Buffer]) -> Any:
    """Read a value, which owns the memory of the buffers from now on."""
    return pickle.loads(body, buffers=buffers)  # noqa: S301  # see above


def _dump_anything(value: Any, error: Exception) -> PickleStream:
    try:
        pickler = _cloud_pickler()
    except ImportError:
        raise UsageError(
            f"{_SHORT.repr(value):.200}: cannot be pickled ({error}); "
            "lambdas and closures need cloudpickle"
        ) from error
    stream = PickleStream()
    try:
        pickler(stream, 5, buffer_callback=stream.keep).dump(value)
    except Exception:
        raise UsageError(f"{_SHORT.repr(value):.200}: cannot be pickled: {error}") from error
    return stream


@functools.cache
def _cloud_pickler() -> Any:
    import cloudpickle

    theirs = cloudpickle.Pickler.dispatch_table

    class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
        @property
        def dispatch_table(self) -> ChainMap[type, Reducer]:
            return ChainMap(_reducers(), theirs)

    return CloudPickler


# Reducers for our own types. A table costs nothing for other types; an override would.

_cached: tuple[int, int, dict[type, Reducer]] = (0, 0, {})
_taught: dict[type, Reducer] = {}


def teach(kind: type, reducer: Reducer) -> None:
    """Pickle a type of value by this reducer from now on, in messages and nowhere else."""
    global _cached  # noqa: PLW0603
    _taught[kind] = reducer
    _cached = (0, 0, _cached[2])


def _table() -> dict[type, Reducer]:
    """Return the registered reducers (`copyreg`), and ours; rebuilt when there are more."""
    global _cached  # noqa: PLW0603  # replaced whole: threads may race to make the same
    modules, known, table = _cached
    # A new count of modules shows that torch or numpy may have been imported.
    if modules != len(sys.modules) or known != len(copyreg.dispatch_table):
        modules, known = len(sys.modules), len(copyreg.dispatch_table)
        now = {**copyreg.dispatch_table, **_reducers()}
        _cached = (modules, known, table if now == table else now)
    return _cached[2]


def _reducers() -> dict[type, Reducer]:
    found: dict[type, Reducer] = {memoryview: _reduce_view}
    tensor, array = _tensor_type(), _array_type()
    if array is not None:
        found[array] = _reduce_array
        if tensor is not None:
            found[tensor] = reduce_tensor
    return found | _taught


def _tensor_type() -> type | None:
    return getattr(sys.modules.get("torch"), "Tensor", None)


def _array_type() -> type | None:
    return getattr(sys.modules.get("numpy"), "ndarray", None)


def _reduce_view(view: memoryview) -> Any:
    # In C order, in which it is rebuilt: a view in Fortran order is contiguous as well.
    data = view if view.c_contiguous else bytearray(view.tobytes())
    return _rebuild_view, (pickle.PickleBuffer(data), view.format, view.shape)


def _rebuild_view(memory: Any, item: str, shape: tuple[int, ...]) -> memoryview:
    view = memoryview(memory).cast("B")
    if item == "B" and len(shape) == 1:
        return view
    try:
        return view.cast(item, shape)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return view  # a format that `cast` does not support


def _reduce_array(array: Any) -> Any:
    number = _numbers().get(array.dtype)
    if number is not None and number[0] is array.dtype and array.flags.c_contiguous:
        # As numpy does it, but for numbers its description of the type costs more than the rest.
        if array.nbytes < OUTSIDE_BYTES:
            return _rebuild_array, (array.tobytes(), number[1], array.shape)
        if array.flags.writeable:
            return _rebuild_array, (pickle.PickleBuffer(array), number[1], array.shape)
    flags = array.flags
    if not (flags.forc and flags.writeable):
        array = array.copy()  # else it is copied twice, or arrives read-only
    return array.__reduce_ex__(5)


def _rebuild_array(memory: Any, code: str, shape: tuple[int, ...]) -> Any:
    if type(memory) is bytes:
        memory = bytearray(memory)  # the array must be writable
    return _numpy().ndarray(shape, code, memory)


@functools.cache
def _numbers() -> dict[Any, tuple[Any, str]]:
    """Return the types of numbers in this machine's order, and the codes that name them."""
    types = [(_numpy().dtype(code), code) for code in "?bBhHiIqQlLefdFD"]
    return {kind: (kind, code) for kind, code in types}


@functools.cache
def _numpy() -> Any:
    return importlib.import_module("numpy")  # waits if another thread is importing it


def reduce_tensor(tensor: Any) -> Any:
    """Reduce a tensor of torch."""
    torch = sys.modules["torch"]
    if not (tensor.is_cpu and is_plain(tensor)):
        return _reduce_by_torch(tensor)
    plain, grad = tensor, tensor.requires_grad
    if grad:
        plain = tensor.detach()
    try:
        array = plain.contiguous().numpy()
    except TypeError:  # a type that numpy does not have
        array = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
    kind = str(tensor.dtype).removeprefix("torch.")
    memory = array.tobytes() if array.nbytes < OUTSIDE_BYTES else pickle.PickleBuffer(array)
    return _rebuild_tensor, (memory, kind, tuple(tensor.shape), grad)


def _reduce_by_torch(tensor: Any) -> Any:
    """Reduce a tensor as torch does, but keep what torch loses, and send no unused memory."""
    if tensor.layout is not sys.modules["torch"].strided:
        if tensor.requires_grad:  # torch loses this, or sends a tensor that is no leaf
            return _rebuild_leaf, (tensor.detach(), vars(tensor))
        parts = _parts_of_sparse(tensor)
        if parts:
            return _rebuild_sparse, (*parts, tensor.size(), vars(tensor))
    elif tensor.is_cpu and not tensor.is_nested:
        used = tensor.numel() * tensor.element_size()
        if tensor.untyped_storage().nbytes() > 2 * used + OUTSIDE_BYTES:
            # torch would send all the memory that it is a view of.
            own = tensor.detach().clone()
            vars(own).update(vars(tensor))
            return reduce_tensor(own.requires_grad_(tensor.requires_grad))
    return tensor.__reduce_ex__(5)


def _parts_of_sparse(tensor: Any) -> tuple[Any, ...]:
    """Return the parts of a sparse tensor; an empty tuple if it is of another kind.

    torch could rebuild it too, but keeps each one for ever, to check it when a file is loaded.
    """
    torch, layout = sys.modules["torch"], tensor.layout
    if layout is torch.sparse_coo:
        return layout, tensor.is_coalesced(), tensor._indices(), tensor._values()
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return layout, None, tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return layout, None, tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def _rebuild_sparse(layout: Any, coalesced: bool | None, *rest: Any) -> Any:
    *parts, size, state = rest
    torch = importlib.import_module("torch")
    if coalesced is None:
        tensor = torch.sparse_compressed_tensor(*parts, size, layout=layout, check_invariants=False)
    else:
        tensor = torch.sparse_coo_tensor(
            *parts, size, check_invariants=False, is_coalesced=coalesced
        )
    vars(tensor).update(state)
    return tensor


def _rebuild_leaf(tensor: Any, state: dict[str, Any]) -> Any:
    vars(tensor).update(state)
    return tensor.requires_grad_()


def is_plain(tensor: Any) -> bool:
    """Say whether a tensor consists of memory, a type and a shape only."""
    return bool(
        tensor.layout is sys.modules["torch"].strided
        and tensor.numel()
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _rebuild_tensor(memory: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    torch = importlib.import_module("torch")  # waits if another thread is importing it
    if type(memory) is bytes:
        memory = bytearray(memory)  # the tensor must be writable
    tensor = torch.frombuffer(memory, dtype=getattr(torch, dtype))
    if len(shape) != 1:
        tensor = tensor.view(shape)
    return tensor.requires_grad_() if requires_grad else tensor


# Known by number in every worker: reading a name costs as much as making a small array.
copyreg.add_extension(__name__, _rebuild_array.__name__, 0x48460001)
copyreg.add_extension(__name__, _rebuild_tensor.__name__, 0x48460002)
