"""A worker is killed in the middle of a distributed backward pass: it ends everywhere, at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import Bell, Door
from tests.e2e.torch_compat import lost
from tests.e2e.torch_compat.processes import WITHIN_S, Forked, forking


@pytest.fixture(scope="module", autouse=True)
def _forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with forking(tmp_path_factory.mktemp("forking")):
        yield


class Worker(Forked):
    """A worker in a process of its own."""

    def __init__(self, name: str, *args: str) -> None:
        super().__init__(lost.work, name, *args)
        self.name = name

    def says(self) -> Any:
        assert self._told.poll(WITHIN_S), f"{self.name} says nothing"
        return self._told.recv()

    def does(self, *order: str) -> Any:
        self._told.send(order)
        return self.says()

    def ends(self) -> None:
        self._told.send(())
        self.process.join(WITHIN_S)
        assert self.process.exitcode == 0


@pytest.mark.parametrize("victim", lost.NAMES)
def test_a_pass_ends_everywhere_when_a_worker_is_killed(victim: str, tmp_path: Path) -> None:
    """Proves DA-2, CX-4, CX-5."""
    door = Door(tmp_path / "door")
    with ExitStack() as stack, Bell(tmp_path / "bell") as bell:
        workers = {}
        for name in lost.NAMES:
            one = Worker(name, str(tmp_path / "store"), bell.path, door.path)
            workers[name] = one
            stack.callback(one.close)
        bell.rung_by_all(1)  # the pass is at the third worker, and the others wait for it
        workers.pop(victim).kill()
        if victim != "third":
            door.open()
        if victim != "first":
            assert victim in workers["first"].says()
        for one in workers.values():
            one.does("nothing")
        one, other = workers.values()
        assert one.does("gradient", other.name) == [2.0, 2.0]
        assert other.does("gradient", one.name) == [2.0, 2.0]
        for one in workers.values():
            one.ends()
