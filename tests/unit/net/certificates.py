"""Certificates for tests of TLS, made by the openssl program, and servers that show them."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.net.address import Address

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """Files in PEM form. Server and client are signed by `ca`, neither by `other_ca`.

    The server's certificate is for 127.0.0.1 and not for localhost.
    """

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def ca(self) -> str:
        return self.path("ca.pem")

    @property
    def other_ca(self) -> str:
        return self.path("other.pem")

    @property
    def server(self) -> tuple[str, str]:
        return self.path("server.pem"), self.path("server.key")

    @property
    def client(self) -> tuple[str, str]:
        return self.path("client.pem"), self.path("client.key")

    @property
    def encrypted_key(self) -> str:
        """The client's key, under a password."""
        return self.path("encrypted.key")

    @property
    def both(self) -> str:
        """The client's certificate and its key in one file."""
        return self.path("both.pem")


def make_certificates(folder: Path) -> Certificates:
    """Make all files; skip the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    for name in ("ca", "other"):
        _openssl(folder, "req", "-x509", *_NEW_KEY, "-keyout", f"{name}.key", "-out",
                 f"{name}.pem", "-days", "7", "-subj", f"/CN=test {name}")  # fmt: skip
    # etcd's gateway is a client of etcd by the server's certificate, so that is for both uses.
    (folder / "for").write_text(
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    for name in ("server", "client"):
        _openssl(folder, "req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr",
                 "-subj", f"/CN=test {name}")  # fmt: skip
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                 "-CAcreateserial", "-days", "7", "-extfile", "for", "-out",
                 f"{name}.pem")  # fmt: skip
    _openssl(folder, "ec", "-in", "client.key", "-aes128", "-passout", "pass:hush", "-out",
             "encrypted.key")  # fmt: skip
    both = (folder / "client.pem").read_text() + (folder / "client.key").read_text()
    (folder / "both.pem").write_text(both)
    return Certificates(folder)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def server_context(
    files: Certificates, *, asks: bool = False, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    """Return the server's side; `asks` for a certificate of the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files.server)
    context.maximum_version = newest
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.ca)
    return context


@contextlib.contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Accept connections one after the other, and talk on each until it is over."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.settimeout(30)
            with sock, contextlib.suppress(OSError):
                talk(sock)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Address("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def by_tls(
    context: ssl.SSLContext, talk: Callable[[ssl.SSLSocket], None]
) -> Callable[[socket.socket], None]:
    """Return how to talk by TLS."""

    def talk_plainly(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as secured:
            talk(secured)

    return talk_plainly
