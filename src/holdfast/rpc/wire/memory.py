"""Memory for the buffers of received messages: each lands where its value will keep it.

A buffer that was sent as a bytes object or a bytearray arrives as one. Other buffers, such as those
of arrays, arrive as memory: of a bytearray, or, from POOL_BYTES on, of a mapping that is used
again. None of it is cleared first: the receiver writes all of it.

Guarantees
    ME-1  Memory of freed values is reused, up to POOL_BYTES_MAX of it; the system may reclaim it
          whenever memory is short.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from holdfast.rpc.wire.codec import AS_BYTEARRAY, AS_BYTES
from holdfast.rpc.wire.messages import Buffer

__all__ = [
    "POOL_BYTES",
    "POOL_BYTES_MAX",
    "address_of",
    "landing",
    "memory",
    "pooled_bytes",
]

POOL_BYTES = 4 << 20
"""The interpreter's allocator reuses smaller memory well. Of larger memory it would return much to
the system each time, and each page would be faulted in again."""
POOL_BYTES_MAX = 1 << 29

_HUGE_BYTES = 1 << 21
_STEP_BYTES = 1 << 16
_MAPPED_BYTES = 1 << 25
"""From this size on, the allocator gives an object a mapping of its own."""
_WRITABLE = 0x200  # PyBUF_WRITE


def landing(kind: int, size: int) -> tuple[Buffer, memoryview]:
    """Return the object as which a buffer of this kind arrives, and the view to write it by.

    Its content is arbitrary: all of it must be written before the object is used. OSError or
    MemoryError if there is too little memory.
    """
    made: Buffer
    if kind == AS_BYTES:
        made = _interpreter().new_bytes(None, size)
        start = _interpreter().start_of_bytes(made)
        view = _interpreter().view_of(start, size, _WRITABLE)
    elif kind == AS_BYTEARRAY or size < POOL_BYTES:
        made = _interpreter().new_bytearray(None, size)
        view = memoryview(made)
    else:
        made = view = memory(size)
    if size >= _MAPPED_BYTES and made is not view:
        _advise_huge(address_of(view), size)
    return made, view


class _Interpreter:
    """Functions of the interpreter that Python itself does not offer."""

    def __init__(self) -> None:
        size, pointer, value = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.py_object
        self.new_bytes = self._function("PyBytes_FromStringAndSize", value, pointer, size)
        self.new_bytearray = self._function("PyByteArray_FromStringAndSize", value, pointer, size)
        self.start_of_bytes = self._function("PyBytes_AsString", pointer, value)
        self.view_of = self._function("PyMemoryView_FromMemory", value, pointer, size, ctypes.c_int)

    @staticmethod
    def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


@cache
def _interpreter() -> _Interpreter:
    return _Interpreter()


class _PyBuffer(ctypes.Structure):
    """A Py_buffer of the interpreter."""

    _fields_ = (
        ("start", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("size", ctypes.c_ssize_t),
        ("item_size", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def address_of(view: memoryview) -> int:
    """Return the address of a view's bytes."""
    known = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(known), 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(known))
    return known.start or 0


def _advise_huge(start: int, size: int) -> None:
    """Let the system use huge pages, if it has any, for memory of the allocator's."""
    if sys.platform == "linux":
        page = mmap.PAGESIZE
        first, end = -(-start // page) * page, (start + size) // page * page
        _madvise()(first, end - first, mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Callable[..., int]:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


# The pool.


class _Byte(ctypes.Union):
    """One byte. Of all types of ctypes, only a union exports its memory with the format "B"."""

    _fields_ = (("value", ctypes.c_ubyte),)


class _Pool:
    """Mappings that are lent to values, and free ones that wait for reuse.

    It has no lock: `give_back` runs wherever a value is freed, also within these methods.
    """

    def __init__(self) -> None:
        self._lent: dict[int, mmap.mmap] = {}
        self._free: deque[mmap.mmap] = deque()
        # Copies of its own: values may be freed after the module's globals are.
        self._bytes_max = POOL_BYTES_MAX
        self._advice = mmap.MADV_FREE

    def lend(self, size: int) -> tuple[mmap.mmap, int]:
        """Return a mapping of at least this size, and the number that `give_back` takes."""
        step = _HUGE_BYTES if size >= 2 * _HUGE_BYTES else _STEP_BYTES
        rounded = max(1, -(-size // step)) * step
        mapping = self._again(rounded) or _mapping(rounded)
        self._lent[id(mapping)] = mapping
        return mapping, id(mapping)

    def give_back(self, number: int) -> None:
        """Keep a mapping for reuse. The system may reclaim its memory, not its address range."""
        mapping = self._lent.pop(number)
        if self.bytes() + len(mapping) <= self._bytes_max:
            mapping.madvise(self._advice)
            self._free.append(mapping)

    def bytes(self) -> int:
        """Return how many bytes are free for reuse."""
        return sum(map(len, tuple(self._free)))

    def _again(self, size: int) -> mmap.mmap | None:
        for mapping in sorted(self._free, key=len):
            if size <= len(mapping) <= size * 5 // 4:
                try:
                    self._free.remove(mapping)
                except ValueError:
                    continue  # another thread took it first
                return mapping
        return None


class _MappingLease(int):
    """Gives a mapping back when nothing refers to the lease any more.

    Only dropping the last reference ends it. It has no attributes, so the garbage collector does
    not track it. Otherwise the collector could end it before the `__del__` of objects that still
    use the memory.
    """

    __slots__ = ()
    pool = _Pool()

    def __del__(self) -> None:
        self.pool.give_back(int(self))


def memory(size: int) -> memoryview:
    """Return writable memory with arbitrary content: the caller must fill all of it."""
    if sys.platform != "linux":
        return memoryview(bytearray(size))
    mapping, number = _MappingLease.pool.lend(size)
    exporter = _bytes_of(len(mapping)).from_buffer(mapping)
    exporter.loan = _MappingLease(number)  # type: ignore[attr-defined]  # each view keeps it
    return memoryview(exporter)[:size]


@lru_cache(64)
def _bytes_of(size: int) -> type[ctypes.Array[_Byte]]:
    return _Byte * size


def pooled_bytes() -> int:
    """Return how many bytes are free for reuse."""
    return _MappingLease.pool.bytes()


def _mapping(size: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 2 * _HUGE_BYTES:
        with contextlib.suppress(OSError):  # the system has no huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
