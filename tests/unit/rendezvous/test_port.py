"""Ports that are held, and the address that others see."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from holdfast.errors import UsageError
from holdfast.rendezvous.port import HeldPort, free_port


def test_a_held_port_is_not_assigned_by_chance_and_a_server_can_bind_it() -> None:
    held = HeldPort("127.0.0.1")
    try:
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", held.port))
        with socket.socket() as server, socket.socket() as client:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", held.port))
            server.listen()
            client.connect(("127.0.0.1", held.port))
    finally:
        held.close()
        held.close()
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        plain.bind(("127.0.0.1", held.port))


def test_torchs_store_can_take_a_held_port() -> None:
    held = HeldPort("127.0.0.1")
    code = (
        "import sys, torch.distributed as d\n"
        "s = d.TCPStore('127.0.0.1', int(sys.argv[1]), 1, True, wait_for_workers=False)\n"
        "s.set('k', 'v'); print(s.get('k').decode())"
    )
    try:
        command = [sys.executable, "-c", code, str(held.port)]
        assert subprocess.check_output(command, text=True, timeout=60) == "v\n"
    finally:
        held.close()


@pytest.mark.parametrize("address", ["203.0.113.7", "2001:db8::1", "300.1.1.1"])
def test_an_address_that_is_not_ours_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=rf"^local address '{address}': cannot be bound here: "):
        HeldPort(address)


def test_a_port_that_a_server_has_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert free_port("127.0.0.1", port) == 0
    assert free_port("127.0.0.1", port) == port
    assert free_port("no.such.host.invalid", port) == 0
