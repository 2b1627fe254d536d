"""What may happen to an agent's machine, by name, and the states that this leads to."""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGINT

from holdfast.agent.effects import Finish
from holdfast.agent.machine import GATHER_S, AgentMachine, Terms
from holdfast.agent.outcome import Outcome
from holdfast.agent.policy import RestartBudget
from holdfast.errors import HoldfastError, RendezvousClosed, RendezvousTimedOut, StoreUnavailable
from tests.unit.agent.stories import brief, ended_well, failed, failure, place

TERMS = Terms(budget=RestartBudget(1), grace_s=30.0, exit_barrier_s=300.0)
CLOSED = RendezvousClosed("run job is closed: rank 3 failed", failed=True)
NO_STORE = StoreUnavailable("no store")

Act = Callable[[AgentMachine], object]


def agent(*acts: Act, terms: Terms = TERMS) -> AgentMachine:
    """Return a machine to which all this has happened."""
    machine = AgentMachine(terms)
    for act in acts:
        act(machine)
    machine.take_effects()
    return machine


def after(machine: AgentMachine, *acts: Act) -> list[str]:
    """Return what the machine wants after these events."""
    for act in acts:
        act(machine)
    return [brief(effect) for effect in machine.take_effects()]


def outcome(machine: AgentMachine) -> Outcome:
    """Return the outcome with which it has just ended."""
    (finish,) = [one for one in machine.take_effects() if isinstance(one, Finish)]
    return finish.outcome


# Events, by the names that the tables of tests use.


def counts(number: int) -> Act:
    return lambda a: a.counted(number, (), 0.0, 5.0)


def fails(rank: int = 0, *, at: float = 10.0) -> Act:
    return lambda a: a.worker_exited(failed(failure(rank, at=at)), 5.0)


def peer(*failures: int, node: int = 1, number: int = 1, final: bool = False) -> Act:
    told = tuple(failure(rank, host="b", at=9.0) for rank in failures)
    return lambda a: a.peer_told(number, node, told, final, 5.0)


def join_fails(error: HoldfastError) -> Act:
    return lambda a: a.join_failed(error, 5.0)


EVENTS: dict[str, Act] = {
    "joined": lambda a: a.joined(place(2, failures=1), 0.0),
    "joined overdrawn": lambda a: a.joined(place(2, failures=2), 0.0),
    "join timed out": join_fails(RendezvousTimedOut("too few")),
    "join closed": join_fails(RendezvousClosed("done")),
    "join closed failed": join_fails(CLOSED),
    "worker failed": fails(1, at=11.0),
    "worker done": lambda a: a.worker_exited(ended_well(0), 5.0),
    "group ended": lambda a: a.group_ended((), 5.0),
    "group stuck": lambda a: a.group_ended((7, 8), 5.0),
    "counted": counts(1),
    "counted, spent": counts(2),
    "count failed": lambda a: a.count_failed(NO_STORE, 5.0),
    "count closed": lambda a: a.count_failed(CLOSED, 5.0),
    "peer failed": peer(2),
    "peer said all": peer(2, final=True),
    "peer of old round": peer(2, number=9),
    "peer is well": peer(),
    "round over": lambda a: a.round_over("b is gone", 5.0),
    "newcomers": lambda a: a.newcomers(1, 5.0),
    "closed": lambda a: a.run_ended("a person closed it", False, 5.0),
    "closed failed": lambda a: a.run_ended("rank 3 failed", True, 5.0),
    "signal": lambda a: a.signalled(SIGINT, 5.0),
    "stop": lambda a: a.stop_asked("user a", None, 5.0),
    "met": lambda a: a.met(1, None, 5.0),
    "met late": lambda a: a.met(9, None, 5.0),
    "met badly": lambda a: a.met(1, "node 1 is late", 5.0),
    "broke": lambda a: a.broke(NO_STORE),
    "tick": lambda a: a.tick(5.0),
    "tick late": lambda a: a.tick(5.0 + GATHER_S),
}

START: tuple[Act, ...] = (lambda a: a.start(),)
RUN = (*START, lambda a: a.joined(place(), 0.0))
COUNTING = (*RUN, fails())
FINISHED = (
    *RUN,
    lambda a: a.worker_exited(ended_well(0), 5.0),
    lambda a: a.worker_exited(ended_well(1), 5.0),
    lambda a: a.group_ended((), 5.0),
)

STATES: dict[str, tuple[Act, ...]] = {
    "new": (),
    "joining": START,
    "joining again": (*RUN, peer(2), EVENTS["group ended"]),
    "running": RUN,
    "one is done": (*RUN, lambda a: a.worker_exited(ended_well(1), 5.0)),
    "counting": COUNTING,
    "counting, group ended": (*COUNTING, EVENTS["group ended"]),
    "restarting": (*COUNTING, counts(1)),
    "giving up": (*COUNTING, counts(2)),
    "going": (*RUN, EVENTS["round over"]),
    "signalled": (*RUN, EVENTS["signal"]),
    "breaking": (*RUN, EVENTS["broke"]),
    "told of the failure": (*RUN, EVENTS["closed failed"]),
    "finished": FINISHED,
    "finished, group alive": FINISHED[:-1],
    "gathering": (*COUNTING, counts(2), EVENTS["group ended"]),
    "ended": (*START, EVENTS["signal"]),
}
