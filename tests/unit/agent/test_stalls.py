"""A stall in words."""

from __future__ import annotations

from typing import Any

from holdfast.agent.stalls import report_stall

FRAME = '  File "/job/train.py", line {line} in {name}'


def worker(rank: int, name: str, line: int = 1) -> dict[str, Any]:
    text = f"Current thread 0x01 (most recent call first):\n{FRAME.format(line=line, name=name)}\n"
    return {"rank": rank, "pid": rank, "state": "sleeping", "text": text}


def test_the_worker_that_differs_is_to_blame() -> None:
    stacks = [worker(rank, "all_reduce") for rank in (0, 1, 3)] + [worker(2, "read")]
    told = report_stall({0: 70.0, 1: 61.0, 2: 60.0, 3: 60.0}, stacks, 60.0)
    assert told.rank == 2
    assert told.message == "no progress for 60 s; ranks 0-1,3: all_reduce; rank 2: read"
    assert told.stack.splitlines() == [
        "ranks 0-1,3: all_reduce",
        "  main thread:",
        '    File "/job/train.py", line 1 in all_reduce',
        "rank 2: read",
        "  main thread:",
        '    File "/job/train.py", line 1 in read',
    ]


def test_a_worker_that_differs_and_makes_progress_is_not() -> None:
    stacks = [worker(0, "all_reduce"), worker(1, "all_reduce"), worker(2, "evaluate")]
    assert report_stall({0: 61.0, 1: 62.0}, stacks, 60.0).rank == 1


def test_without_a_difference_the_first_that_stalled_is_named() -> None:
    stacks = [worker(0, "sleep"), worker(1, "sleep")]
    told = report_stall({1: 65.0, 0: 62.0}, stacks, 60.0)
    assert (told.rank, told.message) == (1, "no progress for 65 s; ranks 0-1: sleep")


def test_there_may_be_no_stack_at_all() -> None:
    told = report_stall({1: 65.0}, [], 60.0)
    assert (told.rank, told.message, told.stack) == (1, "no progress for 65 s", "")
