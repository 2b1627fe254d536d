"""What stays torch's own of the modules that we stand in for: `torch._C._distributed_rpc*`.

Options, names and constants mean the same with us, so they are left as they are. Importing this
file takes hold of them, before anything is put in their place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.rpc
from torch._C import _distributed_autograd as THEIRS_AUTOGRAD  # noqa: N812
from torch._C import _distributed_rpc as THEIRS  # noqa: N812  # a module that is data here

__all__ = ["THEIRS", "THEIRS_AUTOGRAD", "THEIRS_FAULTY", "TheirWorkerInfo"]


def _faulty() -> Any:
    if not hasattr(torch._C, "_distributed_rpc_testing"):
        torch._C._faulty_agent_init()
    return torch._C._distributed_rpc_testing


THEIRS_FAULTY = _faulty()
TheirWorkerInfo = THEIRS.WorkerInfo
