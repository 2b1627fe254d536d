"""Connections to a server of torch's store protocol; everything on them has a deadline.

A `Line` is one connection. A `ConnectionPool` has those of one client: it opens them, closes those
that failed, and says in our errors what became of a call.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

from holdfast.clock import Clock, Deadline
from holdfast.errors import (
    HoldfastError,
    PeerViolation,
    Step,
    StoreUnavailable,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.net.address import Address
from holdfast.net.tcp import open_socket
from holdfast.store.c10d.messages import Ping, Validate
from holdfast.store.c10d.wire import Fields, FieldStream, encode_request, read_u32

__all__ = ["REPLY_WITHIN_S", "RETRY_S", "ConnectionPool", "ConnectionSlot", "Line"]

HANDSHAKE_WITHIN_S = 5.0
REPLY_WITHIN_S = 30.0
"""The server answers everything but a wait at once; silence for this long means that it is gone."""

RETRY_S = 0.1
READ_TRIES = 3
_HELLO = 0x68656C6C
_READ_BYTES = 256 * 1024

R = TypeVar("R")


class Line:
    """A connection that has shown that the server speaks torch's protocol.

    `send` and `read` raise TimeoutError at their deadline and Unavailable if the connection is
    lost; after that, as after a PeerViolation, it is of no more use. Used by one thread at a time,
    except that any thread may call `wake`.
    """

    def __init__(self, sock: socket.socket, address: Address) -> None:
        self._socket = sock
        self._address = address
        self._stream = FieldStream()

    @classmethod
    def open(cls, address: Address, deadline: Deadline) -> Self:
        """Connect and shake hands. Unavailable and PeerViolation name the step that failed."""
        line = cls(open_socket(address, deadline), address)
        try:
            line._shake_hands(deadline.sooner(HANDSHAKE_WITHIN_S))
        except BaseException:
            line.close()
            raise
        return line

    def _shake_hands(self, limit: Deadline) -> None:
        try:
            # In one piece: torch's server gives up on a handshake that arrives in two.
            self.send(encode_request(Validate()) + encode_request(Ping(_HELLO)), limit)
            answer = self.read(read_u32(), limit)
        except TimeoutError:
            raise self._unshaken("the server is silent") from None
        except Unavailable as error:
            raise self._unshaken(str(error)) from None
        if answer != _HELLO:
            raise PeerViolation(
                f"handshake with {self._address}: this is not a server of torch's store protocol",
                step=Step.HANDSHAKE,
                address=str(self._address),
            )

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all of it. What the server says unasked is a PeerViolation."""
        if len(self._stream):
            raise PeerViolation("c10d: the server sent an unsolicited reply")
        self._arm(deadline)
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None

    def read(self, fields: Fields[R], deadline: Deadline) -> R:
        """Read what the fields ask for."""
        need = next(fields)
        while True:
            data = self._stream.take(need)
            if data is None:
                self._stream.feed(self._receive(deadline))
                continue
            try:
                need = fields.send(data)
            except StopIteration as stop:
                result: R = stop.value
                return result

    def wake(self) -> None:
        """End the connection under the thread that uses it; that thread closes it."""
        with contextlib.suppress(OSError):  # over already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    def _receive(self, deadline: Deadline) -> bytes:
        self._arm(deadline)
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        if not data:
            raise self._lost("the server closed the connection")
        return data

    def _arm(self, deadline: Deadline) -> None:
        remaining = deadline.remaining()
        if remaining == 0.0:
            raise TimeoutError
        self._socket.settimeout(remaining)

    def _lost(self, why: str) -> Unavailable:
        text = f"connection to {self._address} lost: {why}"
        return Unavailable(text, address=str(self._address))

    def _unshaken(self, why: str) -> Unavailable:
        return Unavailable(
            f"handshake with {self._address}: {why}",
            step=Step.HANDSHAKE,
            address=str(self._address),
        )


class ConnectionSlot:
    """A place for one connection, used by one call at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.line: Line | None = None


class ConnectionPool:
    """The connections of one client. Used by many threads."""

    def __init__(self, endpoint: str, address: Address, clock: Clock) -> None:
        self._endpoint = endpoint
        self._address = address
        self._clock = clock
        self._guard = threading.Lock()  # of all that follows
        self._spare: list[ConnectionSlot] = []
        self._idle: set[Line] = set()
        self._busy: set[Line] = set()
        self._met = False
        self._closed = False

    def use(
        self, lane: ConnectionSlot, talk: Callable[[Line], R], deadline: Deadline, *, write: bool
    ) -> R:
        """Talk over the lane's connection. If that fails, close it, and unless `write` try again.

        Raises StoreUnavailable or TimeoutExpired; their `maybe_applied` is right for a write.
        """
        wait_s = deadline.remaining()
        if not lane.lock.acquire(timeout=-1 if wait_s is None else wait_s):
            raise TimeoutExpired(f"{self._endpoint}: busy with other calls until the deadline")
        try:
            tries = 1 if write else READ_TRIES
            while True:
                tries -= 1
                try:
                    return self._talk(lane, talk, deadline, write)
                except StoreUnavailable:
                    raise  # the server cannot be reached, or is silent
                except Unavailable as lost:
                    if not tries:
                        raise self._unavailable(lost, write) from None
        finally:
            lane.lock.release()

    @contextlib.contextmanager
    def spare_lane(self) -> Iterator[ConnectionSlot]:
        """Lend a lane that no other thread uses; its connection is kept for the next one."""
        with self._guard:
            lane = self._spare.pop() if self._spare else ConnectionSlot()
        try:
            yield lane
        finally:
            with self._guard:
                keep = not self._spare and not self._closed
                if keep:
                    self._spare.append(lane)
                elif lane.line is not None:
                    self._idle.discard(lane.line)
            if not keep and lane.line is not None:
                lane.line.close()

    def close(self) -> None:
        """Close every connection; calls that are under way end with UsageError. Idempotent."""
        with self._guard:
            self._closed = True
            for line in self._busy:
                line.wake()
            idle, self._idle = self._idle, set()
        for line in idle:
            line.close()

    def check_open(self) -> None:
        """UsageError if `close` was called."""
        if self._closed:
            raise UsageError(f"the store {self._endpoint} is closed")

    def _talk(
        self, lane: ConnectionSlot, talk: Callable[[Line], R], deadline: Deadline, write: bool
    ) -> R:
        if deadline.passed():
            raise TimeoutExpired(f"{self._endpoint}: no time was left")
        line, lane.line = lane.line or self._connect(deadline), None
        self._begin(line)
        try:
            result = talk(line)
        except BaseException as error:
            self._end(line, failed=True)
            self.check_open()
            if isinstance(error, TimeoutError):
                raise self._too_late(deadline, write) from None
            raise
        lane.line = self._end(line, failed=False)
        return result

    def _connect(self, deadline: Deadline) -> Line:
        """Open a connection; wait for a server that was never reached, as torch's clients do."""
        while True:
            self.check_open()
            try:
                line = Line.open(self._address, deadline)
            except Unavailable as error:
                remaining = deadline.remaining()
                if self._met or (remaining is not None and remaining < RETRY_S):
                    raise self._unavailable(error, write=False) from None
                self._clock.sleep(RETRY_S)
            else:
                self._met = True
                return line

    def _begin(self, line: Line) -> None:
        with self._guard:
            self._idle.discard(line)
            if not self._closed:
                self._busy.add(line)
                return
        line.close()
        self.check_open()

    def _end(self, line: Line, *, failed: bool) -> Line | None:
        """Give a line back; return it if it can be used again."""
        with self._guard:
            self._busy.discard(line)
            if not failed and not self._closed:
                self._idle.add(line)
                return line
        line.close()
        return None

    def _unavailable(self, error: Unavailable, write: bool) -> StoreUnavailable:
        return StoreUnavailable(
            str(error), step=error.step, address=str(self._address), maybe_applied=write
        )

    def _too_late(self, deadline: Deadline, write: bool) -> HoldfastError:
        if deadline.passed():
            text = f"{self._endpoint}: no answer before the deadline"
            return TimeoutExpired(text, maybe_applied=write)
        return StoreUnavailable(
            f"{self._endpoint}: the server is silent for {REPLY_WITHIN_S:g} s",
            address=str(self._address),
            maybe_applied=write,
        )
