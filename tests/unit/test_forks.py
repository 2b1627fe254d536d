"""What a forked child does to what it inherits."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.forks import in_child
from holdfast.rpc.wire.connection import Connection, ConnectionEnded
from holdfast.rpc.wire.messages import Kind, Message
from tests.unit.rpc.world import forked

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def connections() -> Iterator[tuple[Connection, Connection]]:
    one, other = socket.socketpair()
    with one, other:
        yield Connection(one), Connection(other)


def test_fk1_what_the_child_closes_is_not_ours(connections: tuple[Connection, Connection]) -> None:
    here, there = connections
    with forked(here.close):
        here.send(Message(Kind.REPLY, 1))
        assert there.receive().call == 1


def test_fk1_the_end_is_noticed_though_the_child_lives(
    connections: tuple[Connection, Connection],
) -> None:
    here, there = connections
    with forked(lambda: None):
        here._sock.close()  # as the end of our process does
        there.set_limit(SYSTEM_CLOCK.monotonic() + 30.0)
        with pytest.raises(ConnectionEnded):
            there.receive()


class Owner:
    def __init__(self, seen: list[Owner]) -> None:
        self.seen = seen
        in_child(self, Owner.note)

    def note(self) -> None:
        self.seen.append(self)


def test_fk2_objects_that_exist_are_treated_in_order_and_not_kept(tmp_path: Path) -> None:
    seen: list[Owner] = []
    first, dropped, last = Owner(seen), Owner(seen), Owner(seen)
    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert gone() is None

    def tell() -> None:
        (tmp_path / "seen").write_text(str([one is first for one in seen] + [seen[-1] is last]))

    with forked(tell):
        assert (tmp_path / "seen").read_text() == "[True, False, True]"
    assert seen == []
