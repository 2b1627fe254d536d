"""What a host is told, written and read again."""

from __future__ import annotations

import shlex
from signal import Signals

import pytest

from holdfast.errors import PeerViolation, UsageError
from holdfast.on.order import (
    ORDER_BYTES_MAX,
    Order,
    decode_order,
    decode_signal,
    encode_order,
    remote_shell,
    ssh_command,
)


def test_an_order_is_one_line_and_shows_no_secret() -> None:
    order = Order(("--x=a b", "é\n", "'"), "the secret")
    line = encode_order(order)
    assert line.count(b"\n") == 1
    assert decode_order(line) == order
    assert "the secret" not in repr(order)


def test_an_order_has_a_largest_size() -> None:
    room = ORDER_BYTES_MAX - len(encode_order(Order(("",), "s")))
    assert len(encode_order(Order(("x" * room,), "s"))) == ORDER_BYTES_MAX
    with pytest.raises(UsageError, match="can be sent to a host"):
        encode_order(Order(("x" * (room + 1),), "s"))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"arguments": [1], "secret": "s"}\n',
        b"\xff\n",
        b'{"arguments": ["x"], "secret": 1}\n',
        b'{"arguments": 7, "secret": "s"}\n',
    ],
)
def test_what_is_no_order(line: bytes) -> None:
    with pytest.raises(PeerViolation, match="does not begin with an order"):
        decode_order(line)


def test_signals_and_signs_of_life() -> None:
    assert decode_signal(b"") is None
    assert decode_signal(b"SIGUSR1") is Signals.SIGUSR1
    with pytest.raises(PeerViolation, match="'kill' is not the name of a signal"):
        decode_signal(b"kill")


def test_the_command_of_a_host() -> None:
    shell = remote_shell("/a b/'c", "/opt/p y/python", ["-m", "x"])
    assert shlex.split(shell) == ["cd", "/a b/'c", "&&", "exec", "/opt/p y/python", "-m", "x"]
    command = ssh_command("ann@a", shell)
    assert command[0] == "ssh"
    assert command[-3:] == ["--", "ann@a", shell]
    assert "BatchMode=yes" in command
