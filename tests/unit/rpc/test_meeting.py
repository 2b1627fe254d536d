"""Where the workers of a job meet: what each way to say so means."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.clock import Deadline
from holdfast.errors import UsageError
from holdfast.rpc.meeting import Meeting, meet
from holdfast.store.memory import MemoryStore
from holdfast.store.open import serve_store
from holdfast.store.store import Store


def met(
    stack: ExitStack,
    variables: dict[str, str] | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    method: str | None = None,
    store: Store | None = None,
) -> Meeting:
    home = {name: os.environ[name] for name in ("HOME", "XDG_STATE_HOME") if name in os.environ}
    return meet(
        stack, home | (variables or {}), rank, world_size, method, store, Deadline.after(20.0)
    )


def test_a_given_store() -> None:
    store = MemoryStore()
    with ExitStack() as stack:
        meeting = met(stack, {"RANK": "3"}, store=store, rank=1, world_size=2)
    assert meeting.store is store
    assert (meeting.rank, meeting.world_size) == (1, 2)
    assert (meeting.prefix, meeting.host, meeting.serves) == ("rpc/", "", False)


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
        assert first.host == ""  # nobody comes from another host


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


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("http://x", "init_method 'http://x': must be tcp://host:port, file:///path or env://"),
        ("here", "init_method 'here': must be"),
        ("env://", "neither HOLDFAST_STORE nor MASTER_ADDR and MASTER_PORT are set"),
        ("tcp://", "init_method 'tcp://': must be tcp://host:port, with one address"),
    ],
)
def test_what_is_no_place(method: str, said: str) -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match=said):
        met(stack, method=method)


def test_an_address_that_is_open_to_others_needs_a_secret() -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="secret"):
        met(stack, method="tcp://0.0.0.0:0", rank=0)
