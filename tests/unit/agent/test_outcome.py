"""How an agent's work can end, as a value."""

from __future__ import annotations

from holdfast.agent.outcome import Ending, Outcome


def test_an_outcome_needs_no_more_than_its_ending_and_a_reason() -> None:
    end = Outcome(ending=Ending.SUCCEEDED, reason="all workers are done")
    assert (end.failures, end.signal, end.error, end.results) == ((), None, None, {})
    assert end.results is not Outcome(ending=Ending.SUCCEEDED, reason="").results


def test_endings_are_words() -> None:
    assert [str(ending) for ending in Ending] == [
        "succeeded",
        "failed",
        "signalled",
        "not needed",
        "broken",
    ]
