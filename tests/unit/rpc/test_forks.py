"""A forked child has no part in our connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.rpc.link import Link, LinkClosed
from holdfast.rpc.messages import Kind, Message
from tests.unit.rpc.world import forked

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    one, other = socket.socketpair()
    with one, other:
        yield Link(one), Link(other)


def test_fk1_what_the_child_closes_is_not_ours(links: tuple[Link, Link]) -> None:
    here, there = links
    with forked(here.close):
        here.send(Message(Kind.REPLY, 1))
        assert there.receive().call == 1


def test_fk1_the_end_is_noticed_though_the_child_lives(links: tuple[Link, Link]) -> None:
    here, there = links
    with forked(lambda: None):
        here._sock.close()  # as the end of our process does
        there.set_limit(SYSTEM_CLOCK.monotonic() + 30.0)
        with pytest.raises(LinkClosed):
            there.receive()
