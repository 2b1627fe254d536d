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
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable
from functools import cache

from holdfast.errors import PeerViolation
from holdfast.net.credentials import peer_credentials
from holdfast.rpc.wire.codec import BIG_BYTES
from holdfast.rpc.wire.memory import address_of, landing
from holdfast.rpc.wire.messages import Buffer, Kind, Message

__all__ = [
    "HELD_BYTES_MAX",
    "PLACE_BYTES",
    "BufferLease",
    "PeerMemory",
    "read",
]

HELD_BYTES_MAX = 1 << 28

_SEAL_BYTES = 16
_PLACE = struct.Struct(f"<QQ{_SEAL_BYTES}s")  # of the buffer, of the seal, and what the seal is
PLACE_BYTES = _PLACE.size
_READ_BYTES_MAX = 1 << 30  # Linux reads a little less than twice that at once
_SHARE_BYTES = 1 << 22
_SHARES_MAX = 4


class _Piece(ctypes.Structure):
    """An iovec of the system."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


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


def _copy(pid: int, start: int, into: memoryview) -> bool:
    """Copy from a process; say whether all was readable. OSError if none of it ever is.

    Several threads share a very large copy: one thread does not use the full memory bandwidth.
    """
    here, size = address_of(into), into.nbytes
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
        got = _copy_once(pid, (start + done, here + done, min(size - done, _READ_BYTES_MAX)))
        if not got:
            return False
        done += got
    return True


def _copy_once(pid: int, *pieces: tuple[int, int, int]) -> int:
    """Copy pieces in their order, by one system call: each from there to here, so many bytes.

    Return how many bytes were copied, 0 if nothing can be read there now. OSError if it never can.
    """
    count = len(pieces)
    theirs = (_Piece * count)(*(_Piece(there, size) for there, _, size in pieces))
    ours = (_Piece * count)(*(_Piece(here, size) for _, here, size in pieces))
    got = _readv()(pid, ours, count, theirs, count, 0)
    if got >= 0:
        return got
    number = ctypes.get_errno()
    if number in {errno.EFAULT, errno.ESRCH}:
        return 0
    raise OSError(number, os.strerror(number))


def read(pid: int, place: Buffer, size: int, kind: int = 0) -> Buffer | None:
    """Return a copy of a buffer of another process; None if its sender has released it."""
    start, seal_start, seal = _PLACE.unpack(place)
    copy, view = landing(kind, size)
    found = (ctypes.c_char * _SEAL_BYTES)()
    data, check = (
        (start, address_of(view), size),
        (seal_start, ctypes.addressof(found), _SEAL_BYTES),
    )
    at_once = size < 2 * _SHARE_BYTES and _copy_once(pid, data, check) == size + _SEAL_BYTES
    whole = at_once or (_copy(pid, start, view) and _copy_part(pid, *check))
    return copy if whole and found.raw == seal else None


class BufferLease:
    """Buffers of this process that the peer may read, until `release`."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self._views = [memoryview(buffer) for buffer in buffers]  # a view also prevents resizing
        self._seal = bytearray(os.urandom(_SEAL_BYTES))
        self.bytes = sum(view.nbytes for view in self._views)

    def places(self) -> list[bytes]:
        """Return the place of each buffer, as it is sent."""
        seal_start = address_of(memoryview(self._seal))
        seal = bytes(self._seal)
        return [_PLACE.pack(address_of(view), seal_start, seal) for view in self._views]

    def release(self) -> None:
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

    def receive(self, message: Message) -> None:
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
            held.release()
        return bool(several)

    def release_all(self) -> None:
        """Release all buffers: the connection is over."""
        for call in tuple(self.held):
            self.release(call)

    def read(self, place: Buffer, size: int, kind: int) -> Buffer | None:
        """Read a buffer of the peer; None if the peer has released it."""
        if not self._readable:
            raise PeerViolation("a message names a buffer in memory that was found unreadable")
        return read(self._readable, place, size, kind)


def _can_read(pid: int, place: Buffer) -> bool:
    try:
        return read(pid, place, _SEAL_BYTES) is not None
    except OSError:
        return False


def _peer(sock: socket.socket) -> int:
    """Return the peer's process id; 0 if it is on another machine, or not visible from here."""
    found = peer_credentials(sock)
    return 0 if found is None else found.pid
