"""The backends by name: which store, who hosts it, and the node that takes part over it.

c10d      the built-in store at host:port. Who hosts it is said (`is_host`), or else it is
whoever can bind the address: it is this machine's and free, or it is not. Host
names are never compared.
static    fixed ranks, and a master that is given: host:port is passed on as it is, and never
bound here. Several nodes meet at a store of the node with rank 0, one port higher
(or at `store_port`).
etcd      etcd's v3 API           etcd-v2   etcd's v2 keys API
file      a file that all nodes see: one host
"""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.clock import Deadline
from holdfast.errors import HoldfastError, TimeoutExpired, UsageError
from holdfast.ids import NodeId, new_token
from holdfast.net.address import Address, is_loopback, parse_address
from holdfast.net.tcp import resolve
from holdfast.rendezvous.handler import Rendezvous, StoreRendezvous
from holdfast.rendezvous.model import Announcement, Keys, Phase
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.port import HeldPort, address_towards
from holdfast.store.memory import MemoryStore
from holdfast.store.open import open_store, serve_store
from holdfast.store.server import StoreServer
from holdfast.store.store import Store

__all__ = ["BACKENDS", "Creator"]

C10D_PORT = 29400
MASTER_PORT = 29500
ETCD_PORT = 2379
RUN_KEY = "run"
"""Where a store that a node hosts says whose it is: it serves one run."""

_log = logging.getLogger("holdfast.rendezvous")

Creator = Callable[[RendezvousParameters], Rendezvous]
"""Make a rendezvous. Blocks for as long as the run's store cannot be reached, but no longer than
the join timeout."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The store where nodes meet, what is nearest to it, and its server if this node hosts it."""

    store: Store
    towards: Address | None
    server: StoreServer | None = None


def create_c10d(parameters: RendezvousParameters) -> Rendezvous:
    """Meet at the built-in store."""
    if parameters.text("store_type") == "file":
        return create_file(parameters)
    if parameters.text("store_type") not in (None, "tcp"):
        raise UsageError(
            f"rendezvous store_type {parameters.text('store_type')!r:.40}: must be tcp or file"
        )
    address = parse_address(parameters.endpoint or "localhost", C10D_PORT)
    place = _built_in(parameters, address, parameters.flag("is_host"))
    return _take_part("c10d", parameters, place)


def create_static(parameters: RendezvousParameters) -> Rendezvous:
    """Take the rank and the master that were given."""
    size = parameters.max_nodes
    if parameters.min_nodes != size:
        raise UsageError(
            f"nodes {parameters.min_nodes}:{size}: a static rendezvous takes a fixed number"
        )
    rank = parameters.integer("rank")
    rank = 0 if rank is None and size == 1 else rank
    if rank is None or rank >= size:
        raise UsageError(f"rendezvous rank {rank}: must be from 0 to {size - 1}")
    master = parse_address(parameters.endpoint or "127.0.0.1", MASTER_PORT)
    if size == 1:
        place = _Place(MemoryStore(), None)
    else:
        port = parameters.integer("store_port") or master.port + 1
        place = _built_in(parameters, Address(master.host, port), rank == 0)
    return _take_part("static", parameters, place, slot=rank, master=master)


def create_file(parameters: RendezvousParameters) -> Rendezvous:
    """Meet in a file of this host."""
    path = parameters.endpoint.removeprefix("file://")
    if not path.startswith("/"):
        raise UsageError(f"rendezvous endpoint {path!r:.200}: must be an absolute path")
    return _take_part("file", parameters, _Place(open_store(f"file://{path}"), None))


def create_etcd(parameters: RendezvousParameters) -> Rendezvous:
    """Meet in etcd, over its v3 API."""
    prefix = (parameters.text("etcd_prefix") or "/torchelastic/p2p").strip("/")
    files = (parameters.text("cert"), parameters.text("key"), parameters.text("cacert"))
    return _take_part("etcd", parameters, _etcd("etcd", parameters, prefix, files))


def create_etcd_v2(parameters: RendezvousParameters) -> Rendezvous:
    """Meet in etcd, over its v2 keys API."""
    names = ("ssl_cert", "ssl_cert_key", "ca_cert")
    cert, key, ca = (parameters.text(name) for name in names)
    place = _etcd("etcd-v2", parameters, "torch/elastic/rendezvous", (cert, key, ca))
    return _take_part("etcd-v2", parameters, place)


BACKENDS: dict[str, Creator] = {
    "c10d": create_c10d,
    "static": create_static,
    "etcd": create_etcd,
    "etcd-v2": create_etcd_v2,
    "file": create_file,
}


def _built_in(parameters: RendezvousParameters, address: Address, is_host: bool | None) -> _Place:
    """Host the store if this node does, and open it."""
    server: StoreServer | None = None
    if is_host is not False:
        try:
            server = serve_store(f"tcp://{address}")
        except UsageError:
            if is_host or address.port == 0:
                raise
    if server is not None:
        _warn_if_unreachable(address)
        address = server.address
    timeout = parameters.seconds("join_timeout", "timeout", default=600.0)
    try:
        store = open_store(f"tcp://{address}", timeout=timeout)
        try:
            swap = store.compare_set(RUN_KEY, None, parameters.run_id.encode())
        except HoldfastError:
            store.close()
            raise
    except HoldfastError:
        if server is not None:
            server.close()
        raise
    if swap.value != parameters.run_id.encode():
        store.close()
        other = (swap.value or b"").decode(errors="replace")
        raise UsageError(
            f"rendezvous endpoint {address}: serves run {other!r:.80}, not {parameters.run_id!r}; "
            "give each job a port of its own"
        )
    return _Place(store, address, server)


def _warn_if_unreachable(address: Address) -> None:
    """Say so if the name that others were given means loopback here."""
    if is_loopback(address.host):
        return
    try:
        found = [str(where[0]) for _, where in resolve(address, Deadline.after(5.0))]
    except HoldfastError:
        return
    if all(is_loopback(one) for one in found):
        _log.warning(
            "the store at %s is hosted here, but the name means %s on this machine: "
            "other hosts cannot reach it",
            address,
            found[0],
        )


def _etcd(
    scheme: str,
    parameters: RendezvousParameters,
    prefix: str,
    files: tuple[str | None, str | None, str | None],
) -> _Place:
    parts = [part for part in parameters.endpoint.split(",") if part]
    if not parts:
        raise UsageError(f"rendezvous endpoint '': {scheme} needs host:port, or several with ','")
    addresses = [parse_address(part, ETCD_PORT) for part in parts]
    protocol = parameters.text("protocol") or "http"
    if protocol not in ("http", "https"):
        raise UsageError(f"rendezvous protocol {protocol!r:.40}: must be http or https")
    options = {"protocol": protocol, "cert": files[0], "key": files[1], "cacert": files[2]}
    query = "&".join(f"{name}={value}" for name, value in options.items() if value)
    hosts = ",".join(map(str, addresses))
    return _Place(open_store(f"{scheme}://{hosts}/{prefix}?{query}"), addresses[0])


def _take_part(
    backend: str,
    parameters: RendezvousParameters,
    place: _Place,
    *,
    slot: int | None = None,
    master: Address | None = None,
) -> Rendezvous:
    """Make this machine a node of the run."""
    timeout = Deadline.after(5.0)
    address = parameters.local_addr or address_towards(place.towards, timeout)
    held: HeldPort | None = None
    try:
        held = HeldPort(address) if is_numeric(address) else HeldPort("0.0.0.0")
        me = Announcement(
            node=NodeId(new_token(random.SystemRandom(), 12)),
            # The process tells nodes of one machine apart, for people and in the order of ranks.
            host=f"{socket.gethostname()}[{os.getpid()}]",
            address=address,
            port=held.port,
            phase=Phase.WAITING,
            round=0,
            slot=slot,
            why="",
        )
        rendezvous = StoreRendezvous(
            backend,
            parameters.run,
            me,
            parameters.rules(),
            place.store,
            master=master,
            close_s=parameters.seconds("close_timeout", default=30.0),
            op_timeout_s=parameters.seconds("read_timeout", default=60.0),
            release=_Release(place, held),
        )
        rendezvous.start()
    except HoldfastError:
        _Release(place, held).at_once()
        raise
    return rendezvous


def is_numeric(address: str) -> bool:
    """Say whether an address is an IP address rather than a name."""
    return ":" in address or address.replace(".", "").isdigit()


@dataclass(frozen=True, slots=True)
class _Release:
    """What a node lets go of when it has left."""

    place: _Place
    held: HeldPort | None

    def __call__(self, keys: Keys, deadline: Deadline) -> bool:
        """Close everything; a host waits until the other nodes have left (E3)."""
        alone = self.place.server is None or self._wait_alone(keys, deadline)
        self.at_once()
        return alone

    def at_once(self) -> None:
        """Close everything now."""
        self.place.store.close()
        if self.place.server is not None:
            self.place.server.close()
        if self.held is not None:
            self.held.close()

    def _wait_alone(self, keys: Keys, deadline: Deadline) -> bool:
        store = self.place.store
        try:
            with store.watch(keys.nodes, prefix=True, timeout=deadline.remaining()) as watch:
                while store.count(keys.nodes, timeout=deadline.remaining()):
                    watch.next(deadline.remaining())
        except TimeoutExpired:
            return False
        return True
