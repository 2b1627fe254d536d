"""Which lines are written of a job, and what they say."""

from __future__ import annotations

import pytest

from holdfast.observe.lines import WAITING_EVERY_S, JobView, LineLog, NodeView, duration


def node(n: int, state: str = "running", **more: object) -> NodeView:
    return NodeView(host=f"host{n}", state=state, **more)  # type: ignore[arg-type]


def in_round(number: int, nodes: int) -> JobView:
    return JobView(node(0, round=number), nodes - 1)


def test_a_line_says_it_all() -> None:
    view = node(0, round=2, ranks=(0, 3), world_size=8, restarts=1, max_restarts=3, reason="why")
    assert str(view) == "host0  running  round 2  ranks 0-3 of 8  restarts 1/3  why"
    assert str(node(1, "joining")) == "host1  joining"
    assert str(node(1, ranks=(5, 5), world_size=6)) == "host1  running  rank 5 of 6"
    assert str(node(1, reason="a\x1b[2J\nb")) == "host1  running  a?[2J?b"
    waits = node(1, "joining", waiting="have 1 of 2", reason="host0 left", left_s=594.6)
    assert str(waits) == "host1  joining  have 1 of 2; host0 left, 595 s left"
    assert str(node(1, "joining", left_s=3.0)) == "host1  joining  3 s left"


def test_a_line_is_written_once_for_each_state_round_and_reason() -> None:
    log = LineLog(redrawn=False)
    assert log.news(JobView(node(0, "joining")), 0.0) == "host0  joining"
    assert log.news(JobView(node(0, "joining", left_s=3.0)), 1.0) == ""
    assert log.news(JobView(node(0, round=1)), 2.0) == "host0  running  round 1"
    assert log.news(JobView(node(0, round=1, reason="a")), 2.0) == "host0  running  round 1  a"
    assert log.news(JobView(node(0, round=2, reason="b")), 2.0) == "host0  running  round 2  b"
    for state in ("gathering", "ended"):
        assert log.news(JobView(node(0, state, reason="the end")), 3.0) == ""


def test_what_is_waited_for_is_told_now_and_then() -> None:
    log, redrawn = LineLog(redrawn=False), LineLog(redrawn=True)
    for one in (log, redrawn):
        assert one.news(JobView(node(0, "joining", reason="why")), 0.0)
    waits = JobView(node(0, "joining", reason="why", waiting="have 1", left_s=9.0))
    assert log.news(waits, WAITING_EVERY_S - 1) == ""
    assert log.news(waits, WAITING_EVERY_S) == "host0  joining  have 1; why, 9 s left"
    assert log.news(waits, 3 * WAITING_EVERY_S) == ""
    assert redrawn.news(waits, WAITING_EVERY_S) == ""


def test_a_reason_is_given_once() -> None:
    log = LineLog(redrawn=True)
    failed = "rank 3 failed"
    assert failed in log.news(JobView(node(0, "stopping", reason=failed)), 0.0)
    joining = JobView(node(0, "joining", reason=f"{failed}; 2 restarts left"))
    assert log.news(joining, 0.0) == "host0  joining  2 restarts left"
    log.news(JobView(node(0, "stopping", reason=failed)), 0.0)
    same = JobView(node(0, "joining", reason=failed))
    assert log.news(same, 0.0) == "host0  joining  waiting for the next round"
    assert log.news(JobView(node(0, "stopping", reason=failed)), 0.0).endswith(failed)


def test_nodes_that_come_and_go_are_counted() -> None:
    log = LineLog(redrawn=True)
    assert log.news(in_round(1, 3), 0.0) == "host0  running  round 1"
    assert log.news(in_round(2, 3), 0.0) == "host0  running  round 2"
    assert log.news(in_round(3, 1), 0.0) == "host0  running  round 3  1 node, 3 before"
    assert log.news(in_round(4, 4), 0.0) == "host0  running  round 4  4 nodes, 1 before"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (6.04, "6.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (725.4, "12 min 5 s"),
        (3600 * 3 + 240, "3 h 4 min"),
        (86400 * 2 + 3600 * 5, "2 d 5 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
