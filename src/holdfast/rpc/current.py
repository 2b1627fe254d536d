"""The current agent of this process: the one that the functions of this package use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.forks import in_every_child
from holdfast.rpc.rref.current_table import NO_AGENT, set_current_table

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
        raise UsageError(NO_AGENT)
    return agent


def set_agent(agent: Agent) -> None:
    """Make an agent the current one; there must be none."""
    global _agent  # noqa: PLW0603  # this file exists to hold it
    with _lock:
        if _agent is not None:
            raise UsageError("Current RPC agent is set!")
        _agent = agent
        set_current_table(agent.rrefs)


def reset_agent() -> Agent:
    """Have no current agent any more; return the one that was."""
    global _agent
    with _lock:
        agent, _agent = _agent, None
        set_current_table(None)
    if agent is None:
        raise UsageError("Current RPC agent is not set!")
    return agent


@in_every_child
def _after_fork() -> None:
    """Have no current agent in a forked child: it is no worker, and can become another one."""
    global _agent, _lock
    _agent, _lock = None, threading.Lock()
    set_current_table(None)
