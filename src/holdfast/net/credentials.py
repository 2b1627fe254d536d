"""Which user is at the other end of a Unix socket, as the kernel says.

Every user of the machine can connect to an abstract Unix socket, and can take its name once its
owner has ended. So both ends ask the kernel which user the other one is, before a byte is sent or
read. The answer is about the process that connected, or that listens.

Guarantees
    PC-1  A peer is accepted only if it runs as our user, or in the group that may hold the key.
    PC-2  A peer whose user the kernel cannot name is refused: it shows as the overflow user, which
          stands for every user that has no number in our user namespace.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from functools import cache
from typing import NamedTuple

from holdfast.errors import Refused, Step

__all__ = ["Credentials", "check_peer", "is_our_user", "judge", "peer_credentials"]

_SO_PEERGROUPS = 59  # Linux; the socket module does not name it
_UCRED = struct.Struct("@iII")
_GID = struct.Struct("@I")
_GROUPS_BYTES = 1024  # the most that Python's getsockopt takes
_EVERY_UID = 2**32 - 1
_OVERFLOW = 65534


class Credentials(NamedTuple):
    """A process at the other end: `pid` is 0 if it has no number in our process namespace."""

    pid: int
    uid: int
    groups: frozenset[int]


def peer_credentials(sock: socket.socket) -> Credentials | None:
    """Return what the kernel says of the peer; None where it says nothing.

    That is: on a socket that is no Unix socket, and on systems other than Linux.
    """
    if sys.platform != "linux" or sock.family != socket.AF_UNIX:
        return None
    known = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(known)
    groups = {gid}
    with contextlib.suppress(OSError):  # Linux before 4.13, or more groups than fit
        found = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        groups.update(number for (number,) in _GID.iter_unpack(found))
    return Credentials(max(pid, 0), uid, frozenset(groups))


def check_peer(sock: socket.socket, group: int | None) -> None:
    """Raise Refused unless the peer runs as our user, or in this group (PC-1, PC-2).

    Where the kernel says nothing of the peer, this checks nothing: TCP has the handshake alone, and
    on systems other than Linux our sockets are in folders that only our user can enter.
    """
    peer = peer_credentials(sock)
    if peer is None:
        return
    overflow_uid, overflow_gid = _overflow("uid"), _overflow("gid")
    why = judge(
        peer,
        me=os.geteuid(),
        group=None if group == overflow_gid else group,
        overflow_uid=overflow_uid,
        all_named=peer.uid != overflow_uid or _all_users_are_named(),
    )
    if why:
        raise Refused(why, step=Step.HANDSHAKE)


def judge(
    peer: Credentials, *, me: int, group: int | None, overflow_uid: int, all_named: bool
) -> str:
    """Return why a peer is refused; nothing if it is not.

    `all_named` says that every user has a number here, so that the overflow user is a user like
    any other.
    """
    if peer.uid == overflow_uid and not all_named:
        return (
            f"the peer shows as user {overflow_uid}, the overflow user: it runs in another user "
            "namespace, where the kernel cannot tell us which user it is"
        )
    if peer.uid == me or (group is not None and group in peer.groups):
        return ""
    allowed = f"user {me}" if group is None else f"user {me} and group {group}"
    return f"the peer runs as user {peer.uid}: only {allowed} may hold the key"


def is_our_user(uid: int) -> bool:
    """Say whether a number that the kernel told stands for our user, and for no other (PC-2)."""
    return uid == os.geteuid() and (uid != _overflow("uid") or _all_users_are_named())


@cache
def _overflow(kind: str) -> int:
    """Return the number that stands for users (or groups) without one."""
    try:
        with open(f"/proc/sys/kernel/overflow{kind}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # no /proc: what Linux sets
        return _OVERFLOW


def _all_users_are_named() -> bool:
    """Say whether every user has a number in our user namespace, as in the machine's first one."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return sum(int(line.split()[2]) for line in file) >= _EVERY_UID
    except (OSError, ValueError, IndexError):
        return False
