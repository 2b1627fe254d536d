"""What a forked child does to the objects that it inherits: one registry for all of them.

A child of `os.fork` has a copy of its parent's memory, but none of the other threads, and it shares
the parent's sockets. An object that owns a lock, a thread or a socket registers here what a child
has to do to its copy.

Guarantees
    FK-1  A forked child has no part in the sockets that were registered: the end of ours is noticed
          though the child lives, and nothing that the child does reaches our peers.
    FK-2  Every registered function of a module is called in every child, then that of every
          registered object that still exists, in the order of registration. Registering keeps no
          object alive.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["close_in_child", "in_child", "in_every_child"]

T = TypeVar("T")

_module_acts: list[Callable[[], object]] = []

_acts: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()


def in_child(owner: T, act: Callable[[T], object]) -> None:
    """Let every forked child call `act(owner)` on its copy, which has no other threads."""
    _acts[owner] = act


def in_every_child(act: Callable[[], object]) -> Callable[[], object]:
    """Let every forked child call a function of a module; a decorator."""
    _module_acts.append(act)
    return act


def close_in_child(sock: socket.socket) -> None:
    """Let no forked child have a part in a socket (FK-1)."""
    _acts[sock] = socket.socket.close  # the child's copy alone: the parent's stays open


def _after_fork() -> None:
    for module_act in _module_acts:
        module_act()
    for owner, act in tuple(_acts.items()):
        act(owner)


os.register_at_fork(after_in_child=_after_fork)
