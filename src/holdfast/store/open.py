"""From an endpoint to a store: which schemes exist, what each takes, and whose secret is used.

    memory://                      inside this process
    file:///path                   one host, many processes
    tcp://host:port,…[/prefix]     a holdfast server, or several that replicate; authenticated
    etcd://host:port,…[/prefix]    etcd, v3 API
    etcd-v2://host:port,…[/prefix] etcd, v2 keys API
    c10d://host:port               a store that torch hosts; no authentication

Those of etcd may be followed by options: ?protocol=https for TLS, and with it the PEM files
&cert=…&key=… (our certificate and its key) and &cacert=… (the trusted authorities).

An endpoint is checked whole before anything is done: no file, no socket comes of a wrong one.
Only the module of the scheme that is used gets imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from holdfast import env
from holdfast.clock import Deadline, check_timeout
from holdfast.errors import Refused, UsageError
from holdfast.net.address import Address, Endpoint, is_loopback, parse_endpoint
from holdfast.net.secret import Secret, read_secret_file, user_secret
from holdfast.store.ops import check_prefix
from holdfast.store.prefix import PrefixStore
from holdfast.store.store import DEFAULT_TIMEOUT_S, Store

if TYPE_CHECKING:
    from holdfast.net.tls import ClientTls
    from holdfast.net.transport import Transport
    from holdfast.store.server import StoreServer

__all__ = ["choose_secret", "open_store", "parse_store_endpoint", "serve_store"]

TRY_WITHIN_S = 2.0
"""How long one of several members is tried before the next."""

_WITH_OPTIONS = ("etcd", "etcd-v2")
_TLS_FILES = ("cert", "key", "cacert")


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
    checked_timeout = check_timeout(timeout)
    environment = environment or env.current()
    where = _place(endpoint, environment)
    if secret is not None and where.scheme != "tcp":
        raise UsageError(f"secret: {where.scheme}:// takes none; only tcp:// does")
    return _SCHEMES[where.scheme].open(_Wish(where, secret, checked_timeout, environment))


def serve_store(
    endpoint: str = "tcp://127.0.0.1:0",
    *,
    secret: Secret | None = None,
    environment: env.Environment | None = None,
    values: Mapping[str, bytes] | None = None,
    join: str | None = None,
    timeout: float | None = DEFAULT_TIMEOUT_S,
) -> StoreServer:
    """Start a server of `tcp://` stores; port 0 picks a free one. Close it when done.

    `values` are in the store before the first client connects. With `join`, the endpoint of a
    store that is served elsewhere, the server becomes one more member of that store; it must be
    one within `timeout`, else StoreUnavailable.
    An address that other hosts can reach needs a secret that was given: UsageError otherwise.
    """
    from holdfast.store.server import StoreServer

    where = parse_endpoint(endpoint)
    if where.scheme != "tcp" or len(where.addresses) != 1 or where.path or where.options:
        raise UsageError(f"endpoint {endpoint!r:.200}: to serve, write tcp://host:port")
    address = where.addresses[0]
    chosen = choose_secret(address, secret, environment or env.current())
    server = StoreServer(address, chosen, values=values)
    if join is None:
        server.start()
    else:
        members = parse_store_endpoint(join)
        if members.scheme != "tcp" or members.path or values:
            raise UsageError(f"endpoint {join!r:.200}: to join, write tcp://host:port,…")
        server.join(members.addresses, check_timeout(timeout))
    return server


def parse_store_endpoint(text: str) -> Endpoint:
    """Read the endpoint of a store to open; UsageError unless it is all that its scheme takes."""
    scheme, found, rest = text.partition("://") if isinstance(text, str) else ("", "", "")
    if found and scheme not in _SCHEMES:
        raise UsageError(
            f"endpoint {text!r:.200}: scheme {scheme!r:.40} is unknown; "
            f"known are {', '.join(_SCHEMES)}"
        )
    # A relative file name would be taken for a host that lacks its port.
    relative = scheme == "file" and not rest.startswith("/")
    if relative or not _fits(where := parse_endpoint(text)):
        raise UsageError(f"endpoint {text!r:.200}: write {_SCHEMES[scheme].form}")
    _check_options(where, text)
    if any(address.port == 0 for address in where.addresses):
        raise UsageError(f"endpoint {text!r:.200}: port 0 is for serving, not for opening")
    if where.addresses:
        where = replace(where, path=where.path.strip("/"))
        check_prefix(where.path and where.path + "/")
    return where


def choose_secret(address: Address, secret: Secret | None, environment: env.Environment) -> Secret:
    """Return the secret for an address: the given one, the job's, or on loopback the user's."""
    if secret is not None:
        if not isinstance(secret, Secret):
            raise UsageError(f"secret: must be a Secret, not {type(secret).__name__}")
        return secret
    if environment.secret is not None:
        text = environment.secret
        return _from_variable("HOLDFAST_SECRET", lambda: Secret(text.encode()))
    if environment.secret_file is not None:
        path = environment.secret_file
        return _from_variable("HOLDFAST_SECRET_FILE", lambda: read_secret_file(path))
    if not is_loopback(address.host):
        raise UsageError(
            f"tcp://{address} can be reached from other hosts, so the job's secret is needed: "
            "set HOLDFAST_SECRET_FILE or HOLDFAST_SECRET on every host"
        )
    if environment.state_dir is None:
        raise UsageError("no HOME to keep this user's secret in: set HOLDFAST_SECRET_FILE")
    return user_secret(environment.state_dir)


def _from_variable(name: str, make: Callable[[], Secret]) -> Secret:
    """Make a secret of a variable; what is wrong with it is for the user to change there."""
    try:
        return make()
    except (UsageError, Refused) as error:
        raise UsageError(f"{name}: {error}") from None


def _place(endpoint: str | None, environment: env.Environment) -> Endpoint:
    if endpoint is not None:
        return parse_store_endpoint(endpoint)
    if environment.store is None:
        raise UsageError("no store: give an endpoint, or set HOLDFAST_STORE")
    try:
        return parse_store_endpoint(environment.store)
    except UsageError as error:
        raise UsageError(f"HOLDFAST_STORE: {error}") from None


def _fits(where: Endpoint) -> bool:
    """Say whether an endpoint has the parts that its scheme takes."""
    hosts = len(where.addresses)
    if where.options and where.scheme not in _WITH_OPTIONS:
        return False
    match where.scheme:
        case "memory":
            return hosts == 0 and not where.path
        case "file":
            return hosts == 0 and where.path.strip("/") != ""
        case "tcp":
            return hosts >= 1
        case "c10d":
            return hosts == 1 and not where.path
        case _:
            return hosts >= 1


def _check_options(where: Endpoint, text: str) -> None:
    """Raise UsageError unless the options are some that etcd's schemes know, and go together."""
    head = f"endpoint {text!r:.200}: option"
    known = ("protocol", *_TLS_FILES)
    for name, value in where.options.items():
        if name not in known:
            raise UsageError(f"{head} {name!r:.40} is unknown; known are {', '.join(known)}")
        if not value:
            raise UsageError(f"{head} {name!r} must not be empty")
    protocol = where.options.get("protocol", "http")
    if protocol not in ("http", "https"):
        raise UsageError(f"{head} 'protocol' must be http or https")
    if protocol == "http" and (files := where.options.keys() & _TLS_FILES):
        raise UsageError(f"{head} {min(files)!r} is for TLS: give protocol=https, too")


class _Wish(NamedTuple):
    """What the opener of a scheme gets; the endpoint fits the scheme."""

    where: Endpoint
    secret: Secret | None
    timeout: float | None
    environment: env.Environment


def _open_memory(wish: _Wish) -> Store:
    from holdfast.store.memory import MemoryStore

    return MemoryStore()


def _open_file(wish: _Wish) -> Store:
    from holdfast.store.file import FileStore

    return FileStore(wish.where.path)


def _open_tcp(wish: _Wish) -> Store:
    from holdfast.net.tcp import connect
    from holdfast.store.candidates import Candidates
    from holdfast.store.client import RemoteStore
    from holdfast.store.messages import KEY_CONTEXT

    addresses, prefix = wish.where.addresses, wish.where.path
    # An address that other hosts can reach needs a secret that was given, whichever it is.
    far = next((one for one in addresses if not is_loopback(one.host)), addresses[0])
    key = choose_secret(far, wish.secret, wish.environment).key(KEY_CONTEXT)
    candidates = Candidates(addresses)

    def dial(deadline: Deadline) -> Transport:
        limit = deadline.sooner(TRY_WITHIN_S) if candidates.several else deadline
        return connect(candidates.next(), key, limit)

    store = RemoteStore(
        f"tcp://{','.join(map(str, addresses))}",
        dial,
        several=len(addresses) > 1,
        learn=lambda members: candidates.learn(members.members, members.leader),
    )
    try:
        store.connect(wish.timeout)
    except BaseException:
        store.close()  # it may have got half of the way
        raise
    return PrefixStore(store, prefix + "/", owner=True) if prefix else store


def _open_etcd(wish: _Wish) -> Store:
    from holdfast.store.etcd.v3.store import DEFAULT_PREFIX, EtcdStore

    where = wish.where
    return EtcdStore(where.addresses, where.path or DEFAULT_PREFIX, tls=_tls_of(where))


def _open_etcd_v2(wish: _Wish) -> Store:
    from holdfast.store.etcd.v2.store import DEFAULT_PREFIX, EtcdV2Store

    where = wish.where
    return EtcdV2Store(where.addresses, where.path or DEFAULT_PREFIX, tls=_tls_of(where))


def _tls_of(where: Endpoint) -> ClientTls | None:
    if where.options.get("protocol") != "https":
        return None
    from holdfast.net.tls import load_client_tls

    return load_client_tls(*(where.options.get(name) for name in _TLS_FILES))


def _open_c10d(wish: _Wish) -> Store:
    from holdfast.store.c10d.client import C10dStore

    return C10dStore(wish.where.addresses[0])


class _Scheme(NamedTuple):
    """How the endpoints of a scheme are written, and what opens them."""

    form: str
    open: Callable[[_Wish], Store]


_SCHEMES = {
    "memory": _Scheme("memory://", _open_memory),
    "file": _Scheme("file:///absolute/path", _open_file),
    "tcp": _Scheme("tcp://host:port,…[/prefix]", _open_tcp),
    "etcd": _Scheme("etcd://host:port,…[/prefix][?options]", _open_etcd),
    "etcd-v2": _Scheme("etcd-v2://host:port,…[/prefix][?options]", _open_etcd_v2),
    "c10d": _Scheme("c10d://host:port", _open_c10d),
}
