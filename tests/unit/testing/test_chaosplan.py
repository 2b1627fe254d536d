"""Plans of chaos: drawn from a seed, of every kind, and of the number that was asked for."""

from __future__ import annotations

from collections import Counter
from signal import Signals

import pytest

from holdfast.testing.chaosplan import (
    DEADLY,
    How,
    Kill,
    Murder,
    Phase,
    Role,
    When,
    draw_murders,
    draw_storms,
    kinds,
)


def test_storms_have_as_many_blows_as_were_asked_for() -> None:
    storms = draw_storms(7, 200, 3)
    assert sum(len(storm.kills) for storm in storms) == 200
    assert {storm.world for storm in storms} == {6}
    short = [storm for storm in storms if not storm.survives]
    assert len(short) == 8
    assert all(len(storm.kills) == storm.max_restarts + 1 for storm in short)
    [long] = [storm for storm in storms if storm.survives]
    assert long.max_restarts > len(long.kills) > 150


def test_storms_strike_in_every_way_that_is_possible() -> None:
    kills = [kill for storm in draw_storms(7, 200, 2) for kill in storm.kills]
    found = {(kill.how, kill.when) for kill in kills}
    impossible = {(How.EXIT, When.START), (How.RAISE, When.START)}
    assert found == {(how, when) for how in How for when in When} - impossible
    assert {len(kill.ranks) for kill in kills} == {1, 2}
    assert {rank for kill in kills for rank in kill.ranks} == {0, 1, 2, 3}
    assert all(len(set(kill.ranks)) == len(kill.ranks) for kill in kills)
    assert min(kinds(kills).values()) >= 200 // len(found)


def test_a_seed_draws_the_same_and_another_one_does_not() -> None:
    assert draw_storms(1, 50, 2) == draw_storms(1, 50, 2) != draw_storms(2, 50, 2)
    assert draw_murders(1, 60) == draw_murders(1, 60) != draw_murders(2, 60)


def test_a_storm_that_is_long_is_several_jobs() -> None:
    survived = [storm for storm in draw_storms(1, 2000, 2) if storm.survives]
    assert len(survived) > 1
    assert max(len(storm.kills) for storm in survived) <= 500


@pytest.mark.parametrize("seed", range(4))
def test_sixty_murders_are_every_phase_with_every_signal(seed: int) -> None:
    murders = draw_murders(seed, 60)
    assert set(kinds(murders).values()) == {1}
    assert Counter(murder.phase for murder in murders) == dict.fromkeys(Phase, 5)
    assert Counter(murder.signal for murder in murders) == dict.fromkeys(DEADLY, 12)
    assert Counter(murder.role for murder in murders) == {Role.HOST: 30, Role.MEMBER: 30}


def test_twice_sixty_murders_are_all_of_them_in_both_roles() -> None:
    murders = draw_murders(3, 120)
    assert len(set(murders)) == 120
    assert len(draw_murders(3, 7)) == 7


def test_what_agents_see_of_a_blow() -> None:
    assert {how: how.code for how in How} == {
        How.KILL: -9,
        How.SEGV: -11,
        How.TERM: -15,
        How.EXIT: 3,
        How.RAISE: 1,
    }
    assert Kill(How.EXIT, When.END, (1,)).kind == "exit(3) at end"


def test_which_murders_are_sudden() -> None:
    assert Murder(Phase.RUNNING, Signals.SIGKILL, Role.HOST).sudden
    assert Murder(Phase.LEAVING, Signals.SIGTERM, Role.HOST).sudden
    polite = Murder(Phase.RUNNING, Signals.SIGTERM, Role.HOST)
    assert not polite.sudden
    assert str(polite) == "SIGTERM to the host, running"
