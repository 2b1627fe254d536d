"""etcd over TLS, with certificates on both sides: a real etcd, by both of its APIs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.clock import Deadline
from holdfast.errors import Refused, Step, StoreUnavailable
from holdfast.net.address import Address, parse_address
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.registry import create_rendezvous
from holdfast.store.etcd.local_server import (
    START_WITHIN_S,
    LocalEtcdServer,
    _Ports,
    _version,
    find_binary,
)
from holdfast.store.open import open_store
from holdfast.store.store import Store
from tests.unit.net.certificates import Certificates
from tests.waiting import with_more_time

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def address(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Address]:
    """An etcd that talks only to clients with a certificate."""
    folder = tmp_path_factory.mktemp("etcd-tls")
    ports = _Ports()  # held, and shared with etcd where it knows how
    client, peer = (f"127.0.0.1:{ports.take()}" for _ in range(2))
    version = _version(find_binary(), Deadline.after(START_WITHIN_S))
    flags = ["--socket-reuse-port"] if version >= (3, 5) else []
    if version < (3, 6):
        flags.append("--enable-v2")
    if version < (3, 5):
        ports.release()
    cert, key = certificates.server
    with (folder / "log").open("wb") as log:
        etcd = subprocess.Popen(
            [
                find_binary(),
                *flags,
                "--unsafe-no-fsync",
                f"--data-dir={folder / 'data'}",
                f"--listen-client-urls=https://{client}",
                f"--advertise-client-urls=https://{client}",
                f"--listen-peer-urls=http://{peer}",
                f"--initial-advertise-peer-urls=http://{peer}",
                f"--initial-cluster=default=http://{peer}",
                f"--cert-file={cert}",
                f"--key-file={key}",
                f"--trusted-ca-file={certificates.ca}",
                "--client-cert-auth",
            ],
            stderr=log,
        )
    try:
        yield parse_address(client)
    finally:
        etcd.kill()
        etcd.wait()
        ports.release()


def options(certificates: Certificates) -> str:
    cert, key = certificates.client
    return f"protocol=https&cert={cert}&key={key}&cacert={certificates.ca}"


@pytest.fixture(params=["etcd", "etcd-v2"])
def store(
    request: pytest.FixtureRequest, address: Address, certificates: Certificates
) -> Iterator[Store]:
    # etcd may still be starting: a store connects at its first operation, until its deadline.
    endpoint = f"{request.param}://{address}/{request.param}?{options(certificates)}"
    with open_store(endpoint) as made:
        yield made


def test_a_store_works_as_without_tls(store: Store) -> None:
    with store.watch("", prefix=True) as watch, ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, ["k", "log"], timeout=TIMEOUT_S)
        lease = store.grant_lease(60)
        assert store.set("k", b"v", lease=lease) == watch.next(TIMEOUT_S).revision
        assert store.append("log", b"x" * 300_000) == 300_000
        assert watch.next(TIMEOUT_S).value == b"x" * 300_000
        assert waiting.result(TIMEOUT_S) == [b"v", b"x" * 300_000]
        assert [store.add("n") for _ in range(20)] == list(range(1, 21))
        assert store.compare_set("k", b"v", b"w", lease=lease).ok
        assert store.revoke_lease(lease)
        assert store.get("k") is None
        assert store.delete("log")


def test_closing_wakes_a_waiting_thread(store: Store) -> None:
    watch = store.watch("k")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.wait, ["never"], timeout=TIMEOUT_S)
        reading = pool.submit(watch.next, TIMEOUT_S)
        store.add("n")
        store.close()
        for future in (waiting, reading):
            with pytest.raises(ValueError, match="closed"):
                future.result(TIMEOUT_S)


def test_without_a_certificate_we_are_refused(
    store: Store, address: Address, certificates: Certificates
) -> None:
    store.get("k", timeout=TIMEOUT_S)  # it serves
    bare = f"etcd://{address}?protocol=https&cacert={certificates.ca}"
    with open_store(bare) as other, pytest.raises(Refused, match="refuses our cert") as caught:
        other.set("k", b"", timeout=TIMEOUT_S)
    assert caught.value.step is Step.HANDSHAKE


def test_an_authority_that_did_not_sign_is_not_enough(
    store: Store, address: Address, certificates: Certificates
) -> None:
    store.get("k", timeout=TIMEOUT_S)
    wrong = options(certificates).replace(certificates.ca, certificates.other_ca)
    with (
        open_store(f"etcd://{address}?{wrong}") as other,
        pytest.raises(Refused, match="we do not trust the server") as caught,
    ):
        other.get("k", timeout=TIMEOUT_S)
    assert caught.value.step is Step.HANDSHAKE


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("etcd", ("cert", "key", "cacert")),
        ("etcd-v2", ("ssl_cert", "ssl_cert_key", "ca_cert")),
    ],
)
def test_nodes_meet_over_tls_by_the_keys_of_torch(
    address: Address, certificates: Certificates, backend: str, names: tuple[str, ...]
) -> None:
    files = (*certificates.client, certificates.ca)
    config = {"protocol": "https", **dict(zip(names, files, strict=True))}
    place = RendezvousParameters(backend, str(address), "tls", 1, 1, config=config)
    with create_rendezvous(place) as rendezvous:
        found = rendezvous.next_round(timeout=TIMEOUT_S)
        assert (found.rank, found.world_size) == (0, 1)
        found.store.set("k", b"v")


# The last of many tries is told of, and that may be one which the end of the time cut short.


def test_tls_with_a_server_that_has_none(certificates: Certificates) -> None:
    with (
        LocalEtcdServer() as server,
        open_store(f"{server.endpoint}?{options(certificates)}") as store,
    ):

        def ask_in_vain(seconds: float) -> None:
            with pytest.raises(StoreUnavailable, match="TLS handshake with .* closed") as caught:
                store.get("k", timeout=seconds)
            assert caught.value.step is Step.HANDSHAKE

        with_more_time(ask_in_vain, 1.0)


def test_no_tls_with_a_server_that_wants_it(store: Store, address: Address) -> None:
    store.get("k", timeout=TIMEOUT_S)
    with open_store(f"etcd://{address}") as other:

        def ask_in_vain(seconds: float) -> None:
            with pytest.raises(StoreUnavailable, match="closed"):
                other.get("k", timeout=seconds)

        with_more_time(ask_in_vain, 1.0)
