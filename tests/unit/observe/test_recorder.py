"""A recorder keeps the newest steps of a machine, and the state before them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StoreUnavailable, UsageError
from holdfast.observe.recorder import (
    MachineKind,
    Part,
    Raised,
    Record,
    Recorder,
    freeze,
    run_step,
    weigh,
)


@dataclass(frozen=True, slots=True)
class Come:
    """An input: `text` is remembered, and wanted back unless it is empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Level:
    """An input of which only the last counts."""

    height: int


@dataclass(frozen=True, slots=True)
class Burn:
    """An input that the machine cannot bear."""


class Shelf:
    """A part of the machine's state that changes."""

    def __init__(self) -> None:
        self.books: list[str] = []


class Toy:
    """A machine that remembers."""

    def __init__(self) -> None:
        self.reason = "new"
        self.shelf = Shelf()
        self.seen: dict[str, set[int]] = {}
        self.level = 0
        self._effects: list[str] = []

    def take_effects(self) -> list[str]:
        effects, self._effects = self._effects, []
        return effects


def give(toy: Toy, event: Come | Level | Burn, now: float) -> None:
    match event:
        case Come(text) if text:
            toy.shelf.books.append(text)
            toy.seen.setdefault(text[:1], set()).add(int(now))
            toy.reason = f"{text[:9]} came"
            toy._effects.append(f"keep {text[:9]}")
        case Level(height):
            toy.level = height
        case Burn():
            toy._effects.append("flee")
            raise RuntimeError("fire")
        case Come():
            pass


KIND: MachineKind[Come | Level | Burn] = MachineKind(
    "toy", give, (Toy, Shelf), quiet=(Come, Level), overtaken=(Level,)
)
CHANGING = frozenset({dict, list, set, Toy, Shelf})
Pages = Recorder[Come | Level | Burn, str]


def recorder(steps_max: int = 256, bytes_max: int = 1 << 20) -> tuple[Toy, Pages]:
    toy = Toy()
    return toy, Recorder(KIND, toy, steps_max=steps_max, bytes_max=bytes_max)


def restored(part: object) -> object:
    """Make the objects again of which `freeze` made parts."""
    match part:
        case Part(kind, attributes):
            made: object = object.__new__(kind)
            vars(made).update({name: restored(item) for name, item in attributes.items()})
            return made
        case dict():
            return {key: restored(item) for key, item in part.items()}
        case list():
            return [restored(item) for item in part]
        case set():
            return set(part)
    return part


def state(toy: object) -> object:
    return freeze(toy, CHANGING)


def replayed(pages: Pages) -> object:
    """Return the state to which the recorded steps lead."""
    taken = pages.recording()
    toy = restored(taken.start)
    assert isinstance(toy, Toy)
    for step in taken.steps:
        assert isinstance(step.event, (Come, Level, Burn))
        effects, _ = run_step(KIND, toy, step.event, step.now)
        assert (effects, toy.reason) == (step.effects, step.reason)
    return state(toy)


def test_a_step_gives_what_the_machine_wants_and_is_kept() -> None:
    _, pages = recorder()
    assert pages.step(Come("a"), 1.0) == ("keep a",)
    taken = pages.recording()
    assert taken.steps == (Record(1.0, Come("a"), ("keep a",), "a came"),)
    assert (taken.machine, taken.dropped) == ("toy", 0)
    assert restored(taken.start) is not None


def test_the_newest_steps_are_kept_and_the_rest_is_counted() -> None:
    """OB-1."""
    _, pages = recorder(steps_max=4)
    for number in range(9):
        pages.step(Come(str(number)), float(number))
        taken = pages.recording()
        assert len(taken.steps) + taken.dropped == number + 1
        assert min(number + 1, 2) <= len(taken.steps) <= 4
        assert taken.steps[-1].event == Come(str(number))


def test_large_steps_push_others_out() -> None:
    """OB-1: the limit on bytes holds, too."""
    toy, pages = recorder(bytes_max=20_000)
    for number in range(20):
        pages.step(Come(str(number) + "x" * 4000), 0.0)
        assert sum(map(weigh, pages.recording().steps)) <= 20_000
    assert len(pages.recording().steps) in (2, 3, 4)
    assert replayed(pages) == state(toy)


def test_a_step_that_is_too_large_is_not_kept_and_the_story_begins_after_it() -> None:
    """OB-1, OB-5."""
    toy, pages = recorder(bytes_max=20_000)
    pages.step(Come("a"), 0.0)
    pages.step(Come("x" * 10_000), 1.0)
    taken = pages.recording()
    assert (taken.steps, taken.dropped) == ((), 2)
    pages.step(Come("b"), 2.0)
    assert [step.event for step in pages.recording().steps] == [Come("b")]
    assert replayed(pages) == state(toy)


def test_a_recorder_holds_two_steps_at_least() -> None:
    with pytest.raises(UsageError, match="steps_max 1: a recorder holds at least 2 steps"):
        recorder(steps_max=1)


def test_a_machine_is_one_of_its_parts() -> None:
    kind: MachineKind[Come] = MachineKind("toy", give, (Shelf,), quiet=())
    with pytest.raises(UsageError, match="Toy: must be one of its kind's parts"):
        Recorder(kind, Toy())


def test_what_wants_nothing_and_changes_nothing_is_not_kept() -> None:
    """OB-4."""
    _, pages = recorder()
    pages.step(Come(""), 0.0)
    pages.step(Level(0), 0.0)
    assert pages.recording().steps == ()
    pages.step(Level(1), 0.0)
    pages.step(Level(1), 1.0)
    assert pages.recording().steps == (Record(0.0, Level(1), (), "new"),)


def test_an_input_that_is_not_quiet_is_always_kept() -> None:
    """OB-4: no copy is made to find out whether it matters."""
    kind: MachineKind[Come | Level | Burn] = MachineKind("toy", give, (Toy, Shelf), quiet=())
    pages: Pages = Recorder(kind, Toy())
    pages.step(Come(""), 0.0)
    assert pages.recording().steps == (Record(0.0, Come(""), (), "new"),)


def test_of_inputs_that_overtake_each_other_the_last_is_kept() -> None:
    toy, pages = recorder()
    for number in range(1, 5):
        pages.step(Level(number), float(number))
    pages.step(Come("a"), 5.0)
    pages.step(Level(7), 6.0)
    assert [step.event for step in pages.recording().steps] == [Level(4), Come("a"), Level(7)]
    assert replayed(pages) == state(toy)


def test_a_step_that_raises_is_kept_and_raises() -> None:
    """OB-6."""
    _, pages = recorder()
    with pytest.raises(RuntimeError, match="fire"):
        pages.step(Burn(), 3.0)
    assert pages.recording().steps == (
        Record(3.0, Burn(), ("flee", Raised("RuntimeError: fire")), "new"),
    )


@given(
    st.lists(
        st.one_of(
            st.builds(Come, st.text("ab", max_size=3)),
            st.builds(Level, st.integers(0, 2)),
            st.just(Come("x" * 900)),
            st.just(Come("x" * 5000)),
        ),
        max_size=40,
    ),
    st.integers(2, 9),
)
def test_what_is_kept_leads_to_the_state_of_now(events: list[Come | Level], steps: int) -> None:
    """OB-5."""
    toy, pages = recorder(steps_max=steps, bytes_max=8000)
    for number, event in enumerate(events):
        pages.step(event, float(number))
        assert replayed(pages) == state(toy)


def test_a_copy_does_not_change_with_the_machine() -> None:
    """OB-5."""
    toy = Toy()
    before, same = state(toy), state(toy)
    assert before == same
    give(toy, Come("a"), 1.0)
    assert before == same != state(toy)


@dataclass(frozen=True, slots=True)
class Parcel:
    name: str
    content: bytes = field(repr=False)


def test_what_is_kept_is_weighed() -> None:
    empty = weigh(())
    assert weigh("x" * 1000) == empty + 1000
    assert weigh(b"x" * 1000) == empty + 1000
    assert weigh((None, True, 1, 1.5)) == 5 * empty
    for many in (["x" * 50] * 2, ("x" * 50, "x" * 50)):
        assert weigh(many) == 3 * empty + 100
    assert weigh({"x" * 50: b"y" * 50}) == 3 * empty + 100
    assert weigh({1, 2}) == weigh(frozenset({1, 2})) == 3 * empty
    assert weigh(Parcel("x" * 10, b"y" * 90)) == 3 * empty + 100
    assert weigh(StoreUnavailable("x" * 100)) == 3 * empty + 100
    assert weigh(object()) == empty
