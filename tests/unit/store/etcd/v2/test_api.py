"""Names, values and answers of the v2 keys API."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, PeerViolation, Refused, StoreUnavailable, UsageError
from holdfast.ids import LeaseId
from holdfast.net.address import Address
from holdfast.store.etcd.http.cluster import EtcdClient
from holdfast.store.etcd.http.connection import Lost
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v2.api import (
    Answer,
    ErrorCode,
    Layout,
    Node,
    Poll,
    V2Rejected,
    ask,
    envelope,
    get,
    judge,
    key_from,
    node_from,
    put,
    remove,
    segment,
)
from holdfast.store.ops import Change
from tests.unit.store.etcd.fakes import answering, http

TIMEOUT_S = 30.0
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@contextmanager
def client_at(address: Address) -> Iterator[EtcdClient]:
    client = EtcdClient("etcd-v2://test", [address], random.Random(0))
    try:
        yield client
    finally:
        client.close()


@given(KEYS, KEYS)
def test_a_name_is_safe_and_gives_its_key_back(key: str, other: str) -> None:
    name = segment(key)
    assert re.fullmatch(r"[A-Za-z0-9=-][A-Za-z0-9=._-]*", name)
    assert key_from(name, "") == key
    assert (name == segment(other)) == (key == other)


@given(KEYS, st.binary(max_size=50), st.integers(0, 1 << 62))
def test_a_value_comes_back_with_its_lease(key: str, value: bytes, lease: int) -> None:
    stored = envelope(key, value, LeaseId(lease) or None)
    item = {"key": f"/p/keys/{segment(key)}", "value": stored, "modifiedIndex": 7}
    assert node_from(item) == Node(key, value, LeaseId(lease) or None, 7)


def test_a_long_key_has_a_short_name_and_comes_back_with_its_value() -> None:
    key = "é" * 2000
    assert len(segment(key)) < 100
    assert segment(key) != segment(key + "é")
    stored = envelope(key, b"v", None)
    assert node_from({"key": f"/p/keys/{segment(key)}", "value": stored, "modifiedIndex": 1}) == (
        Node(key, b"v", None, 1)
    )


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"key": "/k", "modifiedIndex": 1},
        {"key": "/k", "value": "no colon", "modifiedIndex": 1},
        {"key": "/k", "value": "x:YQ==", "modifiedIndex": 1},
        {"key": "/k", "value": "0:!!", "modifiedIndex": 1},
        {"key": "/=FF", "value": "0:YQ==", "modifiedIndex": 1},
        {"key": "/é", "value": "0:YQ==", "modifiedIndex": "x"},
        {"key": "/=~abc", "value": "0:YQ==", "modifiedIndex": 1},
    ],
)
def test_what_others_wrote_there_is_a_violation(item: dict[str, Any]) -> None:
    with pytest.raises(PeerViolation):
        node_from(item)


def test_requests() -> None:
    layout = Layout("job/1")
    assert get(layout.key("a b")).path == "/v2/keys/job=2F1/keys/a=20b?quorum=true"
    assert get(layout.root, wait="true").path == "/v2/keys/job=2F1?wait=true"
    written = put(layout.key("k"), value="0:+/=", prevExist="false")
    assert written.body == b"value=0%3A%2B%2F%3D&prevExist=false"
    assert remove(layout.lease(LeaseId(5))).path == "/v2/keys/job=2F1/leases/5?"


def reply(address: Address, status: int, body: bytes, *headers: str) -> Answer:
    with client_at(address) as client, client.lane() as lane:
        deadline = Deadline.after(TIMEOUT_S)
        return judge(client.exchange(lane, get("/k"), deadline), address, "reading")


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (404, b'{"errorCode": 100, "message": "m", "cause": "c"}', V2Rejected, "NOT_FOUND"),
        (412, b'{"errorCode": 101, "message": "m", "cause": "c"}', V2Rejected, "COMPARE_FAILED"),
        (401, b'{"errorCode": 110, "message": "no", "cause": "c"}', Refused, "no: c"),
        (400, b'{"errorCode": 209, "message": "bad", "cause": "f"}', UsageError, "bad: f"),
        (500, b'{"errorCode": 300, "message": "raft"}', Lost, "raft"),
        (404, b"404 page not found\n", PeerViolation, "v2 keys API .etcd before 3.6"),
        (200, b'{"hello": "world"}', PeerViolation, "does not serve etcd's v2"),
        (200, b"<html>", PeerViolation, "does not serve etcd's v2"),
        (200, b'{"node": {}, "index": "x"}', PeerViolation, "malformed"),
    ],
)
def test_what_an_answer_means(status: int, body: bytes, kind: type[Exception], text: str) -> None:
    with answering(http(status, body)) as address, pytest.raises(kind, match=text) as caught:
        reply(address, status, body)
    assert "\n" not in str(caught.value)


def test_a_write_is_not_repeated_and_a_reading_is() -> None:
    good = http(200, b'{"node": {}}', "X-Etcd-Index: 9")
    with answering(b"", good) as address, client_at(address) as client, client.lane() as lane:
        deadline = Deadline.after(TIMEOUT_S)
        assert ask(client, lane, get("/k"), deadline, "reading").index == 9
    with answering(b"", good) as address, client_at(address) as client, client.lane() as lane:
        with pytest.raises(StoreUnavailable) as caught:
            ask(client, lane, put("/k"), deadline, "writing", writes=True, repeat=False)
        assert caught.value.maybe_applied


# Polls.


def changes(poll: Poll) -> list[Change]:
    """Read until a change came, or everything has to be read again."""
    while poll.is_open:
        found = poll.changes(Deadline.after(TIMEOUT_S))
        if found:
            return found
    return []


def test_a_poll_tells_changes_one_by_one(etcd_server: LocalEtcdServer, prefix: str) -> None:
    layout = Layout(prefix)
    with client_at(etcd_server.addresses[0]) as client, client.lane() as lane:
        deadline = Deadline.after(TIMEOUT_S)

        def write(key: str, value: bytes, lease: int = 0) -> int:
            stored = envelope(key, value, LeaseId(lease) or None)
            request = put(layout.key(key), value=stored)
            return ask(client, lane, request, deadline, "test").node.index

        poll = Poll(client, layout.root, lambda key: key != "unrelated")
        poll.open(write("unrelated", b""), deadline)
        first = write("k", b"1")
        assert changes(poll) == [Change("k", b"1", first)]
        ask(client, lane, remove(layout.key("k")), deadline, "test")
        long = "long " * 500
        second = write(long, b"2")
        ask(client, lane, remove(layout.key(long)), deadline, "test")
        assert changes(poll) == [Change("k", None, first + 1)]
        assert changes(poll) == [Change(long, b"2", second)]
        assert changes(poll) == [Change(long, None, second + 1)]
        write("k", b"3", lease=5)
        assert changes(poll) == []  # its lease may be dead: read everything again
        assert not poll.is_open
        with pytest.raises(Lost):
            poll.changes(deadline)
        poll.open(write("unrelated", b""), deadline)
        poll.open(write("unrelated", b"") + 1, deadline)  # an answer was still to come
        ask(client, lane, put(layout.lease(LeaseId(5)), value="", ttl="100"), deadline, "test")
        ask(client, lane, remove(layout.lease(LeaseId(5))), deadline, "test")
        assert changes(poll) == []  # a lease ended
        poll.close()


def test_a_history_that_is_gone_is_read_again() -> None:
    cleared = b'{"errorCode": 401, "message": "The event in requested index is outdated"}'
    with answering(http(400, cleared)) as address, client_at(address) as client:
        poll = Poll(client, "/k", lambda key: True)
        poll.open(1, Deadline.after(TIMEOUT_S))
        assert changes(poll) == []
        assert not poll.is_open
        poll.close()


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [(b"{}", 503, Lost), (b"{}", 200, PeerViolation), (b'{"node": {}}', 200, PeerViolation)],
)
def test_what_a_poll_refuses(body: bytes, status: int, kind: type[HoldfastError]) -> None:
    with answering(http(status, body)) as address, client_at(address) as client:
        poll = Poll(client, "/k", lambda key: True)
        poll.open(1, Deadline.after(TIMEOUT_S))
        with pytest.raises(kind):
            changes(poll)
        poll.close()


def test_error_codes_are_those_of_etcd() -> None:
    assert V2Rejected(ErrorCode.EXISTS, 5).index == 5
