"""From the flags of `holdfast run` to a configuration and an entry point.

torchrun's rules are kept, as far as they are no bugs:

    static, one node, no endpoint, no port   c10d on a free port: no other node takes part
    --standalone                             the same, whatever the other flags say
    static                                   --master-addr and --master-port are the endpoint
    $PYTHON_EXEC                             the interpreter that runs SCRIPT
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from holdfast import env
from holdfast.agent.environment import limits_threads
from holdfast.agent.policy import RestartBudget, parse_restarts
from holdfast.agent.rules import RestartBackoff, parse_backoff, parse_causes, parse_duration
from holdfast.cli.run_flags import Text, unknown_variables
from holdfast.errors import UsageError
from holdfast.ids import UNNAMED_RUN
from holdfast.launch.config import EVENT_LOG_HANDLERS, NUMA_BINDINGS, LaunchConfig
from holdfast.launch.devices import count_workers
from holdfast.net.address import is_loopback, parse_address, parse_listen
from holdfast.process.output.streams import LogOptions, parse_filters, parse_ranks, parse_streams
from holdfast.process.spec import Entrypoint, Module, Program, Script, StartMethod
from holdfast.records import dataclass
from holdfast.rendezvous.parameters import CONFIG_KEYS, parse_config

__all__ = ["Invocation", "describe", "resolve"]

T = TypeVar("T")
_MASTER_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What to launch, and what its user should know first."""

    config: LaunchConfig
    entrypoint: Entrypoint
    warnings: tuple[str, ...] = ()


def resolve(
    given: Mapping[str, Text], command: Sequence[str], variables: Mapping[str, str]
) -> Invocation:
    """Make sense of the flags. UsageError in one line if there is none."""
    flags = _Flags(given)
    environment = env.read(variables)
    warnings = [*unknown_variables(variables)]
    nproc = flags.read("nproc_per_node", lambda text: count_workers(text, variables))
    if limits_threads(variables, nproc):
        warnings.append("OMP_NUM_THREADS is not set: each worker gets 1; set it to tune this")
    flags.read("logs_specs", _logs_specs)
    budget = _budget(flags)
    backoff = flags.optional("restart_backoff", parse_backoff) or RestartBackoff()
    grace_s = flags.optional("shutdown_timeout", _seconds)
    if grace_s is None:
        grace_s = environment.shutdown_timeout_s
    config = LaunchConfig(
        **_meeting(flags, warnings),
        nproc_per_node=nproc,
        role=flags.text("role"),
        max_restarts=budget.max_restarts,
        restart_window_s=budget.window_s,
        restart_on=flags.read("restart_on", parse_causes),
        no_restart_on=flags.read("no_restart_on", parse_causes),
        restart_backoff=backoff.first_s,
        restart_backoff_max=backoff.most_s,
        stall_after=flags.optional("stall_after", parse_duration),
        max_same_failures=flags.optional("max_same_failures", _whole),
        monitor_interval=flags.read("monitor_interval", _seconds),
        start_method=flags.read("start_method", _one_of(tuple(StartMethod))),
        logs=_logs(flags),
        local_addr=flags.text("local_addr") or None,
        event_log_handler=flags.read("event_log_handler", _one_of(EVENT_LOG_HANDLERS)),
        signals_to_handle=flags.text("signals_to_handle"),
        virtual_local_rank=flags.switch("virtual_local_rank"),
        shutdown_timeout=30.0 if grace_s is None else grace_s,
        exit_barrier_timeout=flags.read("exit_barrier_timeout", _seconds),
        warm=tuple(filter(None, (part.strip() for part in flags.text("warm").split(",")))),
        numa_binding=flags.optional("numa_binding", _one_of(NUMA_BINDINGS)),
        secret_file=flags.optional("secret_file", Path),
        report_file=flags.optional("report", Path),
        metrics_port=flags.optional("metrics_port", _listen),
        page=flags.read("page", _page) if flags.is_given("page") else None,
    )
    _check_backend(config.rdzv_backend)
    _check_secret(config, environment)
    entrypoint = _entrypoint(flags, command, environment.python_exec or "")
    return Invocation(config=config, entrypoint=entrypoint, warnings=tuple(warnings))


class _Flags:
    """The texts of the flags, and what they say."""

    def __init__(self, given: Mapping[str, Text]) -> None:
        self._given = given

    def text(self, dest: str) -> str:
        """Return the text of a flag."""
        return self._given[dest].value

    def is_given(self, *dests: str) -> bool:
        """Say whether all of these were given, by arguments or by variables."""
        return all(self._given[dest].place for dest in dests)

    def read(self, dest: str, convert: Callable[[str], T]) -> T:
        """Return what the text says; an error names the place where it stands."""
        text, place = self._given[dest]
        try:
            return convert(text)
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None

    def optional(self, dest: str, convert: Callable[[str], T]) -> T | None:
        """Return what the text says, or None if there is none."""
        return self.read(dest, convert) if self.text(dest) else None

    def switch(self, dest: str) -> bool:
        """Say whether a switch is on."""
        return self.read(dest, _switch)


def _meeting(flags: _Flags, warnings: list[str]) -> dict[str, Any]:
    """Return where and how nodes meet, as fields of the configuration."""
    fewest, most = flags.read("nnodes", _nodes)
    backend, endpoint = flags.text("rdzv_backend"), flags.text("rdzv_endpoint")
    config: dict[str, str | float | None] = {**flags.read("rdzv_conf", parse_config)}
    port = flags.optional("master_port", _whole)
    alone = flags.switch("standalone")
    if alone and fewest > 1:
        raise UsageError(f"argument --standalone: is for one node, not for {fewest}")
    if alone or (backend == "static" and most == 1 and not endpoint and port is None):
        # What was said about another backend has no place here; what means nothing to any, nowhere.
        known = frozenset().union(*CONFIG_KEYS.values())
        own = {
            name: value
            for name, value in config.items()
            if name in CONFIG_KEYS["c10d"] or name not in known
        }
        given = flags.text("rdzv_id")
        return {
            "min_nodes": 1,
            "max_nodes": 1,
            "run_id": "" if given == UNNAMED_RUN else given,
            "rdzv_endpoint": "localhost:0",
            "rdzv_configs": own,
        }
    if backend == "static":
        if flags.is_given("node_rank") or not config.get("rank"):
            config["rank"] = flags.read("node_rank", _whole)
        if not endpoint:
            host = flags.text("master_addr")
            bare = ":" in host and not host.startswith("[")
            endpoint = f"{f'[{host}]' if bare else host}:{_MASTER_PORT if port is None else port}"
    else:
        for dest in filter(flags.is_given, ("node_rank", "master_addr", "master_port")):
            name = f"--{dest.replace('_', '-')}"
            warnings.append(f"{name} is ignored: it is for the backend static, not for {backend}")
        if backend == "c10d" and most > 1 and not endpoint:
            endpoint = "localhost:29400"
            warnings.append(
                f"--rdzv-endpoint is not given: only nodes of this machine meet, at {endpoint}"
            )
    return {
        "min_nodes": fewest,
        "max_nodes": most,
        "run_id": _run_id(flags, most, backend, endpoint, config),
        "rdzv_backend": backend,
        "rdzv_endpoint": endpoint,
        "rdzv_configs": config,
    }


def _run_id(
    flags: _Flags, most: int, backend: str, endpoint: str, config: Mapping[str, object]
) -> str:
    """Return the job's id; "" for one of its own, where the default would be found used up.

    A store that outlives the job remembers the ids of the jobs that have ended. Whether a store at
    the endpoint of c10d does shows when the node has reached it: the rendezvous asks then.
    """
    kept = backend in ("etcd", "etcd-v2", "file") or config.get("store_type") == "file"
    served = backend == "c10d" and most == 1 and bool(endpoint) and not endpoint.endswith(":0")
    given = flags.text("rdzv_id")
    if given != UNNAMED_RUN or not (kept or served):
        return given
    if most > 1:
        raise UsageError(
            f"argument --rdzv-id: needed, since the store ({backend} at {endpoint}) outlives the "
            "job: give an id of its own to each job, the same on all its nodes"
        )
    return ""


def _budget(flags: _Flags) -> RestartBudget:
    """Return what --restarts says, or else --max-restarts, which torchrun has."""
    if flags.is_given("restarts"):
        return flags.read("restarts", parse_restarts)
    return RestartBudget(flags.read("max_restarts", _whole))


def _logs(flags: _Flags) -> LogOptions:
    return LogOptions(
        log_dir=flags.optional("log_dir", Path),
        redirects=flags.read("redirects", parse_streams),
        tee=flags.read("tee", parse_streams),
        prefix=flags.text("log_line_prefix_template") or None,
        local_ranks_filter=flags.read("local_ranks_filter", parse_ranks),
        duplicate_stdout_filters=flags.read("duplicate_stdout_filters", parse_filters),
        duplicate_stderr_filters=flags.read("duplicate_stderr_filters", parse_filters),
    )


def _entrypoint(flags: _Flags, command: Sequence[str], python: str) -> Entrypoint:
    name, *args = command[1:] if command[:1] == ["--"] else command
    module, program = flags.switch("module"), flags.switch("no_python")
    if flags.switch("run_path"):
        module = program = False
    if module and program:
        raise UsageError("argument --no-python: not together with --module")
    if module:
        return Module(name, tuple(args), python)
    if program:
        if shutil.which(name) is None:
            raise UsageError(f"program {name!r:.200}: no such file, or it cannot be executed")
        return Program(name, tuple(args))
    if not os.path.exists(name):
        raise UsageError(f"script {name!r:.200}: no such file")
    if other := _other_interpreter(name):
        raise UsageError(
            f"script {name!r:.200}: begins with {other!r:.80}, which is not Python: "
            "add --no-python to run it as a program"
        )
    return Script(name, tuple(args), python)


def _other_interpreter(path: str) -> str:
    """Return the first line of a script that names an interpreter other than Python, else ""."""
    if not os.path.isfile(path):
        return ""  # a folder with a __main__.py, or a pipe, of which nothing may be taken
    try:
        with open(path, "rb") as file:
            line = file.readline(200).decode("utf-8", "replace").strip()
    except OSError:
        return ""  # told when it is run
    names = ("python", "pypy", "uv ")
    return line if line.startswith("#!") and not any(name in line for name in names) else ""


def _check_backend(name: str) -> None:
    """Refuse a backend that is not provided, before anything is started."""
    if name in CONFIG_KEYS:
        return
    from holdfast.rendezvous.registry import known

    if name not in known():
        raise UsageError(f"rendezvous backend {name!r:.40}: unknown; known: {', '.join(known())}")


def _check_secret(config: LaunchConfig, environment: env.Environment) -> None:
    """Refuse to meet where other hosts can come, too, unless there is a secret to know them by."""
    if config.secret_file or environment.secret_file or environment.secret is not None:
        return
    in_a_file = config.rdzv_configs.get("store_type") == "file"
    hosts_store = (config.rdzv_backend == "c10d" and not in_a_file) or (
        config.rdzv_backend == "static" and config.max_nodes > 1
    )
    parts = (config.rdzv_endpoint or "localhost").split(",")
    if hosts_store and not all(is_loopback(parse_address(part, 0).host) for part in parts):
        raise UsageError(
            f"nodes that meet at {config.rdzv_endpoint} need the job's secret: make one, "
            "(umask 077; openssl rand -hex 32 > job.secret), copy it to every node, and add "
            "--secret-file job.secret"
        )


def describe(invocation: Invocation) -> dict[str, Any]:
    """Return the whole of it as JSON has it. The secret itself is not part of it."""
    entrypoint = _plain(invocation.entrypoint)
    kind = type(invocation.entrypoint).__name__.lower()
    return {"config": _plain(invocation.config), "entrypoint": {"kind": kind, **entrypoint}}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _nodes(text: str) -> tuple[int, int]:
    fewest, colon, most = text.partition(":")
    try:
        found = _whole(fewest), _whole(most if colon else fewest)
    except UsageError:
        found = (0, 0)
    if not 1 <= found[0] <= found[1]:
        raise UsageError(f"{text!r:.40} must be N or MIN:MAX, with 1 <= MIN <= MAX")
    return found


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"{text!r:.40} must be a whole number, 0 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UsageError(f"{text!r:.40} must be a number of seconds, 0 or more")
    return seconds


def _switch(text: str) -> bool:
    if text.lower() in {"1", "true"}:
        return True
    if text.lower() in {"", "0", "false"}:
        return False
    raise UsageError(f"{text!r:.40} must be 0 or 1")


def _listen(text: str) -> str:
    parse_listen(text)
    return text


def _page(text: str) -> str:
    return _listen(text or "0")


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in allowed:
            raise UsageError(f"{text!r:.40} must be one of {', '.join(allowed)}")
        return text

    return convert


def _logs_specs(text: str) -> None:
    if text != "default":
        raise UsageError(f"{text!r:.40} is not supported; use the flags for output instead")
