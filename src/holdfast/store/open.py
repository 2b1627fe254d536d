"""From an endpoint to a store: which schemes exist, what each takes, and whose secret is used.

    memory://                      inside this process
    file:///path                   one host, many processes
    tcp://host:port[/prefix]       a holdfast server; authenticated both ways
    etcd://host:port,…[/prefix]    etcd, v3 API
    etcd-v2://host:port,…[/prefix] etcd, v2 keys API
    c10d://host:port               a store that torch hosts; no authentication

Only the module of the scheme that is used gets imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from holdfast import env
from holdfast.clock import check_timeout
from holdfast.errors import UsageError
from holdfast.net.address import Address, Endpoint, is_loopback, parse_endpoint
from holdfast.net.secret import Secret, read_secret_file, user_secret
from holdfast.store.prefix import PrefixStore
from holdfast.store.server import KEY_CONTEXT, StoreServer
from holdfast.store.store import DEFAULT_TIMEOUT_S, Store

__all__ = ["SCHEMES", "choose_secret", "open_store", "parse_store_endpoint", "serve_store"]


def open_store(
    endpoint: str | None = None,
    *,
    secret: Secret | None = None,
    timeout: float | None = DEFAULT_TIMEOUT_S,
    environment: env.Environment | None = None,
) -> Store:
    """Open the store at an endpoint, or at HOLDFAST_STORE if none is given.

    For `tcp://` the server must answer within `timeout` (it may come up meanwhile); the other
    backends connect at their first operation. `secret` is for `tcp://` alone; without it
    HOLDFAST_SECRET or HOLDFAST_SECRET_FILE is used, and on loopback the user's own secret.
    """
    environment = environment or env.current()
    text = endpoint if endpoint is not None else environment.store
    if text is None:
        raise UsageError("no store: give an endpoint, or set HOLDFAST_STORE")
    where = parse_store_endpoint(text)
    if where.options:
        option = next(iter(where.options))
        raise UsageError(f"endpoint {text!r:.200}: {where.scheme}:// has no option {option!r:.40}")
    return SCHEMES[where.scheme](_Wish(where, secret, check_timeout(timeout), environment))


def serve_store(
    endpoint: str = "tcp://127.0.0.1:0",
    *,
    secret: Secret | None = None,
    environment: env.Environment | None = None,
) -> StoreServer:
    """Start a server of `tcp://` stores; port 0 picks a free one. Close it when done.

    An address that other hosts can reach needs a secret that was given: UsageError otherwise.
    """
    where = parse_store_endpoint(endpoint)
    if where.scheme != "tcp" or where.path or where.options:
        raise UsageError(f"endpoint {endpoint!r:.200}: to serve, write tcp://host:port")
    address = _one_address(where)
    server = StoreServer(address, choose_secret(address, secret, environment or env.current()))
    server.start()
    return server


def parse_store_endpoint(text: str) -> Endpoint:
    """Read an endpoint and check that its scheme is one of ours."""
    scheme = text.partition("://")[0] if isinstance(text, str) and "://" in text else None
    if scheme is not None and scheme not in SCHEMES:
        raise UsageError(
            f"endpoint {text!r:.200}: scheme {scheme!r:.40} is unknown; "
            f"known are {', '.join(SCHEMES)}"
        )
    return parse_endpoint(text)


def choose_secret(address: Address, secret: Secret | None, environment: env.Environment) -> Secret:
    """Return the secret for an address: the given one, the job's, or on loopback the user's."""
    if secret is not None:
        return secret
    if environment.secret is not None:
        return Secret(environment.secret.encode())
    if environment.secret_file is not None:
        return read_secret_file(environment.secret_file)
    if not is_loopback(address.host):
        raise UsageError(
            f"tcp://{address} can be reached from other hosts, so the job's secret is needed: "
            "set HOLDFAST_SECRET_FILE or HOLDFAST_SECRET on every host"
        )
    if environment.state_dir is None:
        raise UsageError("no HOME to keep this user's secret in: set HOLDFAST_SECRET_FILE")
    return user_secret(environment.state_dir)


class _Wish(NamedTuple):
    """What the opener of a scheme gets."""

    where: Endpoint
    secret: Secret | None
    timeout: float | None
    environment: env.Environment


def _one_address(where: Endpoint) -> Address:
    if len(where.addresses) != 1:
        raise UsageError(f"endpoint {str(where)!r:.200}: {where.scheme}:// takes one host:port")
    return where.addresses[0]


def _some_addresses(where: Endpoint) -> tuple[Address, ...]:
    if not where.addresses:
        raise UsageError(
            f"endpoint {str(where)!r:.200}: {where.scheme}:// takes host:port, or several with ','"
        )
    return where.addresses


def _no_path(where: Endpoint) -> None:
    if where.path:
        raise UsageError(f"endpoint {str(where)!r:.200}: {where.scheme}:// takes no path")


def _open_memory(wish: _Wish) -> Store:
    from holdfast.store.memory import MemoryStore

    where = wish.where
    if where.addresses:
        raise UsageError(f"endpoint {str(where)!r:.200}: memory:// takes no host")
    _no_path(where)
    return MemoryStore()


def _open_file(wish: _Wish) -> Store:
    from holdfast.store.file import FileStore

    where = wish.where
    if where.addresses or not where.path.strip("/"):
        raise UsageError(f"endpoint {str(where)!r:.200}: write file:///absolute/path")
    return FileStore(where.path)


def _open_tcp(wish: _Wish) -> Store:
    from holdfast.net.tcp import connect
    from holdfast.store.client import RemoteStore

    where = wish.where
    address = _one_address(where)
    if address.port == 0:
        raise UsageError(f"endpoint {str(where)!r:.200}: port 0 is for serving, not for opening")
    key = choose_secret(address, wish.secret, wish.environment).key(KEY_CONTEXT)

    store = RemoteStore(f"tcp://{address}", functools.partial(connect, address, key))
    store.connect(wish.timeout)
    return PrefixStore(store, where.path + "/", owner=True) if where.path else store


def _open_etcd(wish: _Wish) -> Store:
    from holdfast.store.etcd import DEFAULT_PREFIX, EtcdStore

    return EtcdStore(_some_addresses(wish.where), wish.where.path or DEFAULT_PREFIX)


def _open_etcd_v2(wish: _Wish) -> Store:
    from holdfast.store.etcd_v2 import DEFAULT_PREFIX, EtcdV2Store

    return EtcdV2Store(_some_addresses(wish.where), wish.where.path or DEFAULT_PREFIX)


def _open_c10d(wish: _Wish) -> Store:
    from holdfast.store.c10d_client import C10dStore

    _no_path(wish.where)
    return C10dStore(_one_address(wish.where))


SCHEMES: dict[str, Callable[[_Wish], Store]] = {
    "memory": _open_memory,
    "file": _open_file,
    "tcp": _open_tcp,
    "etcd": _open_etcd,
    "etcd-v2": _open_etcd_v2,
    "c10d": _open_c10d,
}
