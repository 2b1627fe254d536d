"""torch's own RPC tests pass with ours: the faulty agent's, and a sample of the others.

All of them, beside torch: `make conformance`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.run import run_side
from tests.torch_versions import needs_newest

LIMIT_S = 1200.0  # two minutes are usual
FAULTY = {"FaultyAgentRpcTest": 20, "FaultyAgentDistAutogradTest": 2}
SAMPLE = {
    "RpcTest": (
        "test_add",
        "test_all_gather",
        "test_async_function_chained_remote",
        "test_callback_in_rpc",
        "test_init_pg_then_rpc",
        "test_nested_rref",
        "test_py_raise_in_user_func",
        "test_rpc_barrier_subset",
        "test_rref_leak",
        "test_rref_proxy_class",
        "test_user_rrefs_confirmed_remote",
    ),
    "TensorPipeAgentRpcTest": (
        "test_dynamic_rpc_init_rpc_without_rank",
        "test_infer_backend_from_options",
        "test_nested_remote_sparse",
    ),
    "DistAutogradTest": (
        "test_backward_node_failure_python_udf",
        "test_context_cleanup_nested_rpc",
        "test_graph_for_py_nested_remote_call",
        "test_trainer_ps",
    ),
    "TensorPipeAgentDistAutogradTest": ("test_backward_simple_sparse",),
    "DistOptimizerTest": ("test_dist_optim",),
    "JitRpcTest": ("test_torchscript_function_exception",),
    "ThreeWorkersRemoteModuleTest": ("test_send_remote_module_over_the_wire",),
}


@needs_newest
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_faulty_agents_tests_and_a_sample_of_the_others_pass(tmp_path: Path) -> None:
    sample = [f"{name}::{test}" for name, tests in SAMPLE.items() for test in tests]
    became = run_side("ours", [*FAULTY, *sample], tmp_path, limit_s=LIMIT_S)
    assert {test: why for test, (outcome, why) in became.items() if outcome != "passed"} == {}
    assert became.keys() >= set(sample)
    for name, count in FAULTY.items():
        assert sum(test.startswith(f"{name}::") for test in became) == count


@pytest.mark.timeout(LIMIT_S + 60)
def test_workers_that_are_started_anew_have_it_too(tmp_path: Path) -> None:
    test = "RemoteModuleTest::test_get_module_rref"  # of two workers
    became = run_side("ours", [test], tmp_path, limit_s=LIMIT_S, spawn=True)
    assert {name: outcome for name, (outcome, _) in became.items()} == {test: "passed"}
