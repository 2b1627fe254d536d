"""A recording is written, read and run again; the first decision that differs is found."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.observe import replay
from holdfast.observe.recorder import MachineKind, Recorder, Recording
from holdfast.observe.replay import LoadedRecording, Replayable, ReplayedStep, read, write


@dataclass(frozen=True, slots=True)
class Coin:
    worth: int


@dataclass(frozen=True, slots=True)
class Brew:
    cups: int


class Kettle:
    """A machine: a cup for each three coins."""

    price = 3

    def __init__(self) -> None:
        self.coins: list[int] = []
        self.reason = ""
        self._effects: list[Brew] = []

    def take_effects(self) -> list[Brew]:
        effects, self._effects = self._effects, []
        return effects

    def give(self, event: Coin, now: float) -> None:
        if event.worth < 0:
            raise ValueError("a false coin")
        self.coins.append(event.worth)
        cups, rest = divmod(sum(self.coins), self.price)
        if cups:
            self.coins = [rest] if rest else []
            self._effects.append(Brew(cups))
        self.reason = f"{rest} left"


def give(kettle: Kettle, event: Coin, now: float) -> None:
    kettle.give(event, now)


KETTLE = Replayable(
    kind=MachineKind("kettle", give, (Kettle,), quiet=()),
    inputs=(Coin,),
    values=(Brew,),
    modules=(),
    tell_input=lambda event: f"a coin of {event.worth + 0}",
    tell_effect=lambda effect: f"brews {effect.cups + 0}",
)


def recorded(*coins: int, steps_max: int = 256) -> Recording:
    recorder: Recorder[Coin, Brew] = Recorder(KETTLE.kind, Kettle(), steps_max=steps_max)
    for number, worth in enumerate(coins):
        try:
            recorder.step(Coin(worth), 10.0 + number)
        except ValueError:
            break
    return recorder.recording()


def written(*coins: int, steps_max: int = 256) -> dict[str, Any]:
    taken = recorded(*coins, steps_max=steps_max)
    plain = write(taken, KETTLE, version="1.0", code="abc")
    again: dict[str, Any] = json.loads(json.dumps(plain))
    return again


def loaded(*coins: int, steps_max: int = 256) -> LoadedRecording:
    return read(written(*coins, steps_max=steps_max), (KETTLE,))


def test_a_recording_is_run_again_and_told() -> None:
    """OB-8."""
    assert list(loaded(1, 1, 2, 3).replay()) == [
        ReplayedStep(10.0, "a coin of 1", "nothing (1 left)", None),
        ReplayedStep(11.0, "a coin of 1", "nothing (2 left)", None),
        ReplayedStep(12.0, "a coin of 2", "brews 1 (1 left)", None),
        ReplayedStep(13.0, "a coin of 3", "brews 1", None),
    ]


def test_what_was_dropped_is_not_missed() -> None:
    """OB-5, OB-8."""
    found = loaded(*[1, 2, 5, 7, 1] * 20, 1, steps_max=4)
    assert found.dropped == 98
    steps = list(found.replay())
    assert len(steps) == 3
    assert all(step.recorded is None for step in steps)


def test_a_file_says_whose_it_is() -> None:
    found = loaded(1)
    assert (found.version, found.code, found.dropped) == ("1.0", "abc", 0)
    assert found.replayable is KETTLE


def test_a_machine_that_decides_otherwise_is_noticed_at_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OB-8."""
    found = loaded(1, 1, 1, 1)
    monkeypatch.setattr(Kettle, "price", 2)
    *same, differs = found.replay()
    assert [step.recorded for step in same] == [None]
    assert differs == ReplayedStep(11.0, "a coin of 1", "brews 1 (0 left)", "nothing (2 left)")


def test_a_reason_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """OB-8."""
    found = loaded(1)
    why_not = property(lambda self: "why not", lambda self, why: None)
    monkeypatch.setattr(Kettle, "reason", why_not, raising=False)
    [step] = found.replay()
    assert (step.decided, step.recorded) == ("nothing (why not)", "nothing (1 left)")


def test_a_step_that_raised_raises_again() -> None:
    """OB-6, OB-8."""
    steps = list(loaded(1, -1).replay())
    assert [step.recorded for step in steps] == [None, None]
    assert steps[-1].decided == "raises ValueError: a false coin"


def test_a_step_that_raises_only_now_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """OB-8."""
    found = loaded(1)
    monkeypatch.setattr(Kettle, "price", 0)
    [step] = found.replay()
    assert step.decided.startswith("raises ZeroDivisionError")
    assert step.recorded == "nothing (1 left)"


def test_a_state_of_other_code_is_noticed() -> None:
    """OB-8: it may lack all that today's machine has."""
    plain = written(1)
    plain["start"] = {"$type": "Kettle", "old": 1}
    [step] = read(plain, (KETTLE,)).replay()
    assert step.decided == "raises AttributeError: 'Kettle' object has no attribute '_effects'"
    assert step.recorded == "nothing (1 left)"


def test_a_replay_can_be_repeated() -> None:
    found = loaded(1, 2)
    assert list(found.replay()) == list(found.replay())


def test_nothing_is_told_of_a_recording_without_steps() -> None:
    assert list(loaded().replay()) == []


def test_what_cannot_be_written_says_so() -> None:
    """OB-9: as a machine with a policy of the user's own."""
    taken = recorded(1)
    taken.start.attributes["policy"] = print
    assert write(taken, KETTLE, version="1.0", code="abc") == {
        "machine": "kettle",
        "left_out": "value <built-in function print>: a builtin_function_or_method cannot be"
        " recorded",
    }


def test_what_is_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """OB-9: at the limit and past it."""
    size = len(json.dumps(written(1, 1)))
    monkeypatch.setattr(replay, "WRITTEN_MAX", size)
    assert "steps" in written(1, 1)
    monkeypatch.setattr(replay, "WRITTEN_MAX", size - 1)
    assert written(1, 1) == {
        "machine": "kettle",
        "left_out": f"{size} bytes, at most {size - 1} are written",
    }


def damaged(**changes: Any) -> dict[str, Any]:
    return written(1, 2) | changes


def with_step(**changes: Any) -> dict[str, Any]:
    plain = copy.deepcopy(written(1, 2))
    plain["steps"][1] |= changes
    return plain


COIN = {"$type": "Coin", "worth": 1}


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        (5, "5 is no recording: it must have code, dropped, machine, start, steps, version"),
        ({"machine": "kettle"}, "is no recording"),
        (damaged(machine="teapot"), "machine 'teapot' is unknown: it must be one of kettle"),
        (damaged(machine=[]), "is unknown"),
        (damaged(steps=5), "machine kettle: TypeError"),
        (damaged(steps=[5]), "machine kettle: TypeError"),
        (damaged(steps=[{}]), "machine kettle: KeyError: 'event'"),
        (damaged(dropped="many"), "machine kettle: ValueError"),
        (damaged(start=5), "machine kettle: the state is of something else"),
        (damaged(start={"$type": "Pot"}), "machine kettle: 'Pot' is no class that is recorded"),
        (with_step(event={"$type": "Brew", "cups": 1}), "machine kettle: Brew.cups=1. is no input"),
        (with_step(event={"$type": "Coin", "worth": "much"}), "machine kettle: TypeError"),
        (with_step(effects=[{"$type": "Brew", "cups": "x"}]), "machine kettle: TypeError"),
        (with_step(effects=[COIN]), "machine kettle: AttributeError"),
        (with_step(effects=5), "machine kettle: TypeError"),
        (with_step(now="late"), "machine kettle: ValueError"),
    ],
)
def test_what_is_damaged_is_one_line(plain: object, told: str) -> None:
    """OB-7."""
    with pytest.raises(UsageError, match=told) as caught:
        read(plain, (KETTLE,))
    assert "\n" not in str(caught.value)
