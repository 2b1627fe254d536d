"""A job that holds: a worker is killed, then a whole node, and the result is right all the same.

Run it with `make demo`. Two nodes (two processes here) with two workers each add up the squares of
the first eight million numbers, in forty parts; who finishes a part leaves its sum in a folder.
Then things go wrong: one worker is killed with SIGKILL, and a while later the agent of a whole
node. Each time the workers that are left start again, share the parts that are missing among as
many as they are now, and in the end the sum is compared with what the formula says.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.agent import Status
from holdfast.agent.machine import State
from holdfast.errors import HoldfastError
from holdfast.launch.config import LaunchConfig
from holdfast.launch.launcher import run_job
from holdfast.process.spec import Function

PARTS = 40
NUMBERS = 8_000_000
STARTED = float(os.environ.get("DEMO_STARTED", time.monotonic()))


def say(who: str, text: str) -> None:
    print(f"{time.monotonic() - STARTED:5.2f} s  {who:<8}{text}", flush=True)


# A worker: an ordinary function that finds out from its environment which one it is.


def add_squares(folder: str) -> int:
    """Do this worker's share of the parts that are still missing; return how many it did."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    Path(folder, f"pid-{rank}").write_text(str(os.getpid()))
    mine = [part for part in range(rank, PARTS, world_size) if not sum_of(folder, part).exists()]
    for part in mine:
        draft = Path(folder, f"draft-{part}-{os.getpid()}")
        draft.write_text(str(sum(number * number for number in range(part, NUMBERS, PARTS))))
        draft.rename(sum_of(folder, part))
    return len(mine)


def sum_of(folder: str, part: int) -> Path:
    return Path(folder, f"sum-{part}")


# A node: an agent that supervises its workers.


def node(me: str, endpoint: str, folder: str) -> int:
    config = LaunchConfig(
        1,
        2,
        2,
        run_id="demo",
        rdzv_endpoint=endpoint,
        rdzv_configs={"last_call_timeout": 1, "is_host": me == "node 1"},
        max_restarts=1,
    )
    try:
        run_job(config, Function(add_squares, (folder,)), show=lambda status: tell(me, status))
    except HoldfastError as error:
        say(me, f"ends: {error}")
        return 1
    return 0


def tell(me: str, status: Status) -> None:
    """Say what this node does."""
    if status.state is State.RUNNING and status.membership is not None:
        ranks = [str(one.rank) for one in status.membership.ranks()]
        world_size = status.membership.ranks()[0].world_size
        text = f"workers {' and '.join(ranks)} of {world_size} run"
        say(me, f"{text} in round {status.membership.here.number}")
    elif status.state is not State.JOINING:  # that was said: it is why the workers were stopped
        say(me, f"{status.state}: {status.reason}")


# The one who starts them, and does them harm.


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"DEMO_STARTED": str(STARTED), "LOGLEVEL": "ERROR"}
        endpoint = f"127.0.0.1:{free_port()}"
        nodes = [
            subprocess.Popen([sys.executable, __file__, name, endpoint, folder], env=env)
            for name in ("node 1", "node 2")
        ]
        try:
            wait_for(lambda: done(folder) >= 6)
            victim = int(Path(folder, "pid-3").read_text())
            say("", f"{done(folder)} parts are done; worker 3 is killed, process {victim}")
            os.kill(victim, signal.SIGKILL)
            wait_for(
                lambda: done(folder) >= 16 and Path(folder, "pid-3").read_text() != str(victim)
            )
            say("", f"{done(folder)} parts are done; node 2 is killed, process {nodes[1].pid}")
            workers = [int(Path(folder, f"pid-{rank}").read_text()) for rank in (2, 3)]
            nodes[1].kill()
            wait_for(lambda: not any(alive(pid) for pid in workers))
            say("", "its workers are gone with it")
            code = nodes[0].wait(timeout=60)
        finally:
            for process in nodes:
                process.kill()
                process.wait()
        total = sum(int(sum_of(folder, part).read_text()) for part in range(PARTS))
    right = (NUMBERS - 1) * NUMBERS * (2 * NUMBERS - 1) // 6
    say("", f"the sum is {total}, which is {'right' if total == right else 'WRONG'}")
    return 0 if total == right and code == 0 else 1


def started_anew(folder: str, victim: int) -> bool:
    return Path(folder, "pid-3").read_text() not in ("", str(victim))


def done(folder: str) -> int:
    return sum(sum_of(folder, part).exists() for part in range(PARTS))


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
