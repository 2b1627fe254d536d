"""A job in a few fields; tests/unit/cli/test_job_text.py shows them as text."""

from __future__ import annotations

from typing import Any

from holdfast.control.summary import agent_reason, job_summary, speaker


def agent(node: int | None, **more: Any) -> dict[str, Any]:
    told = {"run": "a", "round": 0 if node is None else 2, "node": node, "started_at": 100.0}
    return told | more


def test_the_first_node_of_the_newest_round_speaks() -> None:
    agents = [agent(1), agent(None), agent(0), agent(0, round=1)]
    assert speaker(agents) is agents[2]


def test_spares_are_counted_here_or_as_the_agent_knows() -> None:
    waits = agent(None, state="joining")
    assert job_summary([agent(0), waits, waits], 0.0)["spares"] == 2
    assert job_summary([agent(0, spares=3), waits], 0.0)["spares"] == 3
    assert job_summary([waits], 0.0)["spares"] == 0


def test_an_agent_of_another_version_may_tell_less() -> None:
    found = job_summary([{}], 7.0)
    assert (found["run"], found["state"], found["round"], found["age_s"]) == ("?", "?", 0, 0.0)


def test_the_reason_has_what_is_waited_for_and_how_long() -> None:
    assert agent_reason({"reason": "why"}) == "why"
    assert agent_reason({"waiting": "have 1", "reason": "why", "left_s": 2.6}) == (
        "have 1; why, 3 s left"
    )
