"""The gateway's dialect, and what each refusal becomes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.clock import Deadline
from holdfast.errors import (
    HoldfastError,
    PeerViolation,
    Refused,
    StoreFull,
    StoreUnavailable,
    TimeoutExpired,
    UsageError,
)
from holdfast.net.address import Address
from holdfast.store.etcd.http.cluster import EtcdClient
from holdfast.store.etcd.http.connection import Lost, NotSent
from holdfast.store.etcd.local_server import LocalEtcdServer
from holdfast.store.etcd.v3.gateway import (
    Code,
    Gateway,
    GatewayRejected,
    Kv,
    compare,
    put_op,
    range_op,
    read_txn,
    watch_request,
)
from holdfast.store.etcd.v3.store import EtcdStore
from tests.unit.store.etcd.fakes import answering, http

TIMEOUT_S = 30.0
GET_K = range_op(b"k")["request_range"]


@contextmanager
def gateway_at(address: Address) -> Iterator[Gateway]:
    client = EtcdClient("etcd://test", [address], random.Random(0))
    try:
        yield Gateway(client)
    finally:
        client.close()


def call(address: Address, expect: Code | None = None) -> None:
    with gateway_at(address) as gateway, gateway.client.lane() as lane:
        gateway.call(lane, "/v3/kv/range", GET_K, Deadline.after(TIMEOUT_S), "reading", expect)


def refusal(code: int, message: str) -> bytes:
    return json.dumps({"error": message, "code": code, "message": message}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, refusal(3, "etcdserver: too many operations"), UsageError, "--max-txn-ops"),
        (400, refusal(3, "etcdserver: request is too large"), UsageError, "--max-request-bytes"),
        (400, refusal(3, "etcdserver: user name is empty"), Refused, "a user and a password"),
        (400, refusal(11, "mvcc: required revision is a future"), UsageError, "future"),
        (401, refusal(16, "invalid auth token"), Refused, "reading: .*invalid auth token"),
        (403, refusal(7, "permission denied"), Refused, "permission denied"),
        (404, refusal(5, "not found"), StoreUnavailable, "not found"),
        (429, refusal(8, "grpc: received message larger than max"), UsageError, "-bytes"),
        (429, refusal(8, "mvcc: database space exceeded"), StoreFull, "space exceeded"),
        (429, refusal(8, "etcdserver: too many requests"), NotSent, "too many requests"),
        (503, refusal(14, "etcdserver: no leader"), Lost, "no leader"),
        (200, b'{"error": {"grpc_code": 7, "message": "denied"}}', Refused, "denied"),
        (404, b"404 page not found\n", PeerViolation, "does not serve etcd's v3 API over JSON"),
        (400, b"Client sent an HTTP request to an HTTPS server.", PeerViolation, "HTTPS server"),
        (400, b'{"detail": "some other service"}', PeerViolation, "some other service"),
        (200, b"<html>", PeerViolation, "does not serve etcd's v3 API"),
        (200, b"[" * 100_000, PeerViolation, "does not serve"),
    ],
)
def test_what_a_refusal_becomes(
    status: int, body: bytes, kind: type[HoldfastError], text: str
) -> None:
    with answering(http(status, body)) as address, pytest.raises(kind, match=text) as caught:
        call(address)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_an_expected_refusal_is_for_the_operation_to_judge() -> None:
    with (
        answering(http(404, refusal(5, "lease not found"))) as address,
        pytest.raises(GatewayRejected, match="lease not found"),
    ):
        call(address, expect=Code.NOT_FOUND)


def test_a_real_server_without_the_gateway_says_so(etcd_server: LocalEtcdServer) -> None:
    with (
        gateway_at(etcd_server.addresses[0]) as gateway,
        gateway.client.lane() as lane,
        pytest.raises(PeerViolation, match="enable-grpc-gateway"),
    ):
        gateway.ask(lane, "/v2beta/kv/range", GET_K, Deadline.after(TIMEOUT_S), "reading")


def test_asking_goes_on_until_a_member_answers() -> None:
    busy = http(503, refusal(14, "etcdserver: leader changed"))
    good = http(200, b'{"header": {"revision": "7"}}')
    with (
        answering(busy, b"", good) as address,
        gateway_at(address) as gateway,
        gateway.client.lane() as lane,
    ):
        reply = gateway.read(lane, range_op(b"k"), Deadline.after(TIMEOUT_S), "reading")
    assert reply == {"header": {"revision": "7"}}


def test_asking_ends_at_the_deadline() -> None:
    with (
        answering(b"", hang=True) as address,
        gateway_at(address) as gateway,
        gateway.client.lane() as lane,
        pytest.raises(TimeoutExpired, match="reading"),
    ):
        gateway.read(lane, range_op(b"k"), Deadline.after(0.05), "reading")


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"header": 5}',
        b'{"header": {"revision": "x"}}',
        b'{"header": {"revision": "1"}, "kvs": 5}',
        b'{"header": {"revision": "1"}, "kvs": [{"key": "!"}]}',
        b'{"header": {"revision": "1"}, "kvs": [{"key": "YQ=="}]}',
        b'{"header": {"revision": "1"}, "kvs": [{"key": "YQ==", "mod_revision": []}]}',
    ],
)
def test_a_malformed_reply_is_a_violation(body: bytes) -> None:
    with (
        answering(http(200, body)) as address,
        EtcdStore([address]) as store,
        pytest.raises(PeerViolation, match="malformed"),
    ):
        store.list_prefix(timeout=TIMEOUT_S)


def test_messages() -> None:
    assert range_op(b"a", b"b", 5, True) == {
        "request_range": {"key": "YQ==", "range_end": "Yg==", "revision": "5", "count_only": True}
    }
    assert put_op(b"\xff", b"", None)["request_put"] == {"key": "/w==", "value": "", "lease": "0"}
    assert compare(b"a", "MOD", 3) == {
        "key": "YQ==",
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": "3",
    }
    assert compare(b"a", "VALUE", b"b")["value"] == "Yg=="
    assert json.loads(watch_request(b"a", b"", 7)) == {
        "create_request": {"key": "YQ==", "start_revision": "7"}
    }
    assert json.loads(watch_request(b"a", b"b", 7))["create_request"]["range_end"] == "Yg=="


def test_a_transactions_reply() -> None:
    kv = {"key": "YQ==", "mod_revision": "4", "lease": "9"}
    message = {
        "header": {"revision": "5"},
        "responses": [{"response_put": {}}, {"response_range": {"kvs": [kv]}}],
    }
    txn = read_txn(message)
    assert (txn.succeeded, txn.revision, txn.ranges) == (False, 5, ([Kv(b"a", b"", 4, 9)],))
