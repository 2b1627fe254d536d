"""Where the workers of a job meet: what each way to say so means."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.clock import Deadline
from holdfast.errors import UsageError
from holdfast.net.address import Address
from holdfast.rpc.bootstrap import Bootstrap, bootstrap
from holdfast.store.memory import MemoryStore
from holdfast.store.open import serve_store
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import Store


def met(
    stack: ExitStack,
    variables: dict[str, str] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    method: str | None = None,
    store: Store | None = None,
) -> Bootstrap:
    home = {name: os.environ[name] for name in ("HOME", "XDG_STATE_HOME") if name in os.environ}
    return bootstrap(
        stack, home | (variables or {}), rank, world_size, method, store, Deadline.after(20.0)
    )


SECRET = {"HOLDFAST_SECRET": "a secret of all hosts of this job"}


def heard_as(target: str) -> str:
    """Return by which address this host reaches another one; empty if it cannot."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((target, 1))
            return str(sock.getsockname()[0])
    except OSError:
        return ""


def test_a_given_store() -> None:
    store = MemoryStore()
    with ExitStack() as stack:
        meeting = met(stack, {"RANK": "3"}, store=store, rank=1, world_size=2)
    assert meeting.store is store
    assert (meeting.rank, meeting.world_size) == (1, 2)
    assert (meeting.prefix, meeting.host, meeting.serves) == ("rpc/", "", False)


def test_a_given_store_that_other_hosts_reach() -> None:
    """Then workers of other hosts may come, wherever the store was opened."""

    class Elsewhere(MemoryStore):
        addresses = (Address("127.0.0.1", 1), Address("192.0.2.1", 2))

    store = PrefixStore(Elsewhere(), "mine/")
    with ExitStack() as stack:
        with pytest.raises(UsageError, match=r"tcp://192.0.2.1:2 can be reached .* secret"):
            met(stack, store=store, rank=1)
        meeting = met(stack, SECRET, store=store, rank=1)
    assert meeting.host == heard_as("192.0.2.1")


@pytest.mark.parametrize("name", ["0.0.0.0", "localhost.localdomain"])
def test_an_address_that_means_every_host_itself_brings_no_others(name: str) -> None:
    class Anywhere(MemoryStore):
        addresses = (Address(name, 1),)

    with ExitStack() as stack:
        assert met(stack, SECRET, store=Anywhere(), rank=1).host == ""


def test_the_first_one_serves_an_address() -> None:
    with serve_store() as free:
        endpoint = free.endpoint
    with ExitStack() as stack:
        first = met(stack, method=endpoint, rank=0, world_size=2)
        assert first.serves
        second = met(stack, method=endpoint, rank=1, world_size=2)
        assert not second.serves
        first.store.set("x", b"1")
        assert second.store.get("x") == b"1"
        assert first.key == second.key
        assert first.host == ""  # no worker comes from another host


def test_a_file(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (met(stack, method=f"file://{tmp_path}/f", rank=rank) for rank in (0, 1))
        assert not first.serves
        first.store.set("x", b"1")
        assert second.store.get("x") == b"1"


def test_the_environment_of_a_job() -> None:
    with serve_store() as server, ExitStack() as stack:
        variables = {
            "HOLDFAST_STORE": server.endpoint,
            "TORCHELASTIC_RUN_ID": "run7",
            "HOLDFAST_ROUND": "3",
            "MASTER_ADDR": "no.such.host",
            "MASTER_PORT": "1",
            "RANK": "0",
            "WORLD_SIZE": "4",
        }
        meeting = met(stack, variables)
        assert (meeting.rank, meeting.world_size, meeting.serves) == (0, 4, False)
        assert meeting.prefix == "rpc/run7/3/"  # another round is another world
        assert met(stack, variables, rank=2, world_size=3).rank == 2  # what is said counts more


def test_the_environment_of_torch() -> None:
    with serve_store() as server, ExitStack() as stack:
        address = server.endpoint.removeprefix("tcp://")
        host, _, port = address.rpartition(":")
        variables = {"MASTER_ADDR": host, "MASTER_PORT": port, "RANK": "1", "WORLD_SIZE": "2"}
        meeting = met(stack, variables)
        assert (meeting.rank, meeting.world_size) == (1, 2)
        meeting.store.set("x", b"1")


def test_other_ways_do_not_look_at_the_environment(tmp_path: Path) -> None:
    with ExitStack() as stack:
        meeting = met(stack, {"RANK": "x", "WORLD_SIZE": "y"}, method=f"file://{tmp_path}/f")
        assert (meeting.rank, meeting.world_size) == (None, None)


def test_several_addresses_are_those_of_a_store_that_no_worker_serves() -> None:
    with ExitStack() as stack:
        one = stack.enter_context(serve_store())
        for _ in range(2):
            stack.enter_context(serve_store(join=one.endpoint))
        meeting = met(stack, method=f"tcp://{','.join(one.members)}", rank=0, world_size=1)
        assert not meeting.serves
        meeting.store.set("x", b"1")
        assert len(meeting.store.addresses) == 3


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("http://x", "init_method 'http://x': must be tcp://host:port, file:///path or env://"),
        ("here", "init_method 'here': must be"),
        ("env://", "neither HOLDFAST_STORE nor MASTER_ADDR and MASTER_PORT are set"),
        ("tcp://", "endpoint 'tcp://': write tcp://host:port"),
    ],
)
def test_what_is_no_place(method: str, said: str) -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match=said):
        met(stack, method=method)


def test_an_address_that_is_open_to_others_needs_a_secret() -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="secret"):
        met(stack, method="tcp://0.0.0.0:0", rank=0)
