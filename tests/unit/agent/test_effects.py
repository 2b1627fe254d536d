"""What the agent's machine can want done: one closed union of values."""

from __future__ import annotations

import typing

import pytest

from holdfast.agent import effects
from holdfast.agent.effects import Effect, Join, Place


def test_everything_in_the_module_is_an_effect_or_a_place() -> None:
    every = {kind.__name__ for kind in typing.get_args(Effect)}
    assert every == set(effects.__all__) - {"Effect", "Place"}


def test_effects_are_values() -> None:
    assert Join("b is gone") == Join("b is gone")
    with pytest.raises(AttributeError):
        Place(1, 0, 2, 2, 0).round = 2  # type: ignore[misc]
