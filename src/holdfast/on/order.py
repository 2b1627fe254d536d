"""What `holdfast run --hosts` sends to each host over the standard input of its ssh.

The first line is an order, as JSON: the arguments of `holdfast run` there, and the job's secret,
which so is never on a command line. Each line after it is empty, a sign of life, or the name of a
signal. If the input ends, or nothing comes for SILENCE_S, the connection is lost.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import field
from signal import Signals

from holdfast.errors import PeerViolation, UsageError
from holdfast.records import dataclass

__all__ = [
    "ALIVE_EVERY_S",
    "ORDER_BYTES_MAX",
    "SILENCE_S",
    "Order",
    "decode_order",
    "decode_signal",
    "encode_order",
    "remote_shell",
    "ssh_command",
]

ORDER_BYTES_MAX = 60_000
"""Less than a pipe holds, so that sending an order never blocks."""
ALIVE_EVERY_S = 5.0
SILENCE_S = 60.0

_OPTIONS = (
    "BatchMode=yes",  # a question could not be answered
    "ConnectTimeout=30",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "ControlMaster=no",  # a shared connection would outlive the job, and hold its output open
    "ControlPath=none",
)


@dataclass(frozen=True, slots=True)
class Order:
    """The arguments of `holdfast run`, and the job's secret."""

    arguments: tuple[str, ...]
    secret: str = field(repr=False)


def encode_order(order: Order) -> bytes:
    """Return the first line. UsageError if the arguments are too long."""
    line = json.dumps({"arguments": order.arguments, "secret": order.secret}).encode() + b"\n"
    if len(line) > ORDER_BYTES_MAX:
        raise UsageError(
            f"arguments of {len(line)} bytes: at most {ORDER_BYTES_MAX} can be sent to a host"
        )
    return line


def decode_order(line: bytes) -> Order:
    """Read the first line. PeerViolation, which does not show it, if it is no order."""
    try:
        found = json.loads(line)
        order = Order(tuple(found["arguments"]), found["secret"])
        if all(isinstance(one, str) for one in (*order.arguments, order.secret)):
            return order
    except (ValueError, TypeError, KeyError):
        pass  # as what is of a wrong type: told without its text
    raise PeerViolation("standard input: does not begin with an order of holdfast run --hosts")


def decode_signal(line: bytes) -> Signals | None:
    """Read a later line; None for a sign of life. PeerViolation if it is neither."""
    if not line:
        return None
    name = line.decode(errors="replace")
    if name not in Signals.__members__:
        raise PeerViolation(f"standard input: {name!r:.40} is not the name of a signal")
    return Signals[name]


def ssh_command(target: str, shell: str) -> list[str]:
    """Return the command that runs a line of shell on a host."""
    options = [word for option in _OPTIONS for word in ("-o", option)]
    return ["ssh", "-T", *options, "--", target, shell]


def remote_shell(folder: str, python: str, program: Sequence[str]) -> str:
    """Return the line of shell: the program, by the same Python, in the same folder."""
    return f"cd {shlex.quote(folder)} && exec {shlex.join([python, *program])}"
