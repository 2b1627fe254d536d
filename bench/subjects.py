"""What is measured: our backends, and torch's store where torch is installed.

A server runs in a process of its own: `python -m bench.subjects KIND` serves until its standard
input ends, and says where.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import holdfast
from holdfast.net.address import Address
from holdfast.store.c10d.server import C10dServer
from holdfast.store.etcd.local_server import LocalEtcdServer

__all__ = ["KINDS", "Subject", "serve_subject"]

KINDS = {
    "memory": "memory:// (inside the client)",
    "file": "file://",
    "tcp": "tcp://",
    "etcd": "etcd:// (1 member)",
    "etcd-v2": "etcd-v2:// (1 member)",
    "torch": "torch TCPStore, its own client",
    "store_server": "our server, torch's client",
    "c10d": "torch TCPStore, our client",
}
NEED_TORCH = {"torch", "store_server", "c10d"}
ROOT = Path(__file__).resolve().parents[1]


class Subject(NamedTuple):
    """A store that is being served: where, and by which process (None: by none)."""

    kind: str
    endpoint: str
    pid: int | None


@contextmanager
def serve_subject(kind: str) -> Iterator[Subject]:
    """Serve a store of this kind while the context lasts."""
    if kind == "memory":
        yield Subject(kind, "memory://", None)
        return
    if kind == "file":
        with tempfile.TemporaryDirectory() as folder:
            yield Subject(kind, f"file://{folder}/store", None)
        return
    if kind in ("etcd", "etcd-v2"):
        with LocalEtcdServer() as server:
            yield Subject(kind, server.endpoint if kind == "etcd" else server.endpoint_v2, None)
        return
    command = [sys.executable, "-m", "bench.subjects", kind]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Subject(kind, process.stdout.readline().strip(), process.pid)
        finally:
            process.stdin.close()
            process.wait(timeout=30)


def available(kind: str) -> bool:
    """Say whether this machine has what the kind needs."""
    return kind not in NEED_TORCH or importlib.util.find_spec("torch") is not None


def main(kind: str) -> None:
    """Serve until standard input ends."""
    with ExitStack() as stack:
        if kind == "tcp":
            endpoint = stack.enter_context(holdfast.serve_store()).endpoint
        elif kind == "store_server":
            store_server = stack.enter_context(C10dServer(Address("127.0.0.1", 0)))
            endpoint = f"torch://{store_server.address}"
        else:
            distributed = importlib.import_module("torch.distributed")
            store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            scheme = "torch" if kind == "torch" else "c10d"
            endpoint = f"{scheme}://127.0.0.1:{store.port}"
        print(endpoint, flush=True)
        sys.stdin.read()
    os._exit(0)  # torch's server thread has no quick end


if __name__ == "__main__":
    main(sys.argv[1])
