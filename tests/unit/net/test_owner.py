"""Whose socket it is: by netlink, by the tables of /proc, and where there is neither."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.net import owner
from holdfast.net.address import Address
from holdfast.net.owner import Ends, is_connected, judge_owner, owner_of

WITHIN_S = 30.0
CONNECT = """
import os, socket, sys
port, user = map(int, sys.argv[1:])
os.setuid(user)
with socket.socket() as sock:
    sock.connect(("127.0.0.1", port))
    sock.recv(1)
"""
OTHER_USER = 54321

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(params=["netlink", "no netlink", "netlink without TCP"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take each way to the answer."""

    def refuse(*_: object) -> None:
        raise OSError(93, "Protocol not supported")

    match request.param:
        case "no netlink":
            monkeypatch.setattr(owner, "_ask", refuse)
        case "netlink without TCP":
            monkeypatch.setattr(owner, "_by_netlink", lambda ends: None)
            monkeypatch.setattr(owner, "_netlink_tells", lambda: False)
        case _:
            monkeypatch.setattr(owner, "_by_tables", refuse)
    return str(request.param)


@contextmanager
def a_pair(
    host: str = "127.0.0.1", family: int = socket.AF_INET, *, mapped: bool = False
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a client's socket and the one that its server accepted."""
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.socket(socket.AF_INET6 if mapped else family) as client,
    ):
        client.settimeout(WITHIN_S)
        client.connect((f"::ffff:{host}" if mapped else host, server.getsockname()[1]))
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


def test_addresses_of_both_ends() -> None:
    with a_pair() as (client, accepted):
        ends = Ends.of_accepted(accepted)
        assert ends == (client.getsockname(), client.getpeername())


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("host", "family", "mapped"),
    [
        ("127.0.0.1", socket.AF_INET, False),
        ("127.0.0.1", socket.AF_INET, True),
        ("::1", socket.AF_INET6, False),
    ],
)
def test_a_socket_of_this_user(host: str, family: int, mapped: bool) -> None:
    with a_pair(host, family, mapped=mapped) as (_, accepted):
        ends = Ends.of_accepted(accepted)
        assert owner_of(ends) == os.geteuid()
        assert judge_owner(ends) == ""


@needs_root
@pytest.mark.usefixtures("way")
def test_a_socket_of_another_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WITHIN_S)
        command = [sys.executable, "-S", "-c", CONNECT, str(server.getsockname()[1])]
        with subprocess.Popen([*command, str(OTHER_USER)]) as child:
            accepted, _ = server.accept()
            with accepted:
                ends = Ends.of_accepted(accepted)
                found = owner_of(ends), judge_owner(ends)
        assert child.returncode == 0
    assert found == (OTHER_USER, f"it belongs to user {OTHER_USER}, not to 0")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("how", [socket.SHUT_WR, None])
def test_ow1_what_is_left_of_a_closed_socket_has_no_owner(how: int | None) -> None:
    with a_pair() as (client, accepted):
        ends = Ends.of_accepted(accepted)
        assert is_connected(accepted)
        if how is None:
            client.close()
        else:
            client.shutdown(how)
        assert accepted.recv(1) == b""
        assert owner_of(ends) is None
        assert judge_owner(ends) is None
        assert not is_connected(accepted)


@pytest.mark.usefixtures("way")
def test_ow1_a_listener_at_the_clients_address_is_another_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = Ends(Address(*listener.getsockname()), Address("127.0.0.1", 9))
        assert owner_of(ends) is None


@pytest.mark.usefixtures("way")
def test_ow1_both_addresses_count() -> None:
    with a_pair() as (_, accepted):
        client, server = Ends.of_accepted(accepted)
        assert owner_of(Ends(client, Address(server.host, client.port))) is None
        assert owner_of(Ends(client, Address("127.0.0.2", server.port))) is None
        assert owner_of(Ends(Address("127.0.0.2", client.port), server)) is None


def test_ow2_the_overflow_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "is_our_user", lambda uid: False)
    with a_pair() as (_, accepted):
        assert judge_owner(Ends.of_accepted(accepted))


def test_a_zone_is_no_part_of_an_address() -> None:
    ends = Ends(Address("fe80::1%lo", 9), Address("fe80::2%lo", 9))
    assert owner_of(ends) is None


def test_a_socket_that_is_closed_here_is_not_connected() -> None:
    with a_pair() as (_, accepted):
        accepted.close()
        assert not is_connected(accepted)


def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(owner, "_NETLINK_SOCK_DIAG", 31)
    monkeypatch.setattr(owner, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    with (
        a_pair() as (_, accepted),
        pytest.raises(Unavailable, match=r"neither sock_diag nor .*tcp "),
    ):
        owner_of(Ends.of_accepted(accepted))


def test_another_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with (
        a_pair() as (_, accepted),
        pytest.raises(Unavailable, match="cannot be determined on darwin"),
    ):
        owner_of(Ends.of_accepted(accepted))


def test_a_host_without_ipv6_has_one_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(owner, "_NETLINK_SOCK_DIAG", 31)
    monkeypatch.setattr(owner, "_TABLES", (owner._TABLES[0], tmp_path / "tcp6"))
    with a_pair() as (client, accepted):
        ends = Ends.of_accepted(accepted)
        assert owner_of(ends) == os.geteuid()
        client.close()
        assert owner_of(ends) is None


def test_a_request_that_the_kernel_refuses_is_put_to_the_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, "_SOCK_DIAG_BY_FAMILY", 99)
    with a_pair() as (_, accepted):
        assert owner_of(Ends.of_accepted(accepted)) == os.geteuid()
