"""What a person is shown of a job: the status of this node's agent as lines for each node."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from holdfast.agent.agent import AgentStatus
from holdfast.agent.machine import State
from holdfast.observe.live import JobView, NodeView

__all__ = ["view"]

_OUTSIDE = (State.INIT, State.JOINING)


def view(status: AgentStatus, host: str, max_restarts: int) -> JobView:
    """Return what to show. Of the other nodes no more is known than their place in the round."""
    here = NodeView(
        host=host,
        state=status.state.value,
        restarts=status.place.failures if status.place else 0,
        max_restarts=max_restarts,
        reason=status.reason,
    )
    if status.membership is None or status.state in _OUTSIDE:
        return JobView(here)
    current, workers = status.membership.here, [node.workers for node in status.membership.nodes]
    ends = list(accumulate(workers))
    nodes = [
        NodeView(
            host=member.host,
            state="member",
            round=current.number,
            ranks=(end - count, end - 1),
            world_size=ends[-1],
        )
        for member, count, end in zip(current.members, workers, ends, strict=True)
    ]
    own = nodes.pop(current.rank)
    here = replace(here, round=own.round, ranks=own.ranks, world_size=own.world_size)
    return JobView(here, tuple(nodes))
