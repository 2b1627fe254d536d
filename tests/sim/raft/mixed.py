"""Simulated clusters in which some members are etcd's own raft, and some are ours.

    python -m tests.sim.raft.mixed --seeds 1000       one process; it builds the oracle first

The network, its faults, the plans and the judge are those of `sim.py`; each life of a member is
etcd's or ours by chance, in some runs all are etcd's. So leaders of either kind lead followers of
either kind, through elections, changes of the members, snapshots, transfers and crashes, and all
must apply one log.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast.store.raft.messages import ChangeKind, Configuration, MemberChange
from tests.sim.raft.etcd import EtcdRaft, Oracle, build, missing
from tests.sim.raft.member import Machine, Member, OurRaft
from tests.sim.raft.sim import RaftPlan, RaftSim, draw_plan, run_plan
from tests.sim.seeds import Report, RunSeed, command

__all__ = ["MixedSim", "main", "seeds_with"]

_MODULE = "tests.sim.raft.mixed"
LEAST = {"entries": 5, "leaders": 1, "etcd": 1}


class MixedSim(RaftSim):
    """A run of one plan, with members of both kinds."""

    def __init__(self, oracle: Oracle, seed: int, plan: RaftPlan, *, traced: bool = False) -> None:
        self._oracle = oracle
        self._kinds = random.Random(f"kinds {seed}")
        self._share = self._kinds.choice((0.3, 0.5, 0.7, 1.0))
        oracle.ask("reset")
        super().__init__(seed, plan, traced=traced)

    def machine(self, number: int, founders: Configuration | None) -> Machine:
        theirs = self._kinds.random() < self._share
        self.judge.counts["etcd" if theirs else "ours"] += 1
        if not theirs:
            return super().machine(number, founders)
        return EtcdRaft(
            self._oracle,
            number,
            founders,
            random.Random(f"{self.sim.seed} {number}"),
            election_ticks=self.plan.election_ticks,
            heartbeat_ticks=self.plan.heartbeat_ticks,
        )

    def wish(self, member: Member) -> MemberChange | None:
        """Return what a leader should ask for; etcd's leaves it to others to remove itself."""
        change = super().wish(member)
        if change is None or isinstance(member.machine, OurRaft):
            return change
        leaves = change.member == member.number and change.kind is not ChangeKind.VOTER
        return None if leaves else change


def seeds_with(oracle: Oracle) -> RunSeed:
    """Return what runs one seed with this oracle."""

    def run_seed(seed: int, *, traced: bool = False) -> Report:
        plan = draw_plan(seed)
        return run_plan(_MODULE, plan, MixedSim(oracle, seed, plan, traced=traced))

    return run_seed


def main(argv: Sequence[str]) -> int:
    """Run seeds from the command line, in one process."""
    if (reason := missing()) is not None:
        sys.stdout.write(f"{reason}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder, Oracle(build(Path(folder))) as oracle:
        return command(
            "simulation of Raft, mixed with etcd's",
            _MODULE,
            seeds_with(oracle),
            LEAST,
            [*argv, "--processes", "1"],
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
