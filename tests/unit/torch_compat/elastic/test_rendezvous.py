"""torch's rendezvous handler over our rounds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from torch.distributed import DistNetworkError, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from holdfast.agent import torch_store, vouching
from holdfast.errors import PeerViolation, RendezvousTimedOut
from holdfast.ids import NodeId, RunId
from holdfast.net.address import Address
from holdfast.rendezvous.handler import Rendezvous, Round, RunEnd
from holdfast.rendezvous.model import Failures, Member
from holdfast.rendezvous.port import HeldPort
from holdfast.store.c10d import server as c10d_server
from holdfast.store.c10d.server import C10dServer
from holdfast.store.memory import MemoryStore
from holdfast.torch_compat.elastic.rendezvous import (
    HoldfastRendezvousHandler,
    RoundEndedEarly,
    create_handler,
)


def parameters(**fields: Any) -> RendezvousParameters:
    plain = {
        "backend": "c10d",
        "endpoint": "localhost:0",
        "run_id": "unit",
        "min_nodes": 1,
        "max_nodes": 1,
    }
    return RendezvousParameters(**(plain | fields))


@contextmanager
def handler(**fields: Any) -> Iterator[HoldfastRendezvousHandler]:
    made = create_handler(parameters(**fields))
    assert isinstance(made, HoldfastRendezvousHandler)
    try:
        yield made
    finally:
        made.shutdown()


@contextmanager
def held() -> Iterator[str]:
    """Have an address that no other process gets: a server can bind it all the same."""
    port = HeldPort("127.0.0.1")
    try:
        yield f"127.0.0.1:{port.port}"
    finally:
        port.close()


# A round.


def test_th1_a_round_has_ranks_and_a_store_of_torchs_kind() -> None:
    with handler(run_id="some run", local_addr="127.0.0.1") as one:
        assert (one.get_backend(), one.get_run_id()) == ("c10d", "some run")
        info = one.next_rendezvous()
        assert (info.rank, info.world_size) == (0, 1)
        assert isinstance(info.store, Store)
        info.store.set("key", "value")
        assert info.store.get("key") == b"value"
        master = info.bootstrap_store_info
        assert (info.store.host, info.store.port) == (master.master_addr, master.master_port)
        assert one.use_agent_store
        assert [ranks.rank for ranks in one.exchange("role", 2)] == [0, 1]
        assert one.num_nodes_waiting() == 0


def test_of_two_that_should_host_one_does() -> None:
    both: dict[str, Any] = {"min_nodes": 2, "max_nodes": 2, "is_host": True, "timeout": 60}
    with held() as endpoint, ExitStack() as stack:
        one, other = (stack.enter_context(handler(endpoint=endpoint, **both)) for _ in "ab")
        with ThreadPoolExecutor(1) as pool:
            there = pool.submit(other.next_rendezvous)
            info = one.next_rendezvous()
            infos = [info, there.result(60)]
        assert sorted(each.rank for each in infos) == [0, 1]
        infos[0].store.set("key", "value")
        assert infos[1].store.get("key") == b"value"


def test_th1_no_round_sees_the_keys_of_another() -> None:
    with handler() as one:
        before = one.next_rendezvous().store
        before.set("key", "value")
        assert not one.next_rendezvous().store.check(["key"])


def test_a_port_that_is_taken_is_left_to_the_workers(caplog: pytest.LogCaptureFixture) -> None:
    with C10dServer(Address("127.0.0.1", 0)) as somebody:
        port = somebody.address.port
        one = HoldfastRendezvousHandler(Rounds(here(0, port=port)), "unit")
        info = one.next_rendezvous()
        assert not one.use_agent_store
        assert info.bootstrap_store_info.master_port == port
        info.store.set("key", "value")
        one.leave()
    assert "not served by the agent" in caplog.text


def test_the_workers_store_is_their_own_where_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    with handler() as one:
        info = one.next_rendezvous()
        assert not one.use_agent_store
        assert info.store.port != info.bootstrap_store_info.master_port


def test_a_given_master_is_passed_on_and_served() -> None:
    held = HeldPort("127.0.0.1")
    with handler(backend="static", endpoint=f"localhost:{held.port}", rank=0) as one:
        info = one.next_rendezvous()
        master = info.bootstrap_store_info
        assert (master.master_addr, master.master_port) == ("localhost", held.port)
        assert one.use_agent_store
        assert info.store.port == held.port
        info.store.set("key", "value")
    held.close()


def test_a_given_master_that_is_not_this_host_is_left_to_rank_0() -> None:
    with handler(backend="static", endpoint="192.0.2.1:29500", rank=0) as one:
        info = one.next_rendezvous()
        master = info.bootstrap_store_info
        assert (master.master_addr, master.master_port) == ("192.0.2.1", 29500)
        assert not one.use_agent_store
        info.store.set("key", "value")


def test_agents_of_other_hosts_vouch_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of this host, which take it for several, and its kernel for one that knows nothing."""
    for module in (vouching, torch_store, c10d_server):
        monkeypatch.setattr(module, "is_loopback", lambda host: False)
    monkeypatch.setattr(c10d_server, "judge_owner", lambda ends: None)
    two: dict[str, Any] = {"min_nodes": 2, "max_nodes": 2, "timeout": 60}
    with held() as endpoint, ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        handlers = [stack.enter_context(handler(endpoint=endpoint, **two)) for _ in "ab"]
        infos = list(pool.map(HoldfastRendezvousHandler.next_rendezvous, handlers))
        infos[0].store.set("key", "value")
        assert infos[1].store.get("key") == b"value"


# The end of a run.


def test_th3_a_closed_run_disturbs_no_member_and_admits_no_node() -> None:
    with handler() as one:
        one.next_rendezvous()
        assert not one.is_closed()
        one.finish()
        one.set_closed()
        assert one.is_closed()
        assert one.num_nodes_waiting() == 0
        with pytest.raises(RendezvousClosedError, match="unit"):
            one.next_rendezvous()


def test_th3_a_run_that_has_failed_makes_agents_ask_and_hear_why() -> None:
    with handler() as one:
        one.next_rendezvous()
        one.fail("rank 3 failed")
        assert one.num_nodes_waiting() == 1
        with pytest.raises(RendezvousClosedError, match="rank 3 failed"):
            one.next_rendezvous()


def test_it_is_shut_down_once() -> None:
    one = create_handler(parameters())
    assert one.shutdown()
    assert one.shutdown()


def test_a_run_that_cannot_be_closed_is_left(caplog: pytest.LogCaptureFixture) -> None:
    rounds = Rounds(here(0))
    rounds.trouble = RendezvousTimedOut("no answer")
    assert not HoldfastRendezvousHandler(rounds, "unit").shutdown()
    assert rounds.left
    assert "no answer" in caplog.text


# What goes wrong.


def test_too_few_nodes_are_torchs_timeout() -> None:
    missing = pytest.raises(RendezvousTimeoutError, match="no round within")
    with held() as endpoint:
        both = {"endpoint": endpoint, "min_nodes": 2, "max_nodes": 2}
        with handler(**both, timeout=0.2, close_timeout=1) as one, missing:
            one.next_rendezvous()


def test_a_store_that_is_not_there_is_torchs_error() -> None:
    with held() as endpoint:
        nowhere = parameters(backend="etcd", endpoint=endpoint, timeout=0.2, close_timeout=1)
        with pytest.raises(RendezvousConnectionError, match="etcd"):
            create_handler(nowhere)


def test_other_errors_are_torchs_too() -> None:
    rounds = Rounds(here(0))
    rounds.trouble = PeerViolation("nonsense")
    with pytest.raises(RendezvousStateError, match="nonsense"):
        HoldfastRendezvousHandler(rounds, "unit").set_closed()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="rank is absent"):
        create_handler(parameters(backend="static", endpoint="127.0.0.1:1"))
    with pytest.raises(ValueError, match="must be a number of seconds"):
        create_handler(parameters(timeout="soon"))
    with handler() as one, pytest.raises(RendezvousStateError, match="no round"):
        one.exchange("role", 1)


def test_a_last_call_longer_than_the_time_to_join_has_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = {"join_timeout": 5, "last_call_timeout": 30}
    caplog.set_level(logging.WARNING)
    with held() as endpoint, handler(max_nodes=2, endpoint=endpoint, **times) as one:
        assert one.get_backend() == "c10d"
    assert "last_call_timeout: has no effect" in caplog.text


def test_what_we_do_not_know_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), handler(use_libuv=True) as one:
        assert one.next_rendezvous().rank == 0
    assert "use_libuv: has no effect" in caplog.text


# Rounds that end before they begin.


def here(rank: int, size: int = 2, port: int = 0) -> Round:
    store = MemoryStore()
    members = tuple(
        Member(NodeId(f"n{number}"), "host", "127.0.0.1", port) for number in range(size)
    )
    return Round(
        number=1,
        rank=rank,
        world_size=size,
        store=store,
        board=store,
        master_address="127.0.0.1",
        master_port=port,
        members=members,
        reason="",
    )


class Rounds(Rendezvous):
    """Rounds that were prepared; all but the last are over at once."""

    def __init__(self, *rounds: Round) -> None:
        self.backend, self.run_id, self.endpoint = "c10d", RunId("unit"), ""
        self.rounds = list(rounds)
        self.asked: list[str] = []
        self.gone: str | None = None
        self.trouble: Exception | None = None
        self.left = False

    def next_round(self, why: str = "", *, timeout: float | None = None) -> Round:
        self.asked.append(why)
        self.gone = f"round {len(self.asked)} is over" if len(self.rounds) > 1 else None
        return self.rounds.pop(0)

    def over(self) -> str | None:
        return self.gone

    def nodes_waiting(self) -> int:
        return 0

    def count_failure(self, *, timeout: float | None = 30.0) -> Failures:
        raise NotImplementedError

    def closed(self) -> str | None:
        return None

    def ended(self) -> RunEnd | None:
        return None

    def close(self, reason: str = "closed", *, failed: bool = False) -> None:
        if self.trouble is not None:
            raise self.trouble

    def shutdown(self) -> bool:
        self.left = True
        return True


def test_a_round_that_ends_before_all_have_met_is_followed_by_the_next() -> None:
    rounds = Rounds(here(1), here(0))
    one = HoldfastRendezvousHandler(rounds, "unit")
    assert one.next_rendezvous().rank == 0
    assert rounds.asked == ["", "round 1 is over"]
    rounds.rounds.append(here(0))
    one.next_rendezvous()
    assert rounds.asked[2:] == [""]  # that one is forgotten
    rounds.gone = "somebody died"
    assert one.num_nodes_waiting() == 1
    with pytest.raises(RoundEndedEarly):
        one.exchange("role", 1)
    one.leave()


def nobody_at_home(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, gone: str | None
) -> HoldfastRendezvousHandler:
    """Make a handler that finds no store where there should be one, and its round gone then."""
    first = rounds.rounds[0]
    first.store.set("torch", b"1 127.0.0.1:1", timeout=60)

    def connect(host: str, port: int, **options: Any) -> TCPStore:
        if port != 1:
            return TCPStore(host, port, **options)
        rounds.gone = gone
        raise DistNetworkError("refused")

    monkeypatch.setattr("holdfast.torch_compat.elastic.rendezvous.TCPStore", connect)
    return HoldfastRendezvousHandler(rounds, "unit")


def test_a_round_whose_store_dies_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves TH-2."""

    class Lasting(Rounds):
        def next_round(self, why: str = "", *, timeout: float | None = None) -> Round:
            found = super().next_round(why)
            self.gone = None
            return found

    rounds = Lasting(here(1), here(0))
    one = nobody_at_home(rounds, monkeypatch, "its host died")
    assert one.next_rendezvous().rank == 0
    assert rounds.asked == ["", "its host died"]
    one.leave()


def test_a_store_that_is_not_there_while_its_round_lasts_is_torchs_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Proves TH-4."""
    one = nobody_at_home(Rounds(here(1)), monkeypatch, None)
    monkeypatch.setattr("holdfast.torch_compat.elastic.rendezvous.MEET_WITHIN_S", 0.05)
    with pytest.raises(RendezvousConnectionError, match="no connection to the round's store"):
        one.next_rendezvous()


def test_a_silent_server_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.torch_compat.elastic.rendezvous.MEET_WITHIN_S", 0.05)
    with pytest.raises(RendezvousTimeoutError):
        HoldfastRendezvousHandler(Rounds(here(1)), "unit").next_rendezvous()
