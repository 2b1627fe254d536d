"""A simulated network of processes: one seed, one heap of events, virtual time, many faults.

Rule 1: nothing here runs in real time, and all chance comes from one `random.Random(seed)`; so
    the same seed gives the same run, event by event.
Rule 2: a program under test is only told what a real process could know.

Theory. A `Simulation` is a clock and a heap of things to do. A `Host` is a place for one process;
its `Program` lives there until it crashes, and all that it knew is lost then. Two programs talk
over links, which behave as TCP connections do: frames arrive in order, once, late, or not at all.
Each side holds its own `Link`, and may believe it open long after the other has gone.

What can go wrong is described in `faultplan.py`. A fault is counted when it strikes: a partition
that met no frame is not counted. Duplicates and reordering strike only the frames that the
protocol promises to bear them with: those that `loose` names.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from holdfast.errors import UsageError
from holdfast.testing.faultplan import Break, Crash, Fault, FaultPlan, Incident, Partition, Pause

__all__ = ["Host", "Link", "Network", "Program", "Simulation", "Timer"]


UNHEARD_S = 1.0
"""How long one direction of a link goes on after the other has fallen silent for good."""

# Time.


class Timer:
    """Something that will be done; `cancel` keeps it from being done."""

    __slots__ = ("_args", "_callback", "cancelled")

    def __init__(self, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._callback = callback
        self._args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        if not self.cancelled:
            self._callback(*self._args)


class Simulation:
    """Virtual time. With `traced`, `trace` tells all that happened, for people and for hashing."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.rng = random.Random(seed)
        self.trace: list[str] | None = [] if traced else None
        self._heap: list[tuple[float, int, Timer]] = []
        self._scheduled = 0

    def call_at(self, when: float, callback: Callable[..., None], *args: Any) -> Timer:
        """Do something at a moment that is not past; what was asked first is done first."""
        timer = Timer(callback, args)
        self._scheduled += 1
        heapq.heappush(self._heap, (max(when, self.now), self._scheduled, timer))
        return timer

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Timer:
        """Do something `delay` seconds from now."""
        return self.call_at(self.now + delay, callback, *args)

    def run(self, until: float) -> None:
        """Do everything that is due up to and including `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, timer = heapq.heappop(heap)
            timer.fire()
        self.now = until

    def note(self, *words: object) -> None:
        """Add a line to the trace, if one is kept."""
        if self.trace is not None:
            self.trace.append(f"{self.now:.6f} {' '.join(map(str, words))}")


# Processes and their links.


class Program(Protocol):
    """What runs on a host. It is made anew when its host starts again after a crash."""

    def linked(self, link: Link) -> None:
        """Hear that a link is open: one that this program asked for, or one from elsewhere."""
        ...

    def received(self, link: Link, frame: bytes) -> None:
        """Take a frame."""
        ...

    def unlinked(self, link: Link, reason: str) -> None:
        """Hear that a link is over, or could not be opened. Not told after one's own close()."""
        ...


class Host:
    """A place for one process at a time."""

    def __init__(self, network: Network, name: str, make: Callable[[Host], Program]) -> None:
        self.name = name
        self.life = 0
        self.alive = False
        self.machine_down = False
        self.program: Program
        self._network = network
        self._make = make
        self._inbox: deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = deque()
        self._paused = False
        self._pause_struck = False
        self._links: dict[Link, None] = {}

    @property
    def paused(self) -> bool:
        """Whether its process does nothing for a while."""
        return self._paused

    def connect(self, target: str) -> Link:
        """Begin to open a link; the program hears `linked` or `unlinked`, or nothing at all."""
        return self._network._connect(self, target)

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> Timer:
        """Do something later in this process's life; late if it is paused then."""
        timer = Timer(callback, args)
        self._network.sim.call_later(delay, self._deliver, self.life, timer.fire, ())
        return timer

    def _start(self) -> None:
        self.life += 1
        self.alive, self.machine_down = True, False
        self._paused = False
        self.program = self._make(self)

    def _deliver(self, life: int, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        if life != self.life or not self.alive:
            return
        if self._paused:
            if not self._pause_struck:
                self._pause_struck = True
                self._network.count(Fault.PAUSE)
            self._inbox.append((life, callback, args))
        else:
            callback(*args)

    def _pause(self) -> None:
        self._paused = True
        self._pause_struck = False

    def _resume(self) -> None:
        self._paused = False
        while self._inbox and not self._paused:
            self._deliver(*self._inbox.popleft())


class Link:
    """One side's end of a connection."""

    __slots__ = ("_host", "_life", "_other", "_pipe", "_state", "id", "opener")

    def __init__(self, link_id: int, host: Host, opener: bool) -> None:
        self.id = link_id
        self.opener = opener
        """True on the side that asked for the connection."""
        self._host = host
        self._life = host.life
        self._state = "opening"
        self._pipe = _Pipe()
        self._other = self

    @property
    def peer(self) -> str:
        """The name of the other host."""
        return self._other._host.name

    @property
    def open(self) -> bool:
        """True from `linked` until it is closed or known to be broken."""
        return self._state == "open"

    @property
    def sound(self) -> bool:
        """True if the link is open at both ends, and nothing on it vanishes or is late."""
        pipes, now = (self._pipe, self._other._pipe), self._host._network.sim.now
        well = not any(pipe.dead or pipe.held or pipe.free_at > now + 0.1 for pipe in pipes)
        return self.open and self._other.open and well

    def send(self, frame: bytes) -> None:
        """Send a frame; if the link is not open, nothing happens, as no process would know."""
        if self._state == "open":
            self._host._network._send_frame(self, frame)

    def close(self) -> None:
        """Close. The other side is told, after all that was sent before."""
        if self._state != "closed":
            self._end()
            self._host._network._send(self, _Item("fin"))

    def _end(self) -> None:
        self._state = "closed"
        self._host._links.pop(self, None)

    def __repr__(self) -> str:
        return f"{self._host.name}>{self.peer}#{self.id}"


@dataclass(slots=True)
class _Item:
    """What travels: "open", "opened", "frame", "fin" (in order), or "reset" (ahead of all)."""

    kind: str
    frame: bytes = b""


class _Pipe:
    """One direction of a connection."""

    __slots__ = ("cut", "dead", "free_at", "held")

    def __init__(self) -> None:
        self.free_at = 0.0  # nothing arrives before this, so that the order is kept
        self.dead = False  # all that is sent vanishes
        self.cut = 0  # the number of times that what was under way was lost
        self.held: list[_Item] = []


class Network:
    """Hosts, links between them, and the faults of one plan."""

    def __init__(
        self,
        sim: Simulation,
        plan: FaultPlan,
        *,
        loose: Callable[[bytes], bool] = lambda frame: False,
    ) -> None:
        self.sim = sim
        self.plan = plan
        self.faults: Counter[Fault] = Counter()
        self.hosts: dict[str, Host] = {}
        self._loose = loose
        self._links = 0
        self._struck: set[Partition] = set()
        self._partitions: dict[tuple[str, str], list[Partition]] = {}
        self._held: dict[Link, None] = {}

    def add(self, name: str, make: Callable[[Host], Program]) -> Host:
        """Add a host and start its program."""
        if name in self.hosts:
            raise UsageError(f"host {name!r}: exists already")
        host = self.hosts[name] = Host(self, name, make)
        host._start()
        return host

    def start(self) -> None:
        """Put the incidents of the plan on the calendar. Call once, when all hosts are there."""
        for incident in self.plan.incidents:
            self.schedule(incident)

    def count(self, fault: Fault) -> None:
        """Note that a fault has struck."""
        self.faults[fault] += 1

    # Incidents.

    def schedule(self, incident: Incident) -> None:
        """Put an incident on the calendar."""
        at = self.sim.call_at
        match incident:
            case Partition():
                at(incident.at, self._part, incident)
                at(incident.until, self._heal, incident)
            case Pause(start, end, name):
                at(start, self._pause, self.hosts[name])
                at(end, self._resume, self.hosts[name])
            case Crash(start, name, back, silent):
                at(start, self._crash, self.hosts[name], silent)
                if back is not None:
                    at(back, self._restart, self.hosts[name])
            case Break(start, name):
                at(start, self._break_all, self.hosts[name])
            case _:
                assert_never(incident)

    def _ways(self, partition: Partition) -> Sequence[tuple[str, str]]:
        there = (partition.source, partition.target)
        return (there,) if partition.one_way else (there, there[::-1])

    def _part(self, partition: Partition) -> None:
        self.sim.note(partition)
        for way in self._ways(partition):
            self._partitions.setdefault(way, []).append(partition)

    def _heal(self, partition: Partition) -> None:
        self.sim.note("end of", partition)
        for way in self._ways(partition):
            self._partitions[way].remove(partition)
        for link in [link for link in self._held if not self._parted(link)]:
            del self._held[link]
            held, link._pipe.held = link._pipe.held, []
            if partition.breaks:
                self.count(Fault.RESET)
                self._break(link)
                continue
            for item in held:
                self._travel(link, item, 0.0)

    def _parted(self, link: Link) -> list[Partition]:
        return self._partitions.get((link._host.name, link.peer), [])

    def _pause(self, host: Host) -> None:
        self.sim.note("pause", host.name)
        host._pause()

    def _resume(self, host: Host) -> None:
        self.sim.note("resume", host.name)
        host._resume()

    def _crash(self, host: Host, silent: bool) -> None:
        if not host.alive:
            return
        self.sim.note("crash", host.name, "silent" if silent else "")
        self.count(Fault.SILENT_CRASH if silent else Fault.CRASH)
        host.alive, host.machine_down = False, silent
        for link in list(host._links):
            link._end()
            if not silent:
                # The kernel may still send what the process had written, or throw it away.
                self._send(link, _Item(self.sim.rng.choice(("fin", "reset"))))

    def _restart(self, host: Host) -> None:
        if not host.alive:
            self.sim.note("restart", host.name)
            host._start()

    def _break_all(self, host: Host) -> None:
        for link in list(host._links):
            self._strike(Fault.RESET, link)
            self._break(link)

    # Links.

    def _connect(self, host: Host, target: str) -> Link:
        self._links += 1
        near = Link(self._links, host, opener=True)
        far = Link(self._links, self.hosts[target], opener=False)
        near._other, far._other = far, near
        host._links[near] = None
        self._send(near, _Item("open"))
        return near

    def _send_frame(self, link: Link, frame: bytes) -> None:
        item = _Item("frame", frame)
        sim, rates = self.sim, self.plan.rates
        if sim.now >= self.plan.calm_at:
            self._send(link, item)
            return
        dice = sim.rng.random()
        if (dice := dice - rates.drop) < 0:
            self._strike(Fault.DROP, link)
            link._pipe.dead = True
            sim.call_later(UNHEARD_S, self._fall_silent, link._other)
        elif (dice := dice - rates.reset) < 0:
            self._strike(Fault.RESET, link)
            self._break(link)
        elif (dice := dice - rates.delay) < 0:
            self._strike(Fault.DELAY, link)
            self._send(link, item, sim.rng.uniform(0.0, self.plan.delay_s))
        elif (dice := dice - rates.duplicate) < 0 and self._loose(frame):
            self._strike(Fault.DUPLICATE, link)
            self._send(link, item)
            self._astray(link, item)
        elif 0 <= dice < rates.reorder and self._loose(frame):
            self._strike(Fault.REORDER, link)
            self._astray(link, item)
        else:
            self._send(link, item)

    def _fall_silent(self, link: Link) -> None:
        """Let nothing pass any more: what is not acknowledged is not followed by more."""
        link._pipe.dead = True

    def _strike(self, fault: Fault, link: Link) -> None:
        self.count(fault)
        self.sim.note(fault, "on", link)

    def _send(self, link: Link, item: _Item, extra_s: float = 0.0) -> None:
        if link._pipe.dead:
            return
        if parted := self._parted(link):
            for partition in parted:
                if partition not in self._struck:
                    self._struck.add(partition)
                    self.count(Fault.ONE_WAY if partition.one_way else Fault.PARTITION)
            link._pipe.held.append(item)
            self._held[link] = None
        else:
            self._travel(link, item, extra_s)

    def _travel(self, link: Link, item: _Item, extra_s: float) -> None:
        """Put something on its way behind what was sent before, unless it is a reset."""
        pipe, sim = link._pipe, self.sim
        arrival = sim.now + sim.rng.uniform(*self.plan.latency_s) + extra_s
        if item.kind == "reset":
            pipe.cut += 1
        else:
            arrival = pipe.free_at = max(arrival, pipe.free_at)
        sim.call_at(arrival, self._arrive, link, item, pipe.cut)

    def _astray(self, link: Link, item: _Item) -> None:
        """Let a frame take another way, on which others can overtake it."""
        late = self.sim.rng.uniform(0.0, self.plan.delay_s)
        self.sim.call_later(late, self._arrive, link, item, link._pipe.cut)

    def _break(self, link: Link) -> None:
        """Lose what is under way in both directions, and tell both sides."""
        for one in (link, link._other):
            one._pipe.held.clear()
            one._pipe.cut += 1
            self._send(one, _Item("reset"))

    def _arrive(self, link: Link, item: _Item, cut: int) -> None:
        """Let something that was sent on `link` arrive at the other side."""
        if cut != link._pipe.cut:
            return  # it was lost when the link broke
        far = link._other
        host = far._host
        if host.machine_down:
            return
        match item.kind:
            case "open" if host.alive:
                far._life = host.life
                far._state = "open"
                host._links[far] = None
                self._send(far, _Item("opened"))
                host._deliver(far._life, self._tell_open, (far,))
            case "opened" if far._state == "opening":
                far._state = "open"
                host._deliver(far._life, self._tell_open, (far,))
            case "frame" if far._state == "open":
                if self.sim.trace is not None:
                    self.sim.note(link, item.frame.hex())
                host._deliver(far._life, self._hand_over, (far, item.frame))
            case "fin" | "reset":
                reason = "closed by the peer" if item.kind == "fin" else "connection reset"
                host._deliver(far._life, self._tell_end, (far, reason))
            case _:
                # No process is there to take it, and the sender learns so.
                self._send(far, _Item("reset"))

    def _tell_open(self, link: Link) -> None:
        if link._state == "open":
            link._host.program.linked(link)

    def _hand_over(self, link: Link, frame: bytes) -> None:
        if link._state == "open":
            link._host.program.received(link, frame)

    def _tell_end(self, link: Link, reason: str) -> None:
        if link._state != "closed":
            link._end()
            self.sim.note(link, reason)
            link._host.program.unlinked(link, reason)
