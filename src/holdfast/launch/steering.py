"""What an agent answers its user's commands: its status, its events, and that it stops the job.

The status is one JSON object, with the same names in every version:

    run, name, host, pid    the job, its entry point, the node and the agent's process
    started_at, turned_s_ago  seconds since 1970; and since the agent's loop last turned
    state, reason           what the agent does, and why
    waiting, left_s         while it waits for a round: for what, and how much longer
    round, node, world_size  its place: the round, which of the nodes it is, workers of all nodes
    nodes                   how many nodes are in the round
    spares                  how many more nodes could come in
    restarts                allowed, used by the job, window_s; here: the restarts of this node and
                            their causes, as [text, times]
    workers                 of this node: rank, local_rank, role, pid, and whether they run; step
                            and steps_a_second, None if the worker told none
    attempts                the last times that it started workers: number, round, first_rank,
                            workers
    logs                    the folder of the logs, if it is kept
    metrics, page           where metrics and the page are served, if they are; the page's link has
                            its token
    lease_s, recovered_s    seconds until the workers are killed if no renewal of the lease comes,
                            and those from the last trouble to the next start; null if not known
    ending                  how it ended, once it has
    events                  the last of them
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, assert_never

from holdfast.agent.agent import ElasticAgent
from holdfast.agent.pace import Pace
from holdfast.agent.status import AgentStatus
from holdfast.agent.terms import State
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.control.messages import AskEvents, AskStacks, AskStatus, AskStop, Request
from holdfast.control.server import Caller
from holdfast.errors import Unavailable
from holdfast.launch.config import LaunchConfig
from holdfast.observe.job_figures import JobFigures
from holdfast.observe.journal import Journal
from holdfast.rendezvous.handler import Rendezvous

__all__ = ["STATUS_EVENTS", "Steering"]

STATUS_EVENTS = 20
_NO_ROUND: dict[str, Any] = {
    "round": 0,
    "node": None,
    "world_size": 0,
    "nodes": 0,
    "workers": [],
}
_IN_A_ROUND = (State.RUNNING, State.STOPPING, State.FINISHED, State.GATHERING)


class Steering:
    """Answers for one agent, on any thread, from before there is one until after its end."""

    def __init__(
        self,
        config: LaunchConfig,
        run_id: str,
        name: str,
        host: str,
        *,
        journal: Journal,
        figures: JobFigures,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config = config
        self.run_id = run_id
        self._name = name
        self.host = host
        self._journal = journal
        self._figures = figures
        self._clock = clock
        self._started_at = clock.wall()
        self.metrics_at: str | None = None
        """Where metrics are served."""
        self.page_at: str | None = None
        """The link of the page."""
        self._agent: ElasticAgent | None = None
        self._rendezvous: Rendezvous | None = None

    def follow(self, agent: ElasticAgent, rendezvous: Rendezvous) -> None:
        """Answer for this agent from now on."""
        self._rendezvous = rendezvous
        self._agent = agent

    def answer(self, request: Request, caller: Caller) -> dict[str, Any]:
        """Answer one request; a HoldfastError says why not."""
        match request:
            case AskStatus():
                return self.status()
            case AskStop(grace_s):
                return self._stop(caller, grace_s)
            case AskEvents(after, wait_s):
                events, ended = self._journal.after(after, wait_s)
                return {"host": self.host, "events": events, "ended": ended}
            case AskStacks(ranks):
                stacks = self._agent.stacks(ranks) if self._agent is not None else []
                return {"host": self.host, "stacks": [asdict(one) for one in stacks]}
            case _:
                assert_never(request)

    def _stop(self, caller: Caller, grace_s: float | None) -> dict[str, Any]:
        if self._agent is None:
            raise Unavailable(
                "this agent still looks for the rendezvous: stop it by a signal, "
                f"kill {os.getpid()}"
            )
        self._agent.stop(f"user {caller.user}", grace_s)
        return {}

    def status(self) -> dict[str, Any]:
        """Return everything that is listed above. From any thread."""
        told: dict[str, Any] = {
            "run": self.run_id,
            "name": self._name,
            "host": self.host,
            "pid": os.getpid(),
            "started_at": self._started_at,
            "turned_s_ago": 0.0,
            "state": "starting",
            "reason": "",
            "waiting": "",
            "left_s": None,
            **_NO_ROUND,
            "spares": 0,
            "restarts": {**self._restarts(0), "here": 0, "causes": []},
            "attempts": [],
            "logs": None,
            "metrics": self.metrics_at,
            "page": self.page_at,
            "lease_s": None,
            "recovered_s": self._figures.last_recovery_s,
            "ending": None,
            "events": self._journal.after(0)[0][-STATUS_EVENTS:],
        }
        if self._agent is not None and self._rendezvous is not None:
            told |= self._of_agent(self._agent, self._rendezvous)
        elif self._config.rdzv_endpoint:
            looking = f"looking for the rendezvous at {self._config.rdzv_endpoint}"
            told |= {"state": State.JOINING.value, "reason": looking}
        return told

    def _of_agent(self, agent: ElasticAgent, rendezvous: Rendezvous) -> dict[str, Any]:
        status = agent.status()
        failures = status.place.failures if status.place else 0
        held, now = rendezvous.held(), self._clock.monotonic()
        return {
            "state": status.state.value,
            "reason": status.reason,
            "waiting": status.waiting,
            "left_s": status.left_s,
            "turned_s_ago": now - status.turned_at,
            "lease_s": None if held is None else held.kill_at - now,
            "spares": rendezvous.nodes_waiting(),
            "restarts": {
                **self._restarts(failures),
                "here": status.restarts.count,
                "causes": [list(one) for one in status.restarts.causes],
            },
            "attempts": [asdict(one) for one in agent.attempts()],
            "logs": None if status.logs is None else str(status.logs),
            "ending": None if status.ending is None else status.ending.value,
            **_place(status, agent.pids(), agent.paces()),
        }

    def _restarts(self, used: int) -> dict[str, Any]:
        budget = self._config.budget
        return {"allowed": budget.max_restarts, "used": used, "window_s": budget.window_s}


def _place(status: AgentStatus, pids: dict[int, int], paces: dict[int, Pace]) -> dict[str, Any]:
    """Tell of the round that the agent is in: its nodes, and the workers of this one."""
    if status.membership is None or status.state not in _IN_A_ROUND:
        return _NO_ROUND
    here, ranks = status.membership.here, status.membership.ranks()
    workers = [
        {
            "rank": one.rank,
            "local_rank": one.local_rank,
            "role": one.role,
            "pid": pids.get(one.local_rank),
            "running": one.local_rank in pids,
            **_pace(paces.get(one.rank)),
        }
        for one in ranks
    ]
    return {
        "round": here.number,
        "node": here.rank,
        "world_size": ranks[0].world_size,
        "nodes": here.world_size,
        "workers": workers,
    }


def _pace(pace: Pace | None) -> dict[str, Any]:
    if pace is None or pace.step < 0:
        return {"step": None, "steps_a_second": None}
    return {"step": pace.step, "steps_a_second": pace.steps_a_second}
