"""The modules that stand in for torch's binding: of RPC, of its tests, and of autograd over it.

torch's Python above the binding stays as it is: it is what programs and torch's tests use, with
every text and every private helper. Below are the names that mean something else with us; all
others (options, constants, `WorkerInfo`) stay torch's own.
"""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any, NoReturn

from holdfast.errors import UsageError
from holdfast.torch_compat.autograd_binding import AUTOGRAD_NAMES
from holdfast.torch_compat.rpc import agents, calls
from holdfast.torch_compat.rpc.rrefs import PyRRef
from holdfast.torch_compat.theirs import THEIRS, THEIRS_AUTOGRAD, THEIRS_FAULTY

__all__ = ["CALLER_ALONE", "FAULTY_NAMES", "RPC_NAMES", "stand_ins"]

CALLER_ALONE = (
    "holdfast.torch_compat: the profiler sees what this worker does, and nothing of what its calls "
    "do at other workers: profile each worker by itself"
)


class _NoProfiler:
    """Says that what runs at others is not seen from here, when torch's legacy profiler asks.

    A warning, as torch itself has it for its other profiler: what the caller does is seen.
    """

    @staticmethod
    def set_current_profiling_key(key: str) -> None:
        """Forget the key of a call."""
        warnings.warn(CALLER_ALONE, stacklevel=2)


def _no_profiler(*args: Any) -> NoReturn:
    """Refuse to profile what other workers have called here."""
    raise UsageError(
        "calls of other workers at this one are not profiled as a whole by holdfast: "
        "use torch.profiler.profile within the functions that they call"
    )


def _nothing() -> None:
    """Clean nothing up: there is nothing."""


RPC_NAMES: dict[str, Any] = {
    "PyRRef": PyRRef,
    "RemoteProfilerManager": _NoProfiler,
    "RpcAgent": agents.RpcAgent,
    "TensorPipeAgent": agents.TensorPipeAgent,
    "_cleanup_python_rpc_handler": _nothing,
    "_delete_all_user_and_unforked_owner_rrefs": agents.delete_references,
    "_destroy_rref_context": agents.destroy_references,
    "_disable_server_process_global_profiler": _no_profiler,
    "_enable_server_process_global_profiler": _no_profiler,
    "_get_current_rpc_agent": agents.current,
    "_invoke_remote_builtin": calls.invoke_remote_builtin,
    "_invoke_remote_python_udf": calls.invoke_remote_python_udf,
    "_invoke_remote_torchscript": calls.invoke_remote_torchscript,
    "_invoke_rpc_builtin": calls.invoke_rpc_builtin,
    "_invoke_rpc_python_udf": calls.invoke_rpc_python_udf,
    "_invoke_rpc_torchscript": calls.invoke_rpc_torchscript,
    "_is_current_rpc_agent_set": agents.is_set,
    "_reset_current_rpc_agent": agents.reset,
    "_rref_context_get_debug_info": agents.reference_counts,
    "_set_and_start_rpc_agent": agents.set_and_start,
    "_set_rpc_timeout": agents.set_rpc_timeout,
    "enable_gil_profiling": agents.enable_gil_profiling,
    "get_rpc_timeout": agents.get_rpc_timeout,
}
FAULTY_NAMES: dict[str, Any] = {"FaultyTensorPipeAgent": agents.FaultyTensorPipeAgent}


def _stand_in(theirs: ModuleType, names: dict[str, Any]) -> ModuleType:
    """Return a module of the same name, with torch's names except for these."""
    module = ModuleType(theirs.__name__, "Stands in for torch's, by holdfast.")
    module.__dict__.update(theirs.__dict__, **names)
    return module


def stand_ins() -> dict[str, ModuleType]:
    """Return the modules, by name."""
    return {
        "_distributed_autograd": _stand_in(THEIRS_AUTOGRAD, AUTOGRAD_NAMES),
        "_distributed_rpc": _stand_in(THEIRS, RPC_NAMES),
        "_distributed_rpc_testing": _stand_in(THEIRS_FAULTY, FAULTY_NAMES),
    }
