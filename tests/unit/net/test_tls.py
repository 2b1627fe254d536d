"""TLS by files: each wrong file is named, each failed handshake says which side refused."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, PeerViolation, Refused, Step, Unavailable, UsageError
from holdfast.net.address import Address
from holdfast.net.tcp import open_socket
from holdfast.net.tls import ClientTls, load_client_tls, refusal
from tests.unit.net.certificates import Certificates, by_tls, server_context, serving

TIMEOUT_S = 30.0


def secure(tls: ClientTls, address: Address, within_s: float = TIMEOUT_S) -> ssl.SSLSocket:
    deadline = Deadline.after(within_s)
    return tls.secure(open_socket(address, deadline), address, deadline)


def echo(sock: ssl.SSLSocket) -> None:
    sock.sendall(sock.recv(100))
    sock.recv(100)


def ask(sock: ssl.SSLSocket) -> bytes:
    with sock:
        sock.settimeout(TIMEOUT_S)
        sock.sendall(b"hello")
        return sock.recv(100)


# Files.


def test_files_are_told_by_their_names(certificates: Certificates) -> None:
    tls = load_client_tls(*certificates.client, certificates.ca)
    assert tls.files == {
        "cert": certificates.client[0],
        "key": certificates.client[1],
        "cacert": certificates.ca,
    }
    assert load_client_tls().files == {}
    assert load_client_tls(certificates.both).files == {"cert": certificates.both}


def test_the_server_is_always_checked(certificates: Certificates) -> None:
    for tls in (load_client_tls(), load_client_tls(cacert=certificates.ca)):
        assert tls.context.verify_mode is ssl.CERT_REQUIRED
        assert tls.context.check_hostname
        assert tls.context.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("system", "ours"),
    [
        (ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_2),
        (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_nothing_older_than_tls_1_2_is_spoken_whatever_the_system_allows(
    system: ssl.TLSVersion, ours: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ssl.create_default_context

    def make_as_the_system_does(cafile: str | None) -> ssl.SSLContext:
        context = make(cafile=cafile)
        context.minimum_version = system
        return context

    monkeypatch.setattr(ssl, "create_default_context", make_as_the_system_does)
    assert load_client_tls().context.minimum_version is ours


@pytest.mark.parametrize("name", ["cert", "cacert"])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing.pem", "No such file or directory"),
        (".", "Is a directory"),
        ("\0", "embedded null byte"),
        ("empty", "holds no certificate in PEM form"),
        ("text", "holds no certificate in PEM form"),
    ],
)
def test_a_file_that_is_no_certificate_is_named(
    certificates: Certificates, tmp_path: Path, name: str, path: str, why: str
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_bytes(b"certainly\n")
    given = path if path == "\0" else str(tmp_path / path)
    with pytest.raises(UsageError) as caught:
        load_client_tls(**{name: given})
    assert str(caught.value) == f"{name} {given!r}: {why}"


def test_a_key_that_does_not_fit_is_named(certificates: Certificates) -> None:
    cert, key = certificates.client
    wrong = {
        certificates.server[1]: f"the key is not the one of cert {cert!r}",
        certificates.ca: "holds no private key in PEM form, or one that is encrypted",
        certificates.encrypted_key: "holds no private key in PEM form, or one that is encrypted",
        f"{key}.missing": "No such file or directory",
    }
    for path, why in wrong.items():
        with pytest.raises(UsageError) as caught:
            load_client_tls(cert, path)
        assert str(caught.value) == f"key {path!r}: {why}"
    with pytest.raises(UsageError, match="cert '.*client.pem': holds no private key"):
        load_client_tls(cert)
    with pytest.raises(UsageError, match="key '.*client.key': needs cert"):
        load_client_tls(key=key)


# Handshakes.


def test_both_sides_know_each_other(certificates: Certificates) -> None:
    with serving(by_tls(server_context(certificates, asks=True), echo)) as address:
        for tls in (
            load_client_tls(*certificates.client, certificates.ca),
            load_client_tls(certificates.both, cacert=certificates.ca),
        ):
            assert ask(secure(tls, address)) == b"hello"


def failure_of(tls: ClientTls, address: Address, within_s: float = TIMEOUT_S) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        secure(tls, address, within_s)
    found = caught.value
    assert str(found).startswith(f"TLS handshake with {address}: ")
    assert isinstance(found, (Refused, PeerViolation, Unavailable))
    assert (found.step, found.address) == (Step.HANDSHAKE, str(address))
    return found


def test_a_server_that_is_not_trusted(certificates: Certificates) -> None:
    with serving(by_tls(server_context(certificates), echo)) as address:
        for cacert in (certificates.other_ca, None):
            error = failure_of(load_client_tls(cacert=cacert), address)
            assert isinstance(error, Refused)
            assert "we do not trust the server: unable to get local issuer" in str(error)


def test_a_server_by_another_name(certificates: Certificates) -> None:
    with serving(by_tls(server_context(certificates), echo)) as address:
        there = Address("localhost", address.port)
        error = failure_of(load_client_tls(cacert=certificates.ca), there)
    assert isinstance(error, Refused)
    assert "certificate is not valid for 'localhost'" in str(error)


def test_a_server_that_wants_a_certificate_at_once(certificates: Certificates) -> None:
    context = server_context(certificates, asks=True, newest=ssl.TLSVersion.TLSv1_2)
    with serving(by_tls(context, echo)) as address:
        error = failure_of(load_client_tls(cacert=certificates.ca), address)
    assert isinstance(error, Refused)
    assert "the server refuses our certificate, or wants one: " in str(error)


def test_a_server_that_wants_a_certificate_after_the_handshake(certificates: Certificates) -> None:
    with serving(by_tls(server_context(certificates, asks=True), echo)) as address:
        with secure(load_client_tls(cacert=certificates.ca), address) as sock:
            sock.settimeout(TIMEOUT_S)
            with pytest.raises(ssl.SSLError) as caught:
                sock.recv(100)
        refused = refusal(caught.value, address)
    assert isinstance(refused, Refused)
    assert refused.step is Step.HANDSHAKE
    assert str(refused).endswith("wants one: certificate required")


def test_other_errors_are_no_refusal() -> None:
    for error in (OSError("x"), ConnectionResetError(104, "reset"), ssl.SSLError(1, "x")):
        assert refusal(error, Address("h", 1)) is None


def hang_up(sock: socket.socket) -> None:
    sock.recv(1000)


def speak_http(sock: socket.socket) -> None:
    sock.recv(1000)
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("talk", "kind", "why"),
    [
        (speak_http, PeerViolation, "the server does not speak TLS as we do: "),
        (hang_up, Unavailable, ""),
    ],
)
def test_a_server_that_does_not_speak_tls(
    certificates: Certificates, talk: Callable[[socket.socket], None], kind: type, why: str
) -> None:
    with serving(talk) as address:
        error = failure_of(load_client_tls(cacert=certificates.ca), address)
    assert isinstance(error, kind)
    assert why in str(error)


def test_a_server_that_is_silent(certificates: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        error = failure_of(load_client_tls(cacert=certificates.ca), address, within_s=0.05)
    assert isinstance(error, Unavailable)
    assert str(error).endswith("the server is silent")
