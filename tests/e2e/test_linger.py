"""Leases that linger: they end with their holder's process, and outlive a cut connection."""

from __future__ import annotations

import signal

import pytest

from holdfast.store.store import Store
from tests.unit.store.tcp_parts import Proxy, line_of, new_client, new_server, python

TIMEOUT_S = 30.0
LONG_TTL_S = 3600.0

HOLDER = """
import sys
from holdfast.net.address import parse_address
from tests.unit.store.tcp_parts import new_client
store = new_client(parse_address(sys.argv[1]))
lease = store.grant_lease(3600.0, linger=float(sys.argv[2]))
store.multi_set({"a": b"1", "b": b"2"}, lease=lease)
print("held", flush=True)
sys.stdin.read()
store.close()
"""


def await_end(store: Store, key: str) -> None:
    """Return when a key is gone; far before any lease here ends by its time."""
    with store.watch(key) as watch:
        # What exists comes first; a key that is gone already is not told.
        while store.get(key) is not None:
            watch.next(TIMEOUT_S)


@pytest.mark.parametrize("linger", [0.0, 0.2])
def test_the_keys_of_a_killed_process_vanish_although_their_lease_is_long(linger: float) -> None:
    with new_server() as server, new_client(server.address) as store:
        with python(HOLDER, str(server.address), str(linger)) as holder:
            assert line_of(holder) == "held"
            assert store.multi_get(["a", "b"]) == [b"1", b"2"]
            holder.send_signal(signal.SIGKILL)
            await_end(store, "a")
        assert store.get("b") is None


def test_a_process_that_closes_its_store_is_gone_as_soon() -> None:
    with (
        new_server() as server,
        new_client(server.address) as store,
        python(HOLDER, str(server.address), "0.2") as holder,
    ):
        assert line_of(holder) == "held"
        assert holder.stdin is not None
        holder.stdin.close()
        await_end(store, "a")
        assert holder.wait(TIMEOUT_S) == 0


def test_a_client_that_comes_back_keeps_its_lease() -> None:
    with (
        new_server() as server,
        Proxy(server.address) as proxy,
        new_client(server.address) as store,
        new_client(proxy.address) as held,
    ):
        neighbour = new_client(server.address)
        for client, key in ((held, "mine"), (neighbour, "neighbour's")):
            lease = client.grant_lease(LONG_TTL_S, linger=5.0)
            client.set(key, b"", lease=lease)
        proxy.cut()
        assert held.get("mine") == b""  # by another connection
        assert proxy.connections == 2
        neighbour.close()
        # Had nothing kept it, the lease that was cut first would have ended first.
        await_end(store, "neighbour's")
        assert store.get("mine") == b""


def test_a_client_that_stays_away_loses_it() -> None:
    with (
        new_server() as server,
        Proxy(server.address) as proxy,
        new_client(server.address) as store,
        new_client(proxy.address) as held,
    ):
        held.set("mine", b"", lease=held.grant_lease(LONG_TTL_S, linger=0.2))
        proxy.refuse(True)
        await_end(store, "mine")
