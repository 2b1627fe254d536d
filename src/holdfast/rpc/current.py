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
agent: Agent | None = None
"""The current agent, if there is one; only this module sets it."""


def is_agent_set() -> bool:
    """Say whether there is a current agent."""
    return agent is not None


def current_agent() -> Agent:
    """Return the current agent."""
    found = agent
    if found is None:
        raise UsageError(NO_AGENT)
    return found


def set_agent(new: Agent) -> None:
    """Make an agent the current one; there must be none."""
    global agent  # noqa: PLW0603  # this file exists to hold it
    with _lock:
        if agent is not None:
            raise UsageError("Current RPC agent is set!")
        agent = new
        set_current_table(new.rrefs)


def reset_agent() -> Agent:
    """Have no current agent any more; return the one that was."""
    global agent
    with _lock:
        before, agent = agent, None
        set_current_table(None)
    if before is None:
        raise UsageError("Current RPC agent is not set!")
    return before


@in_every_child
def _after_fork() -> None:
    """Have no current agent in a forked child: it is no worker, and can become another one."""
    global agent, _lock
    agent, _lock = None, threading.Lock()
    set_current_table(None)
