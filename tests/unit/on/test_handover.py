"""The first node hands the secret to the others, and to none else."""

from __future__ import annotations

import socket

import pytest

from holdfast.errors import Refused, TimeoutExpired, UsageError
from holdfast.net.address import Address
from holdfast.on.handover import SecretServer, fetch

RUN = "slurm-1-0-0"
SOON_S = 60.0


def seal(payload: bytes) -> bytes:
    return b"sealed:" + payload


def unseal(credential: bytes) -> bytes:
    if not credential.startswith(b"sealed:"):
        raise Refused("of another user")
    return credential.removeprefix(b"sealed:")


def server(run_id: str = RUN) -> SecretServer:
    return SecretServer(Address("127.0.0.1", 0), run_id, "the secret", seal=seal, unseal=unseal)


def test_ov1_a_node_of_the_same_user_gets_the_secret() -> None:
    with server() as first:
        where = Address("127.0.0.1", first.port)
        for _ in range(3):
            assert fetch(where, RUN, within_s=SOON_S, seal=seal, unseal=unseal) == "the secret"


@pytest.mark.parametrize("said", [b"", b"hello", b"sealed:another-run", b"x" * 20000])
def test_ov1_others_get_nothing(said: bytes) -> None:
    with server() as first, socket.create_connection(("127.0.0.1", first.port)) as other:
        other.sendall(said)
        other.shutdown(socket.SHUT_WR)
        try:
            assert other.recv(100) == b""
        except ConnectionResetError:  # it was closed before all was read
            pass


def test_ov2_a_secret_of_another_user_or_run_is_not_taken() -> None:
    def of_another_run(payload: bytes) -> bytes:
        return seal(payload.replace(RUN.encode(), b"other"))

    def of_another_user(payload: bytes) -> bytes:
        return b"stolen"

    for wrong, message in (
        (of_another_run, "is of run 'other'"),
        (of_another_user, "another user"),
    ):
        first = SecretServer(Address("127.0.0.1", 0), RUN, "s", seal=wrong, unseal=unseal)
        with first, pytest.raises(Refused, match=message):
            fetch(Address("127.0.0.1", first.port), RUN, seal=seal, unseal=unseal)


def test_a_first_node_that_does_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"address 127.0.0.1:{port}: cannot be bound here"):
            SecretServer(Address("127.0.0.1", port), RUN, "s")
    where = Address("127.0.0.1", port)
    with pytest.raises(TimeoutExpired, match="the job's secret did not come from 127.0.0.1"):
        fetch(where, RUN, within_s=0.0, seal=seal, unseal=unseal)


def test_a_server_that_closes_without_an_answer() -> None:
    with server("another-run") as first:
        where = Address("127.0.0.1", first.port)
        with pytest.raises(TimeoutExpired, match="was closed|reset"):
            fetch(where, RUN, within_s=0.0, seal=seal, unseal=unseal)
