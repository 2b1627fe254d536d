"""torch's store, served by the agent of node 0 at the master's address of a round.

The workers of a round meet there, and it outlives every one of them: it is closed when the workers
of all nodes have ended. Each round has a store of its own. It admits processes of its own user on
this host, and connections from other hosts for which the agent of that host vouches.
"""

from __future__ import annotations

import logging

from holdfast.agent.job import Job
from holdfast.agent.vouching import Inquiry, Witness
from holdfast.clock import Deadline
from holdfast.errors import Unavailable, UsageError
from holdfast.net.address import Address, is_loopback
from holdfast.observe.sinks import LogSink
from holdfast.records import dataclass
from holdfast.rendezvous.handler import Round
from holdfast.store.c10d.server import C10dServer
from holdfast.store.store import Watch

__all__ = ["Opened", "TorchStoreServer", "master_of", "open_torch_store", "serve_master"]

RESOLVE_WITHIN_S = 5.0
"""How long the name of the master is looked up: no worker starts before."""

_log = logging.getLogger("holdfast.agent")


def master_of(job: Job, here: Round) -> Address:
    """Return the master's address that the workers of a round are told."""
    return Address(job.master_address or here.master_address, job.master_port or here.master_port)


class TorchStoreServer:
    """torch's store at an address of this host, for the workers of a round alone.

    UsageError if the address cannot be bound.
    """

    def __init__(self, address: Address, here: Round) -> None:
        self._inquiry = None if is_loopback(address.host) else Inquiry(here)
        # Refusals are shown to the person who runs the job: a worker may be refused by mistake.
        self._server = C10dServer(address, vouch=self._inquiry, sink=LogSink(_log))
        self._server.start()

    @property
    def address(self) -> Address:
        """Where it is, with the real port."""
        return self._server.address

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._server.close()
        if self._inquiry is not None:
            self._inquiry.close()


@dataclass(slots=True)
class Opened:
    """What was opened for one round."""

    torch_store: TorchStoreServer | None = None
    witness: Witness | None = None
    reports: Watch | None = None

    def close_torch_store(self) -> None:
        """Close what is for workers alone. Idempotent."""
        if self.torch_store is not None:
            self.torch_store.close()
        if self.witness is not None:
            self.witness.close()

    def close(self) -> None:
        """Close it all. Idempotent."""
        self.close_torch_store()
        if self.reports is not None:
            self.reports.close()


def open_torch_store(job: Job, here: Round, *, again: bool = False) -> TorchStoreServer | None:
    """Serve torch's store in this round, if that is this node's to do; None if it is not served."""
    if not job.torch_store or here.rank != 0:
        return None
    return serve_master(master_of(job, here), here, again=again)


def serve_master(master: Address, here: Round, *, again: bool = False) -> TorchStoreServer | None:
    """Serve torch's store at the master's address; None if that cannot be bound here.

    Rank 0 serves the store then, as it does without an agent, and a warning says so, unless an
    earlier round had one (`again`). Blocks while a name is looked up.
    """
    from holdfast.net.tcp import resolve

    try:
        if master.port == 0:
            raise UsageError(f"cannot listen on {master}: workers would not know the port")
        _, where = resolve(master, Deadline.after(RESOLVE_WITHIN_S))[0]
        return TorchStoreServer(Address(str(where[0]), master.port), here)
    except (UsageError, Unavailable) as error:
        # Its text alone: a log record that is kept would keep the socket that could not be bound.
        level = logging.DEBUG if again else logging.WARNING
        _log.log(level, "torch's store is not served by the agent but by rank 0: %s", str(error))
        return None
