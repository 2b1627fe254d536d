"""Plans of chaos: drawn from a seed, of every kind, and of the number that was asked for."""

from __future__ import annotations

from collections import Counter
from signal import Signals

import pytest

from tests.chaos.plan import (
    DEADLY,
    AgentKill,
    How,
    Kill,
    Phase,
    Role,
    When,
    draw_agent_kills,
    draw_worker_kills,
    kinds,
)


def test_worker_kills_have_as_many_blows_as_were_asked_for() -> None:
    jobs = draw_worker_kills(7, 200, 3)
    assert sum(len(job.kills) for job in jobs) == 200
    assert {job.world for job in jobs} == {6}
    short = [job for job in jobs if not job.survives]
    assert len(short) == 8
    assert all(len(job.kills) == job.max_restarts + 1 for job in short)
    [long] = [job for job in jobs if job.survives]
    assert long.max_restarts > len(long.kills) > 150


def test_worker_kills_strike_in_every_way_that_is_possible() -> None:
    kills = [kill for job in draw_worker_kills(7, 200, 2) for kill in job.kills]
    found = {(kill.how, kill.when) for kill in kills}
    impossible = {(How.EXIT, When.START), (How.RAISE, When.START)}
    assert found == {(how, when) for how in How for when in When} - impossible
    assert {len(kill.ranks) for kill in kills} == {1, 2}
    assert {rank for kill in kills for rank in kill.ranks} == {0, 1, 2, 3}
    assert all(len(set(kill.ranks)) == len(kill.ranks) for kill in kills)
    assert min(kinds(kills).values()) >= 200 // len(found)


def test_a_seed_draws_the_same_and_another_one_does_not() -> None:
    assert draw_worker_kills(1, 50, 2) == draw_worker_kills(1, 50, 2) != draw_worker_kills(2, 50, 2)
    assert draw_agent_kills(1, 60) == draw_agent_kills(1, 60) != draw_agent_kills(2, 60)


def test_a_job_of_worker_kills_that_is_long_is_several_jobs() -> None:
    survived = [job for job in draw_worker_kills(1, 2000, 2) if job.survives]
    assert len(survived) > 1
    assert max(len(job.kills) for job in survived) <= 500


@pytest.mark.parametrize("seed", range(4))
def test_sixty_agent_kills_are_every_phase_with_every_signal(seed: int) -> None:
    agent_kills = draw_agent_kills(seed, 60)
    assert set(kinds(agent_kills).values()) == {1}
    assert Counter(agent_kill.phase for agent_kill in agent_kills) == dict.fromkeys(Phase, 5)
    assert Counter(agent_kill.signal for agent_kill in agent_kills) == dict.fromkeys(DEADLY, 12)
    assert Counter(agent_kill.role for agent_kill in agent_kills) == {
        Role.HOST: 30,
        Role.MEMBER: 30,
    }


def test_twice_sixty_agent_kills_are_all_of_them_in_both_roles() -> None:
    agent_kills = draw_agent_kills(3, 120)
    assert len(set(agent_kills)) == 120
    assert len(draw_agent_kills(3, 7)) == 7


def test_what_agents_see_of_a_blow() -> None:
    assert {how: how.code for how in How} == {
        How.KILL: -9,
        How.SEGV: -11,
        How.TERM: -15,
        How.EXIT: 3,
        How.RAISE: 1,
    }
    assert Kill(How.EXIT, When.END, (1,)).kind == "exit(3) at end"


def test_which_agent_kills_are_sudden() -> None:
    assert AgentKill(Phase.RUNNING, Signals.SIGKILL, Role.HOST).sudden
    assert AgentKill(Phase.LEAVING, Signals.SIGTERM, Role.HOST).sudden
    polite = AgentKill(Phase.RUNNING, Signals.SIGTERM, Role.HOST)
    assert not polite.sudden
    assert str(polite) == "SIGTERM to the host, running"
