"""What the page shows of a job, and what of it has changed, as JSON.

job      the fields of control/summary.py, when it was started, causes of restarts, recovery
nodes    by key: node, host, pid, state, why, and workers as [rank, role, pid, state]
rounds   as [number, begun, ended or null, workers, why it ended], seconds since 1970
events   the last of them, the oldest first: key, time, host, event, text
missing  a line for each agent that does not answer; elsewhere: nodes on other machines
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.control.summary import AgentTold, agent_reason, job_summary, speaker

__all__ = ["EVENTS_SHOWN", "changes", "page_state", "sse"]

EVENTS_SHOWN = 300
ROUNDS_SHOWN = 100

PageState = dict[str, Any]


def page_state(
    agents: Sequence[AgentTold], missing: Sequence[str], events: Iterable[AgentTold]
) -> PageState:
    """Return what to show: of what at least one agent tells, and of events with their `host`."""
    first = speaker(agents)
    job = job_summary(agents, 0.0)
    del job["age_s"]
    inside = [one for one in agents if one.get("round") and one["round"] == first.get("round")]
    in_order = sorted(events, key=lambda one: float(one.get("time", 0.0)))
    return {
        "job": {
            **job,
            "started_at": min(one.get("started_at", 0.0) for one in agents),
            "causes": first.get("restarts", {}).get("causes", []),
            "recovered_s": first.get("recovered_s"),
            "ending": first.get("ending"),
            "logs": any(one.get("logs") for one in agents),
        },
        "nodes": {f"{one.get('host')} {one.get('pid')}": _node(one) for one in agents},
        "rounds": _rounds(in_order),
        "events": [_event(one) for one in in_order[-EVENTS_SHOWN:]],
        "missing": list(missing),
        "elsewhere": max(0, first.get("nodes", 0) - len(inside)),
    }


def changes(before: PageState, now: PageState) -> PageState:
    """Return what is new, in the same form; nothing if nothing is. `gone` are keys of nodes."""
    found = {
        name: now[name]
        for name in ("job", "rounds", "missing", "elsewhere")
        if now[name] != before[name]
    }
    nodes = {key: one for key, one in now["nodes"].items() if before["nodes"].get(key) != one}
    gone = [key for key in before["nodes"] if key not in now["nodes"]]
    known = {one["key"] for one in before["events"]}
    events = [one for one in now["events"] if one["key"] not in known]
    new = (("nodes", nodes), ("gone", gone), ("events", events))
    return found | {name: value for name, value in new if value}


def sse(event: str, data: str) -> bytes:
    """Return a server-sent event; `data` is JSON, so that it is one line."""
    return f"event: {event}\ndata: {data}\n\n".encode()


def _node(agent: AgentTold) -> dict[str, Any]:
    failed = {
        one.get("rank")
        for one in agent.get("events", ())
        if one.get("event") == "WorkerFailed" and one.get("round") == agent.get("round")
    }
    return {
        "node": agent.get("node"),
        "host": agent.get("host", "?"),
        "pid": agent.get("pid", 0),
        "state": agent.get("state", "?"),
        "why": agent_reason(agent),
        "workers": [_worker(one, failed) for one in agent.get("workers", ())],
    }


def _worker(worker: AgentTold, failed: set[Any]) -> list[Any]:
    state = "running" if worker.get("running") else "ended"
    if state == "ended" and worker.get("rank") in failed:
        state = "failed"
    return [worker.get("rank"), worker.get("role", ""), worker.get("pid"), state]


def _event(event: AgentTold) -> dict[str, Any]:
    text = str(event.get("text", "")).removeprefix(f"run {event.get('run')}: ")
    return {
        "key": f"{event.get('host')} {event.get('agent')} {event.get('number')}",
        "time": event.get("time", 0.0),
        "host": event.get("host", "?"),
        "event": event.get("event", "?"),
        "text": text,
    }


def _rounds(events: Iterable[AgentTold]) -> list[list[Any]]:
    """Return the rounds that events tell of, over all nodes."""
    rounds: dict[int, list[Any]] = {}
    for event in events:
        kind, number, time = event.get("event"), event.get("round"), event.get("time", 0.0)
        if kind == "WorkersStarted" and number is not None:
            one = rounds.setdefault(number, [number, time, None, event.get("world_size"), ""])
            for earlier in rounds.values():
                if earlier is not one and earlier[2] is None:
                    earlier[2] = time
        elif kind in ("WorkersStopping", "WorkersFinished") and number in rounds:
            _end(rounds[number], time, str(event.get("reason", "finished")))
        elif kind in ("JobEnded", "JobFailed"):
            for one in rounds.values():
                _end(one, time, str(event.get("reason", "")))
    return list(rounds.values())[-ROUNDS_SHOWN:]


def _end(one: list[Any], time: float, why: str) -> None:
    if one[2] is None:
        one[2], one[4] = time, why
