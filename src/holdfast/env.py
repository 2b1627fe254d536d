"""The one reader of the environment.

`read` turns variables into a frozen `Environment`, which is passed down whole; nothing else in
holdfast looks at `os.environ`. Variables that begin with HOLDFAST_ are ours: one that we do not
know is refused, since a misspelt name would otherwise be ignored in silence. Variables of
others (LOGLEVEL, TORCHELASTIC_* ...) never stop a program: a value that makes no sense counts as
unset.

    HOLDFAST_SECRET        the job's secret; see `SecretText`
    HOLDFAST_SECRET_FILE   a file that holds it; one of the two at most
    HOLDFAST_STORE         the store's endpoint where none is given
    HOLDFAST_ETCD_BINARY   the etcd to start (also TORCHELASTIC_ETCD_BINARY_PATH)
    XDG_STATE_HOME, HOME   where the per-user state lies
    LOGLEVEL               what our commands log: DEBUG, INFO (if unset), WARNING, ERROR, CRITICAL

What torchrun's users set for its agent is read under the names that they know:

    PYTHON_EXEC                            the interpreter of the workers
    TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE  what stands before each line of a worker's output
    TORCHELASTIC_ENABLE_FILE_TIMER         1: watch over the timers of the workers
    TORCHELASTIC_TIMER_FILE                where they announce their timers
    TORCHELASTIC_HEALTH_CHECK_PORT         the port, or host:port, on which the agent says it lives
    TORCHELASTIC_ERROR_FILE                where the agent says what ended it
    TORCH_ELASTIC_SHUTDOWN_TIMEOUT         seconds that workers get to end after they were asked to
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE     1: rank 0 hosts the workers' store, not the agent

HOLDFAST_WORKER, HOLDFAST_GROUP, HOLDFAST_ROUND and HOLDFAST_PROGRESS_FILE are how an agent speaks
to the processes that it starts; nothing else sets them. `variables` is the whole environment, for
code that starts processes.

An empty variable counts as unset, except that an empty secret is refused: it is never meant. White
space around the secret is no part of it, as in a file; one that is not UTF-8 has to be in a file.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, SupportsIndex

from holdfast.errors import UsageError
from holdfast.records import dataclass

__all__ = [
    "GROUP",
    "PREFIX",
    "PROGRESS",
    "ROUND",
    "WORKER",
    "Environment",
    "LogLevel",
    "SecretText",
    "add_to_path",
    "current",
    "hold_secret",
    "read",
    "variables",
]

PREFIX = "HOLDFAST_"

_SECRET = "HOLDFAST_SECRET"
_SECRET_FILE = "HOLDFAST_SECRET_FILE"
_STORE = "HOLDFAST_STORE"
_ETCD_BINARY = "HOLDFAST_ETCD_BINARY"
_KNOWN = (_SECRET, _SECRET_FILE, _STORE, _ETCD_BINARY)

WORKER = "HOLDFAST_WORKER"
"""The variable that tells a new process what to run."""
GROUP = "HOLDFAST_GROUP"
"""The variable by which an agent's processes are found."""
ROUND = "HOLDFAST_ROUND"
"""The round of the run that a worker was started in."""
PROGRESS = "HOLDFAST_PROGRESS_FILE"
"""Where a worker tells its step."""
_INTERNAL = (WORKER, GROUP, ROUND, PROGRESS)


class LogLevel(StrEnum):
    """How much is logged, by the names of the standard library."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class SecretText(str):
    """A secret as the environment gave it: it does not show, and cannot be pickled or copied."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<Secret>"

    __str__ = __repr__

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the environment says. Inert: making one reads nothing."""

    secret: SecretText | None = field(default=None, repr=False)
    secret_file: Path | None = None
    store: str | None = None
    round: str | None = None
    etcd_binary: Path | None = None
    state_dir: Path | None = None
    """Where this user's state belongs; None if neither XDG_STATE_HOME nor HOME says."""
    log_level: LogLevel = LogLevel.INFO
    python_exec: str | None = None
    log_line_prefix: str | None = None
    file_timer: bool = False
    timer_file: Path | None = None
    health_check_port: str | None = None
    error_file: Path | None = None
    shutdown_timeout_s: float | None = None
    share_store: bool = True
    """Whether the workers may use the agent's store instead of making one of their own."""


def read(variables: Mapping[str, str]) -> Environment:
    """Make an Environment from variables; UsageError names the one that is wrong."""
    _refuse_unknown(variables)
    secret = _secret(variables)
    secret_file = _path(variables, _SECRET_FILE)
    if _SECRET in variables and secret_file is not None:
        raise UsageError(f"{_SECRET} and {_SECRET_FILE} are both set: only one is allowed")
    return Environment(
        secret=secret,
        secret_file=secret_file,
        store=variables.get(_STORE) or None,
        round=variables.get(ROUND) or None,
        etcd_binary=_path(variables, _ETCD_BINARY, "TORCHELASTIC_ETCD_BINARY_PATH"),
        state_dir=_state_dir(variables),
        log_level=_log_level(variables.get("LOGLEVEL", "")),
        python_exec=variables.get("PYTHON_EXEC") or None,
        log_line_prefix=variables.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or None,
        file_timer=variables.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1",
        timer_file=_path(variables, "TORCHELASTIC_TIMER_FILE"),
        health_check_port=variables.get("TORCHELASTIC_HEALTH_CHECK_PORT") or None,
        error_file=_path(variables, "TORCHELASTIC_ERROR_FILE"),
        shutdown_timeout_s=_seconds(variables.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "")),
        share_store=variables.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1",
    )


def current() -> Environment:
    """Read the environment of this process, as it is now."""
    return read(os.environ)


def variables() -> dict[str, str]:
    """Return a copy of the whole environment of this process: what its children begin with."""
    return dict(os.environ)


def add_to_path(name: str, folder: str) -> None:
    """Put a folder first in a variable of this process that lists folders, for its children."""
    others = [one for one in os.environ.get(name, "").split(os.pathsep) if one and one != folder]
    os.environ[name] = os.pathsep.join([folder, *others])


def hold_secret(text: str) -> None:
    """Make a secret that came by another way that of this process, instead of what was set.

    The system shows other processes the environment as it was at the start: not this.
    """
    os.environ.pop(_SECRET_FILE, None)
    os.environ[_SECRET] = text


def _refuse_unknown(variables: Mapping[str, str]) -> None:
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in (*_KNOWN, *_INTERNAL):
            # Compared without the prefix, which would make everything look alike.
            known = [other.removeprefix(PREFIX) for other in _KNOWN]
            near = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known are {', '.join(_KNOWN)}"
            raise UsageError(f"environment variable {name}: unknown; {hint}")


def _secret(variables: Mapping[str, str]) -> SecretText | None:
    """Return the secret as a file would hold it: without white space around it."""
    if _SECRET not in variables:
        return None
    try:
        secret = SecretText(os.fsencode(variables[_SECRET]).strip().decode())
    except UnicodeError:
        secret = None  # raised below, because this error shows what it is about
    if secret is None:
        raise UsageError(
            f"{_SECRET} is not UTF-8: put it into a file, and name the file in {_SECRET_FILE}"
        )
    if not secret:
        raise UsageError(f"{_SECRET} is empty: give it a secret, or unset it")
    return secret


def _path(variables: Mapping[str, str], *names: str) -> Path | None:
    """Return the first of these variables that is not empty, as a path."""
    return next((Path(variables[name]) for name in names if variables.get(name)), None)


def _state_dir(variables: Mapping[str, str]) -> Path | None:
    base = _path(variables, "XDG_STATE_HOME")
    if base is not None and base.is_absolute():  # the XDG rules say to ignore a relative one
        return base / "holdfast"
    home = _path(variables, "HOME")
    if home is not None and home.is_absolute():
        return home / ".local" / "state" / "holdfast"
    return None


def _log_level(text: str) -> LogLevel:
    try:
        return LogLevel(text.upper())
    except ValueError:
        return LogLevel.INFO


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
