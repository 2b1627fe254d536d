"""torch's DistributedOptimizer, without TorchScript. Each test in a new process."""

from __future__ import annotations

import pytest

from tests.unit.torch_compat.test_patching import run

CACHE = "import os, sys; os.environ['TORCHINDUCTOR_CACHE_DIR'] = sys.argv[1] + '_cache'"
LATER = """
import holdfast.torch_compat
holdfast.torch_compat.install()
import torch.distributed.optim.optimizer as theirs
"""
BEFORE = """
import torch.distributed.optim.optimizer as theirs
import holdfast.torch_compat
holdfast.torch_compat.install()
"""
STEP = """
import sys, torch
from torch.distributed import autograd, rpc
options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[1])
rpc.init_rpc("a", rank=0, world_size=1, rpc_backend_options=options)
values = [torch.ones(2, requires_grad=True) for _ in range(3)]
references = [rpc.RRef(value) for value in values]
optimizer = theirs.DistributedOptimizer(torch.optim.SGD, references[:2], lr=0.5)
with autograd.context() as number:
    loss = rpc.rpc_sync("a", torch.mul, args=(values[0], torch.ones(2))).sum()
    autograd.backward(number, [loss + values[2].sum()])
    optimizer.step(number)
assert torch.stack(values).tolist() == [[0.5, 0.5], [1, 1], [1, 1]]
assert all(value.grad is None for value in values)
print(theirs._new_script_local_optimizer.__module__, optimizer.is_functional_optim)
del optimizer, references
rpc.shutdown()
"""


@pytest.mark.parametrize("begin", [LATER, BEFORE])
def test_it_moves_what_has_gradients_and_no_more(begin: str, tmp_path: object) -> None:
    """Proves TO-1."""
    told = run("-W", "ignore", "-c", CACHE + begin + STEP, f"{tmp_path}/store")
    assert told.split() == ["holdfast.torch_compat.autograd.optimizer", "True"]
