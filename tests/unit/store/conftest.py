"""Fixtures: one real etcd for all tests of the stores on it, and a prefix for each test."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import pytest

from holdfast.net.address import Address
from holdfast.store.etcd.local_server import LocalEtcdServer
from tests.unit.store.etcd.proxy import Proxy

_numbers = itertools.count()


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[LocalEtcdServer]:
    with LocalEtcdServer() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"test-{next(_numbers)}"


@pytest.fixture
def proxy(etcd_server: LocalEtcdServer) -> Iterator[Proxy]:
    """A proxy in front of the etcd, which can lose requests and replies."""
    with Proxy(etcd_server.addresses[0]) as made:
        yield made


@pytest.fixture
def unused() -> Iterator[Address]:
    """An address without a listener, which no other process can get."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield Address("127.0.0.1", sock.getsockname()[1])
