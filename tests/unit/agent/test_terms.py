"""The states of an agent, and its numbers."""

from __future__ import annotations

from holdfast.agent.policy import RestartBudget
from holdfast.agent.terms import State, Terms


def test_states_are_words() -> None:
    words = ["init", "joining", "running", "stopping", "backing off"]
    assert [str(state) for state in State] == [*words, "finished", "gathering", "ended"]


def test_the_numbers_have_defaults() -> None:
    terms = Terms(budget=RestartBudget(1))
    assert (terms.grace_s, terms.exit_barrier_s) == (30.0, 300.0)
