"""Where the workers of a job meet: which store, which part of it, and by which secret.

store=…            the given one, below "rpc/"
tcp://host:port    the built-in store there, which rank 0 serves
tcp://a:1,b:2,…    the built-in store with several members there, which no worker serves
file:///path       a file of this host
env://             as `holdfast run` set it (HOLDFAST_STORE, and the run and the round); else at
                   MASTER_ADDR and MASTER_PORT, which rank 0 serves, with RANK and WORLD_SIZE

The address of the store decides which connections a worker accepts. If the store is at a loopback
address or in a file, it accepts workers of this host only. Else it accepts workers of other hosts
too, at the address of this host that the store sees; all hosts then need the same secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from holdfast import env
from holdfast.clock import Deadline
from holdfast.errors import UsageError
from holdfast.net.address import Address, is_loopback, parse_address
from holdfast.net.auth import Key
from holdfast.net.towards import address_towards
from holdfast.rpc.wire.worker_info import ID_MAX
from holdfast.store.open import choose_secret, open_store, serve_store
from holdfast.store.store import Store

__all__ = ["Bootstrap", "bootstrap"]

CONTEXT = "rpc"
LOOPBACK = Address("127.0.0.1", 0)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Where this worker meets the others, and its place among them.

    `host` is the address to listen on for workers of other hosts; empty if there are none.
    `serves` is true if this process serves the store, which then ends with it.
    """

    store: Store
    prefix: str
    key: Key
    rank: int | None
    world_size: int | None
    host: str
    serves: bool


def bootstrap(
    undo: ExitStack,
    variables: Mapping[str, str],
    rank: int | None,
    world_size: int | None,
    init_method: str | None,
    store: Store | None,
    deadline: Deadline,
) -> Bootstrap:
    """Open the store where the workers meet; `undo` closes what was opened."""
    environment = env.read(variables)
    if store is not None:
        if init_method is not None:
            raise UsageError("init_rpc: give a store or an init_method, not both")
        if not isinstance(store, Store):
            raise UsageError(
                f"store {store!r:.80}: must be a Store, as open_store returns it; "
                "an address is an init_method"
            )
        prefix, serves = "rpc/", False
        _check_place(rank, world_size)
    else:
        method = init_method or "env://"
        rank = _number("RANK", rank, variables, method)
        world_size = _number("WORLD_SIZE", world_size, variables, method)
        _check_place(rank, world_size)
        endpoint, prefix = _place(method, variables, environment)
        given = method == "env://" and environment.store
        is_one = endpoint.startswith("tcp://") and "," not in endpoint
        serves = rank == 0 and is_one and not given
        if serves:
            undo.enter_context(serve_store(endpoint, environment=environment))
        store = undo.enter_context(
            open_store(endpoint, timeout=deadline.remaining(), environment=environment)
        )
    far = next((each for each in store.addresses if not is_loopback(each.host)), None)
    key = choose_secret(far or LOOPBACK, None, environment).key(CONTEXT)
    host = "" if far is None else address_towards(far, deadline)
    if is_loopback(host):  # such as 0.0.0.0, or a name that means the local host on every host
        host = ""
    return Bootstrap(store, prefix, key, rank, world_size, host, serves)


def _number(name: str, given: int | None, variables: Mapping[str, str], method: str) -> int | None:
    if given is not None or method != "env://":
        return given
    text = variables.get(name, "")
    if text and not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name}={text!r:.40}: must be a whole number")
    return int(text) if text else None


def _check_place(rank: int | None, world_size: int | None) -> None:
    """Refuse numbers that no worker can have."""
    if world_size is not None and (type(world_size) is not int or world_size < 1):
        raise UsageError(f"world_size {world_size!r:.40}: must be a whole number, at least 1")
    most = ID_MAX if world_size is None else min(ID_MAX, world_size - 1)
    if rank is not None and (type(rank) is not int or not 0 <= rank <= most):
        raise UsageError(f"rank {rank!r:.40}: must be a whole number from 0 to {most}")


def _place(
    method: str, variables: Mapping[str, str], environment: env.Environment
) -> tuple[str, str]:
    """Return the endpoint of the store, and the prefix of these workers' keys."""
    if method != "env://":
        scheme = method.partition("://")[0]
        if scheme not in ("tcp", "file"):
            raise UsageError(
                f"init_method {method!r:.80}: must be tcp://host:port, file:///path or env://"
            )
        return method, "rpc/"
    if environment.store:
        run, number = variables.get("TORCHELASTIC_RUN_ID", ""), environment.round or ""
        return environment.store, f"rpc/{run}/{number}/"
    host, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
    if not host or not port:
        raise UsageError(
            "init_method env://: neither HOLDFAST_STORE nor MASTER_ADDR and MASTER_PORT are set"
        )
    return f"tcp://{parse_address(host, 0).host}:{port}", "rpc/"
