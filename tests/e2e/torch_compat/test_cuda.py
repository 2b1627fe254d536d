"""Tensors on a GPU between two processes, by torch's names."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast.torch_compat
from holdfast.torch_compat.tensors.devices import HANDLE_BYTES

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU of NVIDIA, and torch for CUDA"
)

WITHIN_S = 120
SMALL = 8
LARGE = HANDLE_BYTES  # elements of four bytes
Body: Any = Callable[[Any], None]


# What the callee runs.


def plus_one(tensor: Any) -> Any:
    tensor += 1  # its own memory: the caller's is what it was
    return tensor


def where(tensor: Any) -> str:
    return str(tensor.device)


def stride_of(tensor: Any) -> Any:
    return tensor.stride()


def on_gpu() -> Any:
    return torch.ones(LARGE, device="cuda:0")


def late(tensor: Any) -> Any:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        return tensor * 3  # nothing is told to wait for that stream


# What the caller does.


def echoes(rpc: Any) -> None:
    for size in (0, 1, SMALL, LARGE):
        mine = torch.arange(size, device="cuda:0", dtype=torch.float32)
        kept = mine.clone()
        found = rpc.rpc_sync("worker1", plus_one, (mine,))
        assert str(found.device) == "cuda:0"
        assert torch.equal(found, kept + 1)
        assert torch.equal(mine, kept)
        assert found.untyped_storage().nbytes() == mine.nbytes
    whole = torch.arange(4.0 * LARGE, device="cuda:0").view(4, LARGE)
    assert torch.equal(rpc.rpc_sync("worker1", plus_one, (whole[2],)), whole[2] + 1)
    for view in (whole.T, whole[:, ::2], whole[1:3, 5:]):
        found = rpc.rpc_sync("worker1", plus_one, (view,))
        assert torch.equal(found, view + 1)
        assert found.stride() == view.stride()
    column = whole.view(LARGE, 4)[:, 1]
    found = rpc.rpc_sync("worker1", plus_one, (column,))
    assert torch.equal(found, column + 1)
    assert found.stride() == (1,)  # without the gaps
    many = torch.ones(1, device="cuda:0").expand(LARGE)
    assert rpc.rpc_sync("worker1", stride_of, (many,)) == (0,)
    sparse = torch.eye(4, device="cuda:0").to_sparse()
    assert torch.equal(
        rpc.rpc_sync("worker1", torch.mul, (sparse, 2)).to_dense(), sparse.to_dense() * 2
    )
    assert torch.equal(rpc.rpc_sync("worker0", plus_one, (whole,)), whole + 1)  # to itself
    assert torch.equal(rpc.rpc_async("worker1", plus_one, (whole,)).wait(), whole + 1)


def references(rpc: Any) -> None:
    made = rpc.remote("worker1", on_gpu)
    assert torch.equal(made.to_here(), torch.ones(LARGE, device="cuda:0"))
    mine = rpc.RRef(torch.zeros(3, device="cuda:0"))
    assert rpc.rpc_sync("worker1", where, (torch.zeros(3, device="cuda:0"),)) == "cuda:0"
    assert torch.equal(mine.to_here(), torch.zeros(3, device="cuda:0"))


def streams(rpc: Any) -> None:
    mine = torch.ones(LARGE, device="cuda:0")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        mine *= 2
    assert torch.equal(rpc.rpc_sync("worker1", late, (mine,)).cpu(), torch.full((LARGE,), 6.0))


def memory_is_flat(rpc: Any) -> None:
    def once() -> None:
        rpc.rpc_sync("worker1", plus_one, (torch.ones(LARGE, device="cuda:0"),))

    for _ in range(20):
        once()
    torch.cuda.ipc_collect()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        once()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() <= before


def gradients(rpc: Any) -> None:
    from torch.distributed import autograd

    for size in (SMALL, LARGE):
        a, b = (torch.rand(size, device="cuda:0", requires_grad=True) for _ in "ab")
        with autograd.context() as number:
            found = rpc.rpc_sync("worker1", torch.mul, (a, b))
            autograd.backward(number, [found.sum()])
            of = autograd.get_gradients(number)
            assert torch.allclose(of[a], b)
            assert torch.allclose(of[b], a)
            assert str(of[a].device) == "cuda:0"


def without_a_map(rpc: Any) -> None:
    tensor = torch.ones(2, device="cuda:0")
    with pytest.raises(RuntimeError, match="Request device mapping is not available"):
        rpc.rpc_sync("worker1", where, (tensor,))
    with pytest.raises(RuntimeError, match="Response device mapping is not available"):
        rpc.rpc_sync("worker1", on_gpu)
    assert rpc.rpc_sync("worker1", torch.add, (torch.ones(2), 1)).tolist() == [2, 2]


def from_cpu(rpc: Any) -> None:
    for size in (SMALL, LARGE):
        assert rpc.rpc_sync("worker1", where, (torch.ones(size),)) == "cuda:0"
        found = rpc.rpc_sync("worker1", plus_one, (torch.ones(size),))
        assert torch.equal(found, torch.full((size,), 2.0))  # on the CPU again


def _worker(rank: int, meeting: str, map_: Any, body: Any, said: Any) -> None:
    holdfast.torch_compat.install()
    from torch.distributed import rpc

    try:
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}", rpc_timeout=60)
        if rank == 0 and map_:
            options.set_device_map("worker1", map_)
            options.set_device_map("worker0", map_)
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
        try:
            if rank == 0:
                body(rpc)
        finally:
            rpc.shutdown()
    except BaseException:
        said.put(traceback.format_exc())
        raise


@pytest.mark.parametrize(
    ("body", "map_"),
    [
        (echoes, {0: 0}),
        (references, {0: 0}),
        (streams, {0: 0}),
        (memory_is_flat, {0: 0}),
        (gradients, {0: 0}),
        (without_a_map, None),
        (from_cpu, {"cpu": 0}),
    ],
)
def test_on_one_gpu(body: Body, map_: Any) -> None:
    """DV-1 to DV-4: DV-2 by `streams`, DV-3 by `echoes`, DV-4 by `echoes` and `memory_is_flat`."""
    context = multiprocessing.get_context("spawn")
    said = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        workers = [
            context.Process(target=_worker, args=(rank, meeting, map_, body, said))
            for rank in range(2)
        ]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(WITHIN_S)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0], "" if said.empty() else said.get()
