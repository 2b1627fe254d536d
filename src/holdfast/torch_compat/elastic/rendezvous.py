"""torch's rendezvous by ours: a handler for its agents, over every backend that torch names.

torch's agents ask for a round, and get ranks and a store of torch's own kind. The rounds are ours;
the store is a torch store server that the node of rank 0 starts, new for each round. At the round's
master, if that can be bound, it is also the store of the workers.

Guarantees
    TH-1  Every member of a round gets a client of the same store, which no other round has used.
    TH-2  A round that ends before all its members have met is followed by the next one: an agent
          sees only rounds in which it can work.
    TH-3  An agent hears that it should ask again as soon as its round is over, or its run has
          failed elsewhere. A run that is over because its work is done disturbs no agent.
    TH-4  Whatever goes wrong is one of torch's rendezvous errors, in our words.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from holdfast import env, ids
from holdfast.agent.exchange import swap
from holdfast.agent.roles import NodeInfo, WorkerRanks
from holdfast.agent.torch_store import TorchStoreServer, serve_master
from holdfast.agent.vouching import Witness
from holdfast.clock import SYSTEM_CLOCK, Deadline
from holdfast.errors import (
    Fenced,
    HoldfastError,
    RendezvousClosed,
    TimeoutExpired,
    Unavailable,
    UsageError,
)
from holdfast.net.address import Address, parse_address
from holdfast.rendezvous import parameters
from holdfast.rendezvous.handler import Rendezvous, Round
from holdfast.rendezvous.registry import create_rendezvous

__all__ = ["BACKENDS", "HoldfastRendezvousHandler", "RoundEndedEarly", "create_handler"]

BACKENDS = ("c10d", "etcd", "etcd-v2", "static")
"""The names that torch's own backends have."""

MEET_WITHIN_S = 60.0
_SLICE_S = 1.0
_CONNECT_S = 5.0
_AGAIN_S = 0.05
_TORCH_STORE = "torch"

_log = logging.getLogger("holdfast.torch_compat")


class RoundEndedEarly(Exception):  # it is no error: there will be another
    """The round ended before its members had met."""


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Take part in the run that torch's parameters describe."""
    if params.backend == "static" and "rank" not in params.config:
        raise ValueError("rank is absent in RendezvousParameters: say rank=…, or --node-rank")
    known = parameters.CONFIG_KEYS[params.backend]
    config = {name: value for name, value in params.config.items() if name in known}
    if unknown := sorted(params.config.keys() - known):
        _log.warning("rendezvous %s: %s: has no effect", params.backend, ", ".join(unknown))
    if _is_too_long(config):
        _log.warning("rendezvous last_call_timeout: has no effect, join_timeout is not longer")
        del config["last_call_timeout"]
    if "is_host" in config and params.get_as_bool("is_host"):
        del config["is_host"]  # torch's hosts if it can, and ours does unless told otherwise
    ours = parameters.RendezvousParameters(
        backend=params.backend,
        endpoint=params.endpoint.strip(),
        run_id=_run_id(params.run_id),
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_addr=params.local_addr,
        config=config,
    )
    with _torchs_errors():
        return HoldfastRendezvousHandler(create_rendezvous(ours), params.run_id)


def _is_too_long(config: Mapping[str, Any]) -> bool:
    """Say whether the last call would end after the time to join: torch accepts that, we do not."""
    try:
        return float(config["last_call_timeout"]) >= float(config["join_timeout"])
    except (KeyError, TypeError, ValueError):  # our parameters say what is wrong
        return False


class HoldfastRendezvousHandler(RendezvousHandler):  # type: ignore[misc]  # it is torch's
    """What torch's agent asks for rounds."""

    def __init__(self, rendezvous: Rendezvous, run_id: str) -> None:
        self._rendezvous = rendezvous
        self._run_id = run_id
        self._here: Round | None = None
        self._torch_store: TorchStoreServer | None = None
        self._witness: Witness | None = None
        self._shared = False

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return self._rendezvous.backend

    def get_run_id(self) -> str:
        """Return the run's name, as it was given."""
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether the store of the round is also the one that its workers find at the master."""
        return self._shared

    # What an agent does.

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round."""
        why = ""
        with _torchs_errors():
            while True:
                self._close_torch_store()
                here = self._rendezvous.next_round(why)
                try:
                    return self._enter(here)
                except RoundEndedEarly:
                    why = self._rendezvous.over() or "the round ended before it began"

    def exchange(self, role: str, workers: int) -> tuple[WorkerRanks, ...]:
        """Tell the round of this node's workers; return their ranks. RoundOver if it is."""
        here = self._round()
        deadline = Deadline.after(MEET_WITHIN_S)
        with _torchs_errors():
            swapped = swap(here, NodeInfo(role, workers), self._shared, self._is_over, deadline)
        if swapped is None:
            raise RoundEndedEarly
        return swapped[0].worker_ranks()

    def num_nodes_waiting(self) -> int:
        """Say whether there is a reason for a new round: how many nodes would come, or 1."""
        ended = self._rendezvous.ended()
        if ended is not None:
            return int(ended.failed)
        return self._rendezvous.nodes_waiting() or int(self._is_over())

    def finish(self) -> None:
        """Say that the workers of this node are done: the round goes on without it."""
        with _torchs_errors():
            self._rendezvous.finish()

    def fail(self, reason: str) -> None:
        """End the run for all nodes, as failed; they hear the reason."""
        self._close(reason, failed=True)

    # Its end.

    def is_closed(self) -> bool:
        """Say whether the run is over."""
        return self._rendezvous.closed() is not None

    def set_closed(self) -> None:
        """End the run for all nodes."""
        with _torchs_errors():
            self._rendezvous.close()

    def shutdown(self) -> bool:
        """End the run, unless it has ended, and leave it."""
        return self._close("a node has shut it down", failed=False) and self.leave()

    def leave(self) -> bool:
        """Leave the run, which goes on."""
        try:
            return self._rendezvous.shutdown()
        finally:
            self._close_torch_store()

    def _close(self, reason: str, *, failed: bool) -> bool:
        try:
            if not self.is_closed():
                self._rendezvous.close(reason, failed=failed)
        except UsageError:  # it has been left
            pass
        except HoldfastError as error:
            _log.warning("run %s: it could not be closed: %s", self._run_id, error)
            self.leave()
            return False
        return True

    # A round.

    def _enter(self, here: Round) -> RendezvousInfo:
        self._here = here
        try:
            if here.rank == 0:
                self._open_torch_store(here)
            else:
                self._witness = Witness(here)
                master = Address(here.master_address, here.master_port)
                self._witness.start(master, Deadline.after(MEET_WITHIN_S))
        except Fenced:
            raise RoundEndedEarly from None
        store = self._connect(self._find_torch_store(here))
        master = RendezvousStoreInfo(here.master_address, here.master_port)
        return RendezvousInfo(store, here.rank, here.world_size, master)

    def _open_torch_store(self, here: Round) -> None:
        """Serve the round's store: at its master if that can be bound, else at a free port."""
        where = Address(here.master_address, here.master_port)
        self._torch_store = serve_master(where, here) if env.current().share_store else None
        shared = self._torch_store is not None
        if self._torch_store is None:
            self._torch_store = TorchStoreServer(Address(here.members[0].address, 0), here)
            where = self._torch_store.address
        told = f"{int(shared)} {where}".encode()
        here.store.set(_TORCH_STORE, told, timeout=MEET_WITHIN_S)

    def _find_torch_store(self, here: Round) -> Address:
        deadline = Deadline.after(MEET_WITHIN_S)
        while not self._is_over():
            try:
                (told,) = here.store.wait(
                    [_TORCH_STORE], timeout=deadline.sooner(_SLICE_S).remaining()
                )
            except TimeoutExpired:
                if deadline.passed():
                    raise
                continue
            shared, _, where = told.decode().partition(" ")
            self._shared = shared == "1"
            return parse_address(where, 0)
        raise RoundEndedEarly

    def _connect(self, where: Address) -> TCPStore:
        """Connect to the round's store: the node that serves it may die before we do."""
        deadline = Deadline.after(MEET_WITHIN_S)
        while not self._is_over():
            within = timedelta(seconds=deadline.sooner(_CONNECT_S).remaining() or 0.0)
            try:
                store = TCPStore(
                    where.host, where.port, is_master=False, timeout=within, wait_for_workers=False
                )
            except DistError as error:
                if deadline.passed():
                    raise RendezvousConnectionError(
                        f"run {self._run_id}: no connection to the round's store at {where}: "
                        f"{error}"
                    ) from None
                SYSTEM_CLOCK.sleep(_AGAIN_S)
            else:
                store.set_timeout(timedelta(seconds=MEET_WITHIN_S))
                return store
        raise RoundEndedEarly

    def _round(self) -> Round:
        if self._here is None:
            raise RendezvousStateError(f"run {self._run_id}: no round has been asked for")
        return self._here

    def _is_over(self) -> bool:
        return self._rendezvous.over() is not None

    def _close_torch_store(self) -> None:
        server, self._torch_store = self._torch_store, None
        witness, self._witness = self._witness, None
        if server is not None:
            server.close()
        if witness is not None:
            witness.close()


def _run_id(text: str) -> str:
    """Return a name that keys can have: torch takes any text."""
    try:
        return ids.run_id(text)
    except UsageError:
        return f"torch-{hashlib.sha256(str(text).encode()).hexdigest()[:32]}"


@contextmanager
def _torchs_errors() -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise  # a ValueError, as torch has it
    except RendezvousClosed as error:
        raise RendezvousClosedError(str(error)) from error
    except TimeoutExpired as error:
        raise RendezvousTimeoutError(str(error)) from error
    except Unavailable as error:
        raise RendezvousConnectionError(str(error)) from error
    except HoldfastError as error:
        raise RendezvousStateError(str(error)) from error
