"""What to launch, and how: one frozen value, checked whole before anything is done.

The fields have the names that torch's launcher gives them where it has them too. Whatever is wrong
is a UsageError of one line that names the field, its value and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from pathlib import Path
from signal import Signals
from typing import Any

from holdfast.agent.policy import RestartBudget
from holdfast.agent.roles import ROLE_MAX, WORKERS_MAX
from holdfast.agent.rules import BACKOFF_MOST_S, RestartBackoff, RestartRules
from holdfast.errors import UsageError
from holdfast.ids import UNNAMED_RUN
from holdfast.net.address import parse_address, parse_listen
from holdfast.process.output.streams import LogOptions
from holdfast.process.spec import StartMethod
from holdfast.process.stop.escalation import KILL_WAIT_S
from holdfast.records import dataclass
from holdfast.rendezvous.parameters import RendezvousParameters

__all__ = ["EVENT_LOG_HANDLERS", "NUMA_BINDINGS", "LaunchConfig", "parse_signals"]

EVENT_LOG_HANDLERS = ("null", "console")
NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")

_UNCATCHABLE = {"SIGKILL", "SIGSTOP"}


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Everything that a launcher needs to know besides the entry point. Inert.

    `max_restarts` counts the failures of the whole job; with `restart_window_s` only those of the
    last so many seconds count. Times are in seconds.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    _: KW_ONLY
    run_id: str = ""
    """The job's name, the same on every node; empty for one that is made up."""
    role: str = "default"
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = ""
    """Where nodes meet, the same text on each; one node alone needs none."""
    rdzv_configs: Mapping[str, str | float | None] = field(default_factory=dict)
    rdzv_timeout: float | None = None
    """How long to wait for a round; None for what `rdzv_configs` says, or 600."""
    max_restarts: int = 3
    restart_window_s: float | None = None
    restart_on: tuple[str, ...] = ()
    """The causes after which the job is restarted, such as "SIGSEGV"; empty: after all."""
    no_restart_on: tuple[str, ...] = ()
    """The causes after which it is not."""
    restart_backoff: float = 0.0
    """The pause before the first restart; it doubles with each failure, and has jitter."""
    restart_backoff_max: float = BACKOFF_MOST_S
    stall_after: float | None = None
    """After how many seconds without progress a worker counts as failed; None: never."""
    max_same_failures: int | None = None
    """After how many equal failures in a row at the same step the job is given up."""
    monitor_interval: float = 0.1
    """How often to check for exiting workers, at most every 0.5 s; an end is noticed at once."""
    start_method: str = "spawn"
    """How the processes of functions begin."""
    logs: LogOptions = field(default_factory=LogOptions)
    local_addr: str | None = None
    master_addr: str | None = None
    """What the workers hear as MASTER_ADDR, as it stands; None for the first node's address."""
    master_port: int | None = None
    event_log_handler: str = "null"
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    """The signals that end the job here, and which the workers get."""
    virtual_local_rank: bool = False
    """Whether each worker sees one device alone, and is LOCAL_RANK 0 of it."""
    shutdown_timeout: float = 30.0
    """How long a worker may take to end after it was asked to, before it is killed."""
    exit_barrier_timeout: float = 300.0
    """How long a node whose workers are done waits for the others."""
    warm: tuple[str, ...] = ()
    """Modules that standby workers have imported already."""
    numa_binding: str | None = None
    secret_file: Path | None = None
    """Where the job's secret lies; None for what the environment says."""
    report_file: Path | None = None
    """Where a failure of the job is left as JSON."""
    metrics_port: str | None = None
    """Where metrics are served: a port of loopback or host:port; None for nowhere."""
    page: str | None = None
    """Where the page is served: a port of loopback, 0 for a free one, or host:port."""

    def __post_init__(self) -> None:
        _check_count("nproc_per_node", self.nproc_per_node, 1, WORKERS_MAX)
        _check_role(self.role)
        _check_choice("event_log_handler", self.event_log_handler, EVENT_LOG_HANDLERS)
        _check_choice("start_method", self.start_method, tuple(StartMethod))
        if self.numa_binding is not None:
            _check_choice("numa_binding", self.numa_binding, NUMA_BINDINGS)
        for name in ("restart_on", "no_restart_on"):
            _check_type(name, getattr(self, name), tuple)
        _check_seconds("restart_backoff", self.restart_backoff)
        _check_seconds("restart_backoff_max", self.restart_backoff_max)
        _check_seconds("monitor_interval", self.monitor_interval, above_zero=True)
        _check_seconds("shutdown_timeout", self.shutdown_timeout)
        _check_seconds("exit_barrier_timeout", self.exit_barrier_timeout)
        if self.stall_after is not None:
            _check_seconds("stall_after", self.stall_after, above_zero=True)
        if self.rdzv_timeout is not None:
            _check_seconds("rdzv_timeout", self.rdzv_timeout)
        _check_type("rdzv_configs", self.rdzv_configs, Mapping)
        _check_type("logs", self.logs, LogOptions)
        _check_type("virtual_local_rank", self.virtual_local_rank, bool)
        self._check_master()
        self._check_warm()
        _check_listen("metrics_port", self.metrics_port)
        _check_listen("page", self.page)
        for name in ("secret_file", "report_file"):
            if getattr(self, name) is not None:
                _check_type(name, getattr(self, name), Path)
        # What others judge: they are asked once, here, and then again when they are needed.
        _ = (self.signals, self.budget, self.rules, self.backoff)
        self.rendezvous(self.run_id or UNNAMED_RUN)
        self._check_meeting()
        # A copy of our own: the caller may go on and change its own.
        object.__setattr__(self, "rdzv_configs", dict(self.rdzv_configs))

    def _check_meeting(self) -> None:
        """Refuse nodes that could not find each other, each with a name or a store of its own."""
        if self.max_nodes > 1 and not self.run_id:
            raise UsageError(
                f"run_id '': a job of up to {self.max_nodes} nodes needs one; "
                "give the same name on each"
            )
        built_in = self.rdzv_backend in ("c10d", "static")
        if built_in and self.max_nodes > 1 and not self.rdzv_endpoint:
            raise UsageError(
                f"rdzv_endpoint '': a job of up to {self.max_nodes} nodes needs one; "
                "give the same host:port on each"
            )

    def _check_master(self) -> None:
        if self.master_addr is not None:
            try:
                bare = ":" in self.master_addr and not self.master_addr.startswith("[")
                parse_address(f"[{self.master_addr}]" if bare else self.master_addr, 0)
            except (UsageError, TypeError):
                raise UsageError(
                    f"master_addr {self.master_addr!r:.80}: must be a host name or an IP address"
                ) from None
        if self.master_port is not None:
            _check_count("master_port", self.master_port, 1, 65535)

    def _check_warm(self) -> None:
        _check_type("warm", self.warm, tuple)
        for module in self.warm:
            if not isinstance(module, str) or not all(
                part.isidentifier() for part in module.split(".")
            ):
                raise UsageError(f"warm {module!r:.80}: must be the name of a module")

    @property
    def signals(self) -> tuple[Signals, ...]:
        """The signals of `signals_to_handle`."""
        return parse_signals(self.signals_to_handle)

    @property
    def budget(self) -> RestartBudget:
        """How many failures of the job are forgiven."""
        return RestartBudget(self.max_restarts, self.restart_window_s)

    @property
    def rules(self) -> RestartRules:
        """After which failures the job is restarted."""
        return RestartRules(
            only=self.restart_on, never=self.no_restart_on, same_max=self.max_same_failures
        )

    @property
    def backoff(self) -> RestartBackoff:
        """The pauses before restarts."""
        return RestartBackoff(self.restart_backoff, self.restart_backoff_max)

    def rendezvous(self, run_id: str) -> RendezvousParameters:
        """Return what a rendezvous of this name needs to know."""
        config = dict(self.rdzv_configs)
        if self.rdzv_timeout is not None:
            config["join_timeout"] = self.rdzv_timeout
        return RendezvousParameters(
            backend=self.rdzv_backend,
            endpoint=self.rdzv_endpoint,
            run_id=run_id,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            local_addr=self.local_addr,
            config=config,
            secret_file=self.secret_file,
            stop_s=self.shutdown_timeout + KILL_WAIT_S,
        )


def parse_signals(text: str) -> tuple[Signals, ...]:
    """Read `SIGTERM,SIGUSR1`: each once, in the order given."""
    _check_type("signals_to_handle", text, str)
    found: dict[Signals, None] = {}
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name in _UNCATCHABLE:
            raise UsageError(f"signals_to_handle {name!r}: no process can handle it")
        if name not in Signals.__members__:
            raise UsageError(
                f"signals_to_handle {name!r:.40}: unknown; write names such as SIGTERM,SIGUSR1"
            )
        found[Signals[name]] = None
    return tuple(found)


def _check_type(name: str, value: object, kind: type[Any]) -> None:
    if not isinstance(value, kind):
        raise UsageError(
            f"{name} {value!r:.80}: must be a {kind.__name__}, not {type(value).__name__}"
        )


def _check_listen(name: str, value: str | None) -> None:
    if value is not None:
        try:
            parse_listen(value)
        except UsageError as error:
            raise UsageError(f"{name} {error}") from None


def _check_count(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise UsageError(f"{name} {value!r:.80}: must be a whole number from {least} to {most}")


def _check_role(value: object) -> None:
    if not (isinstance(value, str) and 0 < len(value) <= ROLE_MAX and value.isprintable()):
        raise UsageError(f"role {value!r:.80}: must be 1 to {ROLE_MAX} printable characters")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} {value!r:.80}: must be one of {', '.join(allowed)}")


def _check_seconds(name: str, value: object, *, above_zero: bool = False) -> None:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not 0 <= number < math.inf or (above_zero and number == 0):
        more = "more than 0" if above_zero else "zero or more"
        raise UsageError(f"{name} {value!r:.80}: must be {more} seconds")
