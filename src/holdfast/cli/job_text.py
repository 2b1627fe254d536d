"""Jobs as text: the rows of `ps`, the picture of `status`, the lines of `events`.

What an agent tells may lack a field, if another version of holdfast runs there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.cli.arguments import one_line
from holdfast.clock import iso_time
from holdfast.control.stragglers import find_stragglers
from holdfast.control.summary import AgentTold, agent_reason, job_summary, speaker
from holdfast.observe.lines import duration

__all__ = ["event_line", "ps_lines", "status_lines"]

_TITLES = ("JOB", "STATE", "NODES", "WORKERS", "RESTARTS", "AGE", "REASON")
_WORKER_TITLES = ("NODE", "HOST", "RANK", "PID", "STATE")
_STEP_TITLES = ("STEP", "STEPS/S")
_EVENTS_SHOWN = 10


def ps_lines(jobs: Iterable[AgentTold], missing: Iterable[str]) -> list[str]:
    """Return the table of `ps`, and a line for each agent that does not answer."""
    rows = [
        (
            job["run"],
            job["state"],
            str(job["nodes"]),
            str(job["workers"]),
            f"{job['restarts_used']}/{job['restarts_allowed']}",
            duration(job["age_s"]),
            job["reason"],
        )
        for job in jobs
    ]
    return [*_table([_TITLES, *rows]), *missing]


def status_lines(agents: Sequence[AgentTold], missing: Iterable[str], now: float) -> list[str]:
    """Return what `status` shows of one job: nodes and workers, the budget, the last events."""
    job, first = job_summary(agents, now), speaker(agents)
    where = "none yet"
    if job["round"]:
        counts = (f"{what} {job[what]}" for what in ("nodes", "workers", "spares"))
        where = ", ".join([str(job["round"]), *counts])
    budget = first.get("restarts", {})
    window = budget.get("window_s")
    left = f"{max(0, job['restarts_allowed'] - job['restarts_used'])} left"
    if window is not None:
        left = f"counted within {window:g} s"
    lines = [
        f"job       {one_line(job['run'])}  ({one_line(job['name'])})",
        f"state     {job['state']}  {one_line(job['reason'])}",
        f"age       {duration(job['age_s'])}",
        f"round     {where}",
        f"restarts  {job['restarts_used']} of {job['restarts_allowed']} used, {left}",
    ]
    causes = first.get("restarts", {}).get("causes", ())
    lines += [f"          {times} by {one_line(str(cause))}" for cause, times in causes]
    if first.get("logs"):
        lines.append(f"logs      {one_line(first['logs'])}")
    lines += ["", *_table(_workers(agents, first))]
    lines += _stragglers(agents, first)
    lines += missing
    events = sorted(
        ((one, agent) for agent in agents for one in agent.get("events", ())),
        key=lambda pair: pair[0].get("time", 0.0),
    )
    if events:
        lines += ["", "last events"]
        lines += [f"  {event_line(one, agent)}" for one, agent in events[-_EVENTS_SHOWN:]]
    return lines


def event_line(event: AgentTold, agent: AgentTold) -> str:
    """Return an event in one line: its time, its node, its kind and what it says."""
    kind, text = str(event.get("event", "?")), str(event.get("text", ""))
    text = text.removeprefix(f"run {event.get('run')}: ")
    when = iso_time(event.get("time", 0.0))
    return f"{when}  {one_line(str(agent.get('host', '?')))}  {kind}  {one_line(text)}"


def _workers(agents: Sequence[AgentTold], first: AgentTold) -> list[tuple[str, ...]]:
    """Return a row for each worker that an agent here knows, and one for the nodes elsewhere.

    Under titles; steps are shown where a worker told one.
    """
    rows: list[tuple[str, ...]] = []
    inside = _inside(agents, first)
    for agent in sorted(inside, key=lambda one: one.get("node") or 0):
        rows += _workers_of(agent, str(agent.get("node")))
    if (elsewhere := first.get("nodes", 0) - len(inside)) > 0:
        noun = "node" if elsewhere == 1 else "nodes"
        rows.append(("-", "", "", "", f"{elsewhere} more {noun} on other machines"))
    for agent in agents:
        if not agent.get("round") or agent.get("round") != first.get("round"):
            why = f"agent {agent.get('state', '?')}: {agent_reason(agent)}"
            rows.append(("-", agent.get("host", "?"), "", str(agent.get("pid", "")), why))
    told = any(len(row) > len(_WORKER_TITLES) for row in rows)
    titles = (*_WORKER_TITLES, *_STEP_TITLES) if told else _WORKER_TITLES
    return [titles, *(row + ("",) * (len(titles) - len(row)) for row in rows)]


def _inside(agents: Sequence[AgentTold], first: AgentTold) -> list[AgentTold]:
    """Return the agents that are in the newest round."""
    return [one for one in agents if one.get("round") and one["round"] == first.get("round")]


def _workers_of(agent: AgentTold, number: str) -> list[tuple[str, ...]]:
    return [
        (
            number,
            agent.get("host", "?"),
            str(worker.get("rank")),
            str(worker.get("pid") or ""),
            "running" if worker.get("running") else "ended",
            *_steps_of(worker),
        )
        for worker in agent.get("workers", ())
    ]


def _steps_of(worker: AgentTold) -> tuple[str, ...]:
    step, rate = worker.get("step"), worker.get("steps_a_second")
    if step is None:
        return ()
    return str(step), "" if rate is None else f"{rate:.3g}"


def _stragglers(agents: Sequence[AgentTold], first: AgentTold) -> list[str]:
    """Return a line for each worker that is much slower than the others that are known here."""
    workers = [one for agent in _inside(agents, first) for one in agent.get("workers", ())]
    told = [(one["rank"], one.get("steps_a_second")) for one in workers if "rank" in one]
    rates = {rank: rate for rank, rate in told if rate is not None}
    return [
        f"straggler  rank {rank}: {share:.0%} of the median's steps a second"
        for rank, share in find_stragglers(rates).items()
    ]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    shown = [tuple(one_line(cell) for cell in row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*shown, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
