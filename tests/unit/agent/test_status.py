"""What is said of a wait for a round."""

from __future__ import annotations

from dataclasses import replace

from holdfast.agent.status import EXPLAIN_AFTER_S, WaitForRound
from holdfast.rendezvous.model import Progress

PROGRESS = Progress(2, 1, 0, (), None, "have 1 of 2")
LATER = 10.0 + EXPLAIN_AFTER_S


def test_a_short_wait_needs_no_words() -> None:
    wait = WaitForRound()
    wait.begin(10.0, 600.0)
    assert wait.explain(PROGRESS, 1, LATER - 1) == ("", None)
    assert wait.explain(PROGRESS, 1, LATER) == ("have 1 of 2", 600.0 - EXPLAIN_AFTER_S)
    assert wait.explain(PROGRESS, 1, 1000.0) == ("have 1 of 2", 0.0)


def test_progress_of_the_last_round_says_nothing_of_this_one() -> None:
    wait = WaitForRound()
    wait.begin(10.0, None)
    assert wait.explain(PROGRESS, 2, LATER) == ("", None)
    assert wait.explain(None, 2, LATER) == ("", None)


def test_the_seconds_that_the_leader_waits_go_on_from_when_they_were_heard() -> None:
    wait = WaitForRound()
    wait.begin(10.0, 600.0)
    last_call = replace(PROGRESS, left_s=8.0)
    assert [wait.explain(last_call, 1, LATER + n)[1] for n in (0, 3, 9)] == [8.0, 5.0, 0.0]
    assert wait.explain(replace(PROGRESS, left_s=4.0), 1, LATER + 9)[1] == 4.0
