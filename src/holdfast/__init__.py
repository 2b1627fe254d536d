"""Elastic jobs and RPC for Python that hold when machines don't.

Layout, in reading order (◦ = pure); imports point up in this list, never down
    errors.py ◦  every error, by what must be done about it
    ids.py ◦     names of things
    records.py ◦ dataclasses that are made quickly
    clock.py     the only reader of clocks
    env.py       the only reader of the environment
    threads.py   threads, which the system may refuse
    forks.py     what a forked child does to what it inherits
    observe/     events, the recorder and its replay, metrics, sinks
    net/         addresses, frames, the handshake, transports, the reactor
    store/       the shared key-value space and its backends
    control/     each agent of a machine answers its user's commands
    page/        a job in a browser
    rendezvous/  which nodes are in a round of a run, and in which order
    process/     worker processes: started, contained, watched, logged, stopped
    rpc/         calls between named workers, and references to their values
    agent/       supervises the workers of one node
    faults/      messages that go wrong by a plan
    launch/      from a configuration and an entry point to results by rank
    on/          jobs on machines that another program gives: ssh, MPI's launchers, Slurm
    cli/         the command line
    torch_compat/  torch's names for all this; the only part that imports torch
    testing/     what tests of distributed programs need; nothing above imports it

The names below, and the modules `errors` and `rpc`, are imported when they are first used, so
`import holdfast` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast import rpc as rpc
    from holdfast.errors import (
        HoldfastError,
        RendezvousLost,
        RendezvousTimedOut,
        Signalled,
        Stopped,
        WorkersFailed,
        WorkersStuck,
    )
    from holdfast.launch.config import LaunchConfig
    from holdfast.launch.launcher import elastic_launch
    from holdfast.process.outcome.errorfile import record
    from holdfast.process.output.streams import LogOptions
    from holdfast.process.progress import progress
    from holdfast.process.watchdog import expires
    from holdfast.rendezvous.handler import Rendezvous, Round
    from holdfast.rendezvous.parameters import RendezvousParameters
    from holdfast.rendezvous.registry import create_rendezvous
    from holdfast.store.gather import all_gather, barrier
    from holdfast.store.lease import LeaseKeeper
    from holdfast.store.open import open_store, serve_store
    from holdfast.store.prefix import PrefixStore
    from holdfast.store.store import Store, Watch

__version__ = "0.1.0.dev0"

__all__ = [
    "HoldfastError",
    "LaunchConfig",
    "LeaseKeeper",
    "LogOptions",
    "PrefixStore",
    "Rendezvous",
    "RendezvousLost",
    "RendezvousParameters",
    "RendezvousTimedOut",
    "Round",
    "Signalled",
    "Stopped",
    "Store",
    "Watch",
    "WorkersFailed",
    "WorkersStuck",
    "__version__",
    "all_gather",
    "barrier",
    "create_rendezvous",
    "elastic_launch",
    "expires",
    "open_store",
    "progress",
    "record",
    "serve_store",
]

_HOMES = {
    "HoldfastError": "holdfast.errors",
    "LaunchConfig": "holdfast.launch.config",
    "LeaseKeeper": "holdfast.store.lease",
    "LogOptions": "holdfast.process.output.streams",
    "PrefixStore": "holdfast.store.prefix",
    "Rendezvous": "holdfast.rendezvous.handler",
    "RendezvousLost": "holdfast.errors",
    "RendezvousParameters": "holdfast.rendezvous.parameters",
    "RendezvousTimedOut": "holdfast.errors",
    "Round": "holdfast.rendezvous.handler",
    "Signalled": "holdfast.errors",
    "Stopped": "holdfast.errors",
    "Store": "holdfast.store.store",
    "Watch": "holdfast.store.store",
    "WorkersFailed": "holdfast.errors",
    "WorkersStuck": "holdfast.errors",
    "all_gather": "holdfast.store.gather",
    "barrier": "holdfast.store.gather",
    "create_rendezvous": "holdfast.rendezvous.registry",
    "elastic_launch": "holdfast.launch.launcher",
    "expires": "holdfast.process.watchdog",
    "open_store": "holdfast.store.open",
    "progress": "holdfast.process.progress",
    "record": "holdfast.process.outcome.errorfile",
    "serve_store": "holdfast.store.open",
}
_MODULES = ("errors", "rpc")


if not TYPE_CHECKING:  # or type checkers would believe in any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES and name not in _MODULES:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        import importlib

        if name in _MODULES:
            return importlib.import_module(f"holdfast.{name}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # so that this is asked once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
