"""Between two hosts, as far as their networks go: `python -m bench.rpc_hosts SUBJECT SECONDS`.

To be run as root, in a network of its own (`unshare --net`). It gives its callee another network,
lays a cable between both, measures, and prints the figures as one line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.rpc_callee import beside, serve
from bench.rpc_caller import Figures, pipelined, repeated
from bench.rpc_calls import array, nothing, same
from bench.rpc_payloads import beside_large
from bench.rpc_subject import Function, Subject
from bench.rpc_workers import MEETING, Holdfast, Torch, Workers

__all__ = ["HOSTS", "HOST_MB", "RawTcp"]

HOST_MB = (0.1, 1.0, 10.0, 60.0)
HERE, THERE, PORT = "10.99.0.1", "10.99.0.2", 29500
PATIENCE_S = 60.0
APART = ("unshare", "--net", "--pid", "--ipc", "--fork", "--kill-child")
"""The callee shares nothing with its caller by which torch could see that they are on one host."""


class RawTcp(Subject):
    """Bytes to and fro over TCP, as many as an array has, into memory that is used again."""

    label = "limit: bytes over TCP"
    module = "socket"

    def serve(self, folder: Path, ready: Callable[[], None]) -> None:
        with socket.create_server((THERE, PORT)) as listener:
            connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = bytearray(int(HOST_MB[-1] * 1e6) + 1)
        while True:
            size = int.from_bytes(_read(connection, memoryview(data)[:8]), "little")
            connection.sendall(_read(connection, memoryview(data)[:size]))

    def connect(self, folder: Path) -> None:
        self._socket = _until_there(lambda: socket.create_connection((THERE, PORT)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = bytearray(int(HOST_MB[-1] * 1e6) + 1)

    def call(self, function: Function, *args: Any) -> Any:
        view = memoryview(args[0].numpy() if args else b"1").cast("B")
        self._socket.sendmsg([view.nbytes.to_bytes(8, "little"), view[:1]])
        if view.nbytes > 1:
            self._socket.sendall(view[1:])
        return _read(self._socket, memoryview(self._data)[: view.nbytes])


def _read(sock: socket.socket, into: memoryview) -> memoryview:
    done = 0
    while done < into.nbytes:
        got = sock.recv_into(into[done:])
        if not got:
            os._exit(0)
        done += got
    return into


HOSTS: dict[str, type[Subject]] = {"tcp": RawTcp, "holdfast": Holdfast, "torch": Torch}


def measured(subject: Subject, seconds: float) -> Figures:
    """Measure small calls, and arrays there and back."""
    yield "no-op", 1e6 * statistics.median(repeated(partial(subject.call, nothing), seconds, 100))
    for megabytes in HOST_MB:
        value = array("torch", int(megabytes * 1e6))
        taken = repeated(partial(subject.call, same, value), seconds, 5)
        yield f"echo {megabytes:g}", 1e3 * statistics.median(taken)
    if isinstance(subject, Workers):
        yield from pipelined(subject, seconds)
        yield from beside_large(subject, seconds)


def _until_there(act: Callable[[], Any]) -> Any:
    """Repeat until the cable is laid and the callee listens."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def _has_cable() -> None:
    with socket.socket() as sock:
        sock.bind((THERE, 0))


def _ip(command: str, within: int | None = None) -> None:
    inside = [] if within is None else ["nsenter", f"--net=/proc/{within}/ns/net"]
    subprocess.run([*inside, "ip", *command.split()], check=True, timeout=PATIENCE_S)


def _lay_cable(other: int) -> None:
    """Connect this network with that of another process."""
    for place in (None, other):
        _ip("link set lo up", place)
    _ip(f"link add cable type veth peer name cable netns {other}")
    for place, address in ((None, HERE), (other, THERE)):
        _ip(f"addr add {address}/24 dev cable", place)
        _ip("link set cable up", place)


def call(name: str, seconds: str) -> None:
    os.environ |= {
        MEETING: f"tcp://{THERE}:{PORT}",
        "HOLDFAST_SECRET": "of both hosts of a measurement",
        "TP_SOCKET_IFNAME": "cable",
        "GLOO_SOCKET_IFNAME": "cable",
    }
    subject = HOSTS[name]()
    with beside("bench.rpc_hosts", "callee", name, within=APART) as folder:
        _lay_cable(int((folder / "pid").read_text()))
        subject.connect(folder)
        print(json.dumps(dict(measured(subject, float(seconds)))), flush=True)
        subject.close()
    os._exit(0)  # torch's agent has no quick end


def answer(name: str, folder: str) -> None:
    subject = HOSTS[name]()
    outside = os.readlink("/proc/self")  # /proc is the caller's, so this is its name of us
    Path(folder, "pid").write_text(outside)
    print("ready", flush=True)  # for the cable; `serve` says it again, unread
    _until_there(_has_cable)
    serve(subject, folder)


def main(role: str, *words: str) -> None:
    if role == "callee":
        answer(*words)
    else:
        call(role, *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
