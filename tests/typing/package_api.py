"""What `import holdfast` offers, as a user types it. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import assert_type

import holdfast
from holdfast.errors import LeaseLost
from holdfast.net.secret import Secret, new_secret
from holdfast.store.ops import Change, Lease
from holdfast.store.server import StoreServer
from holdfast.store.store import Store


def opening(secret: Secret) -> None:
    assert_type(holdfast.__version__, str)
    with holdfast.serve_store("tcp://127.0.0.1:0", secret=secret) as server:
        assert_type(server, StoreServer)
        assert_type(server.endpoint, str)
        with holdfast.open_store(server.endpoint, secret=new_secret(), timeout=None) as store:
            assert_type(store, holdfast.Store)
    assert_type(holdfast.open_store(), Store)
    assert_type(holdfast.open_store("memory://", timeout=1), Store)


def views(store: holdfast.Store) -> holdfast.Store:
    view = holdfast.PrefixStore(store, "mine/")
    assert_type(view, holdfast.PrefixStore)
    return view


def meeting(store: holdfast.Store) -> None:
    holdfast.barrier(store, "start", 0, 2)
    holdfast.barrier(store, "start", rank=0, world_size=2, timeout=None)
    assert_type(holdfast.all_gather(store, "hosts", 0, 2, b"h", timeout=1.5), list[bytes])


def keeping(store: holdfast.Store, on_lost: Callable[[LeaseLost], None]) -> None:
    with holdfast.LeaseKeeper(store, 5, on_lost=on_lost) as keeper:
        assert_type(keeper, holdfast.LeaseKeeper)
        assert_type(keeper.lease, Lease)
        assert_type(keeper.lost, bool)
        store.set("nodes/7", b"", lease=keeper.lease)


def watching(watch: holdfast.Watch) -> list[Change]:
    return [change for change in watch if change.value is not None]


def failing(store: holdfast.Store) -> str:
    try:
        store.count()
    except holdfast.HoldfastError as error:
        return str(error)
    return ""


@holdfast.record
def recorded(rank: int, *, name: str = "") -> float:
    return 1.0


def training(epochs: int) -> float:
    with holdfast.expires(after=60, scope="epoch"):
        pass
    with holdfast.expires(0.5):
        return float(epochs)


def configuring() -> holdfast.LaunchConfig:
    assert_type(holdfast.LaunchConfig(1, 1, 4).max_restarts, int)
    return holdfast.LaunchConfig(
        min_nodes=2,
        max_nodes=4,
        nproc_per_node=8,
        run_id="job7",
        rdzv_endpoint="node0:29400",
        rdzv_configs={"last_call_timeout": 1, "is_host": "true"},
        restart_window_s=60,
        warm=("torch",),
        secret_file=Path("job.secret"),
        logs=holdfast.LogOptions(log_dir=Path("logs")),
    )


def launching(config: holdfast.LaunchConfig) -> int:
    assert_type(recorded(1, name="n"), float)
    try:
        assert_type(holdfast.elastic_launch(config, training)(3), dict[int, float])
        holdfast.elastic_launch(config, "./train.sh")("--epochs", "3")
    except holdfast.WorkersFailed as error:
        assert_type(error.failures[0].traceback, str)
        assert_type(error.failures[0].exit.code, int)
        return error.exit_code
    except holdfast.Signalled as error:
        return error.exit_code
    except holdfast.WorkersStuck as error:
        return error.pids[0]
    except (holdfast.RendezvousTimedOut, holdfast.RendezvousLost, holdfast.errors.Refused):
        return 1
    return holdfast.rpc.get_worker_info().id


def mistakes(store: holdfast.Store) -> None:
    holdfast.open_store(b"memory://")  # type: ignore[arg-type]
    holdfast.open_store("memory://", None)  # type: ignore[call-arg]
    holdfast.open_store("tcp://h:1", secret="text")  # type: ignore[arg-type]
    holdfast.serve_store(29400)  # type: ignore[arg-type]
    holdfast.barrier("tcp://h:1", "start", 0, 2)  # type: ignore[arg-type]
    holdfast.all_gather(store, "hosts", 0, 2, "text")  # type: ignore[arg-type]
    holdfast.LeaseKeeper(store)  # type: ignore[call-arg]
    recorded("text")  # type: ignore[arg-type]
    holdfast.LaunchConfig(1, 1)  # type: ignore[call-arg]
    holdfast.LaunchConfig(1, 1, 4, "job7")  # type: ignore[call-arg]
    holdfast.LaunchConfig(1, 1, "4")  # type: ignore[arg-type]
    holdfast.LaunchConfig(1, 1, 4).run_id = "job7"  # type: ignore[misc]
    holdfast.elastic_launch(training)  # type: ignore[call-overload]
    holdfast.expires("60")  # type: ignore[arg-type]
    holdfast.stroe  # type: ignore[attr-defined]  # noqa: B018
