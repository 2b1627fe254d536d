"""torch's etcd server by ours: one member on this machine, for tests and single hosts.

torch's own needs a client library to know when its server is ready, and lets it live on when this
process is killed; ours needs none, and does not.
"""

from __future__ import annotations

import atexit
from typing import Any

from holdfast.errors import UsageError
from holdfast.store.etcd import local_server

__all__ = ["EtcdServer"]


class EtcdServer:
    """Starts and stops an etcd, by torch's names."""

    def __init__(self, data_dir: str | None = None) -> None:
        self._data_dir = data_dir
        self._server: local_server.LocalEtcdServer | None = None

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: Any = None) -> None:
        """Start it, and wait until it serves. It finds free ports itself, and keeps a log."""
        if self._server is not None:
            raise UsageError(f"the etcd server at {self.get_endpoint()} has been started already")
        self._server = local_server.LocalEtcdServer(data_dir=self._data_dir).start(timeout)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop it. Idempotent."""
        atexit.unregister(self.stop)
        served, self._server = self._server, None
        if served is not None:
            served.close()

    def get_host(self) -> str:
        """Return where it runs."""
        return self._served().addresses[0].host

    def get_port(self) -> int:
        """Return the port of its clients."""
        return self._served().addresses[0].port

    def get_endpoint(self) -> str:
        """Return both, as a rendezvous endpoint."""
        return str(self._served().addresses[0])

    def get_client(self) -> Any:
        """Return a client of the library that torch uses, if it is installed."""
        import etcd  # type: ignore[import-not-found]

        where = self._served().addresses[0]
        return etcd.Client(host=where.host, port=where.port, version_prefix="/v2", read_timeout=10)

    def _served(self) -> local_server.LocalEtcdServer:
        if self._server is None:
            raise RuntimeError("No etcd server process started. Call etcd_server.start() first")
        return self._server
