"""The backends by name: which store, which node hosts it, and the node that takes part over it.

    c10d      the built-in store at host:port. The host is named (`is_host`), or else it is the
              node that can bind the address: it is this machine's and free, or it is not. Host
              names are never compared. Several addresses, host:port,…, are those of the members
              of a replicated store (`holdfast store serve --join`): no node hosts it.
    static    fixed ranks, and a master that is given: host:port is passed on as it is; the agent
              serves torch's store there, not the rendezvous. Several nodes meet at a store of the
              node with rank 0, one port higher (or at `store_port`).
    etcd      etcd's v3 API           etcd-v2   etcd's v2 keys API
    file      a file that all nodes see: one host

The only node of a run at port 0 of its own machine, or without an endpoint, hosts nothing unless
told to: no other node could know where, so it meets itself in memory. Only the store that is used
gets imported.

What was said is judged before anything is opened, and what was opened is closed again if the node
cannot take part: a mistake costs one line, and leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock, Deadline
from holdfast.errors import HoldfastError, StoreUnavailable, TimeoutExpired, UsageError
from holdfast.ids import UNNAMED_RUN, NodeId, new_token
from holdfast.net.address import Address, is_loopback, parse_address
from holdfast.net.towards import address_towards
from holdfast.rendezvous.handler import Rendezvous, StoreRendezvous
from holdfast.rendezvous.model import Announcement, Keys, Phase
from holdfast.rendezvous.parameters import RendezvousParameters
from holdfast.rendezvous.port import HeldPort, free_port
from holdfast.rendezvous.release import MeetingStore, Release
from holdfast.store.memory import MemoryStore
from holdfast.store.store import Store

if TYPE_CHECKING:
    from holdfast.rendezvous.store_host import StoreHost
    from holdfast.store.server import StoreServer

__all__ = ["BACKENDS", "Creator"]

C10D_PORT = 29400
MASTER_PORT = 29500
ETCD_PORT = 2379
RUN_KEY = "run"
"""Where a store that a node hosts says which run it serves; no other store has this key."""
TELL_AFTER_S = 5.0
"""How long a store is waited for in silence; then twice as long, and so on."""

_log = logging.getLogger("holdfast.rendezvous")
_T = TypeVar("_T")

Creator = Callable[[RendezvousParameters], Rendezvous]
"""Make a rendezvous. Blocks for as long as the run's store cannot be reached, but no longer than
the join timeout."""


def _create_c10d(parameters: RendezvousParameters) -> Rendezvous:
    """Meet at the built-in store."""
    kind = parameters.text("store_type") or "tcp"
    if kind == "file":
        return _create_file(parameters)
    if kind != "tcp":
        raise UsageError(f"rendezvous store_type {kind!r:.40}: must be tcp or file")
    is_host = parameters.flag("is_host")
    if "," in parameters.endpoint:
        return _create_at_members(parameters, is_host)
    alone = parameters.max_nodes == 1 and is_host is None
    nowhere = "localhost:0" if alone else "localhost"
    address = parse_address(parameters.endpoint or nowhere, C10D_PORT)
    if address.port == 0 and not is_host and (is_host is False or parameters.max_nodes > 1):
        raise UsageError(
            f"rendezvous endpoint {address}: port 0 is for a node that hosts (is_host=true), or "
            "for a single one"
        )

    def meet(undo: ExitStack) -> MeetingStore:
        if alone and address.port == 0 and is_loopback(address.host):
            return MeetingStore(MemoryStore(), None)
        return _built_in(parameters, address, is_host, undo, shared=parameters.max_nodes > 1)

    return _take_part(parameters, meet, slot=parameters.integer("rank"))


def _create_at_members(parameters: RendezvousParameters, is_host: bool | None) -> Rendezvous:
    """Meet at a store that several members keep, none of which is this node."""
    from holdfast.net.secret import read_secret_file
    from holdfast.store.open import open_store, parse_store_endpoint

    endpoint, given = parameters.endpoint, parameters.secret_file
    addresses = [parse_address(part.strip(), C10D_PORT) for part in endpoint.split(",")]
    url = str(parse_store_endpoint(f"tcp://{','.join(map(str, addresses))}"))
    if is_host:
        raise UsageError(
            f"rendezvous endpoint {endpoint!r:.200}: no node hosts a store with several members; "
            "is_host must not be true"
        )
    secret = None if given is None else read_secret_file(given)

    def connect(limit: Deadline) -> Store:
        return open_store(url, secret=secret, timeout=limit.remaining())

    def meet(undo: ExitStack) -> MeetingStore:
        store = undo.enter_context(_retry(connect, parameters))
        shared = _check_run(store, endpoint, parameters)
        return MeetingStore(store, addresses[0], secret=secret, shared=shared)

    return _take_part(parameters, meet)


def _create_static(parameters: RendezvousParameters) -> Rendezvous:
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
    port = parameters.integer("store_port")
    port = master.port + 1 if port is None else port
    if size > 1 and not (master.port > 0 and 0 < port <= 65535):
        raise UsageError(
            f"rendezvous endpoint {master}: nodes would meet at port {port}; give store_port, and "
            "ports from 1 to 65535"
        )

    def meet(undo: ExitStack) -> MeetingStore:
        if size == 1:
            return MeetingStore(MemoryStore(), None)
        return _built_in(parameters, Address(master.host, port), rank == 0, undo)

    return _take_part(parameters, meet, slot=rank, master=master)


def _create_file(parameters: RendezvousParameters) -> Rendezvous:
    """Meet in a file of this host."""
    path = parameters.endpoint.removeprefix("file://")
    if not path.startswith("/"):
        raise UsageError(f"rendezvous endpoint {path!r:.200}: must be an absolute path")
    return _take_part(parameters, lambda undo: _opened(parameters, f"file://{path}", None, undo))


def _create_etcd(parameters: RendezvousParameters) -> Rendezvous:
    """Meet in etcd, over its v3 API."""
    prefix = parameters.text("etcd_prefix") or "/torchelastic/p2p"
    return _meet_in_etcd(parameters, prefix, ("cert", "key", "cacert"))


def _create_etcd_v2(parameters: RendezvousParameters) -> Rendezvous:
    """Meet in etcd, over its v2 keys API."""
    files = ("ssl_cert", "ssl_cert_key", "ca_cert")
    return _meet_in_etcd(parameters, "torch/elastic/rendezvous", files)


BACKENDS: dict[str, Creator] = {
    "c10d": _create_c10d,
    "static": _create_static,
    "etcd": _create_etcd,
    "etcd-v2": _create_etcd_v2,
    "file": _create_file,
}


def _built_in(
    parameters: RendezvousParameters,
    address: Address,
    is_host: bool | None,
    undo: ExitStack,
    *,
    shared: bool = False,
) -> MeetingStore:
    """Host the store if this node does, and open it; `shared`: with the other agents, if it is."""
    from holdfast.net.secret import read_secret_file
    from holdfast.store.open import open_store, serve_store

    server: StoreServer | None = None
    run, not_here = parameters.run_id, ""
    given = parameters.secret_file
    secret = None if given is None else read_secret_file(given)
    if is_host is not False:
        try:
            values = {RUN_KEY: run.encode()}  # set before other nodes can connect
            server = serve_store(f"tcp://{address}", secret=secret, values=values)
        except UsageError as error:
            if is_host or address.port == 0:
                raise UsageError(
                    f"rendezvous endpoint {address}: cannot be hosted here: {error}"
                ) from None
            not_here = f"not hosted here: {error}"
            _log.info("run %s: the store is %s", run, not_here)
    if server is not None:
        undo.callback(server.close)
        _warn_if_unreachable(address)
        address = server.address
        _log.info("run %s: the store is hosted here, at %s", run, address)
    else:
        _log.info("run %s: waiting up to %g s for the store at %s", run, parameters.join_s, address)

    def connect(limit: Deadline) -> Store:
        try:
            return open_store(f"tcp://{address}", secret=secret, timeout=limit.remaining())
        except StoreUnavailable as error:
            if not not_here:
                raise
            text = f"{error} ({not_here})"
            raise StoreUnavailable(text, step=error.step, address=error.address) from None

    store = undo.enter_context(_retry(connect, parameters))
    if server is None:
        shared = _check_run(store, str(address), parameters) and shared
    return MeetingStore(store, address, server, secret, shared)


def _check_run(store: Store, address: str, parameters: RendezvousParameters) -> bool:
    """Refuse a store that a node of another run hosts; say whether a node of this run does.

    A store that no node hosts serves any run, and outlives it: several nodes need an id of their
    own there, as the default id is found used up by the second job.
    """
    run = parameters.run_id
    found = store.get(RUN_KEY, timeout=parameters.read_s)
    if found is None and run == UNNAMED_RUN and parameters.max_nodes > 1:
        raise UsageError(
            f"run id {run!r}: the store at {address} outlives the job, so another is needed "
            "(--rdzv-id): give an id of its own to each job, the same on all its nodes"
        )
    if found is not None and found != run.encode():
        raise UsageError(
            f"rendezvous endpoint {address}: serves run {found.decode(errors='replace')!r:.80}, "
            f"not {run!r}; give each job a port of its own"
        )
    return found is not None


def _warn_if_unreachable(address: Address) -> None:
    """Say so if the name that others were given means loopback here."""
    if is_loopback(address.host):
        return
    from holdfast.net.tcp import resolve

    try:
        found = [str(where[0]) for _, where in resolve(address, Deadline.after(5.0))]
    except HoldfastError:
        return
    if all(is_loopback(one) for one in found):
        _log.warning(
            "the store at %s is hosted here, but its name is %s on this machine: "
            "other hosts cannot reach it",
            address,
            found[0],
        )


def _meet_in_etcd(
    parameters: RendezvousParameters, prefix: str, files: tuple[str, str, str]
) -> Rendezvous:
    """Meet in etcd; `files`: the keys of our certificate, its key, and the trusted authorities."""
    from holdfast.store.open import parse_store_endpoint

    scheme, endpoint = parameters.backend, parameters.endpoint
    parts = [part.strip() for part in endpoint.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"rendezvous endpoint {endpoint!r:.80}: {scheme} needs host:port[,…]")
    addresses = [parse_address(part, ETCD_PORT) for part in parts]
    protocol = parameters.text("protocol") or "http"
    if protocol not in ("http", "https"):
        raise UsageError(f"rendezvous protocol {protocol!r:.40}: must be http or https")
    url = f"{scheme}://{','.join(map(str, addresses))}/{prefix.strip('/')}?protocol={protocol}"
    if protocol == "https":
        given = zip(("cert", "key", "cacert"), map(parameters.text, files), strict=True)
        url += "".join(f"&{option}={path}" for option, path in given if path)
    parse_store_endpoint(url)
    return _take_part(parameters, lambda undo: _opened(parameters, url, addresses[0], undo))


def _opened(
    parameters: RendezvousParameters, url: str, towards: Address | None, undo: ExitStack
) -> MeetingStore:
    """Open a store that another process keeps, and check that it is there."""
    from holdfast.store.open import open_store

    store = undo.enter_context(open_store(url))
    key = Keys(parameters.run).round
    try:
        _retry(lambda limit: store.get(key, timeout=limit.remaining()), parameters)
    except StoreUnavailable as error:
        text = f"rendezvous endpoint {parameters.endpoint!r:.200} ({parameters.backend}): {error}"
        raise StoreUnavailable(text, step=error.step, address=error.address) from None
    return MeetingStore(store, towards)


def _retry(
    attempt: Callable[[Deadline], _T],
    parameters: RendezvousParameters,
    clock: Clock = SYSTEM_CLOCK,
) -> _T:
    """Retry for as long as a node waits for the store; log now and then why it fails."""
    deadline = Deadline.after(parameters.join_s, clock)
    try_s = TELL_AFTER_S
    while (deadline.remaining() or 0.0) > 2 * try_s:
        limit = deadline.sooner(try_s)
        try:
            return attempt(limit)
        except (StoreUnavailable, TimeoutExpired) as error:
            if not limit.passed():
                raise  # waiting would not help
            _log.warning(
                "run %s: %s; waiting up to %.0f s more",
                parameters.run_id,
                error,
                deadline.remaining(),
            )
        try_s *= 2  # a slow network succeeds in the end
    return attempt(deadline)


def _take_part(
    parameters: RendezvousParameters,
    meet: Callable[[ExitStack], MeetingStore],
    *,
    slot: int | None = None,
    master: Address | None = None,
) -> Rendezvous:
    """Make this machine a node of the run."""
    with ExitStack() as undo:
        given = parameters.local_addr
        held = HeldPort(given) if given and _is_numeric(given) else None
        if held is not None:
            undo.callback(held.close)
        place = meet(undo)
        address = given or address_towards(place.towards, Deadline.after(5.0))
        if held is None:
            held = HeldPort(address if _is_numeric(address) else "0.0.0.0")
            undo.callback(held.close)
        host = _host(place, address)
        if host is not None:
            undo.callback(host.stop)
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
        release = Release(place, held, host)
        rendezvous = StoreRendezvous(
            parameters.backend,
            parameters.run,
            me,
            parameters.rules(),
            place.store,
            master=master,
            close_s=parameters.close_s,
            op_timeout_s=parameters.read_s,
            heartbeat_s=parameters.heartbeat_s,
            release=release,
            host=host,
        )
        release.is_ending = rendezvous.is_ending
        rendezvous.start()
        if host is not None:
            host.start()
        undo.pop_all()
    return rendezvous


def _is_numeric(address: str) -> bool:
    """Say whether an address is an IP address rather than a name."""
    return ":" in address or address.replace(".", "").isdigit()


def _host(place: MeetingStore, here: str) -> StoreHost | None:
    """Return what hosts a member of the store in this agent, if the run's agents do so."""
    from holdfast.store.client import RemoteStore

    store, server = place.store, place.server
    if not place.shared or not isinstance(store, RemoteStore):
        return None
    from holdfast import env
    from holdfast.rendezvous.store_host import StoreHost
    from holdfast.store.open import choose_secret
    from holdfast.store.server import StoreServer

    given = place.towards if server is None else server.address
    name = here if server is None else server.address.host

    def make() -> StoreServer:
        # The endpoint's port, where it is free: then nodes that come later know where to look.
        address = Address(name, free_port(name, 0 if given is None else given.port))
        return StoreServer(address, choose_secret(address, place.secret, env.current()))

    return StoreHost(store, make, server)
