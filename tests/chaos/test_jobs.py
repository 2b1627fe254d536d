"""Chaos: workers and agents of real jobs are killed, 200 and 60 of them, and the jobs keep word.

Each test prints what repeats it. `make chaos KILLS=n` does any number, with fresh seeds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.chaos import Chaos, run_chaos
from tests.chaos.plan import Phase, draw_agent_kills

AGENT_KILLS = 60
PATIENT_S = 20.0
"""How long a machine that has much else to do may take to end what was killed; P1 says 2."""

SimRange = Callable[[int], range]


@pytest.mark.parametrize("part", range(4))
def test_workers_are_killed(part: int, sim_range: SimRange) -> None:
    seed, agents = sim_range(4)[0] + part, 2 + part % 2
    print(f"python -m tests.chaos --kills 50 --agent-kills 0 --agents {agents} --seed {seed}")
    check(run_chaos(seed, 50, 0, agents=agents, within_s=PATIENT_S, show=print), 50)


@pytest.mark.parametrize("phase", Phase)
def test_agents_are_killed(phase: Phase, sim_range: SimRange) -> None:
    seed = sim_range(1)[0]
    print(f"python -m tests.chaos --kills 0 --agent-kills {AGENT_KILLS} --seed {seed}")
    agent_kills = [one for one in draw_agent_kills(seed, AGENT_KILLS) if one.phase is phase]
    check(run_chaos(seed, 0, agent_kills, within_s=PATIENT_S, show=print), 5)


def check(chaos: Chaos, number: int) -> None:
    assert not chaos.broken, "\n".join(chaos.broken)
    assert chaos.exit_code == 0, f"{chaos}"
    assert chaos.kills + chaos.agent_kills == number
