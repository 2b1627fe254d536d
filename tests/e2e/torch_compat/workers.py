"""What workers do that use torch's names. They import it, so it is light."""

from __future__ import annotations

import os
import signal

from tests.e2e import entrypoints


def stay_longer_than_announced() -> None:
    """Announce by torch's timers what takes a moment, and never come back."""
    from torch.distributed.elastic import timer

    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    with timer.expires(after=0.1):
        while True:  # it is woken when it is asked for its stacks
            signal.pause()


def world_size_after(bell: str, flag: str) -> int:
    """Return how many workers there are if the flag is there; else say so, and stay."""
    if not os.path.exists(flag):
        entrypoints.stay(bell)
    return entrypoints.world_size()


def die_once_on_rank_one() -> int:
    """Return how often the workers were restarted."""
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if entrypoints.rank() == 1 and not restarts:
        os.kill(os.getpid(), signal.SIGKILL)
    return restarts


def call_worker(message: str) -> str:
    """Be the master, which calls the worker of another node."""
    from torch.distributed import rpc

    rpc.init_rpc("master", rank=entrypoints.rank(), world_size=entrypoints.world_size())
    answer = rpc.rpc_sync("worker", entrypoints.echo, args=(message,))
    rpc.shutdown()
    return f"{answer} from worker"


def be_called() -> None:
    """Be the worker that the master calls."""
    from torch.distributed import rpc

    rpc.init_rpc("worker", rank=entrypoints.rank(), world_size=entrypoints.world_size())
    rpc.shutdown()
