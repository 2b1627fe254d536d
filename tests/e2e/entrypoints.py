"""What the workers of these tests do. They import it, so it is light; torch comes when needed."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import time
import urllib.request
from typing import Any

SUMMED = "the ranks are summed"


def rank() -> int:
    return int(os.environ["RANK"])


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def ring(bell: str) -> None:
    """Tell the test where we are; a short write to a pipe is never torn."""
    with open(bell, "w", encoding="ascii") as file:
        file.write(f"{rank()} {world_size()}\n")


def wait_for(door: str) -> None:
    """Wait until the test opens a FIFO, and closes it again."""
    with open(door, "rb") as file:
        file.read()


# What comes back.


def echo(value: Any) -> Any:
    return value


def nothing() -> None:
    return


def ten_and_rank() -> int:
    return 10 + rank()


def variables() -> dict[str, str]:
    return dict(os.environ)


def places() -> dict[str, object]:
    """Every rank and size that a worker is told."""
    names = ("RANK", "ROLE_RANK", "GROUP_RANK", "ROLE_WORLD_SIZE", "WORLD_SIZE")
    return {"role": os.environ["ROLE_NAME"]} | {name: int(os.environ[name]) for name in names}


def random_tensor() -> Any:
    import torch

    return torch.rand(100, 100)


def sum_of_ranks() -> int:
    """Let gloo add the ranks of all workers."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(rank())
    dist.all_reduce(total)
    dist.destroy_process_group()
    print(SUMMED, flush=True)
    return int(total.item())


def add_after_rank_0() -> int:
    """On rank 0 end at once, on any other rank use the workers' store when rank 0 has ended."""
    import torch.distributed as dist

    store = next(dist.rendezvous("env://"))[0]
    if rank() == 0:
        store.set("pid", str(os.getpid()))
        return 0
    try:
        first = os.pidfd_open(int(store.get("pid")))
    except ProcessLookupError:  # it has ended
        return int(store.add("sum", rank()))
    select.select([first], [], [])
    os.close(first)
    return int(store.add("sum", rank()))


def find_no_keys_of_the_attempt_before() -> bool:
    """Leave a key in the workers' store and fail, at first; then say whether it is there."""
    import holdfast

    where = f"c10d://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    with holdfast.open_store(where) as store:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            store.set("before", b"")
            fail()
        return store.get("before") is None


# What goes wrong.


def fail() -> None:
    raise RuntimeError("sad because it must")


def fail_on_odd_ranks() -> None:
    if rank() % 2:
        fail()


def fail_on_odd_ranks_or_stay() -> None:
    """Never end on an even rank."""
    fail_on_odd_ranks()
    signal.pause()


def die_once_on_rank_one() -> Any:
    if rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return random_tensor()


# What others wait for.


def return_after(door: str) -> int:
    """Return the rank once the test has opened the FIFO; at once without one."""
    if door:
        wait_for(door)
    return rank()


def fail_after(door: str) -> int:
    wait_for(door)
    raise RuntimeError("too late")


def stay(bell: str) -> None:
    ring(bell)
    signal.pause()


def sum_of_ranks_after(bell: str, flag: str) -> int:
    """Sum the ranks if the flag is there; else say that it is not, and stay."""
    if not os.path.exists(flag):
        stay(bell)
    return sum_of_ranks()


# What is around a worker.


def leave_a_child(held: str) -> int:
    """Start a process that holds a FIFO open and outlives us, if it may."""
    with open(held, "wb") as file:
        return subprocess.Popen(["sleep", "1000"], stdout=file).pid


def timer_file() -> tuple[str | None, bool]:
    """Say where timers are announced, and whether there is a FIFO."""
    path = os.environ.get("TORCHELASTIC_TIMER_FILE")
    return path, path is not None and os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)


def ask_for_health() -> tuple[str | None, int]:
    """Ask the agent how it is, while it runs us."""
    port = os.environ.get("TORCHELASTIC_HEALTH_CHECK_PORT")
    if port is None:
        return None, 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        return port, int(answer.status)


def process_and_parent() -> tuple[int, int]:
    return os.getpid(), os.getppid()


# Calls between the workers of a job.


def call_worker(message: str) -> str:
    """Be the master, which calls the worker of another node."""
    from holdfast import rpc

    rpc.init_rpc("master")
    answer = rpc.rpc_sync("worker", echo, args=(message,))
    assert rpc.shutdown() == ()
    return f"{answer} from worker"


def be_called() -> None:
    """Be the worker that the master calls."""
    from holdfast import rpc

    rpc.init_rpc("worker")
    assert rpc.shutdown() == ()


def beat(beats: str, bell: str) -> None:
    """Ignore TERM, and write down over and over what time it is."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"{beats}.{os.getpid()}", "w", buffering=1) as file:
        print(time.monotonic(), file=file)
        ring(bell)
        while True:
            print(time.monotonic(), file=file)
            select.select([], [], [], 0.005)
