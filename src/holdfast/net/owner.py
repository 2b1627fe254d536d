"""Which user owns a TCP socket of this host, by its addresses.

A server that cannot ask a peer for a proof can ask the kernel instead: a connection from this host
has its other end here, and the kernel knows which user made it. It is asked by netlink (sock_diag,
about 15 µs), or by /proc/net/tcp and tcp6 where that is not served.

Guarantees
    OW-1  A user is named only for a socket that is connected with exactly these two addresses, and
          that a process holds. What the kernel keeps of a socket after its process has closed it
          has no user, or shows as root's: it counts as none.
    OW-2  A user that the kernel cannot name is not ours, as with Unix sockets (PC-2).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple, Self

from holdfast.errors import Unavailable
from holdfast.net.address import Address
from holdfast.net.credentials import is_our_user

__all__ = ["Ends", "is_connected", "judge_owner", "owner_of"]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

# <linux/netlink.h>, <linux/sock_diag.h>, <linux/inet_diag.h>, <net/tcp_states.h>
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_ESTABLISHED = 1
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFFFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_SOCKET = struct.Struct("!HH16s16s")  # ports and addresses: the socket's own, the other's
_REST = struct.Struct("=IQ")  # interface, cookie
_FOUND = struct.Struct("=BB2x36x12xIIIII")  # family, state, expires, two queues, user, inode
_NUMBER = struct.Struct("=i")
_REPLY_BYTES = 4096


class Ends(NamedTuple):
    """The two addresses of a connection."""

    client: Address
    server: Address

    @classmethod
    def of_accepted(cls, sock: socket.socket) -> Self:
        """Return those of a socket that a server accepted; OSError if it is not connected."""
        client, server = sock.getpeername(), sock.getsockname()
        return cls(Address(*client[:2]), Address(*server[:2]))


def is_connected(sock: socket.socket) -> bool:
    """Say whether neither side has begun to close the connection, as far as is known here.

    If so, no other process can have had a socket with its peer's addresses since it was accepted.
    """
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED
    except OSError:
        return False


def judge_owner(ends: Ends) -> str | None:
    """Return why the client's end is not our user's, or nothing if it is.

    None if no process of this host has it. Unavailable if the kernel does not tell.
    """
    user = owner_of(ends)
    if user is None:
        return None
    return "" if is_our_user(user) else f"it belongs to user {user}, not to {os.geteuid()}"


def owner_of(ends: Ends) -> int | None:
    """Return the user that owns the client's end, or None if no process of this host has it.

    Unavailable if the kernel does not tell, as on systems other than Linux.
    """
    if sys.platform != "linux":
        raise Unavailable(f"the owner of a connection cannot be determined on {sys.platform}")
    try:
        found = _by_netlink(ends)
        if found is not None or _netlink_tells():
            return found
    except OSError:
        pass  # not every system serves it
    try:
        return _by_tables(ends)
    except OSError as error:
        raise Unavailable(
            "the owner of a connection cannot be determined: there is neither sock_diag nor "
            f"{_TABLES[0]} ({error.strerror})"
        ) from None


def _by_netlink(ends: Ends) -> int | None:
    client, server = map(_numeric, (ends.client.host, ends.server.host))
    family = socket.AF_INET if client.version == 4 else socket.AF_INET6
    addresses = (client.packed.ljust(16, b"\0"), server.packed.ljust(16, b"\0"))
    kind, body = _ask(
        0,
        _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE)
        + _SOCKET.pack(ends.client.port, ends.server.port, *addresses)
        + _REST.pack(0, _NO_COOKIE),
    )
    if kind == _NLMSG_ERROR:
        (negative,) = _NUMBER.unpack_from(body)
        if negative == -errno.ENOENT:
            return None
        raise OSError(-negative, "sock_diag refuses")
    _, state, _, _, _, user, inode = _FOUND.unpack_from(body)
    # A listener at the client's address is found as well, and what is left of closed sockets.
    return user if state == _ESTABLISHED and inode else None


@cache
def _netlink_tells() -> bool:
    """Say whether sock_diag knows TCP: it finds nothing either where a part of it is missing."""
    no_state = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0)
    kind, body = _ask(_NLM_F_DUMP, no_state + bytes(_SOCKET.size) + _REST.pack(0, _NO_COOKIE))
    return kind == _NLMSG_DONE and _NUMBER.unpack_from(body) == (0,)


def _ask(flags: int, request: bytes) -> tuple[int, bytes]:
    """Ask sock_diag; return the type of its reply, and the reply."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as kernel:
        size = _HEADER.size + len(request)
        header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST | flags, 0, 0)
        kernel.sendto(header + request, (0, 0))
        reply = kernel.recv(_REPLY_BYTES, socket.MSG_DONTWAIT)  # it is there when sendto returns
    return _HEADER.unpack_from(reply)[1], reply[_HEADER.size :]


def _by_tables(ends: Ends) -> int | None:
    wanted = [
        (_in_table(ends.client, mapped=mapped), _in_table(ends.server, mapped=mapped))
        for mapped in (False, True)
    ]
    for table in _TABLES:
        if not table.exists() and table is not _TABLES[0]:
            continue  # a system without IPv6
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            _, own, other, state, _, _, _, user, _, inode, *_ = line.split()
            if (own, other) in wanted and int(state, 16) == _ESTABLISHED and inode != "0":
                return int(user)
    return None


def _in_table(address: Address, *, mapped: bool) -> str:
    """Return an address as the tables have it; `mapped`: an IPv4 one of an IPv6 socket."""
    packed = _numeric(address.host).packed
    if mapped and len(packed) == 4:
        packed = b"\0" * 10 + b"\xff\xff" + packed
    words = (int.from_bytes(packed[i : i + 4], sys.byteorder) for i in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{address.port:04X}"


def _numeric(host: str) -> IPv4Address | IPv6Address:
    return ip_address(host.partition("%")[0])
