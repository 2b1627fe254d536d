"""Simulated workers of RPC, life after life, and the network between them.

The simulations of references and of repeated calls share this. Workers stand still, die, and come
back as new ones. Each worker hears of a death at its own moment, some before the dead worker has
stopped. Messages are cut off and struck by faults until the plan says that the network is calm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from holdfast.testing.faultplan import Crash, Fault, FaultPlan, Partition, Pause
from holdfast.testing.network import Simulation

__all__ = ["Life", "Lives"]


class Life(Protocol):
    """One life of a worker."""

    me: str
    alive: bool
    paused_until: float

    def act(self) -> None:
        """Begin to do something, again and again."""
        ...

    def died(self, life: str) -> None:
        """Hear that a worker is gone."""
        ...


W = TypeVar("W", bound=Life)


class Lives(Generic[W]):
    """The workers of a run, made by `make`, and what happens to them by its plan."""

    def __init__(self, sim: Simulation, faults: FaultPlan, every_s: float) -> None:
        self.sim = sim
        self.rng = sim.rng
        self.faults: Counter[Fault] = Counter()
        self.workers: dict[str, W] = {}
        self.left: set[str] = set()
        """The lives that have ended, as far as the directory knows."""
        self._names: dict[str, str] = {}  # worker → its life now
        self._plan = faults
        self._every_s = every_s

    def begin(self, workers: int) -> None:
        """Let so many workers begin, and plan what happens to them."""
        for number in range(workers):
            self._join(f"w{number}")
        for incident in self._plan.incidents:
            match incident:
                case Crash():
                    self.sim.call_at(incident.at, self.crash, incident)
                case Pause():
                    self.sim.call_at(incident.at, self._pause, incident)
                case _:
                    pass  # looked up when something is sent

    def make(self, life: str) -> W:
        """Make a worker."""
        raise NotImplementedError

    def ended(self, worker: W) -> None:
        """Hear that a worker has died."""

    def is_known(self, worker: str) -> bool:
        """Say whether a life has not ended, as far as the directory knows."""
        return worker not in self.left

    def later(self, worker: W, delay: float, act: Callable[..., None], *args: Any) -> None:
        """Let a worker do something later in its life; late if it stands still then."""
        self.sim.call_later(delay, self.do, worker, act, args)

    def do(self, worker: W, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Let a worker do something now, if it lives; later if it stands still."""
        if not worker.alive:
            return
        if worker.paused_until > self.sim.now:
            self.faults[Fault.PAUSE] += 1
            self.sim.call_at(worker.paused_until, self.do, worker, act, args)
        else:
            act(*args)

    def crash(self, crash: Crash) -> None:
        """Let a worker die, if it has not; others hear of it."""
        life = self._names[crash.host]
        worker = self.workers[life]
        if life in self.left:
            return
        self.faults[Fault.SILENT_CRASH if crash.silent else Fault.CRASH] += 1
        # A lease may end before its worker does: it is cut off, and will know it soon.
        lives_on = self.rng.choice((0.0, 0.0, self.rng.random()))
        heard_within = 6.0 if crash.silent else self.rng.choice((0.01, 0.6))
        self.sim.call_later(lives_on, self._end, worker)
        self.left.add(life)
        for other in self.workers.values():
            if other is not worker and other.alive:
                self.later(other, self.rng.random() * heard_within, other.died, life)
        if crash.back is not None:
            self.sim.call_at(max(crash.back, self.sim.now + lives_on), self._join, crash.host)

    def _join(self, name: str) -> None:
        life = f"{name}.{len(self.workers)}"
        worker = self.workers[life] = self.make(life)
        self._names[name] = life
        self.later(worker, self.rng.random() * self._every_s, worker.act)

    def _pause(self, pause: Pause) -> None:
        self.workers[self._names[pause.host]].paused_until = pause.until

    def _end(self, worker: W) -> None:
        self.sim.note(worker.me, "dies")
        worker.alive = False
        self.ended(worker)

    # The network.

    def strikes(self, fault: Fault) -> bool:
        """Say whether a fault strikes now."""
        calm = self.sim.now >= self._plan.calm_at
        struck = not calm and self.rng.random() < getattr(self._plan.rates, fault.value)
        if struck:
            self.faults[fault] += 1
        return struck

    def cut(self, source: str, target: str) -> bool:
        """Say whether nothing passes from one worker to another now."""
        ends = (source.partition(".")[0], target.partition(".")[0])
        for one in self._plan.incidents:
            if isinstance(one, Partition) and one.at <= self.sim.now < one.until:
                there = (one.source, one.target)
                if ends == there or (not one.one_way and ends == there[::-1]):
                    self.faults[Fault.ONE_WAY if one.one_way else Fault.PARTITION] += 1
                    return True
        return False
