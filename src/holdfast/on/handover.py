"""Hand the job's secret from the first node to the others, each against a MUNGE credential.

Guarantees
    OV-1  The secret is given only to processes of the same user, on hosts of the same cluster: a
          node shows a credential to ask, and the reply is one that its user alone can open.
    OV-2  A node takes a secret only from a process of its own user, for its own run.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import HoldfastError, Refused, TimeoutExpired, UsageError
from holdfast.net.address import Address
from holdfast.on import munge
from holdfast.threads import start_thread

__all__ = ["SecretServer", "fetch"]

_MESSAGE_MAX = 16384
_CLIENTS_MAX = 16
_CLIENT_S = 20.0
_RETRY_S = 0.2
FETCH_WITHIN_S = 300.0
"""How long the first node may take to start."""

Seal = Callable[[bytes], bytes]


class SecretServer:
    """While entered, it gives the secret to nodes of the run."""

    def __init__(
        self,
        address: Address,
        run_id: str,
        secret: str,
        *,
        seal: Seal = munge.seal,
        unseal: Seal = munge.open_credential,
    ) -> None:
        self._run_id = run_id.encode()
        self._reply = b"\n".join((self._run_id, secret.encode()))
        self._seal, self._unseal = seal, unseal
        self._room = threading.BoundedSemaphore(_CLIENTS_MAX)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._socket = socket.create_server(address, family=family)
        except OSError as error:
            raise UsageError(
                f"address {address}: cannot be bound here: {error.strerror or error}"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="holdfast-secret", daemon=True)

    def __enter__(self) -> Self:
        start_thread(self._thread)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            if not self._room.acquire(timeout=_CLIENT_S):
                client.close()
                continue
            try:
                start_thread(threading.Thread(target=self._answer, args=(client,), daemon=True))
            except HoldfastError:
                client.close()
                self._room.release()

    def _answer(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError, HoldfastError):
                client.settimeout(_CLIENT_S)
                if self._unseal(_read_all(client)) == self._run_id:
                    client.sendall(self._seal(self._reply))
        finally:
            self._room.release()


def fetch(
    address: Address,
    run_id: str,
    *,
    within_s: float = FETCH_WITHIN_S,
    seal: Seal = munge.seal,
    unseal: Seal = munge.open_credential,
) -> str:
    """Return the secret of a run. TimeoutExpired if no first node gives it in time."""
    deadline, why = Deadline.after(within_s), ""
    while True:
        try:
            with socket.create_connection(address, timeout=_CLIENT_S) as server:
                server.sendall(seal(run_id.encode()))
                server.shutdown(socket.SHUT_WR)
                reply = _read_all(server)
            if reply:
                return _secret_of(unseal(reply), run_id)
            why = "the connection was closed"
        except Refused:
            raise
        except OSError as error:  # not there yet; other errors of MUNGE are told
            why = str(error)
        if deadline.passed():
            raise TimeoutExpired(f"the job's secret did not come from {address}: {why}")
        SYSTEM_CLOCK.sleep(_RETRY_S)


def _secret_of(payload: bytes, run_id: str) -> str:
    found, _, secret = payload.partition(b"\n")
    if found != run_id.encode() or not secret:
        raise Refused(
            f"the secret is of run {found.decode(errors='replace')!r:.80}, not {run_id!r}"
        )
    return secret.decode()


def _read_all(connection: socket.socket) -> bytes:
    """Read until the other side has said all."""
    data = b""
    while len(data) <= _MESSAGE_MAX and (chunk := connection.recv(4096)):
        data += chunk
    return data
