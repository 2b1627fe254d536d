"""Events are followed from a revision on, and a stream that ends is noticed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from holdfast.clock import Deadline
from holdfast.errors import PeerViolation
from holdfast.net.address import Address
from holdfast.store.etcd.http.cluster import EtcdClient
from holdfast.store.etcd.http.connection import Lost, NoAnswer, NotSent
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v3 import stream as etcd_stream
from holdfast.store.etcd.v3.store import EtcdStore
from holdfast.store.etcd.v3.stream import EventStream
from holdfast.store.ops import Change
from tests.unit.store.etcd.fakes import answering

TIMEOUT_S = 30.0
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def soon(seconds: float = TIMEOUT_S) -> Deadline:
    return Deadline.after(seconds)


def chunk(line: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(line) + 1, line + b"\n")


@pytest.fixture
def store(etcd_server: LocalEtcdServer, prefix: str) -> Iterator[EtcdStore]:
    with EtcdStore(etcd_server.addresses, prefix) as made:
        yield made


def stream_of(store: EtcdStore, key: str, end: str = "") -> EventStream:
    span = store._full(key), store._full(end) if end else b""
    return EventStream(store._client, span, store._key_of)


def stream_at(address: Address) -> EventStream:
    client = EtcdClient("etcd://test", [address], random.Random(0))
    return EventStream(client, (b"k", b""), bytes.decode)


def take(stream: EventStream, number: int) -> list[Change]:
    found: list[Change] = []
    while len(found) < number:
        found += stream.changes(soon())
    return found


def await_silence(stream: EventStream) -> bool:
    """Read what still comes, such as the acknowledgement of the request."""
    while True:
        try:
            assert stream.changes(soon(0.05)) == []
        except NoAnswer:
            return True


def test_a_range_is_followed_from_a_revision_on(store: EtcdStore) -> None:
    first = store.set("a", b"1")
    stream = stream_of(store, "a", "c")
    stream.open(first, soon())
    store.set("c", b"outside")
    second = store.set("b", b"2")
    store.delete("a")
    changes = take(stream, 3)
    assert changes[:2] == [Change("a", b"1", first), Change("b", b"2", second)]
    assert changes[2][:2] == ("a", None)
    third = store.set("b", bytes(300_000))
    assert take(stream, 1) == [Change("b", bytes(300_000), third)]
    stream.close()
    assert not stream.is_open


def test_a_compacted_revision_ends_the_stream(store: EtcdStore) -> None:
    store.set("k", b"1")
    revision = store.set("k", b"2")
    with store._client.lane() as lane:
        body = {"revision": str(revision)}
        store._gateway.ask(lane, "/v3/kv/compaction", body, soon(), "compacting")
    stream = stream_of(store, "k")
    stream.open(1, soon())
    with pytest.raises(Lost, match="ended the watch"):
        take(stream, 1)
    stream.close()


def test_nothing_new_is_no_answer_and_the_stream_goes_on(store: EtcdStore) -> None:
    stream = stream_of(store, "k")
    stream.open(store.set("other", b"") + 1, soon())
    assert await_silence(stream)
    revision = store.set("k", b"v")
    assert take(stream, 1) == [Change("k", b"v", revision)]
    stream.close()


def test_a_stream_that_is_shut_or_closed_is_lost(store: EtcdStore) -> None:
    stream = stream_of(store, "k")
    stream.shut()
    stream.open(1, soon())
    stream.shut()
    with pytest.raises(Lost):
        take(stream, 1)
    stream.close()
    with pytest.raises(Lost, match="closed"):
        stream.changes(soon())
    assert not stream.ready()


def test_a_member_that_is_away_is_not_tried_again_at_once(
    etcd_server: LocalEtcdServer, unused: Address
) -> None:
    rng = random.Random(0)
    addresses = [unused, etcd_server.addresses[0]]
    client = EtcdClient("etcd://test", addresses, rng)
    stream = EventStream(client, (b"k", b""), bytes.decode)
    for _ in range(2):
        try:
            stream.open(1, soon())
            break
        except NotSent:
            pass
    assert stream.is_open
    assert client.new_connection().address == etcd_server.addresses[0]
    stream.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (CHUNKED + chunk(b'{"error": {"grpc_code": 14}}'), Lost),
        (CHUNKED + chunk(b'{"result": {"canceled": true, "compact_revision": "5"}}'), Lost),
        (CHUNKED + b"0\r\n\r\n", Lost),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n", Lost),
        (CHUNKED + chunk(b"nonsense"), PeerViolation),
        (CHUNKED + chunk(b'{"result": {"events": [{}]}}'), PeerViolation),
        (CHUNKED + chunk(b'{"result": {"events": 7}}'), PeerViolation),
        (b"\x00\x01", PeerViolation),
    ],
)
def test_what_a_server_may_send_instead_of_events(answer: bytes, error: type[Exception]) -> None:
    with answering(answer, hang=True) as address:
        stream = stream_at(address)
        stream.open(1, soon())
        with pytest.raises(error):
            take(stream, 1)
        stream.close()


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_stream, "_LINE_BYTES_MAX", 100)
    with answering(CHUNKED + b"100\r\n" + bytes(200), hang=True) as address:
        stream = stream_at(address)
        stream.open(1, soon())
        with pytest.raises(PeerViolation, match="more than 100 bytes"):
            take(stream, 1)
        stream.close()
