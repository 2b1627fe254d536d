"""The place of this node in a job that another program has started: what its launcher says.

Every launcher is read into the same few facts, and these give values to flags of `holdfast run`. A
flag that a user gives beats what the launcher says.
"""

from __future__ import annotations

import zlib

from holdfast.net.address import Address
from holdfast.records import dataclass

__all__ = ["PORTS", "NodePlace", "name_of", "port_for"]

PORTS = range(20_000, 30_000)
"""Below the ports that systems give to clients: none of these is taken by chance."""

_ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """This node's place in a job. Inert."""

    engine: str
    """The word after `--on`."""
    told: str
    """The job as a person knows it, for the first line."""
    run_id: str
    nodes: int
    rank: int
    host: str
    """The host of the store."""
    port: int
    hosts_store: bool | None
    """Whether this node hosts the store; None: it does if the address is its own."""
    workers: int | None = None
    """How many workers the launcher has room for on this node, if it says so."""
    grace_s: float | None = None
    """How long the launcher waits between asking a process to end and killing it."""
    warnings: tuple[str, ...] = ()

    def flags(self) -> dict[str, str]:
        """Return what this gives to flags, by their names in Python."""
        found = {
            "nnodes": str(self.nodes),
            "rdzv_backend": "c10d",
            "rdzv_endpoint": str(Address(self.host, self.port)),
            "rdzv_id": self.run_id,
        }
        if self.workers is not None:
            found["nproc_per_node"] = str(self.workers)
        if self.grace_s is not None:
            found["shutdown_timeout"] = f"{self.grace_s:g}"
        return found

    def conf(self, backend: str, *, own_endpoint: bool) -> str:
        """Return what this adds to `--rdzv-conf`; `own_endpoint`: the user has given none."""
        parts = [f"rank={self.rank}"] if backend in ("c10d", "static") else []
        if backend == "c10d" and own_endpoint and self.hosts_store is not None:
            parts.append(f"is_host={str(self.hosts_store).lower()}")
        return ",".join(parts)


def port_for(run_id: str) -> int:
    """Return the port of a run: the same on every node, and another one for most other runs."""
    return PORTS[zlib.crc32(run_id.encode()) % len(PORTS)]


def name_of(*parts: str) -> str:
    """Join parts to the id of a run; what an id cannot have becomes a dash."""
    text = "-".join(parts)
    return "".join(one if one in _ALLOWED else "-" for one in text)[:100]
