"""What a user says about a rendezvous, and the rules that follow from it.

The configuration takes the keys of torchrun's `--rdzv-conf`, with torch's meaning:

    join_timeout 600, timeout      seconds until a round must have been formed
    last_call_timeout 30           seconds that a round with its minimum waits for more nodes; less
                                   than join_timeout: the one that is not set gives way
    close_timeout 30               seconds that leaving and closing may take
    keep_alive_interval 5          seconds between two signs of life of a node
    keep_alive_max_attempt 3       how many of them may be missed
    heartbeat_timeout 5, heartbeat seconds that one sign of life may take
    read_timeout 60                seconds that any other store operation may take
    is_host                        c10d: whether this node hosts the store (absent: if it can bind)
    store_type                     c10d: tcp, or file
    rank                           static: this node's rank; c10d: the one that it gets if it can
    store_port                     static: where nodes meet (ours; else one above the master's port)
    protocol http                  etcd, etcd-v2: https for TLS
    cert, key, cacert              etcd: files for https; no effect without it
    ssl_cert, ssl_cert_key, ca_cert   etcd-v2: the same
    etcd_prefix                    etcd: where in etcd the run's keys lie
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from holdfast.clock import check_timeout
from holdfast.errors import UsageError
from holdfast.ids import RunId, run_id
from holdfast.net.address import parse_address
from holdfast.records import dataclass
from holdfast.rendezvous.decide import Rules

__all__ = ["CONFIG_KEYS", "RendezvousParameters", "parse_config"]

_EVERYWHERE = {
    "join_timeout",
    "timeout",
    "last_call_timeout",
    "close_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "heartbeat_timeout",
    "heartbeat",
    "read_timeout",
}
CONFIG_KEYS: dict[str, frozenset[str]] = {
    "c10d": frozenset(_EVERYWHERE | {"is_host", "rank", "store_type"}),
    "file": frozenset(_EVERYWHERE),
    "static": frozenset(_EVERYWHERE | {"rank", "store_port"}),
    "etcd": frozenset(_EVERYWHERE | {"protocol", "cert", "key", "cacert", "etcd_prefix"}),
    "etcd-v2": frozenset(_EVERYWHERE | {"protocol", "ssl_cert", "ssl_cert_key", "ca_cert"}),
}
"""The keys that each backend takes. A backend of a third party judges its own."""

JOIN_S = 600.0
LAST_CALL_S = 30.0

_QUOTES = "'\""
_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")


@dataclass(frozen=True, slots=True)
class RendezvousParameters:
    """Everything that a backend needs to know. Inert: making one only checks it."""

    backend: str
    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None = None
    config: Mapping[str, str | float | None] = field(default_factory=dict)
    """Values as text, or as what the text would say; an empty one counts as not set."""
    secret_file: Path | None = None
    """Where the secret of the built-in store lies; None for what the environment says."""
    stop_s: float = 0.0
    """How long this node may take to stop its work when a round is over."""

    def __post_init__(self) -> None:
        for name in ("backend", "endpoint"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise UsageError(
                    f"rendezvous {name} {value!r:.80}: must be a str, not {type(value).__name__}"
                )
        if not self.backend:
            raise UsageError("rendezvous backend '': a name such as c10d or etcd is needed")
        run_id(self.run_id)
        numbers = (self.min_nodes, self.max_nodes)
        if any(type(number) is not int for number in numbers) or not 1 <= numbers[0] <= numbers[1]:
            raise UsageError(
                f"nodes {self.min_nodes!r:.20}:{self.max_nodes!r:.20}: "
                "must be MIN:MAX with 1 <= MIN <= MAX"
            )
        if self.local_addr is not None:
            self._check_local(self.local_addr)
        known = CONFIG_KEYS.get(self.backend)
        if known is not None:
            self._check_config(known)

    def _check_local(self, address: str) -> None:
        try:
            # The brackets keep host:port from passing: a colon is for IPv6 alone here.
            parse_address(f"[{address}]" if ":" in address else address, 0)
        except (UsageError, TypeError):
            raise UsageError(
                f"local address {address!r:.80}: must be a host name or an IP address"
            ) from None

    def _check_config(self, known: frozenset[str]) -> None:
        for name in self.config:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = (
                    f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
                )
                raise UsageError(
                    f"rendezvous configuration {name!r:.60}: unknown for {self.backend}; {hint}"
                )
        # Judged here, before anything waits for a node.
        self.rules()
        _ = (self.close_s, self.heartbeat_s, self.read_s)

    @property
    def run(self) -> RunId:
        """The run's name, checked."""
        return run_id(self.run_id)

    @property
    def join_s(self) -> float:
        """How long to wait for a round, and before that for the store."""
        last_call_s = self.seconds("last_call_timeout", default=0.0)
        return self.seconds("join_timeout", "timeout", default=max(JOIN_S, 2 * last_call_s))

    @property
    def close_s(self) -> float:
        """How long leaving and closing may take."""
        return self.seconds("close_timeout", default=30.0)

    @property
    def heartbeat_s(self) -> float:
        """How long one sign of life may take."""
        return self._some("heartbeat_timeout", "heartbeat", default=5.0)

    @property
    def read_s(self) -> float:
        """How long one store operation may take."""
        return self._some("read_timeout", default=60.0)

    def text(self, *names: str) -> str | None:
        """Return the first of these configuration values that is set."""
        values = ((name, self.config.get(name)) for name in names)
        return next((_text(name, value) for name, value in values if value not in (None, "")), None)

    def seconds(self, *names: str, default: float) -> float:
        """Return a duration; UsageError names the key if it is none."""
        for name in names:
            value = self.text(name)
            if value is not None:
                seconds = check_timeout(_number(name, value), f"rendezvous {name}")
                if seconds is None:
                    raise UsageError(f"rendezvous {name} {value!r:.40}: must be finite")
                return seconds
        return default

    def _some(self, *names: str, default: float) -> float:
        """Return a duration that is not zero: in no time nothing can be done."""
        seconds = self.seconds(*names, default=default)
        if seconds == 0:
            raise UsageError(f"rendezvous {names[0]} 0: must be more than 0 seconds")
        return seconds

    def integer(self, name: str) -> int | None:
        """Return a whole number that is not negative, or None if it is not set."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise UsageError(f"rendezvous {name} {value!r:.40}: must be a whole number")
        return int(value)

    def flag(self, name: str) -> bool | None:
        """Return a truth value, or None if it is not set."""
        value = self.text(name)
        if value is None:
            return None
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise UsageError(f"rendezvous {name} {value!r:.40}: must be true or false")

    def rules(self) -> Rules:
        """Return the rules of the run."""
        interval = self.seconds("keep_alive_interval", default=5.0)
        attempts = self.integer("keep_alive_max_attempt")
        attempts = 3 if attempts is None else attempts
        if interval <= 0 or attempts < 1:
            raise UsageError(
                f"keep-alive every {interval:g} s, {attempts} attempts: both must be positive"
            )
        last_call_s = self.seconds("last_call_timeout", default=min(LAST_CALL_S, self.join_s / 2))
        if self.min_nodes < self.max_nodes and last_call_s >= self.join_s:
            raise UsageError(
                f"rendezvous last_call_timeout {last_call_s:g}: must be less than join_timeout "
                f"{self.join_s:g}, or a round of fewer than {self.max_nodes} nodes never comes"
            )
        return Rules(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            join_s=self.join_s,
            last_call_s=last_call_s,
            keep_alive_s=min(interval, interval * attempts / 2),
            lease_s=interval * attempts,
            stop_s=self.stop_s,
        )


def parse_config(text: str) -> dict[str, str]:
    """Read `key=value,key=value`, as `--rdzv-conf` takes it.

    Quotes around a part, a key or a value are dropped: scripts that quote twice leave them there.
    """
    config: dict[str, str] = {}
    for part in filter(None, map(_bare, text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not _bare(name):
            raise UsageError(f"rendezvous configuration {part!r:.60}: must be key=value")
        config[_bare(name)] = _bare(value)
    return config


def _bare(text: str) -> str:
    return text.strip().strip(_QUOTES).strip()


def _text(name: str, value: object) -> str:
    if not isinstance(value, (str, int, float)):
        raise UsageError(f"rendezvous {name} {value!r:.40}: must be text or a number")
    return str(value)


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"rendezvous {name} {value!r:.40}: must be a number of seconds") from None
