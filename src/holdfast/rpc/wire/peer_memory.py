"""Large buffers between two processes of one machine: the receiver makes the only copy.

The sender of a large buffer over a Unix socket sends only its place (`BufferLease.places`). The
receiver reads the buffer from there into memory of its own (`process_vm_readv`). The system, not
the peer, names the process that is read. Each connection tries once per direction whether reading
is permitted: each side offers some random bytes, and a side that could read them says so (OFFER,
TAKEN; see `PeerMemory`). If reading fails, as between users, containers or machines, everything
goes through the socket.

Guarantees
    BI-1  A received buffer is the receiver's own memory: no other process shares it, not even one
          that the receiver forks.
    BI-2  A receiver reads what was sent, or nothing: a sender breaks the seal of a buffer before it
          releases the buffer, and a message is delivered only if the seal is whole after reading.
    BI-3  A sender holds a buffer until the peer has read it (a request: until the reply, or until
          the caller gives up; a reply: until TAKEN), or until the connection ends. Replies that
          wait on a connection to be read are bounded (HELD_BYTES_MAX); beyond that, buffers go
          through the socket, which applies backpressure.
    BI-4  Memory of freed values is reused, up to POOL_BYTES_MAX of it; the system may reclaim it
          whenever memory is short.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import cache, lru_cache

from holdfast.errors import PeerViolation
from holdfast.net.credentials import peer_credentials
from holdfast.rpc.wire.messages import Buffer, Kind, Message

__all__ = [
    "BIG_BYTES",
    "HELD_BYTES_MAX",
    "PLACE_BYTES",
    "POOL_BYTES_MAX",
    "BufferLease",
    "PeerMemory",
    "memory",
    "pooled_bytes",
    "read",
]

BIG_BYTES = 4 << 20
"""Smaller buffers cost less within the stream: there, no page is mapped for each copy, and the
sender needs no message before it releases them. From this size on, huge pages and several copying
threads pay off."""
HELD_BYTES_MAX = 1 << 28
POOL_BYTES_MAX = 1 << 29

_SEAL_BYTES = 16
_PLACE = struct.Struct(f"<QQ{_SEAL_BYTES}s")  # of the buffer, of the seal, and what the seal is
PLACE_BYTES = _PLACE.size
_READ_BYTES_MAX = 1 << 30  # Linux reads a little less than twice that at once
_SHARE_BYTES = 1 << 22
_SHARES_MAX = 4
_HUGE_BYTES = 1 << 21
_STEP_BYTES = 1 << 16


# Memory of this process.


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


# Memory of the peer's process.


class _Piece(ctypes.Structure):
    """An iovec of the system."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


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


@cache
def _readv() -> Callable[..., int]:
    """Return the system's function; OSError if it has none."""
    try:
        function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    function.restype = ctypes.c_ssize_t
    return function


@cache
def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _address(view: memoryview) -> int:
    """Return the address of a view's bytes."""
    known = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(known), 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(known))
    return known.start or 0


def _copy(pid: int, start: int, into: memoryview) -> bool:
    """Copy from a process; say whether all was readable. OSError if none of it ever is.

    Several threads share a very large copy: one thread does not use the full memory bandwidth.
    """
    here, size = _address(into), into.nbytes
    share = -(-size // max(1, min(_SHARES_MAX, _cores(), size // _SHARE_BYTES))) or 1
    outcomes: list[bool | OSError] = []

    def copy(done: int, into: memoryview) -> None:
        """Copy one share. Keeps the memory alive, also if the waiting thread is interrupted."""
        try:
            outcomes.append(_copy_part(pid, start + done, here + done, min(share, size - done)))
        except OSError as error:
            outcomes.append(error)

    threads = []
    for done in range(share, size, share):
        thread = threading.Thread(target=copy, args=(done, into), name="holdfast-rpc-copy")
        try:
            thread.start()
        except RuntimeError:  # no thread could be started
            copy(done, into)
        else:
            threads.append(thread)
    copy(0, into)
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        if isinstance(outcome, OSError):
            raise outcome
    return all(outcomes)


def _copy_part(pid: int, start: int, here: int, size: int) -> bool:
    done = 0
    while done < size:
        piece = min(size - done, _READ_BYTES_MAX)
        ours, theirs = _Piece(here + done, piece), _Piece(start + done, piece)
        got = _readv()(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        if got <= 0:
            number = ctypes.get_errno()
            if number in {errno.EFAULT, errno.ESRCH}:
                return False
            raise OSError(number, os.strerror(number))
        done += got
    return True


def read(pid: int, place: Buffer, size: int) -> memoryview | None:
    """Return a copy of a buffer of another process; None if its sender has released it."""
    start, seal_start, seal = _PLACE.unpack(place)
    copy, found = memory(size), bytearray(_SEAL_BYTES)
    if not _copy(pid, start, copy) or not _copy(pid, seal_start, memoryview(found)):
        return None
    return copy if found == seal else None


class BufferLease:
    """Buffers of this process that the peer may read, until `let_go`."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self._views = [memoryview(buffer) for buffer in buffers]  # a view also prevents resizing
        self._seal = bytearray(os.urandom(_SEAL_BYTES))
        self.bytes = sum(view.nbytes for view in self._views)

    def places(self) -> list[bytes]:
        """Return the place of each buffer, as it is sent."""
        seal_start = _address(memoryview(self._seal))
        seal = bytes(self._seal)
        return [_PLACE.pack(_address(view), seal_start, seal) for view in self._views]

    def let_go(self) -> None:
        """Release the buffers; a peer that is reading them will notice. Idempotent."""
        self._seal[:] = bytes(_SEAL_BYTES)
        self._views = []
        self.bytes = 0


class PeerMemory:
    """What one connection knows about the peer's memory, and the buffers it holds for the peer.

    One thread may send while another one receives.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._pid = _peer(sock)
        self._readable = 0  # the process whose memory we can read, 0 for none
        self.held: dict[int, list[BufferLease]] = {}
        """The buffers that the peer may read, by call; the offer has number 0."""
        self.due: list[Message] = []
        """Messages to be sent to the peer, which waits for them."""
        self.open = False
        """Whether the peer can read our memory."""

    @property
    def reads(self) -> bool:
        """Whether we can read the peer's memory."""
        return bool(self._readable)

    def offer(self) -> list[Message]:
        """Return the message by which the peer tests whether it can read our memory, if any."""
        if not self._pid:
            return []
        bait = BufferLease([os.urandom(_SEAL_BYTES)])
        self.held[0] = [bait]
        return [Message(Kind.OFFER, 0, bait.places()[0])]

    def hear(self, message: Message) -> None:
        """Handle an OFFER or a TAKEN message."""
        if message.kind is Kind.TAKEN:
            if message.call == 0 and 0 in self.held:
                self.open = True
            self.release(message.call)
        elif self._pid and len(message.body) == PLACE_BYTES and _can_read(self._pid, message.body):
            self._readable = self._pid
            self.due.append(Message(Kind.TAKEN, 0))

    def has_room(self) -> bool:
        """Say whether more buffers may be held for the peer to read."""
        if not self.open:
            return False
        waiting = sum(held.bytes for several in tuple(self.held.values()) for held in several)
        return waiting < HELD_BYTES_MAX

    def places_of(self, message: Message) -> list[Buffer]:
        """Return a message's buffers, with places instead of the large ones, and hold those."""
        buffers = list(message.buffers)
        large = [n for n, buffer in enumerate(buffers) if memoryview(buffer).nbytes >= BIG_BYTES]
        if large:
            held = BufferLease([buffers[n] for n in large])
            self.held.setdefault(message.call, []).append(held)
            for n, place in zip(large, held.places(), strict=True):
                buffers[n] = place
        return buffers

    def release(self, call: int) -> bool:
        """Release the buffers of a call; say whether there were any."""
        several = self.held.pop(call, [])
        for held in several:
            held.let_go()
        return bool(several)

    def release_all(self) -> None:
        """Release all buffers: the connection is over."""
        for call in tuple(self.held):
            self.release(call)

    def read(self, place: Buffer, size: int) -> memoryview | None:
        """Read a buffer of the peer; None if the peer has released it."""
        if not self._readable:
            raise PeerViolation("a buffer is said to be where it was found unreadable")
        return read(self._readable, place, size)


def _can_read(pid: int, place: Buffer) -> bool:
    try:
        return read(pid, place, _SEAL_BYTES) is not None
    except OSError:
        return False


def _peer(sock: socket.socket) -> int:
    """Return the peer's process id; 0 if it is on another machine, or not visible from here."""
    found = peer_credentials(sock)
    return 0 if found is None else found.pid
