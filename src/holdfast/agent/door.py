"""torch's store, served by the agent of node 0 at the master's address of a round.

The workers of a round meet there, and it outlives every one of them: it is closed when the workers
of all nodes have ended. Each round has a store of its own.
"""

from __future__ import annotations

import logging

from holdfast.agent.job import Job
from holdfast.clock import Deadline
from holdfast.errors import Unavailable, UsageError
from holdfast.net.address import Address, is_loopback
from holdfast.records import dataclass
from holdfast.rendezvous.handler import Round
from holdfast.store.c10d.server import C10dDoor
from holdfast.store.store import Watch

__all__ = ["Opened", "master_of", "open_door", "serve_master"]

RESOLVE_WITHIN_S = 5.0
"""How long the name of the master is looked up: no worker starts before."""

_log = logging.getLogger("holdfast.agent")


def master_of(job: Job, here: Round) -> Address:
    """Return the master's address that the workers of a round are told."""
    return Address(job.master_address or here.master_address, job.master_port or here.master_port)


@dataclass(slots=True)
class Opened:
    """What was opened for one round."""

    door: C10dDoor | None = None
    reports: Watch | None = None

    def close_door(self) -> None:
        """Close what is for workers alone. Idempotent."""
        if self.door is not None:
            self.door.close()

    def close(self) -> None:
        """Close it all. Idempotent."""
        self.close_door()
        if self.reports is not None:
            self.reports.close()


def open_door(job: Job, here: Round) -> C10dDoor | None:
    """Serve torch's store in this round, if that is this node's to do; None if it is not served."""
    return serve_master(master_of(job, here)) if job.door and here.rank == 0 else None


def serve_master(master: Address) -> C10dDoor | None:
    """Serve torch's store at the master's address; None if that cannot be bound here.

    Rank 0 serves the store then, as it does without an agent. Blocks while a name is looked up.
    """
    from holdfast.net.tcp import resolve

    try:
        if master.port == 0:
            raise UsageError(f"cannot listen on {master}: workers would not know the port")
        _, where = resolve(master, Deadline.after(RESOLVE_WITHIN_S))[0]
        door = C10dDoor(Address(str(where[0]), master.port), exposed=not is_loopback(master.host))
        door.start()
    except (UsageError, Unavailable) as error:
        # Its text alone: a log record that is kept would keep the socket that could not be bound.
        _log.warning("torch's store is not served by the agent but by rank 0: %s", str(error))
        return None
    return door
