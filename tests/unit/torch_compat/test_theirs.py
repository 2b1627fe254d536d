"""What stays torch's own."""

from __future__ import annotations

import torch

from holdfast.torch_compat.theirs import THEIRS, THEIRS_FAULTY, TheirWorkerInfo


def test_it_is_torchs_binding_whatever_is_bound_now() -> None:
    assert TheirWorkerInfo is torch.distributed.rpc.WorkerInfo
    assert THEIRS.TensorPipeAgent.__module__ == "torch._C._distributed_rpc"
    assert issubclass(
        THEIRS_FAULTY.FaultyTensorPipeRpcBackendOptions, THEIRS._TensorPipeRpcBackendOptionsBase
    )
