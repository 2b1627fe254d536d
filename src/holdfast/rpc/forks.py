"""Sockets of this process alone.

Guarantees
    FK-1  A process that is forked has no part in the sockets of RPC: the end of ours is noticed
          though the child lives, and nothing that it does can reach our peers.
"""

from __future__ import annotations

import os
import socket
import weakref

__all__ = ["keep_from_children"]

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def keep_from_children(sock: socket.socket) -> None:
    """Let no process that is forked have part in a socket (FK-1)."""
    _sockets.add(sock)


def _after_fork() -> None:
    for sock in tuple(_sockets):
        sock.close()  # our copy, and nothing more: what it stands for is the parent's


os.register_at_fork(after_in_child=_after_fork)
