"""Values as bytes, and back: the arguments and results of calls.

This uses pickle, protocol 5: large data lies outside of the pickle, in buffers that are sent
without a copy and received into the memory that the value keeps. Arrays of numpy support that;
reducers in this file add it for tensors of torch and memoryviews. Bytes objects cannot have a
reducer, but are put outside if they are a positional argument, or the result, themselves.
cloudpickle handles what pickle cannot (lambdas, closures, classes made within functions).

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
import io
import pickle
import reprlib
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, TypeAlias

from holdfast.errors import UsageError
from holdfast.rpc.values.references import start_over
from holdfast.rpc.wire.codec import BUFFERS_MAX
from holdfast.rpc.wire.messages import Buffer

__all__ = [
    "LARGE_BYTES",
    "OUTSIDE_BYTES",
    "dump",
    "dump_plain",
    "is_plain",
    "load",
    "reduce_tensor",
    "teach",
]

OUTSIDE_BYTES = 16 * 1024
"""Smaller buffers cost less inside the pickle."""
LARGE_BYTES = 1 << 20
"""Bytes objects of at least this length are put outside of the pickle."""
AGAIN_BYTES = 512
"""A pickler that has written more than this is not reused."""

Reducer: TypeAlias = Callable[[Any], Any]

_NONE = pickle.dumps(None, 5)
_PLAIN = frozenset({NoneType, bool, int, float, str})
_BYTES = frozenset({bytes, bytearray})
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
            if len(item) >= LARGE_BYTES:
                return False
        elif type(item) not in _PLAIN:
            return False
    return True


def dump(value: Any) -> tuple[bytes, list[Buffer]]:
    """Return a value as a body and the buffers that it refers to.

    The buffers are the value's own memory: the value must not change before they are sent.
    UsageError if it cannot be pickled.
    """
    if type(value) is not tuple:
        if type(value) in _BYTES:
            value = _outside(value)
    elif len(value) == 3 and type(value[1]) is tuple and not _BYTES.isdisjoint(map(type, value[1])):
        function, args, kwargs = value
        value = (function, tuple(map(_outside, args)), kwargs)
    table, pen = _table(), _here.pen
    _here.pen = None  # pickling a value may make calls of its own
    if pen is None or pen.table is not table:
        pen = _Pen(table)
    try:
        body = pen.write(value)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        start_over()
        body, outside = _dump_anything(value, error)
    else:
        outside = pen.taken()
        if not pen.is_spent:
            _here.pen = pen
    return body, [buffer.raw() for buffer in outside] if outside else []


def load(body: Buffer, buffers: Sequence[Buffer]) -> Any:
    """Read a value, which owns the memory of the buffers from now on."""
    return pickle.loads(body, buffers=buffers)  # noqa: S301  # see above


def _outside(value: Any) -> Any:
    """Wrap large bytes, so that they are sent outside of the pickle; return others unchanged."""
    return _Outside(value) if type(value) in _BYTES and len(value) >= LARGE_BYTES else value


class _Outside:
    """Bytes that are sent outside of the pickle, and arrive as bytes of the same type."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        # A bytearray is copied: sending the original would block its resizing meanwhile.
        return type(self._data), (pickle.PickleBuffer(bytes(self._data)),)


class _Pen:
    """A pickler that is reused while its reducers are current: making a new one costs more."""

    def __init__(self, table: dict[type, Reducer]) -> None:
        self.table = table
        self.is_spent = False
        self._file = io.BytesIO()
        self._outside: list[pickle.PickleBuffer] = []
        self._pickler = pickle.Pickler(self._file, 5, buffer_callback=_keeper(self._outside))
        self._pickler.dispatch_table = table

    def write(self, value: Any) -> bytes:
        """Pickle a value. After any error, the pen must not be used again."""
        self._pickler.dump(value)
        body = self._file.getvalue()
        if len(body) > AGAIN_BYTES:
            self.is_spent = True  # a new one costs less than what follows
            return body
        self._file.seek(0)
        self._file.truncate()
        # Objects that only the memo holds (made by reducers) must outlive its clearing. Freeing
        # them runs code, or lets other threads run. If the garbage collector ran then, it would
        # find freed objects in the memo, and crash.
        kept = self._pickler.memo.copy()
        self._pickler.clear_memo()
        del kept
        return body

    def taken(self) -> list[pickle.PickleBuffer]:
        """Return the buffers that were put outside since the last call."""
        if not self._outside:
            return []
        taken = self._outside.copy()
        self._outside.clear()
        return taken


class _Here(threading.local):
    pen: _Pen | None = None


_here = _Here()


def _keeper(outside: list[pickle.PickleBuffer]) -> Callable[[pickle.PickleBuffer], bool]:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Put a buffer outside of the pickle; return whether it stays inside instead."""
        with memoryview(buffer) as view:
            inside = view.nbytes < OUTSIDE_BYTES or not view.contiguous
        inside = inside or len(outside) >= BUFFERS_MAX
        if not inside:
            outside.append(buffer)
        return inside

    return keep


def _dump_anything(value: Any, error: Exception) -> tuple[bytes, list[pickle.PickleBuffer]]:
    try:
        pickler = _cloud_pickler()
    except ImportError:
        raise UsageError(
            f"{_SHORT.repr(value):.200}: cannot be pickled ({error}); "
            "lambdas and closures need cloudpickle"
        ) from error
    file = io.BytesIO()
    outside: list[pickle.PickleBuffer] = []
    try:
        pickler(file, 5, buffer_callback=_keeper(outside)).dump(value)
    except Exception:
        raise UsageError(f"{_SHORT.repr(value):.200}: cannot be pickled: {error}") from error
    return file.getvalue(), outside


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
    flags = array.flags
    if not (flags.forc and flags.writeable):
        array = array.copy()  # else it is copied twice, or arrives read-only
    return array.__reduce_ex__(5)


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
    return _rebuild_tensor, (pickle.PickleBuffer(array), kind, tuple(tensor.shape), grad)


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
    tensor = torch.frombuffer(memory, dtype=getattr(torch, dtype))
    if len(shape) != 1:
        tensor = tensor.view(shape)
    return tensor.requires_grad_() if requires_grad else tensor
