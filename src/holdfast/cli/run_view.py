"""What a person is shown of a job: the status of this node's agent, and how many others work."""

from __future__ import annotations

from dataclasses import replace

from holdfast.agent.status import AgentStatus
from holdfast.agent.terms import State
from holdfast.observe.lines import JobView, NodeView

__all__ = ["view"]

_OUTSIDE = (State.INIT, State.JOINING)


def view(status: AgentStatus, host: str, max_restarts: int) -> JobView:
    """Return what to show. Of the other nodes no more is known than their number."""
    here = NodeView(
        host=host,
        state=status.state.value,
        restarts=status.place.failures if status.place else 0,
        max_restarts=max_restarts,
        reason=status.reason,
        waiting=status.waiting,
        left_s=status.left_s,
    )
    if status.membership is None or status.state in _OUTSIDE:
        return JobView(here)
    current, ranks = status.membership.here, status.membership.ranks()
    here = replace(
        here,
        round=current.number,
        ranks=(ranks[0].rank, ranks[-1].rank),
        world_size=ranks[0].world_size,
    )
    return JobView(here, current.world_size - 1)
