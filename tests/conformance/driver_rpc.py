"""torch's own tests of its RPC, from its wheel, as classes that pytest finds."""

from __future__ import annotations

from torch.testing._internal.distributed.rpc.rpc_test import RpcTest, TensorPipeAgentRpcTest
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (
    TensorPipeRpcAgentTestFixture,
)
from torch.testing._internal.distributed.rpc_utils import generate_tests

from tests.conformance import forking  # noqa: F401

globals().update(
    generate_tests(
        "TensorPipe",
        TensorPipeRpcAgentTestFixture,
        [RpcTest, TensorPipeAgentRpcTest],
        __name__,
    )
)
