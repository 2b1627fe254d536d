"""How an agent's work can end, as a value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.agent.outcome import Ending, Outcome, gist, name_cause, sentence
from holdfast.process.outcome.failure import hint_for
from holdfast.process.spec import Exit
from tests.unit.agent.stories import failure


def test_an_outcome_needs_no_more_than_its_ending_and_a_reason() -> None:
    end = Outcome(ending=Ending.SUCCEEDED, reason="all workers are done")
    assert (end.failures, end.signal, end.error, end.results) == ((), None, None, {})
    assert end.results is not Outcome(ending=Ending.SUCCEEDED, reason="").results


def test_a_stall_is_told_as_one() -> None:
    stall = replace(failure(3), kind="stall", message="no progress for 60 s")
    assert sentence(stall) == "rank 3 on a stalled: no progress for 60 s"
    assert name_cause(stall) == "rank 3: stall"


def test_endings_are_words() -> None:
    assert [str(ending) for ending in Ending] == [
        "succeeded",
        "failed",
        "signalled",
        "stopped",
        "not needed",
        "broken",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"message": "ValueError: bad\nand more"}, "ValueError: bad"),
        (
            {"message": "RuntimeError: \n\n  An attempt was made\nmore"},
            "RuntimeError: An attempt was made",
        ),
        ({"message": "\n  boom\n"}, "boom"),
        ({"message": "KeyError:"}, "KeyError:"),
        ({"message": " \n"}, ""),
        ({"message": "killed by SIGKILL"}, ""),
        ({"message": "killed by SIGKILL", "hint": hint_for(Exit(-9))}, ""),
        ({"message": "killed by SIGKILL", "hint": "the timer ran out"}, "the timer ran out"),
        ({"message": "boom", "hint": "its error file is torn"}, "boom"),
    ],
)
def test_what_is_said_of_a_failure_in_one_line(changes: dict[str, Any], line: str) -> None:
    assert gist(replace(failure(), exit=Exit(-9), **changes)) == line


def test_a_failure_in_a_sentence_and_in_a_few_words() -> None:
    raised = replace(failure(3), message="ValueError: bad", error_type="builtins.ValueError")
    assert sentence(raised) == f"rank 3 on {raised.host} failed ({raised.exit}): ValueError: bad"
    assert name_cause(raised) == "rank 3: ValueError"
    killed = replace(failure(3), exit=Exit(-9), error_type="")
    assert name_cause(killed) == "rank 3: killed by SIGKILL"
