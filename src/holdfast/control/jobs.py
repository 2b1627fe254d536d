"""From the agents of a machine to jobs: which agents belong together, and which job is meant.

Agents are of one job if they have the same run id and meet at the same place. An agent that meets
no other one is a job of its own. People name a job by its run id; where two jobs have the same one,
by RUN@PID, with the process of one of its agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.errors import PeerViolation, UsageError
from holdfast.records import dataclass

__all__ = ["AgentEntry", "LocalJob", "choose_job", "group_jobs", "read_entry"]

_NAMED_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEntry:
    """An agent of this machine, as its entry says. `started_at` is a moment of the wall clock.

    `token` is the entry's own name. `endpoint` is where the nodes of the job meet, empty if the
    agent is alone.
    """

    token: str
    run: str
    host: str
    pid: int
    started_at: float
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class LocalJob:
    """A job, by its agents on this machine, the oldest first."""

    run: str
    agents: tuple[AgentEntry, ...]


def read_entry(token: str, fields: object) -> AgentEntry:
    """Make an entry of what its file holds; PeerViolation if it is none."""
    if not isinstance(fields, dict):
        raise PeerViolation("entry: must be an object")
    pid, started_at = fields.get("pid"), fields.get("started_at")
    if not isinstance(pid, int) or not isinstance(started_at, (int, float)):
        raise PeerViolation("entry: pid and started_at must be numbers")
    run, host, endpoint = (fields.get(name) for name in ("run", "host", "endpoint"))
    if not (isinstance(run, str) and isinstance(host, str) and isinstance(endpoint, str)):
        raise PeerViolation("entry: run, host and endpoint must be texts")
    return AgentEntry(
        token=token, run=run, host=host, pid=pid, started_at=started_at, endpoint=endpoint
    )


def group_jobs(entries: Iterable[AgentEntry]) -> list[LocalJob]:
    """Return the jobs of these agents, the oldest first."""
    jobs: dict[tuple[str, str], list[AgentEntry]] = {}
    for entry in sorted(entries, key=lambda one: (one.started_at, one.pid)):
        alone = not entry.endpoint
        place = f"alone {entry.token}" if alone else f"at {entry.endpoint}"
        jobs.setdefault((entry.run, place), []).append(entry)
    return [LocalJob(run, tuple(agents)) for (run, _), agents in jobs.items()]


def choose_job(jobs: Sequence[LocalJob], wanted: str | None) -> LocalJob:
    """Return the job that is meant: by its run id, by RUN@PID, or the only one there is.

    UsageError says what is there.
    """
    if not jobs:
        what = "a job" if wanted is None else f"job {wanted!r:.80}"
        raise UsageError(f"{what}: no job of this user runs on this machine")
    if wanted is None:
        if len(jobs) > 1:
            raise UsageError(f"which job? There are {len(jobs)}: {_names(jobs)}")
        return jobs[0]
    fitting = [job for job in jobs if job.run == wanted]
    if not fitting:
        run, _, pid = wanted.rpartition("@")
        fitting = [
            job
            for job in jobs
            if job.run == run and pid in {str(agent.pid) for agent in job.agents}
        ]
    if not fitting:
        raise UsageError(f"job {wanted!r:.80}: no such job here; there is {_names(jobs)}")
    if len(fitting) > 1:
        raise UsageError(f"job {wanted!r:.80}: {len(fitting)} jobs fit: give {_exactly(fitting)}")
    return fitting[0]


def _names(jobs: Sequence[LocalJob]) -> str:
    runs = [job.run for job in jobs]
    if len(set(runs)) < len(runs):
        return _exactly(jobs)
    return _listed(runs, ", ")


def _exactly(jobs: Sequence[LocalJob]) -> str:
    return _listed([f"{job.run}@{job.agents[0].pid}" for job in jobs], " or ")


def _listed(names: list[str], between: str) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return between.join(names[:_NAMED_MAX]) + more
