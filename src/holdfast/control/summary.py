"""A job in a few fields, from what its agents on this machine say of themselves.

What an agent tells may lack a field, if another version of holdfast runs there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["AgentTold", "agent_reason", "job_summary", "speaker"]

AgentTold = dict[str, Any]
"""What one agent says of itself; launch/steering.py lists the fields."""


def job_summary(agents: Sequence[AgentTold], now: float) -> AgentTold:
    """Return a job in a few fields."""
    first = speaker(agents)
    restarts = first.get("restarts", {})
    return {
        "run": first.get("run", "?"),
        "name": first.get("name", ""),
        "state": first.get("state", "?"),
        "reason": agent_reason(first),
        "round": first.get("round", 0),
        "nodes": first.get("nodes", 0),
        "agents_here": len(agents),
        "workers": first.get("world_size", 0),
        "spares": _spares(agents, first),
        "restarts_used": restarts.get("used", 0),
        "restarts_allowed": restarts.get("allowed", 0),
        "age_s": max(0.0, now - min(one.get("started_at", now) for one in agents)),
    }


def speaker(agents: Sequence[AgentTold]) -> AgentTold:
    """Return the agent that knows most: of the newest round, the first node."""
    return min(agents, key=lambda one: (-one.get("round", 0), one.get("node") or 0))


def agent_reason(agent: AgentTold) -> str:
    """Say why an agent does what it does, what it waits for, and how much longer."""
    why = "; ".join(filter(None, (agent.get("waiting", ""), agent.get("reason", ""))))
    left_s = agent.get("left_s")
    return why if left_s is None else f"{why}, {left_s:.0f} s left"


def _spares(agents: Sequence[AgentTold], first: AgentTold) -> int:
    """Count the nodes that wait while others work; of this machine at least."""
    here = sum(one.get("state") == "joining" for one in agents) if first.get("round") else 0
    return max(here, int(first.get("spares") or 0))
