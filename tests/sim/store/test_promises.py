"""The store's machines keep their promises in a thousand faulty networks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.testing.faultplan import Fault
from tests.sim.promises import CommonPromises, keeps_them
from tests.sim.store import sim
from tests.sim.store.sim import run_seeds

SHARES = 8


class TestPromises(CommonPromises):
    sim = sim
    traces = 12
    plans = 50


@pytest.mark.parametrize("share", range(SHARES))
def test_no_seed_breaks_a_promise(share: int, sim_range: Callable[[int], range]) -> None:
    """A thousand seeds, in shares that several processes can run side by side."""
    keeps_them(run_seeds, sim_range(1000)[share::SHARES], many=100)


def test_runs_that_were_too_easy_do_not_count() -> None:
    tally = run_seeds(range(3))
    tally.faults[Fault.PARTITION] = 0
    tally.counts["completed"] = 100
    text = tally.too_easy()
    assert text is not None
    assert "partition struck 0 times" in text
    assert "only 100 completed" in text
