"""Addresses and endpoints: parsing, printing, and nothing else.

An address is a host and a port. An endpoint says how to reach a store:

    tcp://127.0.0.1:29400            one address
    etcd://a:2379,b:2379/myjob       several addresses and a path
    file:///var/tmp/job.store        a path alone
    memory://                        nothing at all
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import field
from typing import NamedTuple

from holdfast.errors import UsageError
from holdfast.records import dataclass

__all__ = ["Address", "Endpoint", "is_loopback", "parse_address", "parse_endpoint", "parse_listen"]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)
_HOST_MAX = 253


class Address(NamedTuple):
    """A host name or an IP address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a store is. `path` has no leading slash, except for file endpoints."""

    scheme: str
    addresses: tuple[Address, ...] = ()
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        hosts = ",".join(map(str, self.addresses))
        path = f"/{self.path}" if self.path and hosts else self.path
        query = "&".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.scheme}://{hosts}{path}{'?' if query else ''}{query}"


def parse_address(text: str, default_port: int | None = None) -> Address:
    """Read `host:port` or `[v6]:port`; the port may be left out if there is a default."""
    if not isinstance(text, str):
        raise UsageError(f"address {text!r:.200}: must be a str, not {type(text).__name__}")
    host, port_text = _split_port(text)
    if port_text is None:
        if default_port is None:
            raise UsageError(f"address {text!r:.200}: a port is missing; write host:port")
        port = default_port
    elif _PORT.fullmatch(port_text) and int(port_text) <= 65535:
        port = int(port_text)
    else:
        raise UsageError(
            f"address {text!r:.200}: port {port_text!r:.20} must be a number from 0 to 65535"
        )
    _check_host(host, text)
    return Address(host, port)


def parse_listen(text: str) -> Address:
    """Read where to listen: `PORT`, which is one of loopback, or `HOST:PORT`."""
    try:
        return parse_address(text if ":" in text else f"127.0.0.1:{text}")
    except (UsageError, TypeError):
        raise UsageError(
            f"{text!r:.80}: must be a port of loopback from 0 to 65535, or host:port"
        ) from None


def parse_endpoint(text: str) -> Endpoint:
    """Read an endpoint. The scheme is not judged here: `open_store` knows which exist."""
    if not isinstance(text, str):
        raise UsageError(f"endpoint {text!r:.200}: must be a str, not {type(text).__name__}")
    found = _SCHEME.match(text)
    if found is None:
        raise UsageError(
            f"endpoint {text!r:.200}: must be scheme://…, such as tcp://127.0.0.1:29400"
        )
    if not text.isprintable():
        raise UsageError(f"endpoint {text!r:.200}: must not contain control characters")
    rest, _, query = text[found.end() :].partition("?")
    hosts, slash, path = rest.partition("/")
    if not hosts and slash:  # file:///path keeps its slash: it is part of the path
        path = "/" + path
    addresses = tuple(parse_address(part) for part in hosts.split(",")) if hosts else ()
    return Endpoint(found[1], addresses, path, _parse_options(query, text))


def is_loopback(host: str) -> bool:
    """Say whether a host reaches only this machine. A name other than localhost never counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split_port(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            raise UsageError(f"address {text!r:.200}: an IPv6 address is written [::1]:29400")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        raise UsageError(f"address {text!r:.200}: put an IPv6 address in brackets, [::1]:29400")
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _check_host(host: str, text: str) -> None:
    if ":" in host:
        plain, percent, zone = host.partition("%")
        try:
            ipaddress.IPv6Address(plain)
        except ValueError:
            raise UsageError(f"address {text!r:.200}: {host!r:.80} is no IPv6 address") from None
        if percent and not _ZONE.fullmatch(zone):
            raise UsageError(f"address {text!r:.200}: zone {zone!r:.80} must be an interface")
    elif not host or len(host) > _HOST_MAX or not _HOST.fullmatch(host):
        raise UsageError(
            f"address {text!r:.200}: host {host!r:.80} must be a host name or an IP address"
        )


def _parse_options(query: str, text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if not name or not equals or name in options:
            raise UsageError(
                f"endpoint {text!r:.200}: option {part!r:.80} must be name=value, each name once"
            )
        options[name] = value
    return options
