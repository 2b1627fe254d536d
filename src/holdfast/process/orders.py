"""Orders to worker processes, as the agent writes and sends them; child.py reads them.

A process that starts has its order in a variable. One that waits for its order gets one byte by a
socket, and descriptors with it: the first is of a file with the order, then come stdout, stderr,
what else the receiver knows of, the payload and what the payload refers to.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping, Sequence

__all__ = ["send_order", "write_order"]


def write_order(fields: Mapping[str, str]) -> str:
    """Put fields into one text: a line for each, with everything escaped that is not plain."""
    return "\n".join(f"{_escape(name)}={_escape(value)}" for name, value in fields.items())


def _escape(text: str) -> str:
    return text.encode("unicode_escape").decode()


def send_order(
    orders: socket.socket,
    order: Mapping[str, str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
) -> None:
    """Tell a process what it shall be; it gets copies of the descriptors."""
    fields = {**order, "environment": write_order(environment)}
    with tempfile.TemporaryFile(dir=order["folder"]) as file:
        file.write(write_order(fields).encode())
        file.flush()
        socket.send_fds(orders, [b"x"], [file.fileno(), *descriptors])
