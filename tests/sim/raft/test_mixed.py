"""Clusters whose members are etcd's own raft and ours agree on one log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.sim.promises import keeps_them
from tests.sim.raft.etcd import Oracle, build, missing
from tests.sim.raft.mixed import LEAST, seeds_with
from tests.sim.seeds import Tally, run_many

WITHOUT = missing()
pytestmark = pytest.mark.skipif(WITHOUT is not None, reason=WITHOUT or "")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with Oracle(build(tmp_path_factory.mktemp("oracle"))) as running:
        yield running


def test_no_seed_breaks_a_promise(oracle: Oracle, sim_range: Callable[[int], range]) -> None:
    def run_seeds(seeds: range) -> Tally:
        return run_many(seeds_with(oracle), LEAST, seeds, 1, lambda text: None)

    keeps_them(run_seeds, sim_range(300), many=100)


def test_the_same_seed_gives_the_same_trace(oracle: Oracle) -> None:
    run_seed = seeds_with(oracle)
    for seed in range(5):
        first, second = run_seed(seed, traced=True), run_seed(seed, traced=True)
        assert first.trace_hash() == second.trace_hash()
