"""What the machine allows: sockets without RPC, and copies of memory."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from bench.rpc_calls import answer, array, arrived, asked, same
from bench.rpc_subject import Function, Subject

__all__ = ["Copies", "RawBytes", "RawPickle"]

ALL_BYTES_MAX = 4096
WORD = b"w" * 64


class RawBytes(Subject):
    """64 bytes to and fro over a Unix socket; nothing is called."""

    label = "limit: bytes over a socket"
    module = "socket"
    measures: ClassVar[tuple[str, ...]] = ("no-op",)

    def serve(self, folder: Path, ready: Callable[[], None]) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen()
            ready()
            connection, _ = listener.accept()
        while request := connection.recv(ALL_BYTES_MAX):
            connection.send(self.answer(request))

    def connect(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(folder / "socket"))

    def answer(self, request: bytes) -> bytes:
        return request

    def call(self, function: Function, *args: Any) -> Any:
        self._socket.send(WORD)
        return self._socket.recv(ALL_BYTES_MAX)


class RawPickle(RawBytes):
    """The same with a pickled call and its pickled answer."""

    label = "limit: … and pickle"
    measures = ("no-op", "matrix")

    def answer(self, request: bytes) -> bytes:
        return answer(request)

    def call(self, function: Function, *args: Any) -> Any:
        self._socket.send(asked(function, args))
        return arrived(self._socket.recv(ALL_BYTES_MAX))


class Copies(Subject):
    """Arrays are copied within one process, once for each way that they go, to memory in use."""

    label = "limit: copies of memory"
    module = "numpy"
    measures = ("large",)

    def connect(self, folder: Path) -> None:
        import numpy as np

        self._np = np
        self._here = self._there = np.empty(0, np.uint8)

    def call(self, function: Function, *args: Any) -> None:
        value = array(*args) if function is array else args[0]
        if self._here.shape != value.shape:
            self._here, self._there = self._np.empty_like(value), self._np.empty_like(value)
        self._np.copyto(self._there, value)
        if function is same:
            self._np.copyto(self._here, self._there)
