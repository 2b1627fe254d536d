"""The one reader of the environment.

`read` turns variables into a frozen `Environment`, which is passed down whole; nothing else in
holdfast looks at `os.environ`. Variables that begin with HOLDFAST_ are ours: one that we do not
know is refused, since a misspelt name would otherwise be ignored in silence. Variables of
others (LOGLEVEL, XDG_STATE_HOME ...) never stop anybody: a value that makes no sense counts as
unset.

    HOLDFAST_SECRET        the job's secret; see `SecretText`
    HOLDFAST_SECRET_FILE   a file that holds it; one of the two at most
    HOLDFAST_STORE         the store's endpoint where none is given
    HOLDFAST_ETCD_BINARY   the etcd to start (also TORCHELASTIC_ETCD_BINARY_PATH)
    XDG_STATE_HOME, HOME   where the per-user state lies
    LOGLEVEL               what our commands log: DEBUG, INFO (if unset), WARNING, ERROR, CRITICAL

An empty variable counts as unset, except that an empty secret is refused: nobody means it.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, SupportsIndex

from holdfast.errors import UsageError

__all__ = ["PREFIX", "Environment", "LogLevel", "SecretText", "current", "read"]

PREFIX = "HOLDFAST_"

_SECRET = "HOLDFAST_SECRET"
_SECRET_FILE = "HOLDFAST_SECRET_FILE"
_STORE = "HOLDFAST_STORE"
_ETCD_BINARY = "HOLDFAST_ETCD_BINARY"
_KNOWN = (_SECRET, _SECRET_FILE, _STORE, _ETCD_BINARY)


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
    etcd_binary: Path | None = None
    state_dir: Path | None = None
    """Where this user's state belongs; None if neither XDG_STATE_HOME nor HOME says."""
    log_level: LogLevel = LogLevel.INFO


def read(variables: Mapping[str, str]) -> Environment:
    """Make an Environment from variables; UsageError names the one that is wrong."""
    _refuse_unknown(variables)
    if variables.get(_SECRET) == "":
        raise UsageError(f"{_SECRET} is empty: give it a secret, or unset it")
    secret_file = _path(variables, _SECRET_FILE)
    if _SECRET in variables and secret_file is not None:
        raise UsageError(f"{_SECRET} and {_SECRET_FILE} are both set: only one is allowed")
    return Environment(
        secret=SecretText(variables[_SECRET]) if _SECRET in variables else None,
        secret_file=secret_file,
        store=variables.get(_STORE) or None,
        etcd_binary=_path(variables, _ETCD_BINARY, "TORCHELASTIC_ETCD_BINARY_PATH"),
        state_dir=_state_dir(variables),
        log_level=_log_level(variables.get("LOGLEVEL", "")),
    )


def current() -> Environment:
    """Read the environment of this process, as it is now."""
    return read(os.environ)


def _refuse_unknown(variables: Mapping[str, str]) -> None:
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in _KNOWN:
            # Compared without the prefix, which would make everything look alike.
            known = [other.removeprefix(PREFIX) for other in _KNOWN]
            near = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known are {', '.join(_KNOWN)}"
            raise UsageError(f"environment variable {name}: unknown; {hint}")


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
