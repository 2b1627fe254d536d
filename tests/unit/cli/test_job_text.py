"""Jobs as text."""

from __future__ import annotations

from typing import Any

from holdfast.cli.job_text import event_line, ps_lines, status_lines
from holdfast.clock import iso_time
from holdfast.control.summary import job_summary

RESTARTS = {"allowed": 3, "used": 1, "window_s": None, "causes": [["rank 3: ValueError", 1]]}
EVENT = {"event": "JobEnded", "time": 5.0, "text": "run a: over\x1b", "run": "a", "number": 1}


def agent(node: int | None, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "run": "a",
        "name": "train.py",
        "host": f"host{node}",
        "pid": 70 + (node or 0),
        "started_at": 100.0,
        "state": "joining" if node is None else "running",
        "reason": "why",
        "round": 0 if node is None else 2,
        "node": node,
        "world_size": 6,
        "nodes": 3,
        "restarts": RESTARTS,
        "workers": [{"rank": 2 * (node or 0), "pid": 8, "running": True}, {"rank": 1}],
        "events": [EVENT],
        "logs": "/logs",
    }
    return told | more


def test_a_job_is_told_by_the_first_node_of_the_newest_round() -> None:
    agents = [agent(1, reason="other"), agent(None, waiting="have 1", left_s=3.0), agent(0)]
    assert job_summary(agents, 160.0) == {
        "run": "a",
        "name": "train.py",
        "state": "running",
        "reason": "why",
        "round": 2,
        "nodes": 3,
        "agents_here": 3,
        "workers": 6,
        "spares": 1,
        "restarts_used": 1,
        "restarts_allowed": 3,
        "age_s": 60.0,
    }


def test_the_rows_of_ps() -> None:
    waits = job_summary([agent(None, waiting="have 1", left_s=3.0)], 100.5)
    assert ps_lines([job_summary([agent(0)], 160.0), waits], ["job b: does not answer"]) == [
        "JOB  STATE    NODES  WORKERS  RESTARTS  AGE        REASON",
        "a    running  3      6        1/3       1 min 0 s  why",
        "a    joining  3      6        1/3       0.5 s      have 1; why, 3 s left",
        "job b: does not answer",
    ]


def test_the_picture_of_a_job() -> None:
    lines = status_lines([agent(0), agent(1), agent(None)], ["no answer: x"], 160.0)
    assert lines == [
        "job       a  (train.py)",
        "state     running  why",
        "age       1 min 0 s",
        "round     2, nodes 3, workers 6, spares 1",
        "restarts  1 of 3 used, 2 left",
        "          1 by rank 3: ValueError",
        "logs      /logs",
        "",
        "NODE  HOST      RANK  PID  STATE",
        "0     host0     0     8    running",
        "0     host0     1          ended",
        "1     host1     2     8    running",
        "1     host1     1          ended",
        "-                          1 more node on other machines",
        "-     hostNone        70   agent joining: why",
        "no answer: x",
        "",
        "last events",
        *(f"  {event_line(EVENT, agent(n))}" for n in (0, 1, None)),
    ]


def test_before_the_first_round_and_with_a_window() -> None:
    early = agent(None, restarts=RESTARTS | {"window_s": 60.0, "causes": []}, events=[], logs=None)
    lines = status_lines([early], [], 101.0)
    assert lines[3:6] == ["round     none yet", "restarts  1 of 3 used, counted within 60 s", ""]
    assert lines[-1] == "-     hostNone        70   agent joining: why"


def test_an_event_plays_no_tricks_with_the_terminal() -> None:
    line = event_line(EVENT, {"host": "h"})
    assert line == f"{iso_time(5.0)}  h  JobEnded  over\\x1b"


def test_an_agent_of_another_version_may_say_less() -> None:
    assert status_lines([{"run": "a"}], [], 1.0)[0] == "job       a  ()"
    assert "?" in event_line({}, {})


def test_steps_are_shown_and_stragglers_named() -> None:
    rates = {0: 10.0, 1: 9.87, 2: 2.0, 3: None}
    workers = [
        {"rank": rank, "pid": 8, "running": True, "step": 5, "steps_a_second": rate}
        for rank, rate in rates.items()
    ]
    silent = {"rank": 4, "pid": 8, "running": True, "step": None, "steps_a_second": None}
    lines = status_lines([agent(0) | {"workers": [*workers, silent]}], (), 160.0)
    shown = [line.split() for line in lines if " host0 " in line and "running" in line]
    assert [line[5:] for line in shown[:5]] == [["5", "10"], ["5", "9.87"], ["5", "2"], ["5"], []]
    assert any(line.split()[-3:] == ["STATE", "STEP", "STEPS/S"] for line in lines)
    assert "straggler  rank 2: 20% of the median's steps a second" in lines
