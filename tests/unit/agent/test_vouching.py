"""Agents of a round that vouch for connections to torch's store."""

from __future__ import annotations

import logging
import os
import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.agent import vouching
from holdfast.agent.vouching import NODES_PER_WRITE, QUESTIONS_MAX, Inquiry, Witness
from holdfast.clock import Deadline
from holdfast.errors import Fenced, StoreUnavailable, Unavailable
from holdfast.net import owner
from holdfast.net.address import Address
from holdfast.net.owner import Ends
from holdfast.rendezvous.handler import Round
from holdfast.store.c10d.server import UNAUTHENTICATED_MAX, VOUCH_WITHIN_S
from holdfast.store.fenced import FencedStore
from holdfast.store.memory import MemoryStore
from holdfast.store.prefix import PrefixStore
from holdfast.testing.clock import ManualClock

WITHIN_S = 30.0
MASTER = Address("127.0.0.1", 29500)
HOST = socket.gethostname()
OTHER_USER = 54321


def soon() -> Deadline:
    return Deadline.after(WITHIN_S)


class Nodes:
    """The places of the nodes of a round."""

    def __init__(self, size: int = 3) -> None:
        self.size = size
        self.store = MemoryStore()
        self.store.set("round", b"7")

    def __call__(self, rank: int) -> Round:
        return Round(
            number=7,
            rank=rank,
            world_size=self.size,
            store=PrefixStore(FencedStore(self.store, "round", b"7"), "r7/"),
            board=self.store,
            master_address=MASTER.host,
            master_port=MASTER.port,
            members=(),
            reason="",
        )


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Yield places of nodes of one host, which take it for several."""
    monkeypatch.setattr(vouching, "is_loopback", lambda host: False)
    nodes = Nodes()
    yield nodes
    nodes.store.close()


@contextmanager
def witness(here: Round) -> Iterator[None]:
    one = Witness(here)
    one.start(MASTER, soon())
    try:
        yield
    finally:
        one.close()
        one.close()


@contextmanager
def inquiry(here: Round, **options: Any) -> Iterator[Callable[[Ends], Callable[[], str]]]:
    """Yield a function that asks; it returns one that waits for the answer."""
    one = Inquiry(here, **options)

    def ask(ends: Ends) -> Callable[[], str]:
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        one(ends, answers.put)
        return lambda: answers.get(timeout=WITHIN_S)

    try:
        yield ask
    finally:
        one.close()
        one.close()


@contextmanager
def connections(number: int = 1) -> Iterator[list[Ends]]:
    """Yield the addresses of connections that this process holds."""
    held = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(number):
            held.append(socket.create_connection(server.getsockname(), WITHIN_S))
            held.append(server.accept()[0])
        yield [Ends.of_accepted(one) for one in held[1::2]]
    for one in held:
        one.close()


def gone() -> Ends:
    """Return the addresses of a connection that no process holds any more."""
    with connections() as [ends]:
        return ends


def test_vo1_a_connection_of_the_agents_user_is_vouched_for(nodes: Nodes) -> None:
    with witness(nodes(1)), inquiry(nodes(0)) as ask, connections(5) as held:
        assert ask(held[0])() == ""
        answers = [ask(ends) for ends in held[1:]]
        assert [answer() for answer in answers] == [""] * 4


def test_vo1_a_connection_of_another_user_is_not(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "owner_of", lambda ends: OTHER_USER)
    with witness(nodes(1)), inquiry(nodes(0)) as ask, connections() as [ends]:
        assert ask(ends)() == f"on {HOST}: it belongs to user {OTHER_USER}, not to {os.geteuid()}"


def test_vo1_a_connection_that_its_host_does_not_know_is_not(nodes: Nodes) -> None:
    with witness(nodes(1)), inquiry(nodes(0)) as ask:
        assert ask(gone())() == f"on {HOST}: no process there holds its other end"


def test_vo1_an_address_without_an_agent_is_not_vouched_for(nodes: Nodes) -> None:
    stranger = Ends(Address("192.0.2.7", 4711), MASTER)
    with witness(nodes(1)), inquiry(nodes(0)) as ask, connections() as [ends]:
        assert ask(stranger)().startswith("no agent of this round is at 192.0.2.7 to vouch for it")
        assert ask(ends)() == ""


def test_a_kernel_that_does_not_tell_vouches_for_no_connection(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(ends: Ends) -> str | None:
        raise Unavailable("it does not tell")

    monkeypatch.setattr(vouching, "judge_owner", refuse)
    with witness(nodes(1)), inquiry(nodes(0)) as ask, connections() as [ends]:
        assert ask(ends)() == f"on {HOST}: it does not tell"


def test_vo2_of_several_agents_at_an_address_one_is_enough(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"holdfast-witness": iter(["not mine", ""])}
    monkeypatch.setattr(vouching, "_verdict", lambda ends: next(told["holdfast-witness"]))
    with (
        witness(nodes(1)),
        witness(nodes(2)),
        inquiry(nodes(0)) as ask,
        connections() as [ends],
    ):
        assert ask(ends)() == ""


def test_vo2_all_agents_at_an_address_have_to_refuse(nodes: Nodes) -> None:
    with witness(nodes(1)), witness(nodes(2)), inquiry(nodes(0)) as ask:
        assert "holds its other end" in ask(gone())()


def test_vo2_a_round_that_is_over_vouches_for_no_connection(nodes: Nodes) -> None:
    with witness(nodes(1)), inquiry(nodes(0)) as ask, connections(2) as held:
        assert ask(held[0])() == ""
        nodes.store.set("round", b"8")
        assert ask(held[1])().startswith("its host could not be asked: ")
    with pytest.raises(Fenced):
        Witness(nodes(1)).start(MASTER, soon())


def test_vo3_so_many_questions_wait_and_no_more(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vouching, "QUESTIONS_MAX", 2)
    clock = ManualClock()
    nodes.store.set("r7/from/1", b"127.0.0.1")  # and it never answers
    with inquiry(nodes(0), clock=clock) as ask, connections(4) as held:
        for ends in held[:2]:
            ask(ends)
        assert ask(held[2])() == "2 connections already wait for their hosts to vouch for them"


def test_vo3_what_has_waited_too_long_is_asked_no_more(nodes: Nodes) -> None:
    clock = ManualClock()
    nodes.store.set("r7/from/1", b"127.0.0.1 127.0.0.9")
    with (
        inquiry(nodes(0), clock=clock) as ask,
        connections(2) as held,
        nodes.store.watch("r7/ask/1") as asked,
    ):
        ask(held[0])
        assert asked.next(WITHIN_S).value == f"1 {held[0].client} {held[0].server}".encode()
        clock.advance(VOUCH_WITHIN_S + 1)
        ask(held[1])
        assert asked.next(WITHIN_S).value == f"2 {held[1].client} {held[1].server}".encode()


def test_many_nodes_are_asked_by_writes_that_every_store_takes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.size = 2 * NODES_PER_WRITE
    here, written = nodes(0), queue.SimpleQueue[int]()
    monkeypatch.setattr(here.store, "multi_set", lambda items, **_: written.put(len(items)))
    asked = [Ends(Address(f"10.0.0.{n}", n), MASTER) for n in range(1, nodes.size)]
    for node, ends in enumerate(asked, 1):
        nodes.store.set(f"r7/from/{node}", ends.client.host.encode())
    with inquiry(here) as ask:
        for ends in asked:
            ask(ends)
        left = len(asked)
        while left:
            number = written.get(timeout=WITHIN_S)
            assert number <= NODES_PER_WRITE
            left -= number


@pytest.mark.parametrize("nonsense", [b"\xff", b"x y", b"1", b"1 here there"])
def test_questions_and_answers_that_make_no_sense_change_nothing(
    nodes: Nodes, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "holdfast.agent"),
        witness(nodes(1)),
        inquiry(nodes(0)) as ask,
        connections(2) as held,
        nodes.store.watch("r7/told/1") as told,
    ):
        nodes.store.set("r7/ask/1", nonsense)
        nodes.store.set("r7/told/1", b"x y")
        assert told.next(WITHIN_S).value == b"x y"
        assert ask(held[0])() == ""
        nodes.store.set("r7/told/5", b"2 ")  # it was not asked
        nodes.store.set("r7/told/x", b"2 ")
        nodes.store.set("r7/from/x", b"127.0.0.3")
        nodes.store.set("r7/told/1", b"\xff")
        assert ask(held[1])() == ""


def test_a_node_of_the_same_host_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes()
    with witness(nodes(1)):
        assert nodes.store.list_prefix("r7/") == []
    nodes.store.close()


def test_a_store_that_fails_is_told(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = nodes(1)
    fails = [True]
    set_ = here.store.set

    def fail(key: str, value: bytes, **options: Any) -> int:
        if key.startswith("told/") and fails:
            raise StoreUnavailable(f"no way {fails.pop()}")
        return set_(key, value, **options)

    monkeypatch.setattr(here.store, "set", fail)
    with (
        caplog.at_level(logging.WARNING, "holdfast.agent"),
        witness(here),
        inquiry(nodes(0)) as ask,
        connections(2) as held,
        nodes.store.watch("r7/told/1") as told,
    ):
        first = ask(held[0])
        while "was not answered: no way" not in caplog.text:
            with pytest.raises(Exception, match="deadline|time"):
                told.next(0.01)
        second = ask(held[1])
        assert (first(), second()) == ("", "")


def test_an_end_of_the_store_ends_both(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    with witness(nodes(1)), inquiry(nodes(0)) as ask, connections() as [ends]:
        assert ask(ends)() == ""
        nodes.store.close()


def test_the_limit_is_that_of_unauthenticated_connections_of_a_torch_store() -> None:
    assert QUESTIONS_MAX == UNAUTHENTICATED_MAX
