"""Which files hold what the workers of a job wrote, from what its agents say of themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from holdfast.control.summary import AgentTold

__all__ = ["KeptLog", "attempts_wanted", "log_files"]

_STREAMS = (("stdout.log", ""), ("stderr.log", "err"))


class KeptLog(NamedTuple):
    """A file that may be there: of which attempt, rank and stream, which is "" or "err"."""

    attempt: int
    rank: int
    stream: str
    path: Path


def attempts_wanted(agent: AgentTold, number: int | None) -> list[AgentTold]:
    """Return the attempt of an agent that is wanted, None for the last one, if it is known."""
    attempts: list[AgentTold] = agent.get("attempts", [])
    if number is None:
        return attempts[-1:]
    return [one for one in attempts if one["number"] == number]


def log_files(
    agents: Iterable[AgentTold], number: int | None, ranks: Collection[int] | None
) -> list[KeptLog]:
    """Return the files of an attempt, None for the last one, and of some ranks, None for all."""
    found = []
    for agent in agents:
        if not agent.get("logs"):
            continue
        for attempt in attempts_wanted(agent, number):
            folder = Path(agent["logs"], f"attempt_{attempt['number']}")
            for local_rank in range(attempt["workers"]):
                rank = attempt["first_rank"] + local_rank
                if ranks is None or rank in ranks:
                    for name, stream in _STREAMS:
                        path = folder / str(local_rank) / name
                        found.append(KeptLog(attempt["number"], rank, stream, path))
    return found
