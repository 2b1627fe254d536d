"""How fast workers are, and which of them stalled."""

from __future__ import annotations

from holdfast.agent.pace import WINDOW_S, Pace, Paces, Sample


def taken(*samples: tuple[float, Sample]) -> Paces:
    paces = Paces()
    for now, sample in samples:
        paces.take({0: sample}, now)
    return paces


def test_steps_a_second_are_those_of_the_window() -> None:  # PA-1
    assert taken((0.0, Sample())).paces() == {0: Pace(-1, None)}
    assert taken((0.0, Sample(5))).paces() == {0: Pace(5, None)}
    assert taken((0.0, Sample(5)), (10.0, Sample(25))).paces() == {0: Pace(25, 2.0)}
    slower = [(float(now), Sample(2 * now)) for now in range(0, 70, 5)]
    later = [(69.0 + now, Sample(138 + now // 2)) for now in range(0, int(WINDOW_S) + 2, 2)]
    assert taken(*slower, *later).paces() == {0: Pace(168, 0.5)}


def test_a_step_that_goes_back_begins_anew() -> None:
    paces = taken((0.0, Sample(90)), (1.0, Sample(100)), (2.0, Sample(0)), (4.0, Sample(4)))
    assert paces.paces() == {0: Pace(4, 2.0)}


def test_a_worker_that_tells_no_new_step_has_stalled() -> None:  # PA-2
    paces = taken(*((float(now), Sample(min(now, 3))) for now in range(14)))
    assert paces.stalled(10.0, 13.0) == {0: 10.0}
    assert paces.stalled(10.1, 13.0) == {}


def test_what_a_worker_uses_counts_until_it_tells_a_step() -> None:  # PA-3
    paces = Paces()
    for now in range(12):
        samples = {
            0: Sample(),
            1: Sample(-1, now, 0.0),
            2: Sample(-1, 0, 0.5 * now),
            3: Sample(-1, 0, 0.001 * now),
            4: Sample(7),
            5: Sample(-1 if now < 5 else 0, now, now),
        }
        paces.take(samples, float(now))
    assert paces.stalled(10.0, 11.0) == {0: 11.0, 3: 11.0, 4: 11.0}
    assert paces.stalled(6.0, 11.0) == {0: 11.0, 3: 11.0, 4: 11.0, 5: 6.0}


def test_an_agent_that_was_stopped_accuses_no_worker() -> None:  # PA-2
    paces = taken((0.0, Sample(1)), (1.0, Sample(1)), (500.0, Sample(1)))
    assert paces.stalled(10.0, 500.0) == {}


def test_a_worker_that_ended_is_forgotten() -> None:
    paces = taken((0.0, Sample(1)))
    paces.take({1: Sample(1)}, 1.0)
    assert list(paces.paces()) == [1]
