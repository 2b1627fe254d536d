"""torch's etcd server by ours."""

from __future__ import annotations

import urllib.request

import pytest

from holdfast.errors import UsageError
from holdfast.torch_compat.elastic.etcd import EtcdServer


def test_it_serves_until_it_is_stopped() -> None:
    server = EtcdServer()
    with pytest.raises(RuntimeError, match="No etcd server process started"):
        server.get_endpoint()
    server.start(timeout=60)
    try:
        assert server.get_endpoint() == f"{server.get_host()}:{server.get_port()}"
        with urllib.request.urlopen(f"http://{server.get_endpoint()}/version", timeout=30) as said:
            assert b"etcdserver" in said.read()
        with pytest.raises(UsageError, match="started already"):
            server.start()
    finally:
        server.stop()
        server.stop()


def test_a_client_needs_its_library() -> None:
    with pytest.raises(ImportError, match="etcd"):
        EtcdServer().get_client()
