"""The agents of a job keep their promises in hundreds of faulty clusters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.agent import sim
from tests.sim.agent.sim import run_seed, run_seeds
from tests.sim.promises import CommonPromises, keeps_them

SHARES = 4


class TestPromises(CommonPromises):
    sim = sim
    traces = 10


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """Four hundred seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(400)[share::SHARES], many=100)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(514, id="a_round_for_a_node_that_had_not_asked"),
        pytest.param(236714176277, id="all_agents_die_after_the_run_was_closed"),
        pytest.param(236714180077, id="the_only_agent_dies_after_it_closed_the_run"),
        pytest.param(236714177127, id="a_worker_fails_while_its_agent_leaves"),
        pytest.param(236714177154, id="a_worker_fails_late_in_the_grace_of_its_agent"),
        pytest.param(236714230374, id="a_signal_ends_the_wait_for_what_others_know"),
        pytest.param(700000003053, id="a_worker_fails_first_on_a_node_that_a_signal_ends"),
        pytest.param(700000008467, id="a_worker_fails_first_beside_one_that_cannot_be_killed"),
        pytest.param(700000006556, id="a_reset_connection_ends_a_lease_before_its_time"),
        pytest.param(700000009090, id="a_leader_that_cannot_wait_for_a_node_that_was_paused"),
        pytest.param(520914564975, id="two_rounds_without_a_node_that_hears_nothing"),
        pytest.param(520914557379, id="a_leader_leaves_and_is_not_told_that_its_lease_is_revoked"),
        pytest.param(700000007062, id="a_wish_to_lead_that_failed_and_is_needed_no_more"),
    ],
)
def test_a_seed_that_broke_a_promise_once(seed: int) -> None:
    assert run_seed(seed).failures == []
