"""An agent's end of the control channel: a socket beside its entry, a thread for each request.

Guarantees
    CH-1  A request is read only from a process of our own user, as the kernel says (PC-1); and the
          socket lies in a folder that only this user can enter.
    CH-2  At most CONNECTIONS_MAX requests are under way at once, each of REQUEST_BYTES_MAX bytes at
          most, and each must have come within REQUEST_S: nothing that connects costs more.
    CH-3  Whatever goes wrong with a request is told to the command that made it, and harms neither
          the job nor other requests.
    CH-4  The entry is there only while the agent answers; `close` removes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import socket
import threading
from collections.abc import Callable
from typing import Any

from holdfast.clock import Deadline
from holdfast.control.folder import EntryFolder
from holdfast.control.frames import receive_frame, send_frame
from holdfast.control.jobs import AgentEntry
from holdfast.control.messages import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Request,
    decode_request,
    encode_refusal,
    encode_reply,
)
from holdfast.errors import HoldfastError, Unavailable
from holdfast.forks import in_child
from holdfast.net.credentials import check_peer, peer_credentials
from holdfast.records import dataclass
from holdfast.threads import start_thread

__all__ = ["Caller", "ControlServer"]

CONNECTIONS_MAX = 32
REQUEST_S = 5.0
CLOSE_WITHIN_S = 2.0
ACCEPT_PAUSE_S = 0.1
LINGER_S = 1.0
_BACKLOG = 64
_DROPS_MAX = 16

_log = logging.getLogger("holdfast.control")


@dataclass(frozen=True, slots=True)
class Caller:
    """The process that asks: which one, and its user's name."""

    pid: int
    user: str


Answer = Callable[[Request, Caller], dict[str, Any]]


class ControlServer:
    """Answers requests from `start` until `close`; `answer` is called on a thread for each."""

    def __init__(self, folder: EntryFolder, entry: AgentEntry, answer: Answer) -> None:
        self._folder = folder
        self._entry = entry
        self._answer = answer
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._closing = threading.Event()
        # Guards the threads of the requests that are under way.
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        in_child(self, ControlServer._close_in_child)

    def start(self) -> None:
        """Begin to answer; Unavailable if no socket or thread can be had."""
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._folder.bind(listener, self._entry.token)
            listener.listen(_BACKLOG)
            acceptor = threading.Thread(
                target=self._accept, args=(listener,), name="holdfast-control", daemon=True
            )
            start_thread(acceptor)
            self._acceptor = acceptor
            self._folder.write(self._entry)
        except (OSError, HoldfastError) as error:
            self.close()
            why = getattr(error, "strerror", None) or error
            raise Unavailable(f"folder {self._folder.path}: {why}") from error
        self._folder.clear_earlier_boots()

    def close(self) -> None:
        """Remove the entry, end what is under way, and stop. Idempotent."""
        self._folder.remove(self._entry.token)
        self._closing.set()
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
            if self._acceptor is not None:
                self._acceptor.join(CLOSE_WITHIN_S)
            listener.close()
        limit = Deadline.after(CLOSE_WITHIN_S)
        with self._lock:
            threads = [one for one in self._threads if one is not threading.current_thread()]
        for thread in threads:
            thread.join(limit.remaining())

    def _close_in_child(self) -> None:
        """Close a forked child's copy of the socket; the entry is the parent's."""
        if self._listener is not None:
            self._listener.close()

    # On the acceptor's thread.

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:  # closed; or no descriptor is left
                self._closing.wait(ACCEPT_PAUSE_S)
                continue
            thread = threading.Thread(
                target=self._serve, args=(sock,), name="holdfast-control-request", daemon=True
            )
            with self._lock:
                has_room = len(self._threads) < CONNECTIONS_MAX and not self._closing.is_set()
                if has_room:
                    self._threads.add(thread)
            try:
                if has_room:
                    start_thread(thread)
                else:
                    sock.close()
            except Unavailable:
                sock.close()
                self._forget(thread)

    def _forget(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.discard(thread)

    # On a thread for each request.

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                reply = self._reply(sock)
                with contextlib.suppress(OSError):  # the command has ended meanwhile
                    send_frame(sock, reply, REPLY_BYTES_MAX, Deadline.after(REQUEST_S))
                    _let_it_read(sock)
        finally:
            self._forget(threading.current_thread())

    def _reply(self, sock: socket.socket) -> bytes:
        try:
            check_peer(sock, None)
            peer = peer_credentials(sock)
            caller = Caller(peer.pid if peer else 0, _user(peer.uid if peer else os.geteuid()))
            data = receive_frame(sock, REQUEST_BYTES_MAX, Deadline.after(REQUEST_S))
            request = decode_request(data)
            return encode_reply(self._answer(request, caller))
        except HoldfastError as error:
            return encode_refusal(str(error))
        except Exception as error:  # CH-3
            _log.exception("a request could not be answered")
            return encode_refusal(f"a bug in holdfast: {error!r}")


def _let_it_read(sock: socket.socket) -> None:
    """Wait until the command has closed its end: what is unread here would break its connection.

    A request that was refused before it was read is dropped so. Bounded, as all of it (CH-2).
    """
    sock.shutdown(socket.SHUT_WR)
    sock.settimeout(LINGER_S)
    for _ in range(_DROPS_MAX):
        if not sock.recv(REQUEST_BYTES_MAX):
            return


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
