"""A job that holds: a worker is killed, then a whole node, and the result is right all the same.

Run it with `make demo`. Three nodes (three processes here) with two workers each add up the squares
of the first eight million numbers, in forty parts. Worker 0 keeps the ledger: which parts are
missing, and the sums of the others, which it writes down in a folder. The workers hold a reference
to the ledger; by remote calls they take parts from it and enter their sums.

The parts are given out in three portions, and in between things go wrong: one worker is killed with
SIGKILL, and later the agent of a whole node: the one that leads the store where the nodes meet. The
two others have all that was in it, and go on. Each time the workers that are left start again and
find each other again; worker 0 opens the ledger again, and they share the parts that are missing
among as many as they are now. In the end the sum is compared with what the formula says.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import rpc
from holdfast.agent.machine import State
from holdfast.agent.status import AgentStatus
from holdfast.errors import HoldfastError
from holdfast.launch.config import LaunchConfig
from holdfast.launch.launcher import run_job
from holdfast.process.spec import Function

PARTS = 40
NUMBERS = 8_000_000
STARTED = float(os.environ.get("DEMO_STARTED", time.monotonic()))


def say(who: str, text: str) -> None:
    # With its end in one piece: several threads say something.
    print(f"{time.monotonic() - STARTED:5.2f} s  {who:<10}{text}\n", end="", flush=True)


# A worker: an ordinary function that finds out from its environment which one it is.


def add_squares(folder: str) -> None:
    """Be one of the workers, from the beginning of a round to its end."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}")  # returns when all workers of this round are there
    leave(Path(folder, f"pid-{rank}"), os.getpid())
    if rank == 0:
        lead(folder, world_size)
    rpc.shutdown(timeout=None)  # until all are done, this worker does what others ask it for


def lead(folder: str, world_size: int) -> None:
    """Let every worker do parts, until none is missing."""
    ledger = rpc.RRef(Ledger(folder))  # it stays here: what others get is a reference to it
    missing = ledger.local_value().missing()
    say("worker 0", f"opens the ledger: {missing} parts are missing, {world_size} workers do them")
    workers = [f"worker{rank}" for rank in range(world_size)]
    futures = [rpc.rpc_async(worker, do_parts, (ledger,), timeout=0) for worker in workers]
    # Should one be lost meanwhile, nothing is to be done here: the agents start us all again.
    counts = map("{} by {}".format, rpc.wait_all(futures), workers)
    say("worker 0", f"closes the ledger: {' and '.join(counts)}, none is missing")
    leave(Path(folder, "total"), ledger.local_value().total())


def do_parts(ledger: rpc.RRef[Ledger]) -> int:
    """Do parts as long as there are any; return how many. Worker 0 asks every worker for this."""
    done = 0
    while (part := ledger.rpc_sync().take()) is not None:
        ledger.rpc_sync().enter(part, sum(number**2 for number in range(part, NUMBERS, PARTS)))
        done += 1
    return done


class Ledger:
    """The parts that are missing, and the sums of the others. Called by all workers at once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._missing = queue.SimpleQueue[int]()
        for part in range(PARTS):
            if not sum_of(folder, part).exists():
                self._missing.put(part)

    def missing(self) -> int:
        return self._missing.qsize()

    def take(self) -> int | None:
        """Give out a part, when its portion has come; None if none is missing."""
        try:
            part = self._missing.get_nowait()
        except queue.Empty:
            return None
        wait_for(lambda: is_given(self._folder, part))
        return part

    def enter(self, part: int, total: int) -> None:
        leave(sum_of(self._folder, part), total)

    def total(self) -> int:
        return sum(number_in(sum_of(self._folder, part)) for part in range(PARTS))


def sum_of(folder: str, part: int) -> Path:
    return Path(folder, f"sum-{part}")


def is_given(folder: str, part: int) -> bool:
    return part < number_in(Path(folder, "given"))


def leave(file: Path, number: int) -> None:
    """Write a number for others, whole or not at all."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(str(number))
    draft.rename(file)


def number_in(file: Path) -> int:
    return int(file.read_text()) if file.exists() else 0


# A node: an agent that supervises its workers.


def node(me: str, endpoint: str, folder: str) -> int:
    config = LaunchConfig(
        2,
        3,
        2,
        run_id="demo",
        rdzv_endpoint=endpoint,
        rdzv_configs={"last_call_timeout": 5, "is_host": me == "node 1"},
        max_restarts=1,
    )
    try:
        run_job(config, Function(add_squares, (folder,)), show=Teller(me))
    except HoldfastError as error:
        say(me, f"ends: {error}")
        return 1
    return 0


class Teller:
    """Say what this node does, once for each state that it comes to."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._state = State.JOINING

    def __call__(self, status: AgentStatus) -> None:
        state, self._state = self._state, status.state
        if status.state is State.RUNNING and status.membership is not None:
            ranks = [str(one.rank) for one in status.membership.ranks()]
            world_size = status.membership.ranks()[0].world_size
            text = f"workers {' and '.join(ranks)} of {world_size} run"
            say(self._me, f"{text} in round {status.membership.here.number}")
        elif status.state not in (state, State.JOINING):  # it joins for the reason it has stopped
            say(self._me, f"{status.state}: {status.reason}")


# The process that starts the workers, and kills some.


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"DEMO_STARTED": str(STARTED), "LOGLEVEL": "ERROR"}
        endpoint = f"127.0.0.1:{free_port()}"
        nodes = [
            subprocess.Popen([sys.executable, __file__, name, endpoint, folder], env=env)
            for name in ("node 1", "node 2", "node 3")
        ]
        try:
            pids = [Path(folder, f"pid-{rank}") for rank in range(6)]
            wait_for(lambda: all(map(number_in, pids)))
            give(folder, 16)
            victim = number_in(pids[3])
            say("", f"16 of {PARTS} parts are done; worker 3 is killed, process {victim}")
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: number_in(pids[3]) != victim)
            give(folder, 28)
            say("", f"28 of {PARTS} parts are done; node 1 is killed, process {nodes[0].pid}")
            first, *_ = lost = [number_in(pids[rank]) for rank in (0, 1)]
            nodes[0].kill()
            wait_for(lambda: not any(map(alive, lost)))
            say("", "its workers are gone with it")
            wait_for(lambda: number_in(pids[0]) != first)
            give(folder, PARTS)
            code = max(one.wait(timeout=110) for one in nodes[1:])
        finally:
            for process in nodes:
                process.kill()
                process.wait()
        total = number_in(Path(folder, "total"))
    right = (NUMBERS - 1) * NUMBERS * (2 * NUMBERS - 1) // 6
    say("", f"the sum in the ledger is {total}, which is {'right' if total == right else 'WRONG'}")
    return 0 if total == right and code == 0 else 1


def give(folder: str, parts: int) -> None:
    """Let the workers have the parts up to this one, and wait until they are done."""
    leave(Path(folder, "given"), parts)
    wait_for(lambda: all(sum_of(folder, part).exists() for part in range(parts)))


def alive(pid: int) -> bool:
    """Say whether a process runs; one that only waits to be noticed does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the demo does not get on; please report this")
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(node(*sys.argv[1:]) if len(sys.argv) > 1 else main())
