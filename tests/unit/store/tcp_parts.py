"""Parts for tests of the tcp store: clients, servers in processes, and a line that can be cut."""

from __future__ import annotations

import random
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Self

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import PeerViolation, Unavailable
from holdfast.net import tcp
from holdfast.net.address import Address, parse_address
from holdfast.net.secret import Secret
from holdfast.net.transport import Transport
from holdfast.store.client import RemoteStore
from holdfast.store.effects import SendFrame
from holdfast.store.messages import KEY_CONTEXT, FromClient, encode
from holdfast.store.server import StoreServer
from holdfast.store.service import Service
from tests.unit.net import inproc

SECRET = Secret(b"a secret that every test knows")
KEY = SECRET.key(KEY_CONTEXT)
ANY_PORT = Address("127.0.0.1", 0)
LONG_S = 60.0


def new_server() -> StoreServer:
    return StoreServer(ANY_PORT, SECRET)


def new_client(address: Address, connect_within_s: float | None = LONG_S) -> RemoteStore:
    """Make a client; connected, unless told not to."""
    store = RemoteStore(f"tcp://{address}", lambda deadline: tcp.connect(address, KEY, deadline))
    if connect_within_s is not None:
        store.connect(connect_within_s)
    return store


def dial(address: Address) -> tcp.TcpTransport:
    """Make an authenticated connection that speaks nothing by itself."""
    return tcp.connect(address, KEY, Deadline.after(LONG_S))


def say(transport: tcp.TcpTransport, *messages: FromClient) -> None:
    for message in messages:
        transport.send(encode(message), Deadline.after(LONG_S))


def read_frames(transport: tcp.TcpTransport) -> Iterator[bytes]:
    """Give the frames that arrive, until the peer hangs up."""
    while True:
        try:
            yield from transport.receive(LONG_S)
        except ConnectionError:
            return


SERVER_PROGRAM = """
import sys
from tests.unit.store.tcp_parts import new_server
with new_server() as server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


@contextmanager
def python(
    program: str, *arguments: str, stderr: IO[str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program with pipes; it is killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def server_process(
    stderr: IO[str] | None = None,
) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    with python(SERVER_PROGRAM, stderr=stderr) as process:
        yield process, parse_address(line_of(process))


class InprocServer:
    """Serves one service over in-process transports; a thread for each connection."""

    def __init__(self) -> None:
        self.service = Service(1)
        self.ends: list[inproc.InprocTransport] = []
        self.threads: list[threading.Thread] = []

    def dial(self, deadline: Deadline) -> Transport:
        near, far = inproc.pair()
        number = len(self.ends) + 1
        self.ends.append(far)
        self.service.connect(number)
        self.threads.append(threading.Thread(target=self._serve, args=(number, far)))
        self.threads[-1].start()
        return near

    def _serve(self, number: int, end: inproc.InprocTransport) -> None:
        try:
            while True:
                for payload in end.receive(LONG_S):
                    self.service.receive(number, payload, SYSTEM_CLOCK.monotonic())
                    for effect in self.service.take_effects():
                        if isinstance(effect, SendFrame):
                            end.send(effect.payload, Deadline(None))
        except (Unavailable, PeerViolation):
            self.service.disconnect(number, SYSTEM_CLOCK.monotonic())
            end.close()


class Proxy:
    """A line to a server that can be cut, stalled and refused. One thread."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self.connections = 0
        # After how many bytes a new connection is cut, if ever.
        self.cut_after: Callable[[], int] | None = None
        self._refusing = False
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._budgets: dict[socket.socket, int] = {}
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake_out, self._wake_in = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    def cut(self) -> None:
        """Close every connection; return when it is done."""

        self._do(self._close_all)

    def refuse(self, refusing: bool) -> None:
        """Cut, and close every new connection, until told otherwise."""
        self._refusing = refusing
        if refusing:
            self.cut()

    def stall(self) -> None:
        """Let nothing pass, until `go()`."""
        self._open.clear()

    def go(self) -> None:
        self._open.set()

    def close(self) -> None:
        def end() -> None:
            self._close_all()
            self._over = True  # by the thread itself: it ends after this, and not before

        self.go()
        self._do(end)
        self._thread.join()
        self._selector.close()
        for sock in (self._listener, self._wake_in, self._wake_out):
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _do(self, command: Callable[[], None]) -> None:
        done = threading.Event()

        def act() -> None:
            command()
            done.set()

        self._commands.put(act)
        self._wake_in.send(b"\0")
        assert done.wait(LONG_S)

    def _run(self) -> None:
        while not self._over:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._wake_out:
                    sock.recv(4096)
                    while not self._commands.empty():
                        self._commands.get()()
                    continue
                self._open.wait()
                if sock is self._listener:
                    self._accept()
                elif sock in self._pairs:
                    self._carry(sock)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        if self._refusing:
            near.close()
            return
        try:
            far = socket.create_connection(self.target)
        except OSError:
            near.close()
            return
        self.connections += 1
        self._pairs[near], self._pairs[far] = far, near
        if self.cut_after is not None:
            self._budgets[near] = self._budgets[far] = self.cut_after()
        for sock in (near, far):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ)

    def _carry(self, sock: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            data = sock.recv(64 * 1024)
        budget = self._budgets.get(sock, len(data))
        with suppress(OSError):
            self._pairs[sock].sendall(data[:budget])
            if data and len(data) <= budget:
                if sock in self._budgets:
                    self._budgets[sock] -= len(data)
                return
        self._close(sock)

    def _close_all(self) -> None:
        for sock in list(self._pairs):
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        if sock in self._pairs:
            other = self._pairs[sock]
            for each in (sock, other):
                del self._pairs[each]
                self._budgets.pop(each, None)
                self._selector.unregister(each)
                each.close()


def cuts(seed: int, most: int) -> Callable[[], int]:
    """Choose after how many bytes each connection is cut."""
    rng = random.Random(seed)
    return lambda: rng.randrange(most)
