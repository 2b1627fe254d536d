"""The current agent of this process, for those who do not want to name one."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.rpc.agent import Agent

__all__ = ["current_agent", "is_agent_set", "reset_agent", "set_agent"]

_lock = threading.Lock()
_agent: Agent | None = None


def is_agent_set() -> bool:
    """Say whether there is a current agent."""
    return _agent is not None


def current_agent() -> Agent:
    """Return the current agent."""
    agent = _agent
    if agent is None:
        raise UsageError(
            "Current RPC agent is not set! Did you initialize the RPC framework "
            "(e.g. by calling `rpc.init_rpc`)?"
        )
    return agent


def set_agent(agent: Agent) -> None:
    """Make an agent the current one; there must be none."""
    global _agent  # noqa: PLW0603  # this file exists to hold it
    with _lock:
        if _agent is not None:
            raise UsageError("Current RPC agent is set!")
        _agent = agent


def reset_agent() -> Agent:
    """Have no current agent any more; return the one that was."""
    global _agent
    with _lock:
        agent, _agent = _agent, None
    if agent is None:
        raise UsageError("Current RPC agent is not set!")
    return agent


def _after_fork() -> None:
    """Have none in a process that is forked: it is no worker, and can become another one."""
    global _agent, _lock
    _agent, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
