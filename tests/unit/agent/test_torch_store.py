"""Torch's store at the master's address of a round."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.agent.torch_store import master_of, open_torch_store, serve_master
from holdfast.net.address import Address
from holdfast.rendezvous.handler import Round
from holdfast.rendezvous.port import HeldPort
from holdfast.store.memory import MemoryStore
from tests.unit.agent.troupe import a_job

LEFT_TO_RANK_0 = "torch's store is not served by the agent but by rank 0: "


@pytest.fixture
def port() -> Iterator[int]:
    held = HeldPort("127.0.0.1")
    yield held.port
    held.close()


def a_round(port: int, **changes: Any) -> Round:
    given: dict[str, Any] = {
        "number": 1,
        "rank": 0,
        "world_size": 2,
        "store": MemoryStore(),
        "board": MemoryStore(),
        "master_address": "127.0.0.1",
        "master_port": port,
        "members": (),
        "reason": "",
    }
    return Round(**given | changes)


def is_served(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_node_0_serves_the_master_of_the_round_and_no_other_node_does(port: int) -> None:
    assert open_torch_store(a_job(torch_store=True), a_round(port, rank=1)) is None
    assert open_torch_store(a_job(torch_store=False), a_round(port)) is None
    assert not is_served(port)
    torch_store = open_torch_store(a_job(torch_store=True), a_round(port))
    assert torch_store is not None
    assert is_served(port)
    torch_store.close()
    assert not is_served(port)


def test_a_given_master_is_served_in_place_of_the_rounds(port: int) -> None:
    job = a_job(torch_store=True, master_address="localhost", master_port=port)
    here = a_round(1, master_address="192.0.2.1")
    assert master_of(job, here) == Address("localhost", port)
    torch_store = open_torch_store(job, here)
    assert torch_store is not None
    assert torch_store.address.port == port
    torch_store.close()


@pytest.mark.parametrize(
    ("master", "why"),
    [
        (Address("192.0.2.1", 29500), "cannot listen on 192.0.2.1:29500: "),
        (Address("a..b", 29500), "cannot resolve 'a..b': not a host name"),
        (Address("127.0.0.1", 0), "cannot listen on 127.0.0.1:0: workers would not know the port"),
    ],
)
def test_a_master_that_cannot_be_bound_here_is_left_to_rank_0(
    master: Address, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert serve_master(master, a_round(0)) is None
    [line] = caplog.messages
    assert line.startswith(LEFT_TO_RANK_0 + why)
    caplog.clear()
    assert serve_master(master, a_round(0), again=True) is None
    assert caplog.messages == []  # a job says it once


def test_a_port_that_is_taken_is_left_to_rank_0(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert serve_master(Address(*server.getsockname()), a_round(0)) is None
    assert "Address already in use" in caplog.text
