"""The judge of simulated remote references: it sees all workers at once, and what they promised.

`sim.py` lists the promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.rpc.rref.protocol import ControlMessage, ForkState, References
from holdfast.rpc.wire.tickets import Number, Ticket

__all__ = ["Handle", "Judge", "Judged", "Scene", "inconsistencies"]

_FAILURES_MAX = 20
_CHECK_EVERY = 8


@dataclass(eq=False, slots=True)
class Handle:
    """A reference as a user's program holds it; no fork if the value is this worker's."""

    reference: Number
    owner: str
    fork: Number | None


class Judged(Protocol):
    """A worker, as the judge sees it."""

    me: str
    alive: bool
    references: References
    values: set[Number]
    handles: list[Handle]
    unsent: int


class Scene(Protocol):
    """A run, as the judge sees it."""

    def living(self) -> Sequence[Judged]: ...

    def is_known(self, worker: str) -> bool: ...


class Judge:
    """Checks each step of a run."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter(
            values=0, freed=0, taken=0, found=0, refused=0, deaths=0, too_late=0
        )
        self._steps = 0
        self._first: dict[Number, Number] = {}  # value that is asked for → its maker's fork
        self._created: set[Number] = set()
        self._givers: dict[Number, tuple[str, Number | None]] = {}

    def fail(self, what: str) -> None:
        """Write down a promise that was broken."""
        if len(self.failures) < _FAILURES_MAX:
            self.failures.append(what)

    # What happens.

    def made(self, ticket: Ticket) -> None:
        """See that a value is asked for."""
        self._first[ticket.reference] = ticket.fork

    def created(self, reference: Number) -> None:
        """See that a value is made."""
        if reference in self._created:
            self.fail(f"S1: {reference} is made twice")
        self._created.add(reference)

    def was_created(self, reference: Number) -> bool:
        """Say whether a value that was asked for has been made."""
        return reference in self._created

    def given(self, ticket: Ticket, giver: str, handle: Handle) -> None:
        """See that a reference is passed on."""
        self._givers[ticket.fork] = (giver, handle.fork)

    def freed(self, owner: Judged, reference: Number, was_here: bool) -> None:
        """See that an owner lets a value go, or stops waiting for it."""
        self.counts["freed"] += was_here
        if any(one.reference == reference and one.fork is None for one in owner.handles):
            self.fail(f"S1: {owner.me} frees {reference}, which it holds")
        for worker in self._scene.living():
            if owner.references.is_dead(worker.me):
                continue
            for handle in worker.handles:
                fork = handle.fork
                if handle.reference != reference or fork is None:
                    continue
                if fork == self._first.get(reference) and reference not in self._created:
                    continue  # it is counted when the request comes
                if worker.references.state_of(fork) is ForkState.CONFIRMED:
                    self.fail(f"S1: {owner.me} frees {reference}, {worker.me} holds {fork}")

    def found(self, worker: Judged, handle: Handle, answer: str) -> None:
        """See what came of looking for a value."""
        self.counts["found"] += answer == "here"
        if not self._scene.is_known(handle.owner) or not self._scene.is_known(worker.me):
            return
        fork = handle.fork
        counted = fork is None or worker.references.state_of(fork) is ForkState.CONFIRMED
        if counted and answer in {"freed", "missing"}:
            self.fail(f"S2: {worker.me} holds {handle.reference} and finds: {answer}")

    def refused(self, worker: Judged, sent: ControlMessage) -> None:
        """See that an owner does not count a fork."""
        self.counts["refused"] += 1
        fork: Number | None = sent.fork
        hands = [worker.me]
        while fork in self._givers:
            giver, fork = self._givers[fork]
            hands.append(giver)
        # The lease of an owner may end before the owner does. A worker that has heard of that waits
        # to be counted no more, and tells its giver so, which may delete its own fork at the owner.
        heard = {one.me for one in self._scene.living() if one.references.is_dead(sent.to)}
        if all(self._scene.is_known(one) and one not in heard for one in hands):
            self.fail(f"S3: {sent.fork} is refused, and all live: {hands}")

    def check(self, worker: Judged) -> None:
        """Look at a worker after a step: at every so many, since that takes as long as a step."""
        self._steps += 1
        if self._steps % _CHECK_EVERY == 0:
            self._check(worker)

    def _check(self, worker: Judged) -> None:
        for wrong in inconsistencies(worker.references):
            self.fail(f"S4: {worker.me}: {wrong}")
        for handle in worker.handles:
            if handle.fork is not None and worker.references.state_of(handle.fork) is None:
                self.fail(f"S4: {worker.me}: {handle.fork} is held and not known")

    # The end.

    def left(self) -> list[str]:
        """Return what is left, worker by worker."""
        return [
            f"{worker.me}: {worker.references.counts()}, {len(worker.values)} values, "
            f"{worker.unsent} unsent"
            for worker in self._scene.living()
            if any(worker.references.counts().values()) or worker.values or worker.unsent
        ]

    def ended(self) -> None:
        """See that a run is over: nothing may be left."""
        for worker in self._scene.living():
            self._check(worker)
        for line in self.left():
            self.fail(f"L1: {line}")


def inconsistencies(references: References) -> list[str]:
    """Return what is wrong within the machine of one worker: nothing, ever."""
    wrong: list[str] = []
    children: dict[Number, Number] = {}
    for reference, owned in references._owned.items():
        if not owned.forks and not owned.holds:
            wrong.append(f"{reference} is kept for nobody")
        if reference in references._freed:
            wrong.append(f"{reference} is back after it was freed")
        for fork, user in owned.forks.items():
            if fork in references._deleted or user in references._dead:
                wrong.append(f"{fork} of {user} is counted after its end")
    for fork, held in references._held.items():
        children.update(dict.fromkeys(held.children, fork))
        if held.state is not ForkState.LOST and held.ticket.owner in references._dead:
            wrong.append(f"{fork} is not lost with its owner")
        if held.state in (ForkState.DELETING, ForkState.LOST) and held.children:
            wrong.append(f"{fork} is {held.state} with children")
        idle = not held.holders and not held.children
        if idle and held.state in {ForkState.CONFIRMED, ForkState.LOST}:
            wrong.append(f"{fork} is {held.state} for nobody")
        if any(user in references._dead for user in held.children.values()):
            wrong.append(f"{fork} waits for the dead")
    if children != references._parents:
        wrong.append("the children that wait are not those of our forks")
    return wrong
