"""The backends that the contract suite runs over. A new backend is one entry in `BACKENDS`.

`serve` is entered once for all tests, for example to start a server. It gives a function that
makes one empty shared space for each test; a space gives a function that opens one more client
of itself. The suite closes the clients.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from holdfast.net.address import Address
from holdfast.net.secret import new_secret
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v2.store import EtcdV2Store
from holdfast.store.etcd.v3.store import EtcdStore
from holdfast.store.fenced import FencedStore
from holdfast.store.file import FileStore
from holdfast.store.memory import MemoryStore
from holdfast.store.open import open_store
from holdfast.store.ops import KEY_BYTES_MAX
from holdfast.store.prefix import PrefixStore
from holdfast.store.server import StoreServer
from holdfast.store.store import Store

Opener: TypeAlias = Callable[[], Store]
Spaces: TypeAlias = Callable[[], AbstractContextManager[Opener]]
Serve: TypeAlias = Callable[[Path], AbstractContextManager[Spaces]]


@dataclass(frozen=True)
class Backend:
    """A kind of store, and where it may be weaker than the others."""

    name: str
    serve: Serve
    min_ttl_s: float = 0.3
    """The shortest lease that tests ask for; what the server grants may be longer."""
    key_bytes_max: int = KEY_BYTES_MAX
    atomic_multi_set: bool = True
    """Whether `multi_set` writes all keys at one moment; etcd's v2 API has no transactions."""
    atomic_guards: bool = True
    """Whether a guard holds at the moment of the write; etcd's v2 API looks at it before."""
    has_guard: bool = False
    """Whether its clients write under a guard, and so cannot be given another."""
    is_view: bool = False
    """Whether its clients are views of one store, which stays open when they are closed."""


@contextmanager
def memory(folder: Path) -> Iterator[Spaces]:
    @contextmanager
    def space() -> Iterator[Opener]:
        with MemoryStore() as store:
            yield lambda: store  # all clients are the one object

    yield space


@contextmanager
def file(folder: Path) -> Iterator[Spaces]:
    numbers = itertools.count()

    @contextmanager
    def space() -> Iterator[Opener]:
        path = folder / f"store-{next(numbers)}"
        yield lambda: FileStore(path)

    yield space


@contextmanager
def tcp(folder: Path) -> Iterator[Spaces]:
    secret = new_secret()

    @contextmanager
    def space() -> Iterator[Opener]:
        with StoreServer(Address("127.0.0.1", 0), secret) as server:
            yield lambda: open_store(server.endpoint, secret=secret)

    yield space


THREE = """
import sys
from contextlib import ExitStack
from holdfast import serve_store

with ExitStack() as stack:
    first = stack.enter_context(serve_store())
    for _ in range(2):
        stack.enter_context(serve_store(join=first.endpoint))
    print(",".join(first.members), flush=True)
    sys.stdin.read()
"""


@contextmanager
def replicated(folder: Path) -> Iterator[Spaces]:
    """A store of three members, which all tests share; each test has a prefix of its own.

    They are in another process: members connect to each other again while tests run, and no test
    is to blame for these connections.
    """
    secret, numbers = new_secret(), itertools.count()
    with subprocess.Popen(
        [sys.executable, "-c", THREE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOLDFAST_SECRET": secret.reveal()},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        where = f"tcp://{process.stdout.readline().strip()}"

        @contextmanager
        def space() -> Iterator[Opener]:
            prefix = f"space-{next(numbers):04}"
            yield lambda: open_store(f"{where}/{prefix}", secret=secret)

        try:
            yield space
        finally:
            process.stdin.close()


@contextmanager
def etcd(folder: Path) -> Iterator[Spaces]:
    numbers = itertools.count()
    with LocalEtcdServer() as server:

        @contextmanager
        def space() -> Iterator[Opener]:
            prefix = f"space-{next(numbers)}"
            yield lambda: EtcdStore(server.addresses, prefix)

        yield space


@contextmanager
def etcd_v2(folder: Path) -> Iterator[Spaces]:
    numbers = itertools.count()
    with LocalEtcdServer() as server:

        @contextmanager
        def space() -> Iterator[Opener]:
            prefix = f"space-{next(numbers)}"
            yield lambda: EtcdV2Store(server.addresses, prefix)

        yield space


def under_prefix(prefix: str, serve: Serve) -> Serve:
    """Views of another backend, with neighbours whose keys must not be seen."""

    @contextmanager
    def serve_views(folder: Path) -> Iterator[Spaces]:
        with serve(folder) as spaces:

            @contextmanager
            def space() -> Iterator[Opener]:
                with spaces() as open_inner, open_inner() as inner:
                    inner.multi_set({"!before": b"", "~after": b"", prefix[:-1]: b""})
                    yield lambda: PrefixStore(inner, prefix)

            yield space

    return serve_views


def under_guard(serve: Serve) -> Serve:
    """Views of another backend that write under a guard, which is not among the keys they show."""

    @contextmanager
    def serve_views(folder: Path) -> Iterator[Spaces]:
        with serve(folder) as spaces:

            @contextmanager
            def space() -> Iterator[Opener]:
                with spaces() as open_inner, open_inner() as inner:
                    inner.set("guard", b"1")
                    yield lambda: PrefixStore(FencedStore(inner, "guard", b"1"), "r/")

            yield space

    return serve_views


BACKENDS = (
    Backend("memory", memory),
    Backend(
        "prefix(memory)",
        under_prefix("job 1/é", memory),
        key_bytes_max=KEY_BYTES_MAX - len("job 1/é".encode()),
        is_view=True,
    ),
    Backend("file", file),
    Backend("tcp", tcp),
    Backend(
        "prefix(tcp)",
        under_prefix("job 1/é", tcp),
        key_bytes_max=KEY_BYTES_MAX - len("job 1/é".encode()),
        is_view=True,
    ),
    Backend(
        "prefix(fenced(tcp))",
        under_guard(tcp),
        key_bytes_max=KEY_BYTES_MAX - len("r/"),
        has_guard=True,
        is_view=True,
    ),
    Backend("tcp of three", replicated, key_bytes_max=KEY_BYTES_MAX - len("space-0000/")),
    Backend("etcd", etcd),
    Backend("etcd-v2", etcd_v2, atomic_multi_set=False, atomic_guards=False),
)
