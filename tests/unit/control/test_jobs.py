"""From agents to jobs, and which one is meant."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.control.jobs import AgentEntry, LocalJob, choose_job, group_jobs, read_entry
from holdfast.errors import PeerViolation, UsageError


def entry(run: str, pid: int, endpoint: str = "", at: float = 1.0) -> AgentEntry:
    return AgentEntry(
        token=f"t{pid}", run=run, host="vm", pid=pid, started_at=at, endpoint=endpoint
    )


A1, A2 = entry("a", 1, "host:1", 3.0), entry("a", 2, "host:1", 2.0)
OTHER_A = entry("a", 3, "host:2", 4.0)
ALONE = entry("b", 4)


def test_agents_of_one_run_at_one_place_are_one_job() -> None:
    jobs = group_jobs([A1, OTHER_A, ALONE, A2, entry("b", 5, at=9.0)])
    assert jobs == [
        LocalJob("b", (ALONE,)),
        LocalJob("a", (A2, A1)),
        LocalJob("a", (OTHER_A,)),
        LocalJob("b", (entry("b", 5, at=9.0),)),
    ]


def test_a_job_is_chosen_by_its_run_or_left_out() -> None:
    one, both = group_jobs([A1]), group_jobs([A1, A2, ALONE])
    assert choose_job(one, None) == one[0]
    assert choose_job(both, "b").agents == (ALONE,)
    assert choose_job(both, "a@1") == choose_job(both, "a@2") == choose_job(both, "a")


@pytest.mark.parametrize(
    ("entries", "wanted", "why"),
    [
        ([], None, "a job: no job of this user runs on this machine"),
        ([], "x", "job 'x': no job of this user runs on this machine"),
        ([A1, ALONE], None, "which job? There are 2: b, a"),
        ([A1, OTHER_A], None, "which job? There are 2: a@1 or a@3"),
        ([A1, ALONE], "x", "job 'x': no such job here; there is b, a"),
        ([A1], "a@9", "job 'a@9': no such job here; there is a"),
        ([A1, OTHER_A], "a", "job 'a': 2 jobs fit: give a@1 or a@3"),
        (
            [entry(f"r{n:02}", n) for n in range(10, 22)],
            None,
            "which job? There are 12: r10, r11, r12, r13, r14, r15, r16, r17, r18, r19 and 2 more",
        ),
    ],
)
def test_what_is_not_clear_is_told(entries: list[AgentEntry], wanted: str | None, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_job(group_jobs(entries), wanted)
    assert str(caught.value) == why


GOOD = {"run": "a", "host": "vm", "pid": 1, "started_at": 3.0, "endpoint": "host:1"}


def test_an_entry_is_read() -> None:
    assert read_entry("t1", GOOD) == A1


@pytest.mark.parametrize(
    "fields", [[], None, GOOD | {"pid": "1"}, GOOD | {"started_at": None}, GOOD | {"run": 3}, {}]
)
def test_what_is_no_entry_is_refused(fields: Any) -> None:
    with pytest.raises(PeerViolation, match="^entry: "):
        read_entry("t1", fields)
