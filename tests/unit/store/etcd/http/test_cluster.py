"""Lanes move from member to member, pause between the rounds, and give up at the deadline."""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import StoreUnavailable, TimeoutExpired, UsageError
from holdfast.net.address import Address
from holdfast.net.tls import load_client_tls
from holdfast.store.etcd.http.cluster import (
    ATTEMPT_S,
    EtcdClient,
    Retries,
    backoff_s,
    still_missing,
)
from holdfast.store.etcd.http.connection import HttpRequest, Lost, NoAnswer, NotSent
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.testing.clock import ManualClock
from tests.unit.net.certificates import Certificates
from tests.unit.store.etcd.fakes import answering, http

HEALTH = HttpRequest("GET", "/health")
TIMEOUT_S = 30.0


def client_of(*addresses: Address, seed: int = 0) -> EtcdClient:
    return EtcdClient("etcd://test", addresses, random.Random(seed))


def ask(client: EtcdClient, retries: Retries) -> int:
    """Ask until a member answers; return the number of attempts."""
    with client.lane() as lane:
        for attempts in itertools.count(1):
            try:
                assert client.exchange(lane, HEALTH, retries.attempt()).status == 200
            except NotSent as error:
                retries.failed(error)
            else:
                return attempts
    raise AssertionError


def test_an_address_is_needed() -> None:
    with pytest.raises(UsageError, match="an address is missing"):
        client_of()


@pytest.mark.parametrize("seed", range(6))
def test_a_lane_moves_on_from_a_member_that_is_away(
    etcd_server: LocalEtcdServer, unused: Address, seed: int
) -> None:
    client = client_of(unused, etcd_server.addresses[0], unused, seed=seed)
    retries = client.retries("test", Deadline.after(TIMEOUT_S), writes=True)
    assert ask(client, retries) <= 3
    assert not retries.lost
    assert ask(client, retries) == 1
    assert client.new_connection().address == etcd_server.addresses[0]
    client.close()


def test_an_answer_of_trouble_is_lost_and_the_next_member_asked() -> None:
    with answering(http(503, b'{"message": "etcdserver: no leader"}')) as address:
        client = client_of(address, address)
        with client.lane() as lane:
            before = lane.member
            with pytest.raises(Lost, match="no leader"):
                client.exchange(lane, HEALTH, Deadline.after(TIMEOUT_S))
            assert lane.member != before
        client.close()


def test_lanes_are_lent_again_and_made_when_all_are_out(etcd_server: LocalEtcdServer) -> None:
    client = client_of(*etcd_server.addresses)
    with client.lane() as first, client.lane() as second:
        assert first is not second
    with client.lane() as third:
        assert third in (first, second)
    assert len(client.close()) == 2


def test_giving_up_says_what_failed(unused: Address) -> None:
    client = client_of(unused)
    failure = NotSent("cannot connect", address="a:1")
    with pytest.raises(StoreUnavailable, match="setting: cannot connect") as unavailable:
        client.retries("setting", Deadline.after(0), writes=True).failed(failure)
    assert not unavailable.value.maybe_applied
    assert unavailable.value.address == "a:1"
    with pytest.raises(TimeoutExpired, match="setting: silence") as expired:
        client.retries("setting", Deadline.after(0), writes=True).failed(NoAnswer("silence"))
    assert expired.value.maybe_applied
    with pytest.raises(TimeoutExpired) as expired:
        client.retries("reading", Deadline.after(0), writes=False).failed(NoAnswer("silence"))
    assert not expired.value.maybe_applied
    with pytest.raises(TimeoutExpired, match="no time"):
        client.retries("reading", Deadline.after(0), writes=False).attempt()


def test_attempts_get_longer_with_each_round() -> None:
    clock = ManualClock()
    address = Address("127.0.0.1", 1)
    client = EtcdClient("etcd://test", [address, address], random.Random(1), clock)
    retries = client.retries("test", Deadline.after(3600, clock), writes=False)
    lengths = []
    for _ in range(6):
        lengths.append(retries.attempt().remaining())
        retries.failed(NotSent("away"))
    assert lengths == [ATTEMPT_S, ATTEMPT_S, 2 * ATTEMPT_S, 2 * ATTEMPT_S] + [4 * ATTEMPT_S] * 2


def test_pauses_grow_with_jitter_and_have_a_limit() -> None:
    rng = random.Random(7)
    pauses = [backoff_s(rounds, rng) for rounds in range(1, 40)]
    assert 0.01 <= pauses[0] <= 0.02
    assert all(0.5 <= pause <= 1.0 for pause in pauses[10:])
    assert len(set(pauses)) == len(pauses)


def test_a_cluster_that_is_away_costs_few_attempts(unused: Address) -> None:
    client = client_of(unused)
    retries = client.retries("test", Deadline.after(0.5), writes=False)
    with pytest.raises(StoreUnavailable):
        ask(client, retries)
    assert retries._failures < 12
    client.close()


def test_closing_wakes_threads_that_back_off_and_that_read() -> None:
    with answering(b"", hang=True) as address, ThreadPoolExecutor() as pool:
        client = client_of(address)
        pausing = pool.submit(client.pause, 3600.0, Deadline(None))
        borrowed = threading.Event()

        def read() -> None:
            with client.lane() as lane:
                lane.connection.open(Deadline.after(TIMEOUT_S))
                borrowed.set()
                client.exchange(lane, HEALTH, Deadline.after(TIMEOUT_S))

        reading = pool.submit(read)
        assert borrowed.wait(TIMEOUT_S)
        client.close()
        for task in (pausing, reading):
            with pytest.raises(UsageError, match="closed"):
                task.result(TIMEOUT_S)
        with pytest.raises(UsageError, match="closed"), client.lane():
            pass
        assert client.close() == []


def test_giving_way_ends_at_the_deadline() -> None:
    client = client_of(Address("127.0.0.1", 1))
    client.give_way(1, "add", Deadline.after(TIMEOUT_S))
    with pytest.raises(TimeoutExpired, match="add: others changed the key 9 times"):
        client.give_way(9, "add", Deadline(SYSTEM_CLOCK.monotonic()))


def test_a_wait_that_failed_names_a_few_of_many_keys() -> None:
    error = still_missing(tuple(f"key-{number}" for number in range(1000)))
    assert len(error.waiting_for) == 1000
    assert "'key-9'" in str(error)
    assert "'key-10'" not in str(error)


def test_every_connection_is_by_the_same_tls(certificates: Certificates, unused: Address) -> None:
    tls = load_client_tls(cacert=certificates.ca)
    client = EtcdClient("etcd://test", [unused], random.Random(0), tls=tls)
    for each in (client, client.reopened()):
        assert each.new_connection()._tls is tls
        with each.lane() as lane:
            assert lane.connection._tls is tls
            with pytest.raises(NotSent):
                each.exchange(lane, HEALTH, Deadline.after(TIMEOUT_S))
            assert lane.connection._tls is tls
