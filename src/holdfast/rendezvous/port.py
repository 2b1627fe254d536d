"""A port that is kept for the round's master until it is needed, and one that is wanted.

A node announces a port with itself, so that the others know the master's address the moment that
the round is complete. The port is held by a bound socket that does not listen: no process is given
it by chance, and one that binds it with SO_REUSEADDR, as servers do, gets it all the same.
"""

from __future__ import annotations

import socket

from holdfast.errors import UsageError

__all__ = ["HeldPort", "free_port"]


def free_port(address: str, port: int) -> int:
    """Return the port if a server can bind it at this address now, else 0."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return 0
    return port


class HeldPort:
    """A free port of an address, held until `close()`."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address, 0))
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"local address {address!r:.80}: cannot be bound here: {error.strerror}"
            ) from None
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Let the port go. Idempotent."""
        self._socket.close()
