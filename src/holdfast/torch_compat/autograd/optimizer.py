"""torch's DistributedOptimizer, without TorchScript.

torch compiles its local optimizers, so that they ask torch's own binding for gradients, and passes
references into compiled functions; neither reaches us. What it compiles is plain Python as well. So
that is run: the same functional optimizers, by the same steps.

Guarantees
    TO-1  torch's module is patched when it is imported, by any importer, and at once if it has
          been.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from holdfast.torch_compat.after import AfterImport

__all__ = ["mend_when_imported", "new_local_optimizer", "step_local_optimizer"]

NAME = "torch.distributed.optim.optimizer"


def new_local_optimizer(optim_cls: Any, local_params_rref: Any, *args: Any, **kwargs: Any) -> Any:
    """Make an optimizer of what lives at this worker; return a reference to it."""
    kind = importlib.import_module(NAME)._ScriptLocalOptimizer
    return torch.distributed.rpc.RRef(kind(optim_cls, local_params_rref, *args, **kwargs))


def step_local_optimizer(local_optim_rref: Any, autograd_ctx_id: int) -> None:
    """Let it do a step, by the gradients of a context."""
    with sys.modules[NAME]._ScriptLocalOptimizer.compile_lock:
        local_optim_rref.local_value().step(autograd_ctx_id)


def mend_when_imported() -> None:
    """Put these in place of what torch compiles (TO-1)."""
    module = sys.modules.get(NAME)
    if module is None:
        AfterImport(NAME, _mend)
    else:
        _mend(module)


def _mend(module: Any) -> None:
    module._new_script_local_optimizer = new_local_optimizer
    module._script_local_optimizer_step = step_local_optimizer
