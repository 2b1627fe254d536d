"""The states of an agent, and the numbers that it goes by."""

from __future__ import annotations

from enum import StrEnum

from holdfast.agent.policy import RestartBudget
from holdfast.agent.rules import RestartBackoff, RestartRules
from holdfast.records import dataclass

__all__ = ["State", "Terms"]


class State(StrEnum):
    """What the agent is doing."""

    INIT = "init"
    JOINING = "joining"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKOFF = "backing off"
    FINISHED = "finished"
    GATHERING = "gathering"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The numbers that an agent goes by. Durations are seconds."""

    budget: RestartBudget
    grace_s: float = 30.0
    """Between the first signal to a worker and KILL."""
    exit_barrier_s: float = 300.0
    """How long a node whose workers are done waits for those of the others."""
    rules: RestartRules = RestartRules()
    backoff: RestartBackoff = RestartBackoff()
    run_id: str = ""
    """Of the run: nodes draw equal pauses from it."""
