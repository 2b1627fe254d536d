"""Short forms of what an agent's machine hears and wants, for its tests."""

from __future__ import annotations

from typing import assert_never

from holdfast.agent.effects import (
    Close,
    CountFailure,
    Effect,
    Finish,
    Join,
    Meet,
    Place,
    Publish,
    Remember,
    StartWorkers,
    Stop,
)
from holdfast.process.outcome.failure import Failure, WorkerExited
from holdfast.process.spec import Exit

__all__ = ["brief", "ended_well", "failed", "failure", "place"]


def failure(
    rank: int = 0, *, at: float = 10.0, host: str = "a", code: int = 1, message: str = "boom"
) -> Failure:
    """Return the failure of a worker."""
    return Failure(
        rank=rank,
        local_rank=rank % 2,
        role="default",
        host=host,
        pid=100 + rank,
        exit=Exit(code),
        at=at,
        message=message,
    )


def failed(why: Failure, *, asked: bool = False) -> WorkerExited:
    """Return the news that a worker has failed."""
    return WorkerExited(why.local_rank, why.pid, why.exit, why, asked)


def ended_well(local_rank: int, *, asked: bool = False) -> WorkerExited:
    """Return the news that a worker is done."""
    return WorkerExited(local_rank, 100 + local_rank, Exit(0), None, asked)


def place(number: int = 1, *, nodes: int = 2, workers: int = 2, failures: int = 0) -> Place:
    """Return the place of node 0 in a round."""
    return Place(number, 0, nodes, workers, failures)


def brief(effect: Effect) -> str:
    """Return an effect in a few words."""
    match effect:
        case Join(why):
            return f"join: {why}" if why else "join"
        case StartWorkers(where):
            return f"start round {where.round}"
        case Stop(number, grace_s):
            return f"stop {number.name} {grace_s:g}"
        case Publish(failures, final):
            ranks = " ".join(str(one.rank) for one in failures) or "none"
            return f"publish {ranks}{' final' if final else ''}"
        case CountFailure():
            return "count"
        case Remember(number, description):
            return f"remember {number}: {description}"
        case Meet(timeout_s):
            return f"meet {timeout_s:g}"
        case Close(_, failed_):
            return "close failed" if failed_ else "close"
        case Finish(outcome):
            ranks = "".join(f" {one.rank}" for one in outcome.failures)
            return f"finish {outcome.ending}{ranks}"
        case _:
            assert_never(effect)
