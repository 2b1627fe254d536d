"""Orders to worker processes, as the agent writes and sends them; child.py reads them.

A process that starts has its order in a variable. One that waits for its order gets one byte by a
socket, and descriptors with it: the first is of a file with the order, then come stdout, stderr,
what else the receiver knows of, the payload and what the payload refers to. The fields of an order:

    kind       script, module, program, function or standby
    parent     the process to die with
    folder     where to leave error.json, stack.txt and result.pickle
    cgroup     a control group's list of processes, to enter it; may be missing
    cpus       the processors to run on; may be missing
    files      the limits of open files, soft and hard, if the parent has others
    program    the executable, for a program
    payload    the descriptor of the pickled function
    inherited  the descriptors that the function's arguments refer to
    path       what a standby searches first for what it imports
    becomes    the kind of what a standby will be
    modules    what a standby imports
    delay      how long a standby waits before it imports, unless its order comes
    orders     the socket from which a standby hears what it shall be, or the parent of standbys
               that one is wanted
    forks      for the parent of standbys: whether it forks them (yes), or starts interpreters (no)
    asked      sockets and pipes of the standbys that it was asked for before it started again
    why        why it started again
    cwd        the current folder, for what was a standby
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
