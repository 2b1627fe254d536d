"""Values as bytes, and back: what calls take and return.

Pickle, protocol 5: what is large lies outside of the pickle, in buffers that are sent from where
they are and received into the memory that the value keeps. Arrays of numpy do that by themselves;
tensors of torch and memoryviews are taught to. Bytes cannot be, but are put outside where they are
a positional argument, or the result, themselves. What pickle cannot do (lambdas, closures, classes
made within functions) is left to cloudpickle.

Only peers that have proved that they hold the job's secret get here: they are the same user's code.

Guarantees
    SZ-1  What is loaded shares no memory with what was dumped, and can be written to: arrays and
          tensors are whole, in memory of their own, whatever they were a view of.
    SZ-2  A tensor that requires a gradient arrives as a leaf that does: its history stays.
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
"""Smaller buffers cost less inside of the pickle."""
LARGE_BYTES = 1 << 20
"""Bytes of this length, and more, are worth a detour."""
AGAIN_BYTES = 512
"""A pickler of a larger value is not used again."""

Reducer: TypeAlias = Callable[[Any], Any]

_NONE = pickle.dumps(None, 5)
_PLAIN = frozenset({NoneType, bool, int, float, str})
_BYTES = frozenset({bytes, bytearray})
_SHORT = reprlib.Repr()
_SHORT.maxother = 100  # or of an object nothing is left but its address


def dump_plain(value: Any) -> bytes | None:
    """Return a value as `dump` would if it is plain: nobody has a say in how it is pickled.

    Plain are numbers, texts, bytes, and tuples of them and of such tuples; None for all others.
    Most calls and results are, and this costs a quarter.
    """
    if value is None:  # what most functions return that are called for what they do
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
    """Say whether items are plain, bytes among them, none of which is large."""
    for item in items:
        if type(item) is bytes:
            if len(item) >= LARGE_BYTES:
                return False
        elif type(item) not in _PLAIN:
            return False
    return True


def dump(value: Any) -> tuple[bytes, list[Buffer]]:
    """Return a value as a body and the buffers that it refers to.

    The buffers are the value's own memory: it must not change before they are sent. UsageError if
    it cannot be pickled.
    """
    if type(value) is not tuple:
        if type(value) in _BYTES:
            value = _outside(value)
    elif len(value) == 3 and type(value[1]) is tuple and not _BYTES.isdisjoint(map(type, value[1])):
        function, args, kwargs = value
        value = (function, tuple(map(_outside, args)), kwargs)
    table, pen = _table(), _here.pen
    _here.pen = None  # what is pickled may make calls of its own
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
    """Read a value; it owns the memory of the buffers from now on."""
    return pickle.loads(body, buffers=buffers)  # noqa: S301  # see above


def _outside(value: Any) -> Any:
    """Return what is pickled in place of a value, if that is large bytes, and arrives as these."""
    return _Outside(value) if type(value) in _BYTES and len(value) >= LARGE_BYTES else value


class _Outside:
    """Bytes that are sent from where they lie."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        # What can be resized is copied: nobody could resize it while it is sent.
        return type(self._data), (pickle.PickleBuffer(bytes(self._data)),)


class _Pen:
    """A pickler that is used again, as long as it knows the reducers: making one costs more."""

    def __init__(self, table: dict[type, Reducer]) -> None:
        self.table = table
        self.is_spent = False
        self._file = io.BytesIO()
        self._outside: list[pickle.PickleBuffer] = []
        self._pickler = pickle.Pickler(self._file, 5, buffer_callback=_keeper(self._outside))
        self._pickler.dispatch_table = table

    def write(self, value: Any) -> bytes:
        """Pickle a value; whatever it raises, the pen is of no use afterwards."""
        self._pickler.dump(value)
        body = self._file.getvalue()
        if len(body) > AGAIN_BYTES:
            self.is_spent = True  # a new one costs less than what follows
            return body
        self._file.seek(0)
        self._file.truncate()
        # What only the memo holds (what reducers made) must outlive its clearing. To free it runs
        # code, or lets others run; should the garbage collector come then, it would find in the
        # memo what is free already, and crash.
        kept = self._pickler.memo.copy()
        self._pickler.clear_memo()
        del kept
        return body

    def taken(self) -> list[pickle.PickleBuffer]:
        """Return what was put outside since the last time."""
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
        """Put a buffer outside; return whether it stays inside instead."""
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


# How our own kinds are pickled. A table costs nothing for other kinds, which an override would.

_cached: tuple[int, int, dict[type, Reducer]] = (0, 0, {})
_taught: dict[type, Reducer] = {}


def teach(kind: type, reducer: Reducer) -> None:
    """Pickle a kind of value by this reducer from now on, in messages and nowhere else."""
    global _cached  # noqa: PLW0603
    _taught[kind] = reducer
    _cached = (0, 0, _cached[2])


def _table() -> dict[type, Reducer]:
    """Return the reducers that everybody knows, and ours; made anew when there are more."""
    global _cached  # noqa: PLW0603  # replaced whole: threads may race to make the same
    modules, known, table = _cached
    # Whether torch and numpy have come is not looked up each time: they do not come alone.
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
    # In the order of C, which is how it is rebuilt: Fortran's is contiguous as well.
    data = view if view.c_contiguous else bytearray(view.tobytes())
    return _rebuild_view, (pickle.PickleBuffer(data), view.format, view.shape)


def _rebuild_view(memory: Any, item: str, shape: tuple[int, ...]) -> memoryview:
    view = memoryview(memory).cast("B")
    if item == "B" and len(shape) == 1:
        return view
    try:
        return view.cast(item, shape)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return view  # of a format that only its maker knows


def _reduce_array(array: Any) -> Any:
    flags = array.flags
    if not (flags.forc and flags.writeable):
        array = array.copy()  # or it would be copied twice, or arrive as one that is read-only
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
    except TypeError:  # of a type that numpy does not have
        array = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
    kind = str(tensor.dtype).removeprefix("torch.")
    return _rebuild_tensor, (pickle.PickleBuffer(array), kind, tuple(tensor.shape), grad)


def _reduce_by_torch(tensor: Any) -> Any:
    """Reduce a tensor as torch does, except for what that forgets, or sends in vain."""
    if tensor.layout is not sys.modules["torch"].strided:
        if tensor.requires_grad:  # which torch forgets, or sends as one that is no leaf
            return _rebuild_leaf, (tensor.detach(), vars(tensor))
        parts = _parts_of_sparse(tensor)
        if parts:
            return _rebuild_sparse, (*parts, tensor.size(), vars(tensor))
    elif tensor.is_cpu and not tensor.is_nested:
        used = tensor.numel() * tensor.element_size()
        if tensor.untyped_storage().nbytes() > 2 * used + OUTSIDE_BYTES:
            # All that it is a view of would go with it.
            own = tensor.detach().clone()
            vars(own).update(vars(tensor))
            return reduce_tensor(own.requires_grad_(tensor.requires_grad))
    return tensor.__reduce_ex__(5)


def _parts_of_sparse(tensor: Any) -> tuple[Any, ...]:
    """Return what a sparse tensor is made of; nothing if it is of another kind.

    torch would make it again, too, but keeps each for ever, to be checked when a file is loaded.
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
    """Say whether a tensor is nothing but memory, a type and a shape."""
    return bool(
        tensor.layout is sys.modules["torch"].strided
        and tensor.numel()
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _rebuild_tensor(memory: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    torch = importlib.import_module("torch")  # which another thread may be importing just now
    tensor = torch.frombuffer(memory, dtype=getattr(torch, dtype))
    if len(shape) != 1:
        tensor = tensor.view(shape)
    return tensor.requires_grad_() if requires_grad else tensor
