"""The modules that stand in for torch's binding."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.torch_compat.rpc_binding import FAULTY_NAMES, RPC_NAMES, stand_ins
from holdfast.torch_compat.theirs import THEIRS, THEIRS_FAULTY


def test_they_have_torchs_names_and_no_others() -> None:
    found = stand_ins()
    for name, theirs in (("_distributed_rpc", THEIRS), ("_distributed_rpc_testing", THEIRS_FAULTY)):
        assert set(vars(found[name])) == set(vars(theirs))
        assert found[name].__name__ == f"torch._C.{name}"


def test_what_calls_is_ours_and_what_describes_is_torchs() -> None:
    assert set(vars(THEIRS)) >= set(RPC_NAMES)
    assert set(vars(THEIRS_FAULTY)) >= set(FAULTY_NAMES)
    ours = stand_ins()["_distributed_rpc"]
    for name in set(vars(THEIRS)) - {"__doc__", "__name__", "__loader__", "__spec__"}:
        assert (getattr(ours, name) is getattr(THEIRS, name)) == (name not in RPC_NAMES), name
    calling = {name for name in vars(THEIRS) if name.startswith("_invoke")}
    assert calling <= set(RPC_NAMES)


def test_what_runs_at_others_is_not_profiled_and_says_so() -> None:
    names = stand_ins()["_distributed_rpc"]
    with pytest.warns(UserWarning, match="profile each worker by itself"):
        names.RemoteProfilerManager.set_current_profiling_key("key")
    with pytest.raises(UsageError, match="not profiled as a whole"):
        names._enable_server_process_global_profiler(None)


def test_nothing_is_cleaned_up() -> None:
    stand_ins()["_distributed_rpc"]._cleanup_python_rpc_handler()
