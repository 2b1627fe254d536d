"""DDP in a context of distributed autograd."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.torch_compat.autograd import ddp
from tests.unit.torch_compat.test_patching import run

# In a process of its own: DDP leaves files open. Of one process an average says nothing, so it is
# replaced by ten times what it would be of.
BEGIN = """
import os, sys
os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.argv[1] + "_cache"
import holdfast.torch_compat
holdfast.torch_compat.install()
import torch, torch.distributed as dist
from torch.distributed import autograd, rpc
from torch.nn.parallel import DistributedDataParallel
from holdfast.torch_compat.autograd.contexts import CONTEXTS

def tenfold(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer() * 10)
    return future

class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient of that")

options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[1])
rpc.init_rpc("a", rank=0, world_size=1, rpc_backend_options=options)
dist.init_process_group("gloo", "file://" + sys.argv[1] + "_ddp", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
model.register_comm_hook(None, tenfold)
weight, before, given = model.module.weight, torch.ones(1, 2), torch.tensor([[1.0, 2.0]])
weight.grad = before
local = torch.ones(1, requires_grad=True)
"""
GOOD = """
with autograd.context() as number:
    loss = rpc.rpc_sync("a", torch.add, args=(model(given)[0], local)).sum()
    autograd.backward(number, [loss])
    found = autograd.get_gradients(number)
    print(found[weight].tolist(), found[local].tolist())
"""
BAD = """
with autograd.context() as number:
    try:
        autograd.backward(number, [model(Failing.apply(given.requires_grad_())).sum()])
    except ValueError as error:
        print(error, autograd.get_gradients(number))
"""
NOTED = """
with autograd.context() as number:
    with torch.no_grad():
        model(given)
    with model.no_sync():
        model(given)
    print(CONTEXTS.find(number).reduces)
    model(given)
    print(CONTEXTS.find(number).reduces)
"""
END = """
assert weight.grad is before and local.grad is None
dist.destroy_process_group()
rpc.shutdown()
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param(GOOD, "[[10.0, 20.0]] [1.0]", id="what DDP made of them"),
        pytest.param(BAD, "no gradient of that {}", id="none if it fails"),
        pytest.param(NOTED, "False\nTrue", id="DDP that averages is noted"),
    ],
)
def test_the_gradients_of_a_context_with_ddp(what: str, said: str, tmp_path: Path) -> None:
    """Proves DP-1 and DP-2."""
    assert run("-W", "ignore", "-c", BEGIN + what + END, f"{tmp_path}/store").strip() == said


def test_a_pass_waits_for_another_and_not_for_ever() -> None:
    """Proves DP-3."""
    value = torch.ones(1, requires_grad=True)

    def within() -> None:
        with pytest.raises(RuntimeError, match="another backward pass with DDP has run"):
            ddp.by_adding([value], lambda: None, 0.0)

    assert ddp.by_adding([value], within, None) == [None]
    assert ddp.by_adding([value], (value * 3).backward, 0.0)[0].tolist() == [3.0]
    assert value.grad is None


# A thread of gloo ends a collective while the interpreter's lock is held, and does not run again
# before the module in DDP is gone: it may run only when nothing else does.
ENDS = """
import ctypes, os, sys
os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.argv[1] + "_cache"
import holdfast.torch_compat
holdfast.torch_compat.install()
import torch, torch._dynamo, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.setswitchinterval(100)
is_other = os.fork() == 0

def keep_gloo_back():
    cpu = {min(os.sched_getaffinity(0))}
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpu)
        with open(f"/proc/self/task/{thread}/comm") as name:
            if name.read() == "pt_gloo_runloop\\n":
                os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

def work():
    dist.init_process_group("gloo", "file://" + sys.argv[1], rank=int(is_other), world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    store = dist.FileStore(sys.argv[1] + "_begun")
    if is_other:
        store.wait(["begun"])
        model.process_group.allreduce([torch.ones(1)]).wait()
        os._exit(0)
    keep_gloo_back()
    model.process_group.allreduce([torch.ones(1)])
    dist.destroy_process_group()
    store.set("begun", "")
    ctypes.PyDLL(None).usleep(500_000)  # with the lock

work()
print("ended", os.wait()[1])
"""


def test_a_module_in_ddp_ends_while_gloo_waits_for_the_interpreter(tmp_path: Path) -> None:
    """Proves DP-4."""
    assert run("-W", "ignore", "-c", ENDS, str(tmp_path / "meet")) == "ended 0\n"
